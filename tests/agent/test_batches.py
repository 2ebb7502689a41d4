"""Records are cut to what the server accepts before they are numbered."""

from gradwire.transport.batches import encode_record, fit
from gradwire_protocol.limits import MAX_TEXT_CHARACTERS
from gradwire_protocol.records import Event


def test_long_texts_of_an_event_are_shortened_and_its_numbers_kept() -> None:
    names = "layer." * 1000
    data = {"parameters": names, "seconds": -3600.0, "rank": None}
    event = Event(at=1.0, step=3, kind="replicas_differ", message=f"ranks differ: {names}", data=data)
    (cut,) = fit(event)
    encode_record(cut)
    assert len(cut.message) == MAX_TEXT_CHARACTERS
    assert cut.message.startswith("ranks differ: layer.")
    assert cut.message.endswith("…")
    assert cut.data == {**data, "parameters": cut.data["parameters"]}
    assert cut.data["parameters"] == names[: MAX_TEXT_CHARACTERS - 1] + "…"
