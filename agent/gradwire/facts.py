"""Facts of the attempt, stated once at its start."""

import torch
import torch.distributed as dist
from gradwire_compression import Exchange, Plan, PlanError, registry
from gradwire_compression import notes as kernel_notes
from gradwire_compression.kernels import dispatch
from gradwire_compression.plan import check_optimizer
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import AttemptStarted, LinkFacts, MachineFacts, NodeFacts, RouteFacts
from msgspec.structs import asdict, replace

from gradwire.host.network import nominal_bytes_per_second, rdma_devices, training_interface
from gradwire.host.processor import cpu_name, instruction_sets, memory, num_cores
from gradwire.linktest.measure import measure, slowest
from gradwire.membership import Membership
from gradwire.settings import Settings

# What the run's page says of a guard that does not act.
_GUARD_NOTES = {"report": "automatic rollback only reports", "off": "automatic rollback is off"}


def attempt_started(
    settings: Settings,
    membership: Membership,
    exchange: Exchange,
    *,
    group: dist.ProcessGroup,
    parameters: list[torch.nn.Parameter],
    optimizer_class: str | None,
    unsteered_reason: str,
) -> AttemptStarted:
    """Return the first record of this node's stream."""
    device, link = parameters[0].device, link_facts(settings.link)
    codecs = registry.available()
    memory_bytes, refused = weigh_codecs(exchange, optimizer_class, codecs)
    notes = [*kernel_notes(), unsteered_reason, _GUARD_NOTES.get(settings.guard, "")]
    return AttemptStarted(
        at=membership.started_at,
        run_name=membership.run_name,
        project=membership.project,
        node=NodeFacts(host=membership.host, ranks=membership.local_ranks),
        world_size=membership.world_size,
        backend=str(dist.get_backend(group)),
        device="cuda" if device.type == "cuda" else "cpu",
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        link=_tested(link, group, device) if membership.tests_link else link,
        optimizer=optimizer_class,
        num_elements=sum(parameter.numel() for parameter in parameters),
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        plan=settings.plan,
        start_step=settings.start_step,
        total_steps=settings.total_steps,
        total_tokens=settings.total_tokens,
        better=dict(settings.better),
        codecs=codecs,
        codec_memory_bytes=memory_bytes,
        refused_codecs=refused,
        routes=route_facts(exchange, tuple(memory_bytes)),
        is_steered=not unsteered_reason,
        notes=tuple(filter(None, notes)),
        versions={"torch": str(torch.__version__)},
        machine=machine_facts(device, str(dist.get_backend(group))),
    )


def weigh_codecs(
    exchange: Exchange, optimizer_class: str | None, codecs: tuple[str, ...]
) -> tuple[dict[str, int], dict[str, str]]:
    """Return extra memory by codec, bytes, and the refused ones, with the sentence why: kernels or optimizer."""
    memory_bytes, refused = {}, {}
    for name in codecs:
        plan = Plan(codec=name)
        try:
            memory_bytes[name] = exchange.weigh(plan).memory_bytes
            check_optimizer(plan, optimizer_class)
        except PlanError as error:
            refused[name] = str(error)
    return memory_bytes, refused


def route_facts(exchange: Exchange, codecs: tuple[str, ...]) -> dict[str, RouteFacts]:
    """Return how gradients travel with each codec, all of which have kernels for the model's device."""
    routes = {name: exchange.weigh(Plan(codec=name)).route() for name in codecs}
    return {
        name: RouteFacts(flat_reason=route.flat_reason, wire_bytes=route.wire_bytes, node_bytes=route.node_bytes)
        for name, route in routes.items()
    }


def link_facts(given: LinkFacts) -> LinkFacts:
    """Fill in the interface and, where the operating system states one and the user did not, its speed."""
    interface = training_interface()
    return LinkFacts(
        interface=interface,
        nominal_bytes_per_second=given.nominal_bytes_per_second or nominal_bytes_per_second(interface),
        note=given.note,
    )


def machine_facts(device: torch.device, backend: str) -> MachineFacts:
    """Return what this machine can do for communication and codecs on `device`."""
    free = memory()
    return MachineFacts(
        num_cores=num_cores(),
        memory_bytes=None if free is None else free.total_bytes,
        instruction_sets=instruction_sets(),
        kernels=_kernels(device),
        # The first capability with 8-bit floats in its matrix units.
        has_fp8=torch.cuda.get_device_capability(device) >= (8, 9) if device.type == "cuda" else None,
        rdma_devices=rdma_devices(),
        backend_version=".".join(map(str, torch.cuda.nccl.version())) if backend == "nccl" else "",
    )


def _kernels(device: torch.device) -> str:
    if device.type == "cuda":
        return "triton" if dispatch.has_triton() else ""
    return "c" if dispatch.is_compiled() else "torch"


def _tested(link: LinkFacts, group: dist.ProcessGroup, device: torch.device) -> LinkFacts:
    return replace(link, test=slowest(measure(group, device)))


def plan_of(spec: PlanSpec) -> Plan:
    """Return the plan as the compression room knows it."""
    return Plan.from_dict(asdict(spec))
