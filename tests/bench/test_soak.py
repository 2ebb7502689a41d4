import pytest

from bench.soak import soak

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]


def test_every_window_arrives_once_though_the_server_is_killed_twice() -> None:
    result = soak(seconds=15.0, kills=2)
    assert [name for name, target in result.targets.items() if not target.ok] == [], result
    assert result.rows[0]["steps"] > 20
