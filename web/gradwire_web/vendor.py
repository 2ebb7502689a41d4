"""Fetches the chart library that the pages serve: `python -m gradwire_web.vendor`, after an update of plotly.

The pages need exactly the version that the Python package draws figures for. The library injects its style sheet as
inline rules, which the pages' Content-Security-Policy forbids; so its rules are written to a file of ours here, and
the library leaves a style sheet with its id alone. npm is the only tool needed; nothing else is downloaded.
"""

import argparse
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

from plotly.offline import get_plotlyjs_version

PACKAGE = "plotly.js-basic-dist-min"
FOLDER = Path(__file__).parent / "static" / "vendor"
BUNDLE, STYLE, LICENSE = "plotly-basic.min.js", "plotly.css", "plotly.LICENSE"

# In the bundle: an object of rules by selector; X and Y stand for these two.
RULES = re.compile(r"""[{,]("X,X div"|"[XY][^"]*"|Y):("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
PLACES = {"X": ".js-plotly-plot .plotly", "Y": ".plotly-notifier"}


def style_rules(bundle: str) -> str:
    """Return the style sheet that the library would inject, one rule a line.

    Raises:
        ValueError: The bundle does not hold it where this version is known to.
    """
    start = bundle.find('{"X,X div":')
    if start < 0:
        raise ValueError("the bundle has no style rules of the known form; look at its global style sheet again")
    rules = []
    position = start
    while match := RULES.match(bundle, position):
        selector, body = match[1].strip('"'), match[2][1:-1]
        rules.append(f"{re.sub('[XY]', lambda place: PLACES[place[0]], selector)}{{{body}}}\n")
        position = match.end()
    if not bundle.startswith("}", position):
        raise ValueError(f"the style rules end unexpectedly: {bundle[position : position + 40]!r}")
    return "".join(rules)


def fetch(version: str, folder: Path) -> None:
    """Write bundle, style sheet and licence of a version into `folder`.

    Raises:
        subprocess.CalledProcessError: npm cannot fetch the package.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", "--silent", f"{PACKAGE}@{version}"]
        archive = subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True).stdout.split()[
            -1
        ]
        with tarfile.open(Path(scratch) / archive) as package:
            bundle = _read(package, f"package/{BUNDLE}")
            licence = _read(package, "package/LICENSE")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BUNDLE).write_text(bundle)
    (folder / STYLE).write_text(style_rules(bundle))
    (folder / LICENSE).write_text(licence)


def _read(package: tarfile.TarFile, name: str) -> str:
    member = package.extractfile(name)
    if member is None:
        raise FileNotFoundError(f"the package has no file {name}")
    return member.read().decode()


def main() -> int:
    """Fetch the version of the installed Python package."""
    parser = argparse.ArgumentParser(prog="python -m gradwire_web.vendor", description=__doc__.partition("\n")[0])
    parser.parse_args()
    version = str(get_plotlyjs_version())
    fetch(version, FOLDER)
    print(f"Plotly {version} is in {FOLDER}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
