"""Settings of one attached model: an explicit argument wins over the environment, both over the default."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec
from gradwire_protocol.errors import ProtocolError
from gradwire_protocol.identity import validate_id, validate_name
from gradwire_protocol.plans import PlanSpec, validate_plan
from gradwire_protocol.records import LinkFacts

from gradwire.errors import SettingError
from gradwire.timing.cost import BUDGET
from gradwire.transport.http import clean_server, clean_token

# What the agent reads, argument by argument; `gradwire run` passes everything this way.
ENVIRONMENT = {
    "server": "GRADWIRE_SERVER",
    "token": "GRADWIRE_TOKEN",
    "run": "GRADWIRE_RUN",
    "run_id": "GRADWIRE_RUN_ID",
    "project": "GRADWIRE_PROJECT",
    "spool": "GRADWIRE_SPOOL",
    "plan": "GRADWIRE_PLAN",
    "link_bytes_per_second": "GRADWIRE_LINK_BYTES_PER_SECOND",
    "link_note": "GRADWIRE_LINK_NOTE",
    "link_test": "GRADWIRE_LINKTEST",
    "check_share": "GRADWIRE_CHECK_SHARE",
    "guard": "GRADWIRE_GUARD",
    "budget": "GRADWIRE_BUDGET",
}

# Part of the time compressed that all check windows together may take.
DEFAULT_CHECK_SHARE = 0.005

# What the guard does when a rule is broken: roll back, only say so, or nothing.
GuardMode = Literal["act", "report", "off"]


@dataclass(frozen=True)
class Settings:
    """Everything `attach` was told."""

    run: str
    run_id: str | None
    project: str
    model: str
    server: str | None
    token: str | None
    spool: Path
    plan: PlanSpec
    link: LinkFacts
    # Test the links between the ranks before the first step.
    tests_link: bool
    start_step: int
    total_steps: int | None
    total_tokens: int | None
    better: Mapping[str, str]
    # What an earlier attempt saved, None if this one begins anew.
    state: Mapping[str, Any] | None
    # What the loss is multiplied by; None if it is not.
    loss_scale: Callable[[], float] | None
    # Share of the time that check windows may take, 0 for none.
    check_share: float
    guard: GuardMode
    # Share of training time that measuring may take.
    budget: float = BUDGET


def read_settings(arguments: Mapping[str, Any]) -> Settings:
    """Combine the arguments of `attach` with the environment.

    Raises:
        SettingError: A value is not acceptable; the text names the argument and its environment variable.
    """
    values = {name: _given(arguments, name) for name in ENVIRONMENT}
    state = arguments.get("state")
    saved = state if isinstance(state, Mapping) else {}
    try:
        run_id = values["run_id"] or saved.get("run")
        return Settings(
            run=validate_name(str(values["run"] or "unnamed"), field="run"),
            run_id=validate_id(str(run_id), field="run_id") if run_id else None,
            project=validate_name(str(values["project"] or "default"), field="project"),
            model=validate_name(str(arguments.get("name") or "model"), field="name"),
            server=_server(values["server"]),
            token=clean_token(str(values["token"])) if values["token"] else None,
            spool=Path(values["spool"] or "~/.gradwire/spool").expanduser(),
            plan=_plan(saved.get("plan", values["plan"])),
            link=LinkFacts(
                nominal_bytes_per_second=_positive(values["link_bytes_per_second"], "link_bytes_per_second"),
                note=str(values["link_note"] or ""),
            ),
            tests_link=str(values["link_test"] or "0") not in ("0", "false"),
            start_step=_count(arguments.get("start_step"), "start_step") or int(saved.get("step", 0)),
            total_steps=_count(arguments.get("total_steps"), "total_steps"),
            total_tokens=_count(arguments.get("total_tokens"), "total_tokens"),
            better=_better(arguments.get("better") or {}),
            state=state,
            loss_scale=_loss_scale(arguments.get("scaler")),
            guard=_guard(values["guard"]),
            check_share=_share(values["check_share"], "check_share", DEFAULT_CHECK_SHARE),
            budget=_positive(values["budget"], "budget") or BUDGET,
        )
    except ProtocolError as error:
        raise SettingError(f"{error.field}: {error}") from error


def _given(arguments: Mapping[str, Any], name: str) -> Any:
    value = arguments.get(name)
    return os.environ.get(ENVIRONMENT[name]) if value is None else value


def _server(value: Any) -> str | None:
    return clean_server(str(value)) if value else None


def _plan(value: Any) -> PlanSpec:
    """Accept a codec's name, a mapping, JSON of one, or a PlanSpec."""
    if value is None:
        return PlanSpec()
    if isinstance(value, PlanSpec):
        return validate_plan(value)
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        return validate_plan(PlanSpec(codec=value))
    try:
        if isinstance(value, str):
            return validate_plan(msgspec.json.decode(value, type=PlanSpec))
        return validate_plan(msgspec.convert(dict(value), type=PlanSpec))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        if isinstance(error, ProtocolError):
            raise
        raise SettingError(f"plan (GRADWIRE_PLAN): {error}") from error


def _positive(value: Any, name: str) -> float | None:
    if value in (None, ""):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise SettingError(f"{name} ({ENVIRONMENT[name]}) is {value!r}; wanted: a positive number")
    return number


def _share(value: Any, name: str, default: float) -> float:
    if value in (None, ""):
        return default
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 0.5:
        raise SettingError(f"{name} ({ENVIRONMENT[name]}) is {value!r}; wanted: a number from 0 to 0.5")
    return share


def _guard(value: Any) -> GuardMode:
    if value in (None, ""):
        return "act"
    if value not in get_args(GuardMode):
        raise SettingError(f"guard ({ENVIRONMENT['guard']}) is {value!r}; wanted: act, report or off")
    return cast(GuardMode, value)


def _count(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SettingError(f"{name} is {value!r}; wanted: a whole number, 0 or more")
    return value


def _loss_scale(scaler: Any) -> Callable[[], float] | None:
    if scaler is None:
        return None
    read: Callable[[], float] | None = getattr(scaler, "get_scale", None)
    if read is None:
        raise SettingError(f"scaler is a {type(scaler).__name__}; wanted: a torch.amp.GradScaler")
    return read


def _better(value: Mapping[str, str]) -> Mapping[str, str]:
    for metric, direction in value.items():
        if direction not in ("higher", "lower"):
            raise SettingError(f"better[{metric!r}] is {direction!r}; wanted: 'higher' or 'lower'")
    return dict(value)
