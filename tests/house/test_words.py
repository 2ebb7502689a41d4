"""Words that must not stand in the project."""

import re
from pathlib import Path

import pytest
from house.tree import ROOT, tracked_files

# Assembled, so that this file does not hold what it forbids.
FORBIDDEN = {
    "a path of somebody's machine": re.compile("/" + r"(?:home|root|Users|work|farm)" + "/[a-z]"),
    "a package registry's address": re.compile(
        "pypi" + r"\.org|files\.python" + "hosted|--(?:extra-)?index" + "-url"
    ),
    "a conflict marker": re.compile("^(?:<{7}|>{7}) ", re.MULTILINE),
    "a secret": re.compile("BEGIN [A-Z ]*PRIVATE" + " KEY"),
}
TEXT_SUFFIXES = (".py", ".md", ".toml", ".txt", ".yml", ".sh", ".c", ".h", ".js", ".css", ".html", ".json", ".cfg")


def offences(text: str) -> list[str]:
    return [f"{what}: {match[0]}" for what, pattern in FORBIDDEN.items() for match in pattern.finditer(text)]


def test_files_hold_no_forbidden_words() -> None:
    files = [path for path in tracked_files() if path.suffix in TEXT_SUFFIXES and "vendor" not in path.parts]
    assert files
    found = {str(path): offences((ROOT / path).read_text()) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("text", ["see /" + "home/ada/model", "pip --index" + "-url x", "<" * 7 + " HEAD"])
def test_a_forbidden_word_is_found(text: str) -> None:
    assert offences(text)


def test_documents_of_the_top_level_exist() -> None:
    wanted = ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "LICENSE")
    assert [name for name in wanted if not (ROOT / name).stat().st_size] == []
    assert "Apache License" in (ROOT / Path("LICENSE")).read_text()
