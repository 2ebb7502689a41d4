from gradwire_compression.hold import Hold


def test_nothing_is_held_before_a_hold_begins_and_after_it_ends():
    hold = Hold()
    # A model that is averaged by a hook of its script's own never counts beyond 0.
    assert not hold.covers(0)
    hold.begin(4, 3)
    assert [sync for sync in range(4, 9) if hold.covers(sync)] == [4, 5, 6]
    hold.end()
    assert not any(hold.covers(sync) for sync in range(9))
