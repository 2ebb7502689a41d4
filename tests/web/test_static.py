"""The style sheet's contrasts, the vendored library, and the templates' own cleanliness."""

import re
from importlib.resources import files
from pathlib import Path

import pytest
from gradwire_web.vendor import BUNDLE, FOLDER, LICENSE, STYLE, style_rules
from plotly.offline import get_plotlyjs_version

WEB = Path(str(files("gradwire_web")))
STYLES = (WEB / "static" / "app.css").read_text()

# Text on its ground: WCAG 2.2 AA wants 4.5; marks that carry meaning want 3.
TEXT = [
    ("ink", "paper"),
    ("soft", "paper"),
    ("accent", "paper"),
    ("trouble", "paper"),
    ("accent-ink", "accent"),
    ("paper", "ink"),
    ("ink", "raised"),
]
MARKS = [("strong-line", "paper"), ("neutral", "paper"), ("accent", "paper")]


def palettes() -> dict[str, dict[str, str]]:
    """Return colours by name for light, dark by system and dark by choice."""
    blocks = {
        "light": STYLES[STYLES.index(":root {") :],
        "dark by system": STYLES[STYLES.index(":root:not(") :],
        "dark by choice": STYLES[STYLES.index(':root[data-theme="dark"] {') :],
    }
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text.split("}")[0])) for name, text in blocks.items()
    }


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark by system", "dark by choice"])
def test_contrasts_meet_wcag_aa(theme: str) -> None:
    colours = palettes()[theme]
    for text, ground in TEXT:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark, ground in MARKS:
        assert contrast(colours[mark], colours[ground]) >= 3, (mark, ground)


def test_both_ways_to_dark_are_the_same() -> None:
    assert palettes()["dark by system"] == palettes()["dark by choice"]
    assert set(palettes()["light"]) >= set(palettes()["dark by choice"])


def test_contrast_is_right_at_its_ends() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#777777") == 1


def test_chart_library_is_the_version_that_the_python_package_draws_for() -> None:
    bundle = (FOLDER / BUNDLE).read_text()
    assert f"plotly.js (basic - minified) v{get_plotlyjs_version()}" in bundle[:200]
    assert "MIT License" in (FOLDER / LICENSE).read_text()


def test_chart_style_sheet_is_what_the_library_would_inject() -> None:
    bundle = (FOLDER / BUNDLE).read_text()
    assert (FOLDER / STYLE).read_text() == style_rules(bundle)
    with pytest.raises(ValueError, match="no style rules"):
        style_rules("")


def test_nothing_in_templates_turns_escaping_off() -> None:
    templates = list((WEB / "templates").rglob("*.html"))
    assert len(templates) > 10
    for path in templates:
        assert not re.search(r"\|\s*safe|autoescape|Markup", path.read_text()), path


def test_scripts_ask_only_this_server() -> None:
    for path in (WEB / "static" / "js").glob("*.js"):
        assert not re.search(r"https?://|eval\(|new Function|document\.write", path.read_text()), path
