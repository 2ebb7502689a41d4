"""The two looks of every figure; the colours are those of the pages' style sheet."""

from typing import Literal

import plotly.graph_objects as go
from msgspec import Struct

Theme = Literal["light", "dark"]

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "PingFang SC", "Noto Sans CJK SC", sans-serif'


class Palette(Struct, frozen=True, kw_only=True):
    """Colours by what they stand for."""

    ink: str
    soft: str
    line: str
    accent: str
    band: str
    neutral: str
    trouble: str
    surface: str
    # By part of the step: quiet greys for computation, the accent for what compression can save.
    parts: dict[str, str]


PALETTES: dict[Theme, Palette] = {
    "light": Palette(
        ink="#15181c",
        soft="#555c65",
        line="#e0e2e4",
        accent="#00696a",
        band="rgba(0, 105, 106, 0.16)",
        neutral="#7d858e",
        trouble="#a4261d",
        surface="#f3f4f3",
        parts={
            "data_wait": "#c7a55b",
            "forward": "#aab2bb",
            "backward": "#838d98",
            "optimizer": "#c9ced3",
            "other": "#e3e6e8",
            "codec": "#5b5fa8",
            "transfer": "#00696a",
            "wait": "#8fc5c3",
            "unsplit": "#4f9695",
        },
    ),
    "dark": Palette(
        ink="#e8eaec",
        soft="#a3abb3",
        line="#2b3035",
        accent="#5fc9c5",
        band="rgba(95, 201, 197, 0.18)",
        neutral="#8c949c",
        trouble="#ff9d91",
        surface="#1b1f22",
        parts={
            "data_wait": "#a98a45",
            "forward": "#6b747d",
            "backward": "#8c949c",
            "optimizer": "#4d555c",
            "other": "#343a40",
            "codec": "#8f93e0",
            "transfer": "#5fc9c5",
            "wait": "#2f7775",
            "unsplit": "#479f9c",
        },
    ),
}


def template(theme: Theme) -> go.layout.Template:
    """Return the template of a theme: transparent paper, hairlines, tabular figures, room for the legend above."""
    palette = PALETTES[theme]
    axis = {
        "gridcolor": palette.line,
        "linecolor": palette.line,
        "zerolinecolor": palette.line,
        "tickcolor": palette.line,
        "title": {"font": {"size": 12, "color": palette.soft}},
        "tickfont": {"size": 12, "color": palette.soft},
        "automargin": True,
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 13, "color": palette.ink},
            "paper_bgcolor": "rgba(0, 0, 0, 0)",
            "plot_bgcolor": "rgba(0, 0, 0, 0)",
            "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
            "hovermode": "x unified",
            "hoverlabel": {"bgcolor": palette.surface, "bordercolor": palette.line, "font": {"color": palette.ink}},
            "legend": {
                "orientation": "h",
                "traceorder": "normal",
                "x": 0,
                # Above the names of the switches.
                "y": 1.1,
                "yanchor": "bottom",
                "font": {"size": 12},
            },
            "xaxis": {**axis, "showgrid": False, "showline": True},
            "yaxis": axis,
        }
    )
