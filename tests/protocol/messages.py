"""One message of every kind that travels, with every field set to something that is not its default."""

from typing import Any

import msgspec
from gradwire_protocol import messages as m
from gradwire_protocol import records as r
from gradwire_protocol.plans import PlanSpec

RUN = "01932f5e-8a00-7000-8000-000000000001"
ATTEMPT = "01932f5e-8a00-7000-8000-000000000002"

PLAN = PlanSpec(
    codec="int8",
    parameters={"block": 512},
    exempt_1d=False,
    min_elements=2048,
    exempt_patterns=("*.embed.*",),
    warmup_steps=100,
    force=True,
)
STARTED = r.AttemptStarted(
    at=1.5e9,
    run_name="größe 实验",
    project="vision",
    node=r.NodeFacts(host="node-02", ranks=(2, 3)),
    world_size=4,
    backend="nccl",
    device="cuda",
    device_name="H100",
    link=r.LinkFacts(interface="eth0", nominal_bytes_per_second=1.25e9, note="10 Gbit/s"),
    optimizer="AdamW",
    num_elements=1000,
    gradient_bytes=4000,
    plan=PLAN,
    start_step=7,
    total_steps=9000,
    total_tokens=123456789012345,
    better={"accuracy": "higher"},
    codecs=("none", "int8"),
    codec_memory_bytes={"int8": 4096},
    refused_codecs={"onebit": "not safe under AdamW"},
    is_steered=False,
    notes=("no compiler",),
    versions={"torch": "2.13.0"},
)
WINDOW = r.StepWindow(
    first_step=8,
    last_step=9,
    num_steps=2,
    num_rank_steps=4,
    epoch=3,
    codec="int8",
    is_settling=True,
    started_at=1.5e9,
    wall_seconds=1.25,
    seconds=r.PhaseSeconds(
        step=2.5,
        data_wait=0.25,
        forward=0.5,
        backward=0.75,
        exposed_communication=0.5,
        exposed_transfer=0.375,
        straggler_wait=0.125,
        exposed_codec=0.0625,
        optimizer=0.125,
        pause=0.25,
        other=0.0625,
        overlapped=0.5,
        encode=0.03125,
        decode=0.03125,
        agent=0.015625,
    ),
    unknown_reason="",
    step_seconds_min=0.5,
    step_seconds_max=0.75,
    logical_bytes=8000,
    wire_bytes=2000,
    samples=64,
    tokens=4096,
    ranks=(
        r.RankSums(rank=2, step_seconds=1.25, straggler_wait_seconds=0.125),
        r.RankSums(rank=3, step_seconds=1.25),
    ),
)
RECORDS: tuple[r.Record, ...] = (
    STARTED,
    WINDOW,
    r.Points(name="loss", steps=(8, 9), values=(0.5, None), kinds={"1": "-inf"}, is_evaluation=True),
    r.Event(
        at=1.5e9, step=8, kind="nonfinite", message="bad", rank=3, level="warning", data={"norm": 2.5, "x": None}
    ),
    r.Switched(
        at=1.5e9,
        step=9,
        epoch=4,
        plan=PLAN,
        num_ranks=4,
        cause="guard",
        revision=6,
        is_rollback=True,
        reason="loss",
        residual_norm_dropped=1.5,
    ),
    r.Refused(
        at=1.5e9, step=9, epoch=4, revision=7, refusals=(r.Refusal(rank=3, host="node-02", reason="no memory"),)
    ),
    r.AttemptEnded(at=1.5e9, last_step=9, status="failed", exception="ValueError"),
)
BATCH = m.Batch(run=RUN, attempt=ATTEMPT, model="model", node=1, number=5, num_dropped=2, records=RECORDS)
TESTED = r.LinkTest(
    backend="gloo",
    num_ranks=4,
    collectives=(
        r.CollectiveFacts(
            name="all_reduce",
            num_ranks=4,
            alpha_seconds=0.5,
            beta_bytes_per_second=1.25e9,
            sizes=(
                r.SizeFacts(
                    num_bytes=4096, seconds=0.5, algbw_bytes_per_second=8192.0, busbw_bytes_per_second=12288.0
                ),
            ),
        ),
    ),
    pairs=(
        r.PairFacts(
            source=0,
            target=2,
            source_host="node-01",
            target_host="node-02",
            latency_seconds=0.25,
            bytes_per_second=1.5e9,
        ),
    ),
)
HOST = r.HostWindow(
    at=1.5e9,
    seconds=5.0,
    num_cores=64,
    cpu_ratio=0.25,
    memory_used_bytes=1 << 38,
    memory_total_bytes=1 << 39,
    interface="eth0",
    received_bytes=6_000_000_000,
    sent_bytes=5_000_000_000,
    num_errors=3,
    gpus=(
        r.GpuFacts(
            index=1,
            name="H200",
            utilisation_ratio=0.75,
            memory_used_bytes=1 << 36,
            memory_total_bytes=1 << 37,
            power_watts=612.5,
            clock_hertz=1.5e9,
            max_clock_hertz=1.75e9,
            throttled_by=("power_cap",),
            num_nvlinks=18,
            nvlink_sent_bytes=4096,
            nvlink_received_bytes=8192,
        ),
    ),
    num_invalid=2,
)
MACHINE = r.MachineFacts(
    num_cores=64,
    memory_bytes=1 << 39,
    instruction_sets=("AVX2",),
    kernels="c",
    has_fp8=True,
    rdma_devices=("mlx5_0",),
    backend_version="2.21.5",
)
HOST_BATCH = m.Batch(
    run=RUN,
    attempt=ATTEMPT,
    model="model",
    node=1,
    number=1,
    records=(msgspec.structs.replace(STARTED, machine=MACHINE, link=r.LinkFacts(test=TESTED)), HOST),
)
SAMPLES_BATCH = m.Batch(
    run=RUN,
    attempt=ATTEMPT,
    model="model",
    node=0,
    number=6,
    is_late=True,
    records=(
        msgspec.structs.replace(WINDOW, codec="none", is_check=True),
        r.Points(
            name="loss",
            steps=(8, 9, 10),
            values=(0.5, None, 0.25),
            kinds={"1": "nan"},
            lows=(0.25, None, 0.125),
            highs=(0.75, None, 0.5),
            weights=(32.0, 16.0, 32.0),
        ),
        r.Matched(
            step=9,
            epoch=3,
            codec="int8",
            cosine=0.9375,
            relative_error=0.25,
            worst_parameter="layers.3.weight",
            worst_cosine=-0.5,
            num_elements=16384,
        ),
        r.Rehearsed(
            step=9,
            codec="int4",
            bucket=2,
            cosine=0.875,
            relative_error=0.5,
            encode_seconds=0.0078125,
            decode_seconds=0.00390625,
            num_elements=1_000_000,
            model_elements=7_000_000,
            norm_shares=(0.25, 0.5, 0.875),
        ),
    ),
)
ROUTES_BATCH = m.Batch(
    run=RUN,
    attempt=ATTEMPT,
    model="model",
    node=0,
    number=1,
    records=(
        msgspec.structs.replace(
            STARTED, routes={"int8": r.RouteFacts(flat_reason="one node", wire_bytes=2000, node_bytes=1000)}
        ),
    ),
)
DIRECTIVE = m.Directive(
    revision=6,
    model="model",
    kind="set",
    plan=PLAN,
    epoch=3,
    author="ann",
    reason="43 % waiting",
    requested_at=1.5e9,
)

# File name -> (type, message).
MESSAGES: dict[str, tuple[Any, Any]] = {
    "batch": (m.Batch, BATCH),
    "host_batch": (m.Batch, HOST_BATCH),
    "samples_batch": (m.Batch, SAMPLES_BATCH),
    "routes_batch": (m.Batch, ROUTES_BATCH),
    "batch_answer": (m.BatchAnswer, m.BatchAnswer(number=5, interval_seconds=10.0)),
    "directive_answer": (m.DirectiveAnswer, m.DirectiveAnswer(directive=DIRECTIVE)),
    "result_report": (m.ResultReport, m.ResultReport(attempt=ATTEMPT, model="model", result=RECORDS[4])),
    "set_request": (m.SetRequest, m.SetRequest(plan=PLAN, revision=5, model="model", reason="why")),
    "rollback_request": (m.RollbackRequest, m.RollbackRequest(model="model", reason="why")),
    "baseline_request": (m.BaselineRequest, m.BaselineRequest(baseline=RUN)),
    "error_answer": (
        m.ErrorAnswer,
        m.ErrorAnswer(
            error=m.ErrorDetail(
                code="conflict", message="stale", field="revision", limit=9, wanted=6, current=DIRECTIVE
            )
        ),
    ),
}
