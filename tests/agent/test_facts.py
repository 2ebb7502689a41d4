"""Facts of the attempt that the page builds its control panel from."""

from typing import Any

import pytest
from gradwire.facts import link_facts, weigh_codecs
from gradwire.host.network import interface_to
from gradwire_compression import Plan, PlanError
from gradwire_protocol.records import LinkFacts


class _WithoutKernels:
    """An exchange on a device that only bf16 has kernels for."""

    # Of whatever was weighed.
    memory_bytes = 8

    def weigh(self, plan: Plan) -> "_WithoutKernels":
        if plan.codec in ("int8", "onebit"):
            raise PlanError(f"{plan.codec} has no kernels here")
        return self


def test_codecs_without_kernels_or_safety_are_refused_and_the_rest_weighed():
    exchange: Any = _WithoutKernels()
    memory_bytes, refused = weigh_codecs(exchange, "AdamW", ("none", "bf16", "int8", "onebit"))
    assert memory_bytes == {"none": 8, "bf16": 8}
    assert refused == {"int8": "int8 has no kernels here", "onebit": "onebit has no kernels here"}


def test_loopback_has_no_nominal_speed_unless_one_is_stated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert link_facts(LinkFacts()) == LinkFacts(interface="lo")
    stated = LinkFacts(nominal_bytes_per_second=1.25e8, note="1 Gbit/s by tbf")
    assert link_facts(stated).nominal_bytes_per_second == 1.25e8


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "lo"), ("", None), ("no such host.invalid", None)])
def test_the_interface_to_a_host_is_the_routing_tables(host, name):
    assert interface_to(host) == name
