"""What stands in the repository, as the tests of the house read it."""

import functools
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

ROOMS = {
    "gradwire_protocol": "protocol",
    "gradwire_compression": "compression",
    "gradwire": "agent",
    "gradwire_server": "server",
    "gradwire_web": "web",
    "gradwire_migrations": "migrations",
}


@functools.cache
def tracked_files() -> tuple[Path, ...]:
    """Files of the working tree that git tracks or would track, relative to the root."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = (Path(name) for name in listing.split("\0") if name)
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


@functools.cache
def project() -> dict[str, Any]:
    """The content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
