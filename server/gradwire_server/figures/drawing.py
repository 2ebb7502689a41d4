"""What all figures share: their frame, their x axis, texts that cannot be markup, and markers of switches."""

import html
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import plotly.graph_objects as go

from gradwire_server.figures.themes import PALETTES, Theme, template
from gradwire_server.series.windows import Stretch

# More would cover the chart; the newest are the ones that people look for.
MAX_MARKERS = 20
MAX_CODEC_CHARACTERS = 20


class Say(Protocol):
    """Says a message in the reader's language, as `Wording.say` does."""

    def __call__(self, message: str, /, **values: object) -> str:
        """Return the message translated, its placeholders filled in."""


def literal(text: str) -> str:
    """Return text that Plotly shows as it stands; it would take tags in names and titles for markup and links."""
    return html.escape(text, quote=False)


def frame(theme: Theme, say: Say, *, unit: str) -> go.Figure:
    """Return an empty figure over steps, with the unit of its y axis."""
    figure = go.Figure()
    figure.update_layout(template=template(theme), uirevision="gradwire", showlegend=True)
    figure.update_xaxes(title_text=say("Step"), rangemode="nonnegative", hoverformat=",d", tickformat=",d")
    figure.update_yaxes(title_text=unit, rangemode="tozero", hoverformat=".4~g")
    return figure


def add_switches(figure: go.Figure, theme: Theme, say: Say, stretches: Sequence[Stretch]) -> None:
    """Mark the steps at which the codec changed, with the codec from there on."""
    marked = switches(stretches)[-MAX_MARKERS:]
    palette = PALETTES[theme]
    add_verticals(figure, [step for step, _ in marked], color=palette.neutral, dash="dot")
    annotations = [
        {
            "text": say("Uncompressed") if codec == "none" else literal(codec[:MAX_CODEC_CHARACTERS]),
            "font": {"size": 11, "color": palette.soft},
            "showarrow": False,
            "x": step,
            "xanchor": "center",
            "yref": "paper",
            "y": 1,
            "yanchor": "bottom",
        }
        for step, codec in marked
    ]
    figure.update_layout(annotations=[*figure.layout.annotations, *annotations])


def add_checks(figure: go.Figure, theme: Theme, steps: Sequence[int]) -> None:
    """Tick the steps at which uncompressed checks began: they explain a dent and are no change."""
    add_verticals(figure, steps[-MAX_MARKERS:], color=PALETTES[theme].neutral, dash="solid", height=0.03)


def add_verticals(figure: go.Figure, steps: Sequence[int], *, color: str, dash: str, height: float = 1) -> None:
    """Draw a hairline at each of the steps, from the bottom up to a part of the figure's height."""
    shapes = [
        {
            "type": "line",
            "x0": step,
            "x1": step,
            "yref": "paper",
            "y0": 0,
            "y1": height,
            "line": {"width": 1, "color": color, "dash": dash},
        }
        for step in steps
    ]
    # All at once: adding one validates all that are there.
    figure.update_layout(shapes=[*figure.layout.shapes, *shapes])


def switches(stretches: Sequence[Stretch]) -> list[tuple[int, str]]:
    """Return step and codec of every change of codec, ascending by step; the first codec is not a change.

    A check window is none: the codec goes on after it.
    """
    lasting = [stretch for stretch in stretches if not stretch.is_check]
    ordered = sorted(lasting, key=lambda stretch: stretch.sums.first_step)
    changes = [(stretch.sums.first_step, stretch.codec) for stretch in ordered]
    return [after for before, after in pairwise(changes) if before[1] != after[1]]
