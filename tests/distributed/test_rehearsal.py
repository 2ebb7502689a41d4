"""Rehearsals and comparisons of replicas in a real training: told by one rank, and changing nothing."""

import pytest
import torch
from distributed.ranks import run_ranks
from distributed.training import attach, batch, flat, make_model, pulse_with_every_exchange, train_step
from gradwire.steering import rehearsal
from gradwire.steering.samples import REPLICAS_EQUAL
from gradwire_protocol.records import Matched, Points, Rehearsed, StepWindow

pytestmark = pytest.mark.distributed


def _run(rank, world_size, folder, share, num_steps, plan):
    rehearsal.SHARE = share
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan=plan)
    records = []
    session._outlet._reporter.report = lambda record, **_: records.append(record)
    for step in range(num_steps):
        loss = train_step(ddp, optimizer, batch(rank, step))
        session.step(loss=loss, samples=16)
    session._recorder.close(5.0)
    return records, flat(ddp)


def _trained(folder, *, share, plan, num_steps=60):
    return run_ranks(2, _run, str(folder), share, num_steps, plan)


def _of(records, kind):
    return [record for record in records if isinstance(record, kind)]


def test_one_rank_tries_every_codec_on_its_gradients(tmp_path):
    (records, _), (others, _) = _trained(tmp_path, share=1e6, plan="none")
    found = _of(records, Rehearsed)
    assert not _of(others, Rehearsed)
    names = {one.codec for one in found}
    assert names == {"bf16", "fp16", "int8", "fp8", "int4", "onebit", "topk", "powersgd"}
    assert len({one.bucket for one in found}) > 1
    for one in found:
        assert 0 < one.cosine <= 1 + 1e-9
        assert one.num_elements <= one.model_elements == 32 * 64 + 64 * 64
    assert not _of(records, Matched), "nothing is compressed, so that nothing has to match"


def test_rehearsals_change_no_gradient_and_are_a_pause_to_the_timing(tmp_path):
    (records, parameters), _ = _trained(tmp_path / "with", share=1e6, plan="int8")
    (without, same), _ = _trained(tmp_path / "without", share=0.0, plan="int8")
    assert torch.equal(parameters, same)
    assert len(_of(records, Rehearsed)) > 8 > len(_of(without, Rehearsed))
    spent = sum(window.seconds.pause for window in _of(records, StepWindow))
    assert spent > sum(one.encode_seconds + one.decode_seconds for one in _of(records, Rehearsed)[:-1])


def test_match_and_equal_replicas_are_told_by_one_rank(tmp_path):
    (records, _), (others, _) = _trained(tmp_path, share=0.0, plan="int8")
    matches = _of(records, Matched)
    assert len(matches) > 3
    assert all(one.codec == "int8" and one.cosine > 0.99 for one in matches)
    assert [one.step for one in matches] == sorted(one.step for one in matches)
    compared = [one for one in _of(records, Points) if one.name == REPLICAS_EQUAL]
    assert len(compared) > 3
    assert all(one.values == (1.0,) for one in compared)
    assert not _of(others, Matched)
    assert not [one for one in _of(others, Points) if one.name == REPLICAS_EQUAL]
