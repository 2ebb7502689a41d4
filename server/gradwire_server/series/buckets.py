"""Buckets of a chart."""

# Wider than any screen shows.
MAX_BUCKETS = 300


def bucket_width(first_step: int, last_step: int, max_buckets: int) -> int:
    """Return the smallest power of two that covers the steps with at most `max_buckets` aligned buckets.

    Aligned buckets stay where they are while data arrives, so a chart does not jump at each poll.
    """
    width = 1
    while last_step // width - first_step // width >= max_buckets:
        width *= 2
    return width
