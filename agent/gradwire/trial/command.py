"""`gradwire trial`: starts both arms, one after the other, and has the server compare them."""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from gradwire_protocol.codecs import CATALOGUE
from gradwire_protocol.identity import new_id
from gradwire_protocol.plans import PlanSpec, validate_plan
from msgspec.structs import replace

from gradwire.client import Client
from gradwire.errors import AnswerError, SettingError, UnreachableError
from gradwire.settings import ENVIRONMENT as SETTINGS
from gradwire.speech import client_of, complain, parameter, say
from gradwire.transport.http import clean_server
from gradwire.trial import records
from gradwire.trial.outcome import Outcome, arm_outcome, num_last_losses, speedup, why_unpaired
from gradwire.trial.records import Order, RankResult
from gradwire.trial.report import report
from gradwire.trial.torchrun import Launch, rewrite

# Fewer steps cannot be compared by the server, nor timed.
MIN_STEPS = 20

INGEST_TOKEN = "GRADWIRE_INGEST_TOKEN"

# What a training that was interrupted gets to end by itself, seconds.
_END_SECONDS = 30.0
# The last measurements arrive within the agent's closing time, seconds.
_ARRIVAL_SECONDS = 20.0
_POLL_SECONDS = 0.2


def add(commands: Any, server: argparse.ArgumentParser) -> None:
    """Add the command to the parser's."""
    trial = commands.add_parser(
        "trial",
        parents=[server],
        help="train a script twice from one start, uncompressed and compressed, and compare",
        description="Trains twice on this machine from one seed or checkpoint, without and with compression.",
    )
    trial.add_argument("--steps", type=int, required=True, metavar="N", help=f"of each run, at least {MIN_STEPS}")
    trial.add_argument("--codec", default="int8", choices=[name for name in CATALOGUE if name != "none"])
    trial.add_argument(
        "--param", action="append", default=[], type=parameter, metavar="NAME=NUMBER", help="may be repeated"
    )
    trial.add_argument("--force", action="store_true", help="also under an optimizer it may not be safe with")
    trial.add_argument("--seed", type=int, default=1, metavar="N", help="of both runs; default: %(default)s")
    trial.add_argument("--ingest-token", metavar="TOKEN", help=f"of the training; default: {INGEST_TOKEN}")
    trial.add_argument("--json", action="store_true", help="print one line of JSON; the script's output to stderr")
    trial.add_argument("training", nargs=argparse.REMAINDER, metavar="-- torchrun ... SCRIPT")
    trial.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Run the trial; 0 if quality is within the limit, 1 if it is not, is unknown, or there is no pair.

    Raises:
        SettingError: The command cannot be run as a trial.
    """
    launch = rewrite(options.training[1:] if options.training[:1] == ["--"] else options.training)
    if options.steps < MIN_STEPS:
        raise SettingError(f"--steps is {options.steps}; wanted: {MIN_STEPS} or more")
    # The trial asks what compression does to the model, so nothing is left uncompressed for speed on this machine.
    spec = PlanSpec(codec=options.codec, parameters=dict(options.param), every_bucket=True, force=options.force)
    plan = validate_plan(spec, field="--param")
    with contextlib.ExitStack() as stack:
        client = client_of(options)
        if client is not None:
            stack.enter_context(client)
            # Asked before anything is trained: a wrong token is not worth two runs.
            next(client.runs(1), None)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwire-trial-")))
        trial = _Trial(options, launch, plan, folder)
        outcome = trial.run()
        if outcome is None:
            return 1
        if client is not None:
            outcome = _compare(client, outcome)
    say(msgspec.json.encode(outcome).decode() if options.json else report(outcome))
    is_within = outcome.quality is not None and outcome.quality.state == "within_limit"
    return 0 if is_within and not outcome.unpaired_reason else 1


class _Trial:
    """Two trainings, one after the other."""

    def __init__(self, options: argparse.Namespace, launch: Launch, plan: PlanSpec, folder: Path) -> None:
        self._options = options
        self._launch = launch
        self._plan = plan
        self._folder = folder
        self._environment = _environment(options)

    def run(self) -> Outcome | None:
        """Return what came of both; None, and a sentence on stderr, if one failed or trained nothing."""
        runs, found = [], []
        for plan in (PlanSpec(), self._plan):
            run = new_id()
            results = self._train(run, plan)
            if not results:
                return None
            runs.append(run)
            found.append(results)
        return self._outcome(runs, found)

    def _outcome(self, runs: Sequence[str], found: Sequence[list[RankResult]]) -> Outcome:
        num_common = min(len(result.losses) for results in found for result in results)
        arms = [
            arm_outcome(run, codec, results, num_common)
            for run, codec, results in zip(runs, ("none", self._plan.codec), found, strict=True)
        ]
        return Outcome(
            name=self._launch.name,
            plan=self._plan,
            num_ranks=found[0][0].world_size,
            device=found[0][0].device,
            seed=self._options.seed,
            baseline=arms[0],
            candidate=arms[1],
            num_last_losses=num_last_losses(num_common),
            speedup=speedup(arms[0].timing, arms[1].timing),
            unpaired_reason=why_unpaired(*found),
        )

    def _train(self, run: str, plan: PlanSpec) -> list[RankResult]:
        name = "uncompressed" if plan.codec == "none" else plan.codec
        folder = self._folder / name
        folder.mkdir()
        order = Order(
            run=run,
            run_name=f"{self._launch.name} trial, {name}",
            plan=plan,
            num_steps=self._options.steps,
            seed=self._options.seed,
        )
        records.write_order(folder, order)
        _tell(f"{self._launch.name}, {name}, {self._options.steps} steps")
        environment = self._environment | {records.ENVIRONMENT: str(folder)}
        status = _call(self._launch.command, environment, sys.stderr if self._options.json else None)
        results = records.read_results(folder)
        if status != 0:
            _tell(f"the {name} run ended with exit code {status}; there is nothing to compare")
            return []
        if not results or len(results) != results[0].world_size:
            _tell(
                f"the {name} run took no step that could be counted: a trial needs a DistributedDataParallel model "
                "and an optimizer that holds its parameters"
            )
            return []
        return results


def _call(command: Sequence[str], environment: dict[str, str], output: Any) -> int:
    """Run a command and return its exit status; an interrupted one is given time to end by itself."""
    process = subprocess.Popen(command, env=environment, stdout=output)
    try:
        return process.wait()
    except BaseException:
        # The terminal has told the training as well; killing it at once would leave its processes behind.
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
        raise


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment of the trainings: the server and its ingest token, and equal hashes in both."""
    environment = dict(os.environ)
    # An operator's token is none that a training can use.
    environment.pop(SETTINGS["token"], None)
    environment.pop(SETTINGS["server"], None)
    environment.setdefault("PYTHONHASHSEED", str(options.seed % 2**32))
    server = options.server or os.environ.get(SETTINGS["server"])
    if server:
        environment[SETTINGS["server"]] = clean_server(server)
        environment[SETTINGS["token"]] = _ingest_token(options)
    return environment


def _ingest_token(options: argparse.Namespace) -> str:
    token = options.ingest_token or os.environ.get(INGEST_TOKEN)
    if not token:
        raise SettingError(
            f"the training needs a token of its own: set {INGEST_TOKEN} to what "
            "`gradwire-server token create --kind ingest` prints"
        )
    return str(token)


def _compare(client: Client, outcome: Outcome) -> Outcome:
    """Choose the baseline if the arms are a pair, and return the outcome with the server's comparison."""
    outcome = replace(outcome, link=client.page(outcome.candidate.run))
    for arm in (outcome.baseline, outcome.candidate):
        _await_arrival(client, arm.run)
    if outcome.unpaired_reason:
        return outcome
    client.choose_baseline(outcome.candidate.run, outcome.baseline.run)
    return replace(outcome, quality=client.run(outcome.candidate.run).quality)


def _await_arrival(client: Client, run: str) -> None:
    """Wait until the server knows the end of a run.

    Raises:
        UnreachableError: It does not in time; what is missing waits in the spool.
    """
    deadline = time.monotonic() + _ARRIVAL_SECONDS
    while True:
        try:
            if client.run(run).summary.status.name in ("finished", "failed", "interrupted"):
                return
        except AnswerError as error:
            if error.status != 404:
                raise
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"the server has not got all of run {run}; `gradwire sync` delivers what waits here, and the "
                "page of the compressed run then takes the other as its baseline"
            )
        time.sleep(_POLL_SECONDS)


def _tell(text: str) -> None:
    complain(text, command="gradwire trial")
