import logging

import pytest
import torch
from gradwire.losses import Losses


def test_loss_with_a_graph_is_read_once_and_observed() -> None:
    observed: list[tuple[int, float]] = []
    losses = Losses(lambda step, value: observed.append((step, value)))
    losses.note(3, torch.tensor(1.5, requires_grad=True) * 2, 8.0)
    losses.note(4, 0.25, 4.0)
    assert losses.drain() == ([3, 4], [3.0, 0.25], [8.0, 4.0])
    assert losses.drain() == ([], [], [])
    assert observed == [(3, 3.0), (4, 0.25)]


def test_loss_of_several_elements_is_refused_once_in_words(caplog: pytest.LogCaptureFixture) -> None:
    losses = Losses(lambda step, value: pytest.fail("nothing was to be observed"))
    with caplog.at_level(logging.WARNING, logger="gradwire"):
        losses.note(1, torch.ones(2), 1.0)
        losses.note(2, torch.ones(2), 1.0)
    assert losses.drain() == ([], [], [])
    assert [record.message for record in caplog.records] == [
        "gradwire: loss has 2 elements; wanted: one; this loss is not recorded"
    ]
