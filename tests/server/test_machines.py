"""What a run's view says of its machines."""

import pytest
from gradwire_protocol.coding import validate_record
from gradwire_protocol.errors import ProtocolError
from gradwire_protocol.records import GpuFacts, HostWindow, LinkFacts, LinkTest, MachineFacts, NodeFacts
from gradwire_server.verdict import reasons
from msgspec.structs import replace
from sqlalchemy import Connection
from stored_run import StoredRun, steps, view

HOST = HostWindow(
    at=1.0,
    seconds=5.0,
    num_cores=8,
    cpu_ratio=0.5,
    interface="eth0",
    sent_bytes=10_000_000,
    received_bytes=5_000_000,
    num_errors=2,
)


def test_newest_report_of_every_node_is_shown(connection: Connection) -> None:
    run = StoredRun(connection, world_size=4)
    run.send(steps(0), HOST, replace(HOST, at=2.0, cpu_ratio=0.75))
    run.facts = replace(run.facts, node=NodeFacts(host="node-01", ranks=(2, 3)))
    run.send(steps(0), node=1)
    first, second = view(connection, run).machines.nodes
    assert (first.node, first.host, first.num_ranks) == (0, "node-00", 2)
    assert first.window == replace(HOST, at=2.0, cpu_ratio=0.75)
    assert (second.host, second.window) == ("node-01", None)
    run.send(replace(HOST, at=3.0), node=1)
    assert view(connection, run).machines.nodes[1].window == replace(HOST, at=3.0)


def test_codec_time_is_a_share_of_all_cores(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(HOST)
    run.switch(1, 1, "int8")
    run.send(*(steps(first, step=0.100, codec_seconds=0.020, codec="int8", epoch=1) for first in range(1, 101, 10)))
    shown = view(connection, run).machines
    # Two ranks each spend a fifth of the time on one core of eight.
    assert shown.nodes[0].codec_share.value == pytest.approx(0.2 * 2 / 8)
    assert shown.codec_seconds.value == pytest.approx(100 * 2 * 0.020)


def test_useful_time_stands_beside_the_drivers(connection: Connection) -> None:
    gpus = (GpuFacts(index=0, utilisation_ratio=0.96), GpuFacts(index=1, utilisation_ratio=1.0), GpuFacts(index=2))
    run = StoredRun(connection, device="cuda", backend="nccl")
    run.send(*(steps(first, step=0.100) for first in range(0, 100, 10)), replace(HOST, gpus=gpus))
    compute = view(connection, run).machines
    # 40 ms of 100 are exposed transfer, the rest is forward, backward and optimizer.
    assert compute.useful_share.value == pytest.approx(0.6)
    assert compute.driver_share == pytest.approx(0.98)
    assert compute.codec_seconds.reason == reasons.ON_GPU


def test_facts_of_the_start_are_kept(connection: Connection) -> None:
    machine, test = MachineFacts(num_cores=8, kernels="c"), LinkTest(backend="gloo", num_ranks=2)
    run = StoredRun(
        connection, machine=machine, link=LinkFacts(interface="ib0", test=test), versions={"torch": "2.13"}
    )
    run.send(steps(0))
    shown = view(connection, run).machines
    assert (shown.machine, shown.interface, shown.link_test) == (machine, "ib0", test)
    assert shown.versions == {"torch": "2.13"}
    assert view(connection, run).machines.driver_share is None


@pytest.mark.parametrize("change", [{"sent_bytes": -1}, {"num_errors": 1 << 63}, {"seconds": -1.0}])
def test_impossible_counts_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ProtocolError):
        validate_record(replace(HOST, **change), field="records[0]")
