"""What the machines of a run are and do, for the engineer."""

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire_protocol.records import GpuFacts, HostWindow, LinkTest, MachineFacts, PairFacts

from gradwire_server.pages.facts import Fact
from gradwire_server.pages.sentences import saving
from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import NodeView, RunView


@dataclass(frozen=True)
class NodeRow:
    """One node's machine lately, as text."""

    name: str
    network: str
    lost: str
    cpu: str
    memory: str
    codec: str
    gpus: tuple[str, ...]


def machine_facts(words: Wording, view: RunView) -> list[Fact]:
    """Return what the first rank's machine is, as far as the agent said."""
    facts = [Fact(words.say("Framework"), _versions(view))]
    if view.machines.interface:
        facts.append(Fact(words.say("Network interface"), view.machines.interface))
    if view.machines.link_test is not None:
        facts.append(_link_test(words, view.machines.link_test))
    if view.machines.machine is not None:
        facts += _abilities(words, view, view.machines.machine)
    return facts


def compute_facts(words: Wording, view: RunView) -> list[Fact]:
    """Return how much of the time is useful, beside what the driver says, and what codecs cost the processor."""
    useful, codec = view.machines.useful_share, view.machines.codec_seconds
    name = words.say("Useful computing time") if view.summary.device == "cpu" else words.say("Useful GPU time")
    share = "–" if useful.value is None else words.percent(useful.value)
    facts = [Fact(name, share, _driver(words, view))]
    if view.summary.device == "cpu":
        time = "–" if codec.value is None else words.seconds(codec.value)
        facts.append(Fact(words.say("Processor time of compression"), time, saving.because(words, codec.reason)))
    return facts


def node_rows(words: Wording, view: RunView) -> list[NodeRow]:
    """Return a row for each node whose machine was heard of."""
    return [_row(words, node, node.window) for node in view.machines.nodes if node.window is not None]


def num_left_out(view: RunView) -> int:
    """Return how many values of drivers were left out because no GPU can reach them."""
    return sum(node.window.num_invalid for node in view.machines.nodes if node.window is not None)


def _driver(words: Wording, view: RunView) -> str:
    if view.machines.driver_share is None:
        return ""
    return words.say(
        "The driver says {share}: it calls a GPU busy while any program runs on it, one that waits for others too.",
        share=words.percent(view.machines.driver_share),
    )


def _versions(view: RunView) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(view.machines.versions.items())) or "–"


def _abilities(words: Wording, view: RunView, machine: MachineFacts) -> list[Fact]:
    codecs = {
        "c": words.say("C code"),
        "triton": "Triton",
        "torch": words.say("torch operations, which are slower"),
    }
    facts = [
        Fact(words.say("Compression runs as"), codecs.get(machine.kernels, "–")),
        Fact(
            words.say("Processor cores"),
            words.number(machine.num_cores),
            words.enumerate(machine.instruction_sets),
            words.say("with vector instructions"),
        ),
        Fact("RDMA", words.enumerate(machine.rdma_devices) or words.say("none")),
    ]
    if machine.memory_bytes is not None:
        facts.append(Fact(words.say("Main memory"), words.bytes(machine.memory_bytes)))
    if machine.has_fp8 is not None:
        facts.append(Fact("fp8", words.say("in hardware") if machine.has_fp8 else words.say("not in hardware")))
    if machine.backend_version:
        facts.append(Fact(view.backend.upper(), machine.backend_version))
    return facts


def _link_test(words: Wording, test: LinkTest) -> Fact:
    found = next((one for one in test.collectives if one.name == "all_reduce"), None)
    if found is None or found.beta_bytes_per_second is None:
        value, latency = "–", ""
    else:
        speed = words.say("{bytes}/s", bytes=words.bytes(found.beta_bytes_per_second))
        value = words.say("{speed} in all-reduce", speed=speed)
        latency = words.say("{time} to begin", time=words.milliseconds(found.alpha_seconds))
    slowest = min(test.pairs, key=lambda pair: pair.bytes_per_second, default=None)
    note = words.enumerate((latency, "" if slowest is None else _slowest(words, slowest)))
    return Fact(words.say("Link test"), value, note, "busbw, alpha")


def _slowest(words: Wording, pair: PairFacts) -> str:
    return words.say(
        "slowest from rank {source} on {source_host} to rank {target} on {target_host}: {bytes}/s",
        source=pair.source,
        source_host=pair.source_host,
        target=pair.target,
        target_host=pair.target_host,
        bytes=words.bytes(pair.bytes_per_second),
    )


def _row(words: Wording, node: NodeView, window: HostWindow) -> NodeRow:
    codec = node.codec_share
    return NodeRow(
        name=node.host,
        network=_network(words, window),
        lost="–" if window.num_errors is None else words.number(window.num_errors),
        cpu="–" if window.cpu_ratio is None else words.percent(window.cpu_ratio),
        memory=_of(words, window.memory_used_bytes, window.memory_total_bytes),
        codec="–" if codec.value is None else words.percent(codec.value, 1 if codec.value < 0.1 else 0),
        gpus=tuple(_gpu(words, gpu, window.seconds) for gpu in window.gpus),
    )


def _network(words: Wording, window: HostWindow) -> str:
    if window.sent_bytes is None or window.received_bytes is None or window.seconds <= 0:
        return "–"
    return words.say(
        "{sent}/s out, {received}/s in",
        sent=words.bytes(window.sent_bytes / window.seconds),
        received=words.bytes(window.received_bytes / window.seconds),
    )


def _of(words: Wording, used: int | None, total: int | None) -> str:
    if used is None or total is None:
        return "–"
    return words.say("{used} of {total}", used=words.bytes(used), total=words.bytes(total))


def _gpu(words: Wording, gpu: GpuFacts, seconds: float) -> str:
    name = f"GPU {gpu.index}{f' ({gpu.name})' if gpu.name else ''}"
    parts = [name, *_gpu_parts(words, gpu)]
    if gpu.num_nvlinks:
        parts.append(words.say_many("{count} NVLink", "{count} NVLinks", gpu.num_nvlinks))
    if gpu.nvlink_sent_bytes is not None and seconds > 0:
        parts.append(words.say("{sent}/s over NVLink", sent=words.bytes(gpu.nvlink_sent_bytes / seconds)))
    if gpu.throttled_by:
        parts.append(words.say("slowed down by {causes}", causes=words.enumerate(_causes(words, gpu.throttled_by))))
    return words.enumerate(parts)


def _gpu_parts(words: Wording, gpu: GpuFacts) -> Iterable[str]:
    if gpu.utilisation_ratio is not None:
        yield words.say("driver: {share} busy", share=words.percent(gpu.utilisation_ratio))
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes is not None:
        yield _of(words, gpu.memory_used_bytes, gpu.memory_total_bytes)
    if gpu.power_watts is not None:
        yield f"{words.number(gpu.power_watts)} W"
    if gpu.clock_hertz is not None and gpu.max_clock_hertz is not None:
        clock, most = (words.number(hertz / 1e6) for hertz in (gpu.clock_hertz, gpu.max_clock_hertz))
        yield words.say("{clock} of {most} MHz", clock=clock, most=most)


def _causes(words: Wording, names: Iterable[str]) -> list[str]:
    known = {
        "power_cap": words.say("its power limit"),
        "power_brake": words.say("the power supply"),
        "thermal": words.say("heat"),
        "hardware_thermal": words.say("heat"),
        "hardware_slowdown": words.say("the hardware's protection"),
    }
    return list(dict.fromkeys(known.get(name, name) for name in names))
