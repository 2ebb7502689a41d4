"""What the machines of a run do, and how much of it is useful."""

from statistics import fmean

import msgspec
from gradwire_protocol.records import HostWindow
from sqlalchemy import RowMapping

from gradwire_server.runs.evidence import Evidence
from gradwire_server.runs.sources import RunSource
from gradwire_server.runs.views import MachinesView, Measure, NodeView
from gradwire_server.series.sums import StepSums, merge
from gradwire_server.verdict import reasons
from gradwire_server.verdict.measures import measure


def machines_view(source: RunSource, evidence: Evidence) -> MachinesView:
    """Return what is known of the attempt's machines, its nodes by number."""
    nodes = tuple(_node(row, source, evidence) for row in sorted(source.nodes, key=lambda row: int(row["node"])))
    told = [
        gpu.utilisation_ratio
        for node in nodes
        if node.window is not None
        for gpu in node.window.gpus
        if gpu.utilisation_ratio is not None
    ]
    return MachinesView(
        nodes=nodes,
        machine=source.facts.machine,
        versions=source.facts.versions,
        interface=source.facts.link.interface,
        link_test=source.facts.link.test,
        useful_share=measure(evidence.newest, _computing, lambda block: block.training),
        driver_share=fmean(told) if told else None,
        codec_seconds=_codec_seconds(source, evidence),
    )


def _node(row: RowMapping, source: RunSource, evidence: Evidence) -> NodeView:
    stored = row["host_window"]
    window = None if stored is None else msgspec.convert(stored, HostWindow)
    return NodeView(
        node=row["node"],
        host=row["host"],
        num_ranks=len(row["ranks"]),
        window=window,
        codec_share=_codec_share(source, evidence, len(row["ranks"]), window),
    )


def _computing(block: StepSums) -> float:
    return block.forward + block.backward + block.optimizer


def _codec_share(source: RunSource, evidence: Evidence, num_ranks: int, window: HostWindow | None) -> Measure:
    """Return the share of one node's cores; every rank encodes and decodes on one core at a time."""
    if source.facts.device != "cpu":
        return Measure(reason=reasons.ON_GPU)
    total = merge(evidence.newest)
    if window is None or window.num_cores == 0 or total is None or total.step <= 0:
        return Measure(reason=reasons.NO_STEPS)
    return Measure(value=(total.encode + total.decode) / total.step * num_ranks / window.num_cores)


def _codec_seconds(source: RunSource, evidence: Evidence) -> Measure:
    if source.facts.device != "cpu":
        return Measure(reason=reasons.ON_GPU)
    total = merge(stretch.sums for stretch in evidence.stretches)
    return Measure(reason=reasons.NO_STEPS) if total is None else Measure(value=total.encode + total.decode)
