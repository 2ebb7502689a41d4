"""Write docs/compatibility.md from the marks of tests: `python -m docs.compatibility`."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
PINS = ROOT / "requirements" / "dev.txt"

HEAD = """\
# Compatibility

Written by `make docs` from the tests that prove it. Each row is a test with the real package in the version named,
on gloo, mostly with two processes. [Frameworks](frameworks.md) shows how each is used.

"""

# What a test may claim, in the order of the page.
CLAIMS = {
    "steered": "Measured and steered",
    "measured": "Measured, not steered",
    "unknown": "Neither measured nor steered",
}


@dataclass(frozen=True)
class Proof:
    """One mark of one test."""

    framework: str
    package: str
    claim: str
    proves: str
    path: Path
    test: str

    def row(self, version: str) -> str:
        """Return the proof as a row of its table."""
        path = self.path.relative_to(ROOT)
        return f"| {self.framework} | {self.package} {version} | {self.proves} | [{self.test}](../{path}) |"


def proofs() -> list[Proof]:
    """Return every mark below tests/, by file and place; nothing is imported.

    Raises:
        ValueError: A mark is not written with plain texts, or claims something that the page has no place for.
    """
    return [proof for path in sorted((ROOT / "tests").rglob("test_*.py")) for proof in _proofs_of(path)]


def _proofs_of(path: Path) -> Iterator[Proof]:
    tree = ast.parse(path.read_text())
    texts = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        for mark in function.decorator_list:
            if not (isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.compatibility"):
                continue
            told = {keyword.arg: _text(keyword.value, texts) for keyword in mark.keywords}
            proof = Proof(**{"claim": "steered", **told}, path=path, test=function.name)  # type: ignore[arg-type]
            if proof.claim not in CLAIMS:
                raise ValueError(f"{path}: {function.name} claims {proof.claim!r}; known: {', '.join(CLAIMS)}")
            yield proof


def _text(node: ast.expr, texts: Mapping[str, object]) -> str:
    value = texts.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
    if not isinstance(value, str):
        raise ValueError(f"{ast.unparse(node)} in a mark is not a plain text")
    return value


def versions() -> dict[str, str]:
    """Return the version of every package that CI runs."""
    return dict(re.findall(r"^([\w.-]+)==([\w.+-]+)", PINS.read_text(), re.MULTILINE))


def page() -> str:
    """Return the whole page."""
    found, pins = proofs(), versions()
    parts = [HEAD]
    for claim, title in CLAIMS.items():
        rows = [proof.row(pins[proof.package]) for proof in found if proof.claim == claim]
        parts.append(f"## {title}\n\n| with | version | what is proved | by |\n|---|---|---|---|\n")
        parts.append("".join(f"{row}\n" for row in rows) + "\n")
    return "".join(parts).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
