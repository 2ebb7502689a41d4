"""What the documents promise is there: links, make targets, commands, code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gradwire_server.cli import _parser as server_parser
from house.tree import ROOT, tracked_files

DOCUMENTS = [path for path in tracked_files() if path.suffix == ".md"]
READMES = (Path("README.md"), Path("README.zh-CN.md"))
TARGETS = ("setup", "check", "fix", "test", "test-browser", "demo", "serve", "bench", "docs")


def text_of(document: Path) -> str:
    return (ROOT / document).read_text()


def blocks_of(document: Path, language: str = "") -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text_of(document), re.MULTILINE | re.DOTALL)
    return [code for kind, code in blocks if kind == language]


def commands_of(document: Path) -> list[str]:
    """Lines of plain code blocks, and code spans that call a program of ours."""
    lines = [line for block in blocks_of(document) for line in block.splitlines()]
    spans = re.findall(r"`((?:gradwire|gradwire-server|make|docker compose) [^`]+)`", text_of(document))
    return [line.partition("#")[0].strip() for line in lines + spans]


def help_text() -> str:
    outcome = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    return outcome.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_relative_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", re.sub(r"```.*?```", "", text_of(document), flags=re.DOTALL))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (ROOT / document.parent / link).exists()] == []


def test_every_document_is_reached_from_the_readme() -> None:
    """Directly, or through the list of decisions."""
    links = {}
    for document in (Path("README.md"), Path("docs/adr/README.md")):
        found = re.findall(r"\]\(([^)#\s]+\.md)", text_of(document))
        links[document] = {(ROOT / document.parent / link).resolve().relative_to(ROOT) for link in found}
    guides = {path for path in DOCUMENTS if path.parts[0] == "docs"}
    reached = set().union(*links.values())
    assert sorted(map(str, guides - reached - {Path("docs/adr/README.md")})) == []
    assert Path("docs/adr/README.md") in links[Path("README.md")]


def test_make_alone_prints_every_target_with_its_purpose() -> None:
    described = re.findall(r"^  make (\S+)\s+\S", help_text(), re.MULTILINE)
    assert set(TARGETS) <= set(described)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_make_targets_named_in_documents_exist(document: Path) -> None:
    targets = set(re.findall(r"^  make (\S+)", help_text(), re.MULTILINE))
    named = {command.split()[1] for command in commands_of(document) if command.startswith("make ")}
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_server_understands_the_commands_of_documents(document: Path) -> None:
    calls = [call for line in commands_of(document) for call in re.findall(r"gradwire-server ([^`$);]+)", line)]
    for call in calls:
        server_parser().parse_args(call.split())


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_agent_understands_the_commands_of_documents(document: Path) -> None:
    """The command's own help must know every subcommand and option that a document uses."""
    for call in {line for line in commands_of(document) if line.startswith("gradwire ")}:
        # What follows two dashes is somebody else's command.
        _, subcommand, *rest = call.partition(" -- ")[0].split()
        options = [word for word in rest if word.startswith("--")]
        if "..." in call or subcommand.startswith("-"):
            continue
        outcome = subprocess.run(
            [Path(sys.executable).with_name("gradwire"), subcommand, "--help"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert outcome.returncode == 0, call + outcome.stderr
        assert [option for option in options if option not in outcome.stdout] == [], call


def test_quickstart_of_the_readme_is_the_example() -> None:
    (code,) = blocks_of(Path("README.md"), "python")
    assert code == (ROOT / "examples" / "quickstart.py").read_text()
    assert len([line for line in code.splitlines() if line]) <= 22


@pytest.mark.distributed
def test_quickstart_trains_under_torchrun(tmp_path: Path) -> None:
    (code,) = blocks_of(Path("README.md"), "python")
    script = tmp_path / "quickstart.py"
    script.write_text(code)
    outcome = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GRADWIRE_SPOOL": str(tmp_path / "spool")},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert any((tmp_path / "spool").rglob("*")), "the agent kept nothing"


def test_both_readmes_show_the_same_commands() -> None:
    english, chinese = ["\n".join(blocks_of(document)) for document in READMES]
    assert chinese == english
