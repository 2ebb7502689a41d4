"""Bad messages get an error that names the field and the limit; good ones come back as they were."""

import uuid
from typing import Any

import msgspec
import pytest
from gradwire_protocol import coding, limits
from gradwire_protocol.codecs import CATALOGUE, validate_codec
from gradwire_protocol.errors import MalformedError, ProtocolError, TooLargeError
from gradwire_protocol.identity import new_id, validate_name
from gradwire_protocol.messages import Batch
from gradwire_protocol.plans import PlanSpec, validate_plan
from gradwire_protocol.records import Points
from protocol.messages import BATCH, HOST, HOST_BATCH, MESSAGES, TESTED


def body(**changes: Any) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(BATCH), **changes})


def record(index: int, **changes: Any) -> bytes:
    records = msgspec.to_builtins(BATCH)["records"]
    records[index].update(changes)
    return body(records=records)


def host(index: int, part: str = "", **changes: Any) -> bytes:
    """Return the batch with facts of machines, a record or one of its parts changed."""
    records = msgspec.to_builtins(HOST_BATCH)["records"]
    (records[index][part] if part else records[index]).update(changes)
    return body(records=records)


def gpu(**changes: Any) -> dict[str, Any]:
    return {**msgspec.to_builtins(HOST.gpus[0]), **changes}


def link_test(**changes: Any) -> dict[str, Any]:
    test: dict[str, Any] = msgspec.to_builtins(TESTED)
    return {**test, "pairs": [{**test["pairs"][0], **changes}]}


@pytest.mark.parametrize("name", [name for name, (kind, _) in MESSAGES.items() if kind is Batch])
def test_golden_batches_are_within_every_limit(name: str) -> None:
    assert coding.decode_batch(coding.encode(MESSAGES[name][1])) == MESSAGES[name][1]


def test_a_batch_comes_back_as_it_was() -> None:
    assert coding.decode_batch(coding.encode(BATCH)) == BATCH


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (b"", ""),
        (b"[", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
        (body(protocol=2), "protocol"),
        (body(run="../../etc/passwd"), "run"),
        (body(model=""), "model"),
        (body(model="a\0b"), "model"),
        (body(number=0), "number"),
        (body(number=-1), "number"),
        (body(number=2**63), "number"),
        (body(number=1.5), "number"),
        (body(number=True), "number"),
        (body(number="12"), "number"),
        (record(0, run_name=" "), "records[0].run_name"),
        (record(0, plan={"codec": "martian"}), "records[0].plan.codec"),
        (record(1, first_step=10**30), "records[1].first_step"),
        (record(1, last_step=1), "records[1].last_step"),
        (record(1, seconds={"step": -1.0}), "records[1].seconds.step"),
        (record(2, values=[0.5]), "records[2].values"),
        (record(2, values=[0.5, 0.25]), "records[2].values[1]"),
        (record(2, kinds={"1": "large"}), "records[2].kinds"),
        (record(3, step=-1), "records[3].step"),
        (record(0, codec_memory_bytes={"int8": 10**400}), "records[0].codec_memory_bytes"),
        (host(0, "machine", num_cores=-1), "records[0].machine.num_cores"),
        (host(0, "machine", memory_bytes=10**400), "records[0].machine.memory_bytes"),
        (host(0, "link", test=link_test(source=-1)), "records[0].link.test.pairs[0].source"),
        (host(1, gpus=[gpu(memory_used_bytes=-5)]), "records[1].gpus[0].memory_used_bytes"),
        (host(1, gpus=[gpu(), gpu(nvlink_sent_bytes=10**400)]), "records[1].gpus[1].nvlink_sent_bytes"),
        (record(5, refusals=[{"rank": -1, "host": "a", "reason": "b"}]), "records[5].refusals[0].rank"),
        (record(1, ranks=[{"rank": 2**63, "step_seconds": 1.0}]), "records[1].ranks[0].rank"),
    ],
)
def test_a_malformed_batch_is_refused_by_field(sent: bytes, field: str) -> None:
    with pytest.raises(MalformedError) as caught:
        coding.decode_batch(sent)
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b" " * (limits.MAX_BODY_BYTES + 1), limits.MAX_BODY_BYTES),
        (body(records=[msgspec.to_builtins(BATCH.records[6])] * 201), limits.MAX_BATCH_RECORDS),
        (record(2, steps=list(range(1001)), values=[0.5] * 1001, kinds={}), limits.MAX_POINTS_PER_RECORD),
        (record(3, message="x" * 2001), limits.MAX_TEXT_CHARACTERS),
        (record(3, data={"x" * 2001: -1}), limits.MAX_TEXT_CHARACTERS),
        (record(3, data={"names": "x" * 2001}), limits.MAX_TEXT_CHARACTERS),
        (record(3, data={str(index): -1 for index in range(1025)}), limits.MAX_ENTRIES),
        (record(0, versions={"x" * 2001: "1"}), limits.MAX_TEXT_CHARACTERS),
        (record(0, notes=["a"] * 1025), limits.MAX_ENTRIES),
        (record(6, exception="x" * 2001), limits.MAX_TEXT_CHARACTERS),
        (host(0, "machine", rdma_devices=["a"] * 1025), limits.MAX_ENTRIES),
        (host(0, "link", test=link_test(source_host="x" * 500_000)), limits.MAX_TEXT_CHARACTERS),
        (host(1, gpus=[gpu(name="x" * 500_000)]), limits.MAX_TEXT_CHARACTERS),
        (host(1, gpus=[gpu(throttled_by=["thermal"] * 1025)]), limits.MAX_ENTRIES),
        (host(1, gpus=[gpu()] * 1025), limits.MAX_ENTRIES),
    ],
)
def test_what_is_too_large_is_refused_with_the_limit(sent: bytes, limit: int) -> None:
    with pytest.raises(TooLargeError) as caught:
        coding.decode_batch(sent)
    assert caught.value.limit == limit
    assert str(limit) in str(caught.value)


@pytest.mark.parametrize("name", MESSAGES)
def test_unknown_fields_of_a_newer_version_are_passed_over(name: str) -> None:
    kind, message = MESSAGES[name]
    newer = {**msgspec.to_builtins(message), "a_field_of_the_future": {"deep": [1, 2]}}
    assert coding.decode(msgspec.json.encode(newer), kind) == message


@pytest.mark.parametrize("name", ["🚀 größe ✓ 实验", "x\u2028y", "\u202eabc", "<b>bold</b>", ".", "a/b", "a%2Fb"])
def test_odd_names_are_names(name: str) -> None:
    assert validate_name(name, field="name") == name


@pytest.mark.parametrize("name", ["", "   ", "a\0b", "\ud83d", "line\nbreak", "x" * 201])
def test_names_that_cannot_be_stored_or_shown_are_refused(name: str) -> None:
    with pytest.raises(ProtocolError):
        validate_name(name, field="name")


def test_ids_are_version_7_and_ordered_by_time() -> None:
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {uuid.UUID(value).version for value in ids} == {7}
    prefixes = [value[:13] for value in ids]
    assert prefixes == sorted(prefixes)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_codec_has_defaults_within_its_own_ranges(name: str) -> None:
    filled = validate_codec(name, {})
    assert validate_codec(name, filled) == filled
    for spec in CATALOGUE[name].parameters:
        for bad in (spec.low - 1, spec.high + 1, True):
            with pytest.raises(MalformedError, match=str(spec.high)):
                validate_codec(name, {spec.name: bad})


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        (PlanSpec(codec="int9"), "plan.codec"),
        (PlanSpec(codec="int8", parameters={"blok": 1}), "plan.parameters.blok"),
        (PlanSpec(min_elements=-1), "plan.min_elements"),
        (PlanSpec(warmup_steps=2**63), "plan.warmup_steps"),
        (PlanSpec(exchange="ring"), "plan.exchange"),  # type: ignore[arg-type]
        (PlanSpec(exempt_patterns=("",)), "plan.exempt_patterns"),
        (PlanSpec(exempt_patterns=("*",) * 65), "plan.exempt_patterns"),
    ],
)
def test_a_bad_plan_is_refused_by_field(plan: PlanSpec, field: str) -> None:
    with pytest.raises(MalformedError) as caught:
        validate_plan(plan)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lows": (1.0,)}, "2 steps and 1 lows"),
        ({"highs": (1.0, 2.0, 3.0)}, "2 steps and 3 highs"),
        ({"weights": (1.0, 0.0)}, "a weight is 0 or less"),
    ],
)
def test_spread_of_points_fits_their_steps(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(MalformedError, match=text):
        coding.validate_record(Points(name="loss", steps=(1, 2), values=(1.0, 2.0), **changes), field="records[0]")
