"""`gradwire doctor`: one line a check, and for each that is not well the one command that helps."""

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from gradwire.doctor import machine, service
from gradwire.doctor.findings import Finding
from gradwire.wording import printable


def add(commands: Any, server: argparse.ArgumentParser) -> None:
    """Add the command to the parser's."""
    doctor = commands.add_parser(
        "doctor", parents=[server], help="examine this machine: framework, kernels, network, server, token, clock"
    )
    doctor.add_argument("--json", action="store_true", help="print one line of JSON")
    doctor.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Print what was found; 0 if nothing failed, 1 otherwise."""
    findings = list(itertools.chain(machine.examine(), service.examine(options.server, options.token)))
    num_failed = sum(finding.state == "failed" for finding in findings)
    if options.json:
        print(msgspec.json.encode({"is_well": not num_failed, "findings": findings}).decode(), flush=True)
    else:
        print(printable(table(findings)), flush=True)
    return 1 if num_failed else 0


def table(findings: Sequence[Finding]) -> str:
    """Return one line a finding, with the helping command below those that are not well."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.check:<10} {finding.text}")
        if finding.fix:
            lines.append(f"{'':<19} -> {finding.fix}")
    return "\n".join(lines)
