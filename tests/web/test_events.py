"""Lines of the history in both languages."""

import pytest
from gradwire_server.pages.events import SENTENCES, event_text
from gradwire_server.runs.views import EventView
from made_view import chinese, english

DATA: dict[str, dict[str, object]] = {
    "attempt_started": {"number": 2, "world_size": 8, "codec": "none"},
    "attempt_ended": {"status": "failed", "exception": "OSError"},
    "requested": {"revision": 3, "kind": "set", "codec": "int8", "author": "Ada", "reason": ""},
    "delivered": {"revision": 3, "codec": "int8", "seconds": 0.1},
    "switched": {
        "num_ranks": 8,
        "codec": "int8",
        "is_rollback": False,
        "cause": "directive",
        "reason": "",
        "revision": 3,
    },
    "refused": {"revision": 3, "num_refusals": 1, "host": "node-02", "reason": "out of memory"},
    "superseded": {"revision": 3, "codec": "int8", "author": "Ada", "why": "x"},
    "expired": {"revision": 3, "codec": "int8", "author": "Ada", "why": "x"},
    "reason": {"revision": 3, "author": "Ada", "reason": "too slow"},
    "baseline": {"author": "Ada", "baseline": "id", "name": "first"},
    "loss_nonfinite": {"ranks": "1,3"},
    "replicas_differ": {
        "parameter": "body.weight",
        "num_parameters": 2,
        "parameters": "body.weight, body.bias",
        "num_ranks": 7,
        "ranks": "1,3",
    },
    "would_roll_back": {"reason": "the loss was not finite"},
    "replicas_agree": {},
    "traced": {"stride": 4},
    "spared": {
        "codec": "int8",
        "num_spared": 2,
        "num_buckets": 5,
        "exact_seconds": 0.0004,
        "lossy_seconds": 0.0011,
    },
    "clock_skew": {"rank": 1, "seconds": -300.0},
    "clock_jumped": {"rank": 0, "seconds": 7200.0},
}


def event(kind: str, message: str = "English for the log", /, **data: object) -> EventView:
    return EventView(
        number=1,
        at=0.0,
        step=None,
        kind=kind,
        level="info",
        message=message,
        data=data,  # type: ignore[arg-type]
    )


def test_every_kind_has_words_in_both_languages() -> None:
    assert set(DATA) == set(SENTENCES)
    for kind, data in DATA.items():
        texts = [event_text(words, event(kind, **data), "cuda") for words in (english(), chinese())]
        assert "English for the log" not in texts
        assert texts[0] != texts[1]
        assert not any("rank" in text or "attempt" in text for text in texts)


def test_kinds_are_told_in_sentences() -> None:
    def text(kind: str, /, **changes: object) -> str:
        return event_text(english(), event(kind, **{**DATA[kind], **changes}), "cpu")

    assert text("attempt_started") == "Restart 2, on 8 processes."
    assert text("attempt_started", number=1) == "Training started on 8 processes."
    assert text("attempt_ended") == "Training failed. OSError"
    assert text("requested", kind="rollback") == "Ada asked for a rollback (change 3)."
    assert text("switched", is_rollback=True, cause="guard", reason="loss is NaN") == (
        "All 8 processes rolled back to uncompressed. Done automatically. Reason: loss is NaN."
    )
    assert text("replicas_differ", num_ranks=2) == (
        "Copies of the model differ in body.weight, body.bias; the first on process 1, process 3."
    )
    assert text("loss_nonfinite") == "The loss is not finite on process 1, process 3."
    assert "process 3 and 5 more." in text("replicas_differ")
    assert text("refused") == "Change 3 was refused. node-02: out of memory"
    assert text("baseline", name=None) == "Ada took the baseline back."


def test_an_unknown_kind_stands_as_it_was_written() -> None:
    assert event_text(chinese(), event("flushed", "flushed in 3 steps {x}"), "cuda") == "flushed in 3 steps {x}"


@pytest.mark.parametrize("kind", DATA)
def test_no_value_of_any_field_fails_the_page(kind: str) -> None:
    for name in DATA[kind]:
        for value in (None, "", "x", -1, 3, 10**400, float("nan"), float("inf"), True):
            text = event_text(english(), event(kind, **{**DATA[kind], name: value}), "cuda")
            assert isinstance(text, str)


def test_data_of_another_version_leave_the_message() -> None:
    assert event_text(english(), event("loss_nonfinite", ranks=3), "cuda") == "English for the log"
    assert event_text(english(), event("loss_nonfinite", ranks=""), "cuda") == "English for the log"
    assert event_text(chinese(), event("switched", codec="int8"), "cuda") == "English for the log"
    assert event_text(chinese(), event("attempt_ended", status="vanished", exception=""), "cuda") == (
        "English for the log"
    )
