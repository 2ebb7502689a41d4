"""The figure of a user metric, such as the loss."""

from collections.abc import Sequence

import plotly.graph_objects as go

from gradwire_server.figures.drawing import Say, add_switches, add_verticals, frame, literal
from gradwire_server.figures.themes import PALETTES, Theme
from gradwire_server.series.points import PointBucket
from gradwire_server.series.windows import Stretch

# Each is a shape of its own in the page; the count tells of all.
MAX_NONFINITE_MARKS = 50


def metric(
    buckets: Sequence[PointBucket],
    baseline: tuple[str, Sequence[PointBucket]] | None,
    stretches: Sequence[Stretch],
    theme: Theme,
    say: Say,
    *,
    name: str,
) -> go.Figure:
    """Return a metric over steps: its mean, the band from minimum to maximum, and the baseline's mean beside it.

    A value that is not finite is a gap with a mark, and counted; it is never drawn as 0.

    Args:
        buckets: The metric, ascending by step.
        baseline: Name and metric of the chosen baseline run.
        stretches: For the switches.
        theme: "light" or "dark".
        say: Of the reader's language.
        name: Of the metric.
    """
    palette = PALETTES[theme]
    figure = frame(theme, say, unit=literal(name))
    figure.update_yaxes(rangemode="normal")
    figure.update_layout(showlegend=baseline is not None)
    # Several steps, or several ranks at one.
    if any(bucket.min != bucket.max for bucket in buckets):
        _add_band(figure, buckets, palette.band, say)
    if baseline is not None:
        _add_line(figure, baseline[1], literal(baseline[0]), palette.neutral, "dash")
    _add_line(figure, buckets, literal(name), palette.accent, "solid")
    add_switches(figure, theme, say, stretches)
    _add_nonfinite(figure, buckets, palette.trouble, say)
    return figure


def _add_line(figure: go.Figure, buckets: Sequence[PointBucket], name: str, color: str, dash: str) -> None:
    is_single = len(buckets) == 1
    figure.add_scatter(
        x=[bucket.last_step for bucket in buckets],
        y=[bucket.mean for bucket in buckets],
        name=name,
        # A lone point has no line.
        mode="markers" if is_single else "lines",
        connectgaps=False,
        line={"width": 1.75, "color": color, "dash": dash},
        marker={"color": color},
    )


def _add_band(figure: go.Figure, buckets: Sequence[PointBucket], color: str, say: Say) -> None:
    edges = ((say("Largest"), "max", "none"), (say("Smallest"), "min", "tonexty"))
    for label, name, fill in edges:
        figure.add_scatter(
            x=[bucket.last_step for bucket in buckets],
            y=[getattr(bucket, name) for bucket in buckets],
            name=label,
            mode="lines",
            connectgaps=False,
            line={"width": 0},
            fill=fill,
            fillcolor=color,
            showlegend=False,
        )


def _add_nonfinite(figure: go.Figure, buckets: Sequence[PointBucket], color: str, say: Say) -> None:
    spoiled = [bucket for bucket in buckets if bucket.num_nonfinite]
    if not spoiled:
        return
    steps = [bucket.last_step for bucket in spoiled[-MAX_NONFINITE_MARKS:]]
    add_verticals(figure, steps, color=color, dash="solid")
    count = sum(bucket.num_nonfinite for bucket in spoiled)
    figure.add_annotation(
        text=say("{count} non-finite", count=count),
        font={"size": 12, "color": color},
        showarrow=False,
        xref="paper",
        yref="paper",
        x=1,
        y=1,
        xanchor="right",
        yanchor="top",
    )
