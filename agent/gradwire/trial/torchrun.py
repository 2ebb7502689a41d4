"""Rewrites a torchrun command, so that every process runs the script as a rank of a trial."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.errors import SettingError

_WANTED = "wanted: gradwire trial --steps 200 -- torchrun --nproc-per-node 2 train.py ARGUMENTS"
_MODULE_FLAGS = ("-m", "--module")
_PATH_FLAGS = ("--run-path", "--run_path")


@dataclass(frozen=True)
class Launch:
    """A command to start, and what it trains."""

    command: tuple[str, ...]
    # The script's name without folder and suffix, or the module's.
    name: str


def rewrite(command: Sequence[str]) -> Launch:
    """Return the command with the trial's process between torchrun and the script.

    Raises:
        SettingError: It is not torchrun with a Python script on one machine.
    """
    program, rest = _split_program(command)
    options = _parse(rest)
    script, arguments = options.training_script, list(options.training_script_args)
    position = len(rest) - len(arguments) - 1
    if rest[position] != script:
        raise SettingError(f"the script is not found behind torchrun's options; {_WANTED}")
    if str(options.nnodes) not in ("1", "1:1"):
        raise SettingError(f"a trial runs on one machine; got --nnodes {options.nnodes}")
    python = _python_command(options, [script, *arguments])
    own = [
        flag for flag in rest[:position] if flag not in (*_MODULE_FLAGS, *_PATH_FLAGS, "--no-python", "--no_python")
    ]
    inner = ["--no-python", sys.executable, "-m", "gradwire.trial.rank", *python]
    name = python[1] if python[0] == "-m" else Path(python[0]).stem
    return Launch((*program, *own, *inner), name)


def _split_program(command: Sequence[str]) -> tuple[list[str], list[str]]:
    if command and Path(command[0]).name == "torchrun":
        return list(command[:1]), list(command[1:])
    if list(command[1:3]) == ["-m", "torch.distributed.run"]:
        return list(command[:3]), list(command[3:])
    raise SettingError(f"a trial starts torchrun; {_WANTED}")


def _parse(arguments: list[str]) -> Any:
    from torch.distributed.run import parse_args

    return parse_args(arguments)


def _python_command(options: Any, command: list[str]) -> list[str]:
    """Return what Python is to run: a script or -m and a module, and their arguments."""
    if options.module:
        return ["-m", *command]
    if not options.no_python:
        return command
    program = Path(command[0]).name
    if program == "gradwire" and command[1:2] == ["run"]:
        inner = command[2:]
    elif program.startswith("python") and len(command) > 1:
        inner = command[1:]
    else:
        raise SettingError(f"a trial runs a Python script and cannot look into {command[0]!r}; {_WANTED}")
    inner = inner[1:] if inner[:1] == ["--"] else inner
    if not inner or (inner[0].startswith("-") and inner[0] != "-m"):
        raise SettingError(f"a trial takes no options of Python before the script; {_WANTED}")
    return inner
