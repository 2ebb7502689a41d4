"""What other people's code may lean on, name by name: a change here is a decision, not an accident."""

import importlib
import inspect

import pytest

SURFACE = {
    "gradwire_compression": {
        "BucketTiming",
        "CompressionError",
        "Decision",
        "Exchange",
        "ExchangeError",
        "HookTakenError",
        "Match",
        "Observer",
        "Plan",
        "PlanError",
        "PlanMismatchError",
        "Prepared",
        "Silence",
        "StateError",
        "SwitchReport",
        "checkpoint_entry",
        "ddp",
        "load_state",
        "notes",
        "optimizer_class_name",
        "redistribute",
        "registry",
        "save_state",
        "seal",
    },
    "gradwire": {
        "AttachError",
        "GradwireError",
        "PlanMismatchError",
        "Session",
        "SettingError",
        "UnsteerableError",
        "attach",
        "checkpoint_entry",
        "load_state",
        "save_state",
    },
}


@pytest.mark.parametrize("package", SURFACE)
def test_package_exports_exactly_its_surface(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) == SURFACE[package]
    assert all(hasattr(module, name) for name in SURFACE[package])


def test_session_offers_exactly_these_members() -> None:
    session = importlib.import_module("gradwire").Session
    members = {name for name, _ in inspect.getmembers(session) if not name.startswith("_")}
    assert members == {
        "close",
        "codec",
        "current_step",
        "evaluate",
        "load_state_dict",
        "pause",
        "rollback",
        "run_id",
        "state_dict",
        "step",
    }


def test_attach_keeps_its_arguments() -> None:
    attach = importlib.import_module("gradwire").attach
    parameters = list(inspect.signature(attach).parameters.values())
    assert [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD] == [
        "model"
    ]
    documented = {
        "optimizer",
        "run",
        "server",
        "token",
        "name",
        "total_steps",
        "total_tokens",
        "start_step",
        "better",
        "state",
        "scaler",
    }
    assert documented <= {parameter.name for parameter in parameters}
