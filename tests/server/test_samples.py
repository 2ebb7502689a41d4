"""What samples of gradients tell on a run's page."""

import pytest
from gradwire_protocol.records import Matched, Points, Rehearsed
from gradwire_server.ingest.samples import GRADIENT_MATCH, REPLICAS_EQUAL
from gradwire_server.series.points import point_buckets
from sqlalchemy import Connection
from stored_run import StoredRun, steps, view


def matched(step: int, cosine: float, *, epoch: int = 1, worst: str = "body.weight") -> Matched:
    return Matched(
        step=step,
        epoch=epoch,
        codec="int8",
        cosine=cosine,
        relative_error=0.02,
        worst_parameter=worst,
        worst_cosine=cosine - 0.1,
        num_elements=1000,
    )


def rehearsed(codec: str, bucket: int, *, cosine: float = 0.9, num_elements: int = 1000) -> Rehearsed:
    return Rehearsed(
        step=20,
        codec=codec,
        bucket=bucket,
        cosine=cosine,
        relative_error=0.1,
        encode_seconds=0.001,
        decode_seconds=0.002,
        num_elements=num_elements,
        model_elements=8000,
        norm_shares=(0.3, 0.5, 0.8),
    )


def test_newest_match_stands_and_all_are_a_curve(connection: Connection) -> None:
    run = StoredRun(connection)
    run.switch(5, 1, "int8")
    run.send(steps(10, codec="int8", epoch=1), matched(10, 0.99), matched(20, 0.95, worst="head.weight"))
    found = view(connection, run).samples.match
    assert found is not None
    assert (found.step, found.cosine, found.worst_parameter) == (20, 0.95, "head.weight")
    curve = point_buckets(connection, run.id, "model", GRADIENT_MATCH)
    assert [bucket.last for bucket in curve] == [0.99, 0.95]


def test_match_of_an_earlier_codec_is_not_shown(connection: Connection) -> None:
    run = StoredRun(connection)
    run.switch(5, 1, "int8")
    run.send(steps(10, codec="int8", epoch=1), matched(10, 0.99))
    run.switch(20, 2, "none")
    assert view(connection, run).samples.match is None


def test_rehearsals_are_added_up_over_buckets_and_replaced(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(steps(0), rehearsed("int8", 0, cosine=0.1), rehearsed("int8", 0, cosine=0.9), rehearsed("topk", 0))
    run.send(rehearsed("int8", 1, cosine=0.5, num_elements=3000))
    found = {one.codec: one for one in view(connection, run).samples.rehearsal}
    assert set(found) == {"int8", "topk"}
    assert found["int8"].cosine == pytest.approx((0.9 * 1000 + 0.5 * 3000) / 4000)
    # Half of what codecs compress was tried.
    assert found["int8"].encode_seconds == pytest.approx(2 * 0.002)
    assert found["topk"].decode_seconds == pytest.approx(8 * 0.002)
    assert found["topk"].norm_shares == (0.3, 0.5, 0.8)


def test_replicas_are_as_equal_as_last_compared(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(steps(0))
    assert view(connection, run).samples.replicas is None
    run.send(Points(name=REPLICAS_EQUAL, steps=(8,), values=(1.0,)))
    run.send(Points(name=REPLICAS_EQUAL, steps=(16,), values=(0.0,)))
    found = view(connection, run).samples.replicas
    assert found is not None
    assert (found.step, found.are_equal) == (16, False)
