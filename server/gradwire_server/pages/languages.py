"""The languages of the pages and which of them a browser gets.

The catalogue is a text file that translators edit; it is compiled in memory at start, so an installed package needs
no build step. English is the source text itself.
"""

import gettext
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from babel import Locale
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

DEFAULT = "en"


@dataclass(frozen=True)
class Language:
    """One language of the pages."""

    # As in the address, the cookie and the catalogue's folder.
    code: str
    # As in the `lang` attribute of HTML.
    tag: str
    # As its own speakers call it.
    name: str
    locale: Locale
    translations: gettext.NullTranslations


@cache
def languages() -> dict[str, Language]:
    """Return all languages by code, English first. Cost: parses the catalogues on the first call."""
    return {
        "en": Language("en", "en", "English", Locale.parse("en"), gettext.NullTranslations()),
        "zh": Language("zh", "zh-Hans", "中文", Locale.parse("zh_Hans_CN"), _load("zh")),
    }


def choose_language(asked: str | None, remembered: str | None, accepted: str) -> Language:
    """Return the language asked for in the address, else the remembered one, else the best the browser accepts.

    Args:
        asked: Code in the address, if any; an unknown one counts as none.
        remembered: Code in the cookie, likewise.
        accepted: The Accept-Language header, "" if absent.
    """
    known = languages()
    for code in (asked, remembered):
        if code in known:
            return known[code]
    for tag in _by_preference(accepted):
        code = tag.partition("-")[0].lower()
        if code in known:
            return known[code]
    return known[DEFAULT]


def _by_preference(accepted: str) -> list[str]:
    weighted = []
    for position, part in enumerate(accepted.split(",")):
        tag, _, parameters = part.strip().partition(";")
        weight = _weight(parameters)
        if tag and weight > 0:
            weighted.append((-weight, position, tag.strip()))
    return [tag for _, _, tag in sorted(weighted)]


def _weight(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _load(code: str) -> gettext.NullTranslations:
    source = files("gradwire_web") / "locale" / code / "LC_MESSAGES" / "gradwire.po"
    with source.open("rb") as text:
        catalogue = read_po(text, locale=code, abort_invalid=True)
    compiled = io.BytesIO()
    write_mo(compiled, catalogue)
    compiled.seek(0)
    return gettext.GNUTranslations(compiled)
