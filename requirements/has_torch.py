"""Exit 0 if a torch is installed that is as new as the `agent` extra demands, else 1."""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3]]


def main() -> int:
    """Compare the installed release with the lower bound in pyproject.toml."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    needs = project["optional-dependencies"]["agent"]
    lowest = next(need.partition(">=")[2] for need in needs if need.startswith("torch>="))
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return 1
    return 0 if _numbers(installed) >= _numbers(lowest) else 1


if __name__ == "__main__":
    sys.exit(main())
