"""`attach`: the one function that training code calls."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gradwire_protocol.plans import PlanSpec
from torch.nn.parallel import DistributedDataParallel

from gradwire.idle import IdleSession, is_importing_script
from gradwire.session import Session
from gradwire.settings import read_settings
from gradwire.trial.arm import arm_of_environment
from gradwire.wiring import connect


def attach(
    model: DistributedDataParallel,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    run: str | None = None,
    server: str | None = None,
    token: str | None = None,
    name: str = "model",
    plan: str | Mapping[str, Any] | PlanSpec | None = None,
    project: str | None = None,
    run_id: str | None = None,
    start_step: int = 0,
    total_steps: int | None = None,
    total_tokens: int | None = None,
    better: Mapping[str, str] | None = None,
    spool: str | Path | None = None,
    state: Mapping[str, Any] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    check_share: float | None = None,
    guard: str | None = None,
    budget: float | None = None,
) -> Session:
    """Attach to a DDP model on every rank, before its first backward pass or between steps.

    Everything has a default and most have an environment variable (`GRADWIRE_SERVER`, `GRADWIRE_TOKEN`,
    `GRADWIRE_RUN`, `GRADWIRE_RUN_ID`, `GRADWIRE_PROJECT`, `GRADWIRE_PLAN`, `GRADWIRE_SPOOL`,
    `GRADWIRE_CHECK_SHARE`, `GRADWIRE_GUARD`, `GRADWIRE_BUDGET`); an explicit argument wins. Without a server the
    agent still measures, guards and compresses, and keeps its data in the spool.

    Args:
        model: Wrapped model without a communication hook of its own.
        optimizer: Marks the optimizer phase and says which codecs are safe; unknown means careful.
        run: Name shown in lists; need not be unique.
        server: Address such as `http://host:8420`.
        token: Ingest token made by `gradwire-server token create --kind ingest`.
        name: Tells several attached models of one process apart.
        plan: First plan: a codec's name, a mapping of `PlanSpec` fields, or a `PlanSpec`. Default: uncompressed.
        project: Groups runs.
        run_id: UUID of an earlier run that this attempt goes on with; default: that of `state`.
        start_step: Steps already done by earlier attempts; default: those of `state`.
        total_steps: Steps until training ends, for the finish date.
        total_tokens: Tokens until training ends, for the finish date.
        better: "higher" or "lower" by metric; loss is "lower".
        spool: Folder for data not yet delivered; default `~/.gradwire/spool`.
        state: This rank's `session.state_dict()` of an earlier attempt, so that the run goes on as if it had never
            stopped, under the plan that was in use. All ranks pass theirs, or none does.
        scaler: Of the training loop, if it scales its loss: what a codec still owes follows the scale.
        check_share: Part of the time compressed, 0 to 0.5, that may be trained uncompressed now and then to see
            what compression saves; default 0.005, 0 for never.
        guard: What the agent does by itself when a loss is not finite or far above what it was, or compressed
            gradients no longer resemble exact ones: "act" rolls back to uncompressed, "report" only says so in the
            run's history, "off" does nothing.
        budget: Share of training time that measuring may take, 0.01 by default; above it fewer steps are traced.

    Raises:
        SettingError: An argument or variable is not acceptable.
        AttachError: `model` is not a DDP model, has nothing to train, or has a communication hook already; or a
            state is damaged, missing on some rank, or does not belong to the model and to the others' states.
        UnsteerableError: DeepSpeed, Megatron-LM, FSDP, tensor or pipeline parallelism exchanges its gradients;
            it is an AttachError too.

    Cost: one side group, two threads on every rank and two more on the first rank of a node; about 1 ms of CPU per
    pulse, five pulses a second at most. Collective: call it on all ranks of the model.
    """
    arguments = {key: value for key, value in locals().items() if key not in ("model", "optimizer")}
    if is_importing_script():
        return IdleSession()
    settings = read_settings(arguments)
    if (arm := arm_of_environment()) is not None:
        return arm.attach(model, optimizer, settings)
    return connect(model, optimizer, settings)
