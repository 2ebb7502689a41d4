"""What became of a change: the line below the rollback button, the last change, the question before turning on."""

from dataclasses import dataclass

from gradwire_protocol.codecs import CATALOGUE

from gradwire_server.pages.sentences.guard import guard_reason
from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import CodecChoice, DirectiveView, RunView
from gradwire_server.verdict import reasons

# Ranks answer within a step or two; who waits longer than this must hear of the way that needs no server.
NO_ANSWER_SECONDS = 30.0

OPEN_STATES = ("requested", "delivered")
ENDED_STATES = ("finished", "failed", "interrupted")


def rollback_line(words: Wording, view: RunView) -> str:
    """Return the line below the rollback button: what it does, or what the last click has come to."""
    change = view.last_change
    if change is not None and is_rollback_current(view, change):
        return _rollback(words, view, change)
    if view.summary.status.name in ENDED_STATES:
        return words.say("This run has ended; there is nothing to roll back.")
    if view.plan.codec == "none" and not (change is not None and change.state in OPEN_STATES):
        return already_uncompressed(words, view)
    if view.summary.device == "cpu":
        promise = words.say("One click, all processes at the same step.")
    else:
        promise = words.say("One click, all GPUs at the same step.")
    return words.join((promise, words.say("Training goes on; weights are not changed back.")))


def is_rollback_current(view: RunView, change: DirectiveView) -> bool:
    """Return whether a rollback is what the button's line is about: a later start may have compressed again."""
    is_over = change.state == "superseded" or (change.state == "applied" and view.plan.codec != "none")
    return change.kind == "rollback" and not is_over


def already_uncompressed(words: Wording, view: RunView) -> str:
    """Return what a rollback has to say when there is nothing to do."""
    if view.codec_since_step == 0:
        return words.say("Uncompressed since the start.")
    return words.say("Already uncompressed since step {step}.", step=words.number(view.codec_since_step))


def _rollback(words: Wording, view: RunView, change: DirectiveView) -> str:
    if change.state in OPEN_STATES:
        return _open(words, view, change)
    if change.state == "applied":
        return _applied_rollback(words, view, change)
    if change.state == "rejected":
        still = words.say("Compression is still on everywhere.") if view.plan.codec != "none" else ""
        return words.join((_refused(words, view, change), still))
    return words.say("Not applied: the training ended or started again before it answered.")


def _open(words: Wording, view: RunView, change: DirectiveView) -> str:
    waited = words.now - change.requested_at
    if waited >= NO_ANSWER_SECONDS:
        may_be_on = words.say("Compression may still be on.") if view.plan.codec != "none" else ""
        return words.join(
            (
                words.say("No answer for {waited}.", waited=words.duration(waited)),
                may_be_on,
                words.say("On any node of this run type: gradwire rollback --local"),
            )
        )
    if change.state == "delivered":
        return confirmations(words, view, change)
    return words.say(
        "Rollback requested by {who} at {time}. Waiting for the training to answer.",
        who=change.author,
        time=words.clock(change.requested_at),
    )


def confirmations(words: Wording, view: RunView, change: DirectiveView) -> str:
    """Return how many ranks have confirmed an open change."""
    values = {"confirmed": words.number(change.num_ranks_confirmed), "all": words.number(_num_ranks(view, change))}
    if view.summary.device == "cpu":
        return words.say("{confirmed} of {all} processes have confirmed.", **values)
    return words.say("{confirmed} of {all} GPUs have confirmed.", **values)


def _applied_rollback(words: Wording, view: RunView, change: DirectiveView) -> str:
    step = words.number(change.step or 0)
    if change.cause == "guard":
        return words.join(
            (
                words.say(
                    "Rolled back automatically at step {step}: {reason}.",
                    step=step,
                    reason=guard_reason(words, change.reason),
                ),
                words.say("Compression stays off until someone turns it on."),
            )
        )
    if change.cause == "local":
        return words.say(
            "Uncompressed on all {ranks} since step {step}, rolled back on a node itself.",
            ranks=_ranks(words, view, change),
            step=step,
        )
    return _on_all(words, view, change)


def _on_all(words: Wording, view: RunView, change: DirectiveView) -> str:
    values = {
        "codec": words.codec(change.codec),
        "ranks": _ranks(words, view, change),
        "step": words.number(change.step or 0),
        "seconds": "" if change.seconds is None else words.seconds(change.seconds),
    }
    if change.codec == "none":
        if change.seconds is None:
            return words.say("Uncompressed on all {ranks} since step {step}.", **values)
        return words.say("Uncompressed on all {ranks} since step {step}, {seconds} after the click.", **values)
    if change.seconds is None:
        return words.say("{codec} on all {ranks} since step {step}.", **values)
    return words.say("{codec} on all {ranks} since step {step}, {seconds} after the click.", **values)


def _refused(words: Wording, view: RunView, change: DirectiveView) -> str:
    if not change.refusals:
        return words.join((words.say("Not applied."), words.say("The training refused it.")))
    refusals = [
        words.say(
            "{rank} on {host} refused: {reason}.",
            rank=words.rank(refusal.rank, view.summary.device),
            host=refusal.host,
            reason=refusal.reason.rstrip("."),
        )
        for refusal in change.refusals[:3]
    ]
    return words.join((words.say("Not applied."), *refusals))


def state_line(words: Wording, view: RunView, change: DirectiveView) -> str:
    """Return what became of a change, of either kind."""
    if change.kind == "rollback":
        return _rollback(words, view, change)
    if change.state == "requested":
        if words.now - change.requested_at >= NO_ANSWER_SECONDS:
            return words.say("No answer for {waited}.", waited=words.duration(words.now - change.requested_at))
        return words.say("Requested. Waiting for the training to answer.")
    return {
        "delivered": lambda: confirmations(words, view, change),
        "applied": lambda: _on_all(words, view, change),
        "rejected": lambda: _refused(words, view, change),
        "superseded": lambda: words.say("Replaced by a later change before it was applied."),
        "expired": lambda: words.say("Not applied: the training ended or started again before it answered."),
    }[change.state]()


def last_change(words: Wording, view: RunView) -> str:
    """Return who changed what, when and what became of it; "" when nobody changed anything."""
    change = view.last_change
    if change is None:
        return ""
    reason = change.reason if change.cause == "directive" else ""
    quoted = words.say("Reason: {reason}.", reason=reason.rstrip(".。")) if reason else ""
    return words.join((_asked(words, change), state_line(words, view, change), quoted))


def _asked(words: Wording, change: DirectiveView) -> str:
    if change.cause != "directive":
        return ""
    values = {"who": change.author, "time": words.clock(change.requested_at), "codec": words.codec(change.codec)}
    if change.kind == "set":
        return words.say("{who} asked for {codec} at {time}.", **values)
    # The sentence about an open rollback names its author itself.
    return "" if change.state in OPEN_STATES else words.say("{who} rolled back at {time}.", **values)


@dataclass(frozen=True)
class Question:
    """What is asked before compression is turned on, and what to know for the answer."""

    asked: str
    details: str


def question(words: Wording, view: RunView, choice: CodecChoice) -> Question:
    """Return what is asked before compression is turned on."""
    ranks = words.ranks(view.summary.world_size, view.summary.device)
    return Question(
        words.say("Turn on {codec} on {ranks}?", codec=choice.name, ranks=ranks),
        words.join((_expectation(words, view, choice), _guard(words, view))),
    )


def _guard(words: Wording, view: RunView) -> str:
    """Return what goes back by itself; an agent that acts says nothing of its guard."""
    if reasons.GUARD_OFF in view.trust.notes:
        return words.say("Automatic rollback is off for this run: watch it yourself.")
    if reasons.GUARD_REPORTS in view.trust.notes:
        return words.say("Automatic rollback only reports in this run: the events say when it would have acted.")
    return words.say(
        "Goes back by itself if the loss or a gradient is not finite, the loss leaps, or gradients stop matching."
    )


def _expectation(words: Wording, view: RunView, choice: CodecChoice) -> str:
    speed = memory = ""
    if choice.expected_speedup is not None:
        speed = words.say("Expected {speedup} the speed", speedup=words.times(choice.expected_speedup, 1))
    if choice.extra_memory_bytes is not None:
        amount = words.bytes(choice.extra_memory_bytes)
        if view.summary.device == "cpu":
            memory = words.say("{amount} more memory per process", amount=amount)
        else:
            memory = words.say("{amount} more memory per GPU", amount=amount)
    if speed and memory:
        return words.say("{speed}; {memory}.", speed=speed, memory=memory)
    return words.say("{sentence}.", sentence=speed or memory) if speed or memory else ""


def refusal(words: Wording, view: RunView, choice: CodecChoice) -> str:
    """Return why a codec cannot be chosen and which one can instead; "" when it can be."""
    if not choice.refusal:
        return ""
    spec = CATALOGUE.get(choice.name)
    if spec is not None and spec.safe_optimizers and view.optimizer not in spec.safe_optimizers:
        why = words.say(
            "{codec} is known to be safe with {optimizers} only; this run uses {optimizer}.",
            codec=choice.name,
            optimizers=", ".join(spec.safe_optimizers),
            optimizer=view.optimizer or words.say("an unknown optimizer"),
        )
    else:
        why = words.say("{sentence}.", sentence=choice.refusal.rstrip(".。"))
    instead = words.say("Use {codec} instead.", codec=choice.safe_alternative) if choice.safe_alternative else ""
    return words.join((why, instead))


def _num_ranks(view: RunView, change: DirectiveView) -> int:
    return change.num_ranks or view.summary.world_size


def _ranks(words: Wording, view: RunView, change: DirectiveView) -> str:
    return words.ranks(_num_ranks(view, change), view.summary.device)
