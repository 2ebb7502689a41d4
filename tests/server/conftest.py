"""Fixtures of the service's tests: a real server process for each module, and one agent's stream for each test."""

import pytest
from agent_stream import AgentStream
from server_process import ServerProcess, server
from stored_run import connection

__all__ = ["connection", "server"]


@pytest.fixture
def stream(server: ServerProcess) -> AgentStream:
    """A stream of a new run that has begun."""
    stream = AgentStream(server.agent())
    stream.begin()
    return stream
