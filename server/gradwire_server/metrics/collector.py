"""The exposition: counters of live runs as Prometheus metric families."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gradwire_server.metrics.counters import Counters, RunCounters

LABELS = ("project", "run")

SECONDS = (
    ("step", "", "Time of training steps, pauses included, summed over ranks."),
    ("pause", "", "Time of evaluation and checkpoint pauses inside steps, summed over ranks."),
    (
        "split_training",
        "",
        "Training time, pauses left out, of steps whose transfer and waiting are known.",
    ),
    ("compute", "phase", "Time of forward and backward, summed over ranks."),
    ("comm", "kind", "Time of gradient communication, summed over ranks; the kinds add up to all of it."),
    ("codec", "op", "Time of encoding and decoding, exposed or not, summed over ranks."),
)
COUNTS = (
    ("tokens", "Tokens that all ranks trained on."),
    ("samples", "Samples that all ranks trained on."),
    ("wire_bytes", "Bytes that all ranks sent for gradients."),
    ("logical_bytes", "Bytes that all ranks asked to average, before compression."),
    ("steps", "Synchronised training steps."),
    ("rank_steps", "Steps, each counted once for every rank; a mean for each rank divides by it."),
)
# Zeroes are there from the start: a rate over the first rollback would otherwise miss it.
CAUSES = ("directive", "local", "guard")


class RunCollector(Collector):
    """Reads one process's counters; to be registered in a registry of its own."""

    def __init__(self, counters: Counters, now: Callable[[], float]) -> None:
        self._counters = counters
        self._now = now

    def collect(self) -> Iterable[Metric]:
        """Yield all families. Cost: in memory only."""
        found, num_overflowed = self._counters.snapshot()
        yield from _seconds(found)
        yield from _counts(found)
        yield from _gauges(found, self._now())
        overflow = CounterMetricFamily(
            "gradwire_overflowed_batches", "Batches of runs beyond the cap, which no other metric counts."
        )
        overflow.add_metric((), num_overflowed)
        yield overflow


def _seconds(found: Mapping[str, RunCounters]) -> Iterable[Metric]:
    for name, label, text in SECONDS:
        labels = (*LABELS, label) if label else LABELS
        family = CounterMetricFamily(f"gradwire_{name}_seconds", text, labels=labels)
        for run, counters in found.items():
            for (metric, kind), value in sorted(counters.sums.items()):
                if metric == name:
                    family.add_metric((counters.project, run, *((kind,) if label else ())), value)
        yield family


def _counts(found: Mapping[str, RunCounters]) -> Iterable[Metric]:
    for name, text in COUNTS:
        family = CounterMetricFamily(f"gradwire_{name}", text, labels=LABELS)
        for run, counters in found.items():
            family.add_metric((counters.project, run), counters.counts[name])
        yield family
    rollbacks = CounterMetricFamily("gradwire_rollbacks", "Rollbacks to uncompressed.", labels=(*LABELS, "cause"))
    for run, counters in found.items():
        for cause in CAUSES:
            rollbacks.add_metric((counters.project, run, cause), counters.rollbacks[cause])
    yield rollbacks


def _gauges(found: Mapping[str, RunCounters], now: float) -> Iterable[Metric]:
    info = GaugeMetricFamily("gradwire_run_info", "Name and codec of a run.", labels=(*LABELS, "name", "codec"))
    live = GaugeMetricFamily("gradwire_run_live", "1 while a run is heard of and has not ended.", labels=LABELS)
    ended = GaugeMetricFamily("gradwire_run_ended", "1 once the training said its last word.", labels=LABELS)
    heard = GaugeMetricFamily(
        "gradwire_last_sample_timestamp_seconds", "When the server received a run's newest batch.", labels=LABELS
    )
    ranks = GaugeMetricFamily("gradwire_applied_ranks", "Ranks that apply the codec in use.", labels=LABELS)
    link = GaugeMetricFamily(
        "gradwire_link_bytes_per_second",
        "A rank's link, nominal and measured.",
        labels=(*LABELS, "kind"),
    )
    for run, counters in found.items():
        labels = (counters.project, run)
        info.add_metric((*labels, counters.name, counters.codec), 1)
        live.add_metric(labels, counters.is_live(now))
        ended.add_metric(labels, counters.has_ended)
        heard.add_metric(labels, counters.heard_at)
        if counters.num_applied_ranks is not None:
            ranks.add_metric(labels, counters.num_applied_ranks)
        speeds = {"nominal": counters.nominal_bytes_per_second, "measured": counters.measured_bytes_per_second}
        for kind, speed in speeds.items():
            if speed is not None:
                link.add_metric((*labels, kind), speed)
    yield from (info, live, ended, heard, ranks, link)
