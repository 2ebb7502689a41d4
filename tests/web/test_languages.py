"""Which language a browser gets, and that the catalogue says everything in it."""

import re
import string
from importlib.resources import files
from io import BytesIO

import pytest
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po
from gradwire_server.pages.languages import choose_language, languages
from messages_in_source import Message, messages_in_source


@pytest.mark.parametrize(
    ("asked", "remembered", "accepted", "code"),
    [
        (None, None, "", "en"),
        (None, None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, None, "de-DE,de;q=0.9,zh;q=0.5,en;q=0.4", "zh"),
        (None, None, "en-GB,zh;q=0.5", "en"),
        (None, None, "zh;q=0, en", "en"),
        (None, None, "zh;q=much, fr", "en"),
        (None, None, ";;,=;q", "en"),
        (None, "zh", "en", "zh"),
        ("en", "zh", "zh", "en"),
        ("xx", "zh", "en", "zh"),
        ("xx", "yy", "zh", "zh"),
    ],
)
def test_language_is_asked_for_then_remembered_then_accepted(
    asked: str | None, remembered: str | None, accepted: str, code: str
) -> None:
    assert choose_language(asked, remembered, accepted).code == code


def catalogue() -> Catalog:
    source = files("gradwire_web") / "locale" / "zh" / "LC_MESSAGES" / "gradwire.po"
    return read_po(BytesIO(source.read_bytes()), locale="zh", abort_invalid=True)


def translated() -> dict[Message, list[str]]:
    found: dict[Message, list[str]] = {}
    for message in catalogue():
        if message.id:
            texts = message.string if isinstance(message.string, tuple | list) else [message.string]
            found[message.id if isinstance(message.id, str) else tuple(message.id)] = [str(text) for text in texts]
    return found


def test_catalogue_has_exactly_what_pages_can_say() -> None:
    assert set(translated()) == messages_in_source()


def test_no_translation_is_empty_or_a_guess() -> None:
    assert all(text.strip() for texts in translated().values() for text in texts)
    assert not [message.id for message in catalogue() if message.id and message.fuzzy]


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_translations_keep_the_placeholders() -> None:
    # English says a second time as a mere number where Chinese repeats the unit.
    same = {"present_number": "present"}
    for message, texts in translated().items():
        source = message if isinstance(message, str) else message[1]
        wanted = {same.get(name, name) for name in fields(source)}
        for text in texts:
            assert fields(text) == wanted, message


def test_translations_are_chinese_but_for_terms_in_tooltips() -> None:
    terms = {
        "attempt",
        "drift",
        "realised",
        "ranks",
        "exposed transfer share",
        "straggler wait",
        "{bytes}/s",
        "{confirmed} of {all}",
    }
    for message, texts in translated().items():
        words = re.sub(r"\{\w+\}", "", message if isinstance(message, str) else message[0])
        if message not in terms and re.search("[A-Za-z]", words):
            assert all(re.search(r"[\u4e00-\u9fff]", text) for text in texts), message


def test_chinese_speaks_of_itself_as_simplified_for_the_browser() -> None:
    assert languages()["zh"].tag == "zh-Hans"
    assert [language.code for language in languages().values()] == ["en", "zh"]
