"""C39: a step counter that goes back makes a branch; every point is kept under the attempt that sent it."""

from agent_stream import AgentStream
from gradwire_protocol import routes
from gradwire_protocol.records import Points
from server_process import ServerProcess, server
from stored import rows

__all__ = ["server"]


def _metric(first: int, last: int, *, add: float = 0.0) -> Points:
    steps = tuple(range(first, last + 1))
    return Points(name="loss", steps=steps, values=tuple(step + add for step in steps))


def test_c39_second_pass_over_the_same_steps_is_a_branch(server: ServerProcess) -> None:
    first = AgentStream(server.agent(), run_name="branches")
    first.begin(_metric(0, 2), _metric(5, 10))
    second = AgentStream(server.agent(), run=first.run, run_name="branches", start_step=4)
    second.begin(_metric(5, 15, add=100.0))
    # Late and out of order, from the first attempt.
    first.send(_metric(4, 4))
    first.send(_metric(3, 3))
    stored = rows(server.database_path, "SELECT attempt, step FROM points WHERE run = ?", first.run)
    assert len(stored) == 22
    client = server.operator()

    def line(**parameters: object) -> list[tuple[int, int, float]]:
        parameters |= {"name": "loss", "max_buckets": 1000}
        answer = client.get(routes.SERIES.format(run=first.run), params=parameters)  # type: ignore[arg-type]
        assert answer.status_code == 200, answer.text
        return [(point["first_step"], point["count"], point["last"]) for point in answer.json()["points"]]

    assert line() == [
        *((step, 1, float(step)) for step in range(5)),
        *((step, 1, 100.0 + step) for step in range(5, 16)),
    ]
    assert line(attempt=first.attempt) == [(step, 1, float(step)) for step in range(11)]
    assert line(attempt=second.attempt) == [(step, 1, 100.0 + step) for step in range(5, 16)]
