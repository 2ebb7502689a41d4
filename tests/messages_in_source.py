"""Finds every message that pages can say: in Python, in templates, and in the lists of reasons."""

import ast
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from gradwire_protocol.codecs import CATALOGUE
from gradwire_server.pages.rendering import environment
from gradwire_server.verdict import reasons
from jinja2.ext import extract_from_ast

# A message, or singular and plural of one.
Message = str | tuple[str, str]


def messages_in_source() -> set[Message]:
    """Return all messages; a translation is needed for each of them, and for nothing else."""
    found: set[Message] = set(reasons.ALL)
    found.update(parameter.direction for spec in CATALOGUE.values() for parameter in spec.parameters)
    for path in Path(str(files("gradwire_server"))).rglob("*.py"):
        found.update(_in_python(ast.parse(path.read_text())))
    jinja = environment()
    for name in jinja.list_templates():
        assert jinja.loader is not None
        source, _, _ = jinja.loader.get_source(jinja, name)
        for _, function, arguments in extract_from_ast(jinja.parse(source), ("say", "say_many"), babel_style=False):
            found.add(_message(function, arguments))
    return found


def _in_python(tree: ast.AST) -> Iterator[Message]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function in ("say", "say_many"):
            arguments = [part.value if isinstance(part, ast.Constant) else None for part in node.args]
            yield _message(function, arguments)


def _message(function: str, arguments: object) -> Message:
    texts = [text for text in (arguments if isinstance(arguments, list | tuple) else [arguments]) if text]
    if function == "say":
        assert len(texts) == 1, f"say() takes one literal message, got {arguments!r}"
        return str(texts[0])
    assert len(texts) >= 2, f"say_many() takes two literal messages, got {arguments!r}"
    return str(texts[0]), str(texts[1])
