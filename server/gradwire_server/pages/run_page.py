"""What the template of a run's page is filled with."""

from typing import Any

from gradwire_protocol.codecs import CATALOGUE

from gradwire_server.pages import history, samples
from gradwire_server.pages.exchange import exchange
from gradwire_server.pages.facts import Fact
from gradwire_server.pages.loop import loop
from gradwire_server.pages.machines import compute_facts, machine_facts, node_rows, num_left_out
from gradwire_server.pages.sentences import change, next_step, quality, saving, trust, verdict
from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import CodecChoice, Measure, RunView


def run_context(words: Wording, view: RunView) -> dict[str, Any]:
    """Return the template's values; all text is plain and is escaped by the template."""
    summary, last = view.summary, view.last_change
    return {
        "run": view,
        "is_compressed": view.plan.codec != "none",
        "is_ended": summary.status.name in change.ENDED_STATES,
        "status": trust.status(words, summary),
        "position": trust.position(words, summary),
        "compression": trust.compression_now(words, view),
        "rollback_line": change.rollback_line(words, view),
        "reason_revision": _reason_revision(view),
        "verdict": verdict.verdict(words, summary.verdict),
        "figures": _figures(words, view),
        "stages": loop(words, view),
        "step_time": "–" if view.step_seconds.value is None else words.milliseconds(view.step_seconds.value),
        "facts": _communication(words, view),
        "next": next_step.next_step(words, view),
        "last_change": change.last_change(words, view),
        "last_change_is_open": last is not None and last.state in change.OPEN_STATES,
        "trust": trust.trust(words, view),
        "notes": [words.reason(note) for note in view.trust.notes],
        "choices": [_choice(words, view, choice) for choice in view.codecs],
        "changes": history.changes(words, view),
        "events": history.events(words, view),
        "attempt": _attempt(words, view),
        "nodes": node_rows(words, view),
        "num_left_out": num_left_out(view),
        "charts": _charts(words, view),
        "tried": samples.tried(words, view),
        "concentration": samples.concentration(words, view),
    }


def _reason_revision(view: RunView) -> int | None:
    """Return the change to which a reason can still be added below the button."""
    last = view.last_change
    is_rollback = last is not None and change.is_rollback_current(view, last) and last.cause == "directive"
    return last.revision if last is not None and is_rollback and not last.reason else None


def _figures(words: Wording, view: RunView) -> list[Fact]:
    ended = view.summary.status.name in change.ENDED_STATES
    drift = quality.quality(words, view.quality, can_choose=bool(view.baseline_choices))
    return [
        Fact(
            words.say("Ended") if ended else words.say("Finish date"),
            saving.finish_date(words, view),
            saving.finish_note(words, view),
        ),
        Fact(
            words.say("Saved so far"),
            saving.hours(words, view.saving.saved_hours, view.summary.device),
            saving.saving_note(words, view),
            words.say("realised"),
        ),
        Fact(words.say("Quality"), drift.state, drift.evidence, words.say("drift")),
    ]


def _communication(words: Wording, view: RunView) -> list[Fact]:
    unit = {
        "tokens": words.say("tokens/s"),
        "samples": words.say("samples/s"),
        "steps": words.say("steps/s"),
    }[view.throughput_unit]
    return [
        _measured(
            words,
            words.say("Communication/compute ratio"),
            view.communication_compute_ratio,
            lambda value: words.number(value, 2),
        ),
        _measured(
            words,
            words.say("Effective throughput"),
            view.throughput,
            lambda value: f"{words.compact(value)} {unit}",
        ),
        _bandwidth(words, view),
        _measured(
            words,
            words.say("Waiting for transfer, % of a step"),
            view.exposed_share,
            lambda value: words.percent(value, 1 if value < 0.1 else 0),
            words.say("The part that compression can give back"),
            words.say("exposed transfer share"),
        ),
        _waiting(words, view),
        _measured(
            words,
            words.say("All communication, % of a step"),
            view.raw_share,
            lambda value: words.percent(value, 1 if value < 0.1 else 0),
            words.say("With the part hidden behind computation"),
        ),
    ]


def _waiting(words: Wording, view: RunView) -> Fact:
    """Return the time spent waiting for slow ranks, and whom the others wait for."""
    is_cpu = view.summary.device == "cpu"
    name = words.say("Waiting for a slow process") if is_cpu else words.say("Waiting for a slow GPU")
    note = words.say("Compression cannot give this back")
    if view.waiting.straggler is not None:
        who = next_step.straggler(words, view.waiting.straggler, view.summary.device)
        note = words.say("The others wait for {who}", who=who)
    return _measured(
        words,
        name,
        view.waiting.share,
        lambda value: words.percent(value, 1 if value < 0.1 else 0),
        note,
        words.say("straggler wait"),
    )


def _measured(words: Wording, name: str, measure: Measure, show: Any, note: str = "", term: str = "") -> Fact:
    if measure.value is None:
        return Fact(name, "–", saving.because(words, measure.reason), term)
    return Fact(name, show(measure.value), note, term)


def _bandwidth(words: Wording, view: RunView) -> Fact:
    """Return the share of the link in use; without a known link, the plain speed."""
    name, speed = words.say("Bandwidth use"), view.wire_bytes_per_second.value
    per_second = None if speed is None else words.say("{bytes}/s", bytes=words.bytes(speed))
    if view.bandwidth_use.value is not None and per_second and view.link_bytes_per_second:
        link = words.say("{bytes}/s", bytes=words.bytes(view.link_bytes_per_second))
        note = words.enumerate((words.say("{speed} of {link}", speed=per_second, link=link), view.link_note))
        return Fact(name, words.percent(view.bandwidth_use.value), note)
    note = words.enumerate((saving.because(words, view.bandwidth_use.reason), view.link_note))
    return Fact(name, per_second or "–", note)


def _choice(words: Wording, view: RunView, choice: CodecChoice) -> dict[str, Any]:
    spec = CATALOGUE.get(choice.name)
    present = view.plan.parameters if choice.name == view.plan.codec else {}
    return {
        "name": choice.name,
        "label": _label(words, choice.name),
        "is_present": choice.name == view.plan.codec,
        "bits": _bits(words, choice.bits_per_element),
        "memory": "–" if choice.extra_memory_bytes is None else words.bytes(choice.extra_memory_bytes),
        "speed": "–" if choice.expected_speedup is None else words.times(choice.expected_speedup),
        "refusal": change.refusal(words, view, choice),
        "parameters": [
            {
                "name": parameter.name,
                "value": present.get(parameter.name, parameter.default),
                "low": parameter.low,
                "high": parameter.high,
                "step": "1" if parameter.kind == "int" else "any",
                "direction": words.reason(parameter.direction),
                "presets": [(value, words.percent(share)) for value, share in parameter.presets],
            }
            for parameter in (spec.parameters if spec else ())
        ],
    }


def _label(words: Wording, codec: str) -> str:
    if codec == "none":
        return words.say("Uncompressed")
    return words.say("{codec} (sparse)", codec=codec) if codec == "topk" else codec


def _bits(words: Wording, bits: float | None) -> str:
    if bits is None:
        return words.say("depends on the model")
    return words.number(bits, 0 if bits == int(bits) else 2)


def _attempt(words: Wording, view: RunView) -> list[Fact]:
    summary = view.summary
    return [
        Fact(words.say("Restart"), words.number(view.attempt_number), term=words.say("attempt")),
        Fact(words.say("Model"), view.model),
        Fact(
            words.say("Processes") if summary.device == "cpu" else words.say("GPUs"),
            words.number(summary.world_size),
            view.device_name,
            words.say("ranks"),
        ),
        Fact(words.say("Nodes"), words.number(view.trust.num_nodes)),
        Fact(words.say("Communication backend"), view.backend),
        Fact(words.say("Optimizer"), view.optimizer or "–"),
        Fact(
            words.say("Link"),
            "–"
            if view.link_bytes_per_second is None
            else words.say("{bytes}/s", bytes=words.bytes(view.link_bytes_per_second)),
            view.link_note,
        ),
        Fact(words.say("Gradient exchange"), *exchange(words, view)),
        Fact(words.say("Gradient match"), *samples.match(words, view)),
        Fact(words.say("Copies of the model"), *samples.copies(words, view), words.say("replicas")),
        Fact(words.say("Non-finite values"), words.number(view.num_nonfinite)),
        Fact(words.say("Project"), summary.project),
        *machine_facts(words, view),
        *compute_facts(words, view),
    ]


def _charts(words: Wording, view: RunView) -> list[tuple[str, str]]:
    """Return name and title of the figures, in order; the gradient match has one once it was sampled."""
    charts = [
        ("steps", words.say("Where a step goes")),
        ("throughput", words.say("Effective throughput")),
        ("loss", words.say("Loss")),
        ("bytes", words.say("Before compression / actually sent")),
    ]
    return charts if view.samples.match is None else [*charts, ("match", words.say("Gradient match"))]
