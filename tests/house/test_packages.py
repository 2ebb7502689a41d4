"""What is installed is what stands on disk."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from house.tree import ROOMS, ROOT, project, tracked_files


def test_every_package_on_disk_is_listed_in_pyproject() -> None:
    found = set()
    for package, folder in ROOMS.items():
        for path in tracked_files():
            if path.name == "__init__.py" and path.parts[:2] == (folder, package):
                found.add(".".join(path.parent.parts[1:]))
    listed = project()["tool"]["setuptools"]["packages"]
    assert set(listed) == found
    assert len(listed) == len(set(listed))


def test_modules_stand_in_packages() -> None:
    """A module in a folder without `__init__.py` works in an editable install and is missing from the wheel."""
    folders = {path.parent for path in tracked_files() if path.suffix == ".py" and path.parts[0] in ROOMS.values()}
    assert [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists()] == []


def test_tests_and_compression_hold_no_stray_init() -> None:
    """Python 3.14 has a standard package named compression, and pytest imports tests by file."""
    strays = [path for path in tracked_files() if path.name == "__init__.py" and path.parts[0] == "tests"]
    assert strays == []
    assert [path for path in tracked_files() if path.parts[0] == "compression" and len(path.parts) == 2] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for path in tracked_files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(source),
    ]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_wheel_holds_every_file_of_every_package(wheel: zipfile.ZipFile) -> None:
    """C sources travel in the source distribution and arrive compiled; all else must be in the wheel."""
    wanted = {
        Path(*path.parts[1:])
        for path in tracked_files()
        if path.parts[0] in ROOMS.values() and path.parts[1] in ROOMS and path.suffix not in (".c", ".h", ".po")
    }
    held = {Path(name) for name in wheel.namelist()}
    assert sorted(str(path) for path in wanted - held) == []


def test_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {Path(name).parts[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(ROOMS)
