"""Setting up a machine: a torch that will do is kept, and what cannot be installed is named."""

import importlib.util
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import pytest
from house.tree import ROOT

SYSTEM = ROOT / "requirements" / "system.sh"


@pytest.fixture
def has_torch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("has_torch", ROOT / "requirements" / "has_torch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("installed", "status"),
    [
        ("2.13.0+cpu", 0),
        ("2.10.0a0+gitabc123", 0),
        ("2.9.0", 0),
        ("2.9", 0),
        ("2.8.1", 1),
        ("1.13.1", 1),
        (None, 1),
    ],
)
def test_torch_new_enough_is_kept(
    has_torch: ModuleType, monkeypatch: pytest.MonkeyPatch, installed: str | None, status: int
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(has_torch, "version", version)
    assert has_torch.main() == status


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A folder with just the commands that the script itself needs."""
    for command in ("bash", "env"):
        (tmp_path / command).symlink_to(shutil.which(command) or "")
    return tmp_path


def command_in(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def set_up(path: Path, *purposes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [path / "bash", SYSTEM, *purposes], env={"PATH": str(path)}, capture_output=True, text=True, check=False
    )


def test_missing_packages_are_named_with_what_goes_on_without_them(bare_path: Path) -> None:
    command_in(bare_path, "id", "echo 1000")
    outcome = set_up(bare_path, "demo", "test")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.splitlines() == [
        "Missing: iproute2 util-linux. Without it the demo trains over plain loopback, and says so.",
        "Missing: chromium. Without it browser tests are skipped.",
        "Missing: prometheus. Without it tests against a real Prometheus are skipped.",
        "Missing: fontconfig fonts-noto-cjk. Without it the test that Chinese glyphs are drawn is skipped.",
    ]


def test_root_with_apt_refreshes_the_lists_and_installs(bare_path: Path) -> None:
    command_in(bare_path, "id", "echo 0")
    command_in(bare_path, "apt-get", f'echo "$@" >> {bare_path}/calls')
    assert set_up(bare_path, "test").returncode == 0
    update, install = (bare_path / "calls").read_text().splitlines()
    assert update.split()[0] == "update"
    assert install.split()[0] == "install"
    assert install.split()[-4:] == ["chromium", "prometheus", "fontconfig", "fonts-noto-cjk"]


def test_failing_apt_is_told_and_does_not_stop_the_rest(bare_path: Path) -> None:
    command_in(bare_path, "id", "echo 0")
    command_in(bare_path, "apt-get", "exit 100")
    outcome = set_up(bare_path, "test")
    assert outcome.returncode == 0
    assert "apt-get could not install them." in outcome.stdout
    assert "Missing: chromium." in outcome.stdout


def test_complete_machine_is_left_alone(bare_path: Path) -> None:
    command_in(bare_path, "apt-get", f"touch {bare_path}/calls")
    for command in ("chromium", "prometheus", "promtool", "fc-list"):
        command_in(bare_path, command, "echo a-font")
    outcome = set_up(bare_path, "test")
    assert (outcome.returncode, outcome.stdout) == (0, "")
    assert not (bare_path / "calls").exists()


def test_unknown_purpose_is_an_error(bare_path: Path) -> None:
    assert set_up(bare_path, "everything").returncode == 2
