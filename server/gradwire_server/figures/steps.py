"""Figures of step windows: where the time of a step goes, throughput, and bytes."""

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from gradwire_server.figures.drawing import Say, add_switches, frame
from gradwire_server.figures.themes import PALETTES, Theme
from gradwire_server.series.sums import StepSums
from gradwire_server.series.windows import Stretch

MILLISECONDS = 1000.0
MEGABYTE = 1e6

Value = Callable[[StepSums], float]


def breakdown(
    buckets: Sequence[StepSums], stretches: Sequence[Stretch], theme: Theme, say: Say, *, device: str
) -> go.Figure:
    """Return the parts of a rank's step, stacked to its training time, in milliseconds.

    Args:
        buckets: Sums of steps, ascending.
        stretches: Of the same steps, for the switches.
        theme: "light" or "dark".
        say: Of the reader's language.
        device: "cpu" or "cuda", by which a slow rank is called.
    """
    figure = frame(theme, say, unit=say("ms per step"))
    slow = say("Waiting for a slow process") if device == "cpu" else say("Waiting for a slow GPU")
    parts: list[tuple[str, str, Value]] = [
        ("forward", say("Forward"), lambda bucket: bucket.forward),
        ("backward", say("Backward"), lambda bucket: bucket.backward),
        ("codec", say("Compress and decompress"), lambda bucket: bucket.exposed_codec),
        ("transfer", say("Waiting for transfer"), lambda bucket: bucket.exposed_transfer),
        ("wait", slow, lambda bucket: bucket.straggler_wait),
        ("unsplit", say("Communication, not told apart"), _unsplit),
        ("optimizer", say("Optimizer"), lambda bucket: bucket.optimizer),
        ("data_wait", say("Data loading"), lambda bucket: bucket.data_wait),
        ("other", say("Other"), lambda bucket: bucket.other),
    ]
    told = [bucket for bucket in buckets if bucket.num_rank_steps]
    for name, label, value in parts:
        seconds = [value(bucket) for bucket in told]
        if not any(seconds):
            # A part that this run does not have needs no entry in the legend.
            continue
        figure.add_scatter(
            x=_steps(told),
            y=[MILLISECONDS * second / bucket.num_rank_steps for second, bucket in zip(seconds, told, strict=True)],
            name=label,
            mode="lines",
            line={"width": 0.5, "color": PALETTES[theme].parts[name]},
            fillcolor=PALETTES[theme].parts[name],
            stackgroup="step",
        )
    add_switches(figure, theme, say, stretches)
    return figure


def _unsplit(bucket: StepSums) -> float:
    """Return the communication of steps whose split is unknown."""
    rest = bucket.exposed_communication - bucket.exposed_transfer - bucket.straggler_wait
    # Sums of the same parts in another order differ in their last digits.
    return rest if rest > 1e-6 * bucket.exposed_communication else 0.0


def throughput(buckets: Sequence[StepSums], stretches: Sequence[Stretch], theme: Theme, say: Say) -> go.Figure:
    """Return what all ranks get done in a second of training; arguments as `breakdown`."""
    told = [bucket for bucket in buckets if bucket.training > 0 and bucket.num_steps]
    if any(bucket.tokens for bucket in told):
        unit, count = say("tokens/s"), "tokens"
    elif any(bucket.samples for bucket in told):
        unit, count = say("samples/s"), "samples"
    else:
        unit, count = say("steps/s"), "num_steps"
    figure = frame(theme, say, unit=unit)
    figure.update_layout(showlegend=False)
    figure.add_scatter(
        x=_steps(told),
        # Seconds are sums over ranks that work at the same time.
        y=[getattr(bucket, count) * _num_ranks(bucket) / bucket.training for bucket in told],
        name=unit,
        mode="lines",
        line={"width": 1.75, "color": PALETTES[theme].accent},
    )
    add_switches(figure, theme, say, stretches)
    return figure


def bytes_sent(buckets: Sequence[StepSums], stretches: Sequence[Stretch], theme: Theme, say: Say) -> go.Figure:
    """Return what a rank asked to average in a step and what it sent for it, in MB; arguments as `breakdown`."""
    figure = frame(theme, say, unit=say("MB per step"))
    told = [bucket for bucket in buckets if bucket.num_rank_steps]
    lines = (
        (say("Before compression"), "logical_bytes", PALETTES[theme].neutral, "dash"),
        (say("Actually sent"), "wire_bytes", PALETTES[theme].accent, "solid"),
    )
    for label, name, color, dash in lines:
        figure.add_scatter(
            x=_steps(told),
            # None where no bytes were counted, as with a communication hook of the script's own.
            y=[getattr(bucket, name) / bucket.num_rank_steps / MEGABYTE or None for bucket in told],
            name=label,
            mode="lines",
            line={"width": 1.75, "color": color, "dash": dash},
        )
    add_switches(figure, theme, say, stretches)
    return figure


def _steps(buckets: Sequence[StepSums]) -> list[int]:
    return [(bucket.first_step + bucket.last_step) // 2 for bucket in buckets]


def _num_ranks(bucket: StepSums) -> float:
    return bucket.num_rank_steps / bucket.num_steps
