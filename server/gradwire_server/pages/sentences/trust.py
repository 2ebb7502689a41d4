"""How fresh the numbers are, who reports them and what they cost."""

from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import RunSummary, RunView, TrustView


def status(words: Wording, view: RunSummary) -> str:
    """Return the run's status in words: since when, and for a failure also of what."""
    if view.status.name == "failed" and view.status.detail:
        return words.say("{status}: {detail}", status=short_status(words, view), detail=view.status.detail)
    return short_status(words, view)


def short_status(words: Wording, view: RunSummary) -> str:
    """Return the run's status with the time since which it holds where that matters."""
    since = words.clock(view.status.since)
    return {
        "running": words.say("Running"),
        "silent": words.say("No data since {time}", time=since),
        "lost": words.say("No contact since {time}", time=since),
        "finished": words.say("Finished at {time}", time=since),
        "failed": words.say("Failed at {time}", time=since),
        "interrupted": words.say("Interrupted at {time}", time=since),
    }[view.status.name]


def position(words: Wording, view: RunSummary) -> str:
    """Return the step, of how many where that is known."""
    if view.total_steps is None:
        return words.say("step {step}", step=words.number(view.step))
    return words.say("step {step} of {total}", step=words.number(view.step), total=words.number(view.total_steps))


def compression_now(words: Wording, view: RunView) -> str:
    """Return the method in use, on how many ranks and since when."""
    ranks = words.ranks(view.summary.world_size, view.summary.device)
    values = {"codec": view.plan.codec, "ranks": ranks, "step": words.number(view.codec_since_step)}
    if view.plan.codec == "none":
        return words.say("Uncompressed on {ranks}", **values)
    if view.codec_since_step == 0:
        return words.say("{codec} on {ranks}", **values)
    return words.say("{codec} on {ranks} since step {step}", **values)


def trust(words: Wording, view: RunView) -> list[str]:
    """Return the parts of the trust line: age, nodes reporting, Gradwire's own cost, losses, wrong copies."""
    parts = *_reports(words, view.trust), _cost(words, view.trust), _losses(words, view), _copies(words, view.trust)
    return [part for part in parts if part]


def _reports(words: Wording, view: TrustView) -> tuple[str, str]:
    if view.age_seconds is None:
        return words.say("No data so far"), ""
    age = words.say("Data {age} old", age=words.duration(max(0.0, view.age_seconds), digits=0))
    reporting = words.say_many(
        "{reporting} of {count} node reporting",
        "{reporting} of {count} nodes reporting",
        view.num_nodes,
        reporting=words.number(view.num_nodes_reporting),
    )
    return age, reporting


def _cost(words: Wording, view: TrustView) -> str:
    if view.agent_cost.value is None:
        return words.say("Gradwire's own cost is not measured yet")
    cost = view.agent_cost.value
    return words.say("Gradwire itself takes {cost} of a step", cost=words.percent(cost, 2 if cost < 0.001 else 1))


def _losses(words: Wording, view: RunView) -> str:
    if not view.trust.num_dropped:
        return ""
    return words.say_many("{count} record was dropped", "{count} records were dropped", view.trust.num_dropped)


def _copies(words: Wording, view: TrustView) -> str:
    if not view.differing_parameter:
        return ""
    return words.say("Copies of the model differ, first in {parameter}", parameter=view.differing_parameter)
