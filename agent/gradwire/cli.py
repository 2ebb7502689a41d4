"""The `gradwire` command: look at runs and plans, change compression, deliver leftovers, attach to a script.

Exit status: 0 when what was asked for is so, 1 when it is not (refused, no answer in time, data left), 2 when it
could not be asked (usage, setting, no server). `gradwire run` ends as its script ends.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradwire_protocol.codecs import CATALOGUE
from gradwire_protocol.errors import MalformedError, ProtocolError
from gradwire_protocol.identity import validate_id
from gradwire_protocol.messages import ChangeAnswer, RollbackRequest, SetRequest
from gradwire_protocol.plans import validate_plan
from msgspec.structs import replace

from gradwire import plans, wording
from gradwire.client import Client, Run
from gradwire.doctor import command as doctor
from gradwire.errors import AnswerError, GradwireError, SettingError
from gradwire.linktest import command as linktest
from gradwire.speech import client_of, complain, parameter, say
from gradwire.transport import place
from gradwire.transport.http import clean_server
from gradwire.transport.operator import LiveNode, ask_plan, ask_status, find_nodes, roll_back
from gradwire.transport.replay import sync
from gradwire.trial import command as trial

DONE, NOT_DONE, NOT_ASKED = 0, 1, 2

_TIMEOUT_SECONDS = 30.0
_NUM_LISTED = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; every error is a sentence on stderr, never a traceback."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    if command is _run:
        # What the script raises is the script's, and ends the process as it would without us.
        return command(options)
    try:
        return command(options)
    except AnswerError as error:
        complain(error.detail.message)
        return NOT_ASKED if error.status in (401, 403) else NOT_DONE
    except (GradwireError, ProtocolError) as error:
        complain(str(error))
        return NOT_ASKED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, `head` for example, has seen enough; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE


def _run(options: argparse.Namespace) -> int:
    command = options.script[1:] if options.script[:1] == ["--"] else options.script
    if not command or command == ["-m"]:
        complain("run needs a script or -m and a module: gradwire run -- train.py --epochs 3")
        return NOT_ASKED
    # The other commands start without torch.
    from gradwire.launch import run_script

    run_script(command)
    return DONE


def _status(options: argparse.Namespace) -> int:
    with _client(options) as client:
        if options.run is None:
            say(wording.runs_table(list(itertools.islice(client.runs(), _NUM_LISTED))))
        else:
            say(wording.run_page(client.run(_find_run(client, options.run), options.model)))
    return DONE


def _set(options: argparse.Namespace) -> int:
    parameters = dict(options.param)
    with _client(options) as client:
        page = client.run(_find_run(client, options.run), options.model)
        plan = replace(
            page.plan,
            codec=options.codec,
            parameters=parameters,
            force=options.force,
            every_bucket=options.every_bucket,
        )
        request = SetRequest(
            plan=validate_plan(plan),
            revision=page.revision,
            model=page.model,
            reason=options.reason,
        )
        return _await_outcome(client, page.summary, client.set_plan(page.summary.id, request), options.timeout)


def _rollback(options: argparse.Namespace) -> int:
    options.run = options.run or options.run_option
    if options.local:
        return _rollback_local(options)
    if options.run is None:
        raise SettingError("rollback needs a run, or --local for the one on this machine")
    with _client(options) as client:
        page = client.run(_find_run(client, options.run), options.model)
        request = RollbackRequest(model=page.model, reason=options.reason)
        return _await_outcome(client, page.summary, client.roll_back(page.summary.id, request), options.timeout)


def _await_outcome(client: Client, run: Run, answer: ChangeAnswer, timeout_seconds: float) -> int:
    if answer.directive is None:
        say(answer.message)
        return DONE
    change = client.wait_for(run.id, answer.directive, timeout_seconds)
    if change is None or change.state in ("requested", "delivered"):
        complain(wording.no_answer(run, answer.directive, timeout_seconds))
        return NOT_DONE
    is_applied = change.state == "applied"
    (say if is_applied else complain)(wording.outcome(run, change))
    return DONE if is_applied else NOT_DONE


def _rollback_local(options: argparse.Namespace) -> int:
    nodes = _local_nodes(options)
    is_done = True
    for node in nodes:
        result = roll_back(node.socket, options.reason, options.timeout)
        if result.switched is None:
            complain(wording.no_local_answer(node.status, result))
            is_done = False
        else:
            say(wording.local_outcome(node.status, result.switched, result, is_one_of_many=len(nodes) > 1))
    return DONE if is_done else NOT_DONE


def _plan_show(options: argparse.Namespace) -> int:
    nodes = _local_nodes(options)
    for index, node in enumerate(nodes):
        if index:
            say("")
        say(plans.plan_table(node.status, ask_plan(node.socket), is_one_of_many=len(nodes) > 1))
    return DONE


def _local_nodes(options: argparse.Namespace) -> list[LiveNode]:
    """Return one live node for each model of the run that is meant."""
    if options.socket is not None:
        return [LiveNode(options.socket, ask_status(options.socket))]
    roots = _roots(options.spool)
    nodes = find_nodes(roots)
    wanted = options.run
    if wanted is not None:
        nodes = [node for node in nodes if wanted == node.status.run_name or node.status.run.startswith(wanted)]
    runs = {node.status.run: node.status for node in nodes}
    if not runs:
        whose = f"run {wanted!r}" if wanted else "a live run"
        raise SettingError(
            f"no node of {whose} answers below {', '.join(map(str, roots))} on this machine; type this on a node "
            "that trains, as the user who trains, and name its spool folder with --spool if it is another"
        )
    if len(runs) > 1:
        names = "\n".join(f"  --run {status.run}  {status.run_name}" for status in runs.values())
        raise SettingError(f"several runs are live on this machine; say which one:\n{names}")
    return list({node.status.model: node for node in nodes}.values())


def _sync(options: argparse.Namespace) -> int:
    server = options.server or os.environ.get("GRADWIRE_SERVER")
    token = options.token or os.environ.get("GRADWIRE_TOKEN")
    roots = _roots(options.folder)
    is_complete, has_any = True, False
    for facts, outcome in sync(roots, server=clean_server(server) if server else None, token=token):
        has_any = True
        is_complete = is_complete and not isinstance(outcome, str) and outcome.num_undelivered == 0
        say(wording.synced(facts, outcome))
    if not has_any:
        say(f"Nothing is left to deliver below {', '.join(map(str, roots))}.")
    return DONE if is_complete else NOT_DONE


def _find_run(client: Client, text: str) -> str:
    """Return the id of the run with this id, this beginning of one, or this name.

    Raises:
        SettingError: None has it, or several have.
    """
    try:
        return validate_id(text, field="run")
    except MalformedError:
        found = [run for run in client.runs() if run.name == text or run.id.startswith(text.lower())]
    if len(found) == 1:
        return found[0].id
    if not found:
        raise SettingError(f"no run has the id or name {text!r}; `gradwire status` lists them")
    raise SettingError(f"{len(found)} runs fit {text!r}; give more of the id:\n{wording.runs_table(found)}")


def _client(options: argparse.Namespace) -> Client:
    client = client_of(options)
    if client is None:
        raise SettingError("no server is named: set GRADWIRE_SERVER or give --server http://HOST:PORT")
    return client


def _roots(folder: Path | None) -> list[Path]:
    return [folder] if folder is not None else place.known_roots()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradwire", description="Watch and steer gradient compression of training runs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument("--server", metavar="URL", help="default: GRADWIRE_SERVER")
    server.add_argument("--token", metavar="TOKEN", help="default: GRADWIRE_TOKEN, which other users cannot see")
    change = argparse.ArgumentParser(add_help=False)
    change.add_argument("--model", metavar="NAME", help="default: the run's first model")
    change.add_argument("--reason", default="", metavar="TEXT", help="kept in the run's history")
    change.add_argument(
        "--timeout", type=float, default=_TIMEOUT_SECONDS, metavar="SECONDS", help="default: %(default)g"
    )

    run = commands.add_parser("run", help="run a training script with every DDP model attached")
    run.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="-- SCRIPT", help="or -m MODULE, and its arguments"
    )
    run.set_defaults(command=_run)

    status = commands.add_parser("status", parents=[server], help="list runs, or show one")
    status.add_argument("run", nargs="?", metavar="RUN", help="id, beginning of an id, or name")
    status.add_argument("--model", metavar="NAME", help="default: the run's first model")
    status.set_defaults(command=_status)

    set_ = commands.add_parser("set", parents=[server, change], help="choose a compression method")
    set_.add_argument("run", metavar="RUN", help="id, beginning of an id, or name")
    set_.add_argument("--codec", required=True, choices=tuple(CATALOGUE), help="compression method")
    set_.add_argument(
        "--param", action="append", default=[], type=parameter, metavar="NAME=NUMBER", help="may be repeated"
    )
    set_.add_argument("--force", action="store_true", help="also under an optimizer it may not be safe with")
    set_.add_argument("--every-bucket", action="store_true", help="also buckets that should be faster uncompressed")
    set_.set_defaults(command=_set)

    _add_local_commands(commands, server, change)
    trial.add(commands, server)
    doctor.add(commands, server)
    linktest.add(commands)
    sync_ = commands.add_parser("sync", parents=[server], help="deliver what waits in spool folders")
    sync_.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="default: GRADWIRE_SPOOL")
    sync_.set_defaults(command=_sync)
    return parser


def _add_local_commands(commands: Any, server: argparse.ArgumentParser, change: argparse.ArgumentParser) -> None:
    """Add what a node on this machine can be asked for, with or without a server."""
    local = argparse.ArgumentParser(add_help=False)
    local.add_argument("--socket", type=Path, metavar="PATH", help="of the node on this machine")
    local.add_argument(
        "--spool", type=Path, metavar="FOLDER", help="of runs on this machine; default: GRADWIRE_SPOOL"
    )

    plan = commands.add_parser("plan", help="look at how gradients travel")
    show = plan.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "show", parents=[local], help="list the decision for every tensor of a run on this machine"
    )
    show.add_argument("run", nargs="?", metavar="RUN", help="beginning of an id, or name")
    show.set_defaults(command=_plan_show)

    rollback = commands.add_parser(
        "rollback", parents=[server, change, local], help="go back to uncompressed at once"
    )
    rollback.add_argument("run", nargs="?", metavar="RUN", help="id, beginning of an id, or name")
    rollback.add_argument("--run", dest="run_option", metavar="RUN", help="the same, as an option")
    rollback.add_argument("--local", action="store_true", help="over this machine's node, without a server")
    rollback.set_defaults(command=_rollback)
