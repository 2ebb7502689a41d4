"""The part of a run's page that says what its machines are and do."""

from gradwire_protocol.records import (
    CollectiveFacts,
    GpuFacts,
    HostWindow,
    LinkTest,
    MachineFacts,
    PairFacts,
)
from gradwire_server.pages.machines import compute_facts, machine_facts, node_rows, num_left_out
from gradwire_server.runs.views import MachinesView, NodeView
from made_view import chinese, english, measure, plain, run_view

GPU = GpuFacts(
    index=1,
    name="H200",
    utilisation_ratio=0.97,
    memory_used_bytes=60_000_000_000,
    memory_total_bytes=150_000_000_000,
    power_watts=612.5,
    clock_hertz=1.5e9,
    max_clock_hertz=1.98e9,
    throttled_by=("thermal", "hardware_thermal", "power_cap"),
    num_nvlinks=18,
    nvlink_sent_bytes=5_000_000_000,
)
WINDOW = HostWindow(
    at=1.0,
    seconds=5.0,
    num_cores=64,
    cpu_ratio=0.25,
    memory_used_bytes=100_000_000_000,
    memory_total_bytes=500_000_000_000,
    interface="eth0",
    sent_bytes=10_000_000_000,
    received_bytes=5_000_000_000,
    num_errors=3,
    gpus=(GPU,),
    num_invalid=2,
)
NODE = NodeView(node=0, host="node-02", num_ranks=8, window=WINDOW, codec_share=measure(0.034))


def test_row_says_what_the_node_did_in_the_last_seconds() -> None:
    view = run_view(machines=MachinesView(nodes=(NODE, NodeView(node=1, host="node-03", num_ranks=8))))
    (row,) = node_rows(english(), view)
    assert (row.name, plain(row.network)) == ("node-02", "2.00 GB/s out, 1.00 GB/s in")
    assert (row.lost, plain(row.cpu), plain(row.codec)) == ("3", "25 %", "3.4 %")
    assert plain(row.memory) == "100 GB of 500 GB"
    (gpu,) = row.gpus
    assert plain(gpu) == (
        "GPU 1 (H200), driver: 97 % busy, 60.0 GB of 150 GB, 612 W, 1 500 of 1 980 MHz, 18 NVLinks, "
        "1.00 GB/s over NVLink, slowed down by heat, its power limit"
    )
    assert num_left_out(view) == 2
    (row,) = node_rows(chinese(), view)
    assert "温度过高" in row.gpus[0]


def test_unknown_is_a_dash_and_never_zero() -> None:
    silent = HostWindow(at=1.0, seconds=5.0, num_cores=8)
    node = NodeView(node=0, host="node-02", num_ranks=8, window=silent)
    view = run_view(machines=MachinesView(nodes=(node,)))
    (row,) = node_rows(english(), view)
    assert {row.network, row.lost, row.cpu, row.memory, row.codec} == {"–"}
    assert row.gpus == ()


def test_useful_time_says_why_the_drivers_figure_is_higher() -> None:
    view = run_view(machines=MachinesView(useful_share=measure(0.46), driver_share=0.97))
    (fact,) = compute_facts(english(), view)
    assert (fact.name, plain(fact.value)) == ("Useful GPU time", "46 %")
    assert plain(fact.note) == (
        "The driver says 97 %: it calls a GPU busy while any program runs on it, one that waits for others too."
    )
    (fact,) = compute_facts(chinese(), view)
    assert fact.note.startswith("驱动显示 97%")


def test_processor_time_of_codecs_is_told_on_cpu_alone() -> None:
    view = run_view(summary={"device": "cpu"}, machines=MachinesView(codec_seconds=measure(12.3)))
    names = [(fact.name, plain(fact.value)) for fact in compute_facts(english(), view)]
    assert names == [("Useful computing time", "–"), ("Processor time of compression", "12 s")]


def test_machine_is_told_as_far_as_it_is_known() -> None:
    pair = PairFacts(
        source=2, target=0, source_host="node-02", target_host="node-00", latency_seconds=0.1, bytes_per_second=5e6
    )
    found = CollectiveFacts(name="all_reduce", num_ranks=4, alpha_seconds=0.0002, beta_bytes_per_second=1.25e8)
    machine = MachineFacts(
        num_cores=64,
        memory_bytes=500_000_000_000,
        instruction_sets=("AVX2", "AVX-512"),
        kernels="torch",
        has_fp8=False,
        rdma_devices=("mlx5_0",),
        backend_version="2.21.5",
    )
    machines = MachinesView(
        machine=machine,
        versions={"torch": "2.13.0"},
        interface="eth0",
        link_test=LinkTest(backend="nccl", num_ranks=4, collectives=(found,), pairs=(pair,)),
    )
    view = run_view(machines=machines)
    told = {fact.name: (plain(fact.value), plain(fact.note)) for fact in machine_facts(english(), view)}
    assert told == {
        "Framework": ("torch 2.13.0", ""),
        "Network interface": ("eth0", ""),
        "Link test": (
            "125 MB/s in all-reduce",
            "0.2 ms to begin, slowest from rank 2 on node-02 to rank 0 on node-00: 5.00 MB/s",
        ),
        "Compression runs as": ("torch operations, which are slower", ""),
        "Processor cores": ("64", "AVX2, AVX-512"),
        "RDMA": ("mlx5_0", ""),
        "Main memory": ("500 GB", ""),
        "fp8": ("not in hardware", ""),
        "NCCL": ("2.21.5", ""),
    }
    assert [fact.name for fact in machine_facts(english(), run_view())] == ["Framework"]
