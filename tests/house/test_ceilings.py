"""A file is about one noun and a function about one thing: runaway ones are seen the day they happen."""

import ast
from pathlib import Path

from house.tree import ROOT, tracked_files

SOURCE_SUFFIXES = (".py", ".js", ".css", ".c", ".h", ".html")


def file_ceiling(path: Path) -> int:
    return 600 if path.parts[0] == "tests" else 400


def function_ceiling(path: Path) -> int:
    return 120 if "kernels" in path.parts else 50


def is_vendored(path: Path) -> bool:
    return "vendor" in path.parts


def size_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, which may be as long as the reader needs."""
    size = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        size -= (function.body[0].end_lineno or 0) - function.body[0].lineno + 1
    return size


def long_functions(path: Path, text: str) -> list[str]:
    functions = (
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    sizes = ((node.name, size_of(node)) for node in functions)
    return [f"{path}: {name} has {size} lines" for name, size in sizes if size > function_ceiling(path)]


def test_files_stay_under_their_ceiling() -> None:
    files = [path for path in tracked_files() if path.suffix in SOURCE_SUFFIXES and not is_vendored(path)]
    assert files
    sizes = {path: len((ROOT / path).read_text().splitlines()) for path in files}
    assert [f"{path} has {size} lines" for path, size in sizes.items() if size > file_ceiling(path)] == []


def test_functions_stay_under_their_ceiling() -> None:
    files = [path for path in tracked_files() if path.suffix == ".py"]
    assert [line for path in files for line in long_functions(path, (ROOT / path).read_text())] == []


def test_a_long_function_is_found() -> None:
    text = "def runaway():\n    '''Run.\n\n    Away.\n    '''\n" + "    pass\n" * 50
    assert long_functions(Path("server/x.py"), text) == ["server/x.py: runaway has 51 lines"]
    assert long_functions(Path("compression/gradwire_compression/kernels/x.py"), text) == []
