"""DDP models whose gradients an exchange averages, with switches at fixed steps."""

import torch
from gradwire_compression import BucketTiming, Exchange, Plan, ddp
from torch.nn.parallel import DistributedDataParallel

# Every codec that loses something.
CODECS = ("bf16", "fp16", "int8", "fp8", "int4", "onebit", "topk")

# Those of which every step is close to the mean; topk sends a few elements a step.
DENSE = tuple(codec for codec in CODECS if codec != "topk")


class Script:
    """An observer that switches at given steps and keeps all it is told."""

    watches_buckets = True

    def __init__(self, switches=()):
        # Step -> (plan, "carry" or "drop").
        self.switches = dict(switches)
        self.exchange: Exchange | None = None
        self.timings: list[BucketTiming] = []
        self.nonfinite_parameters = []
        self.num_nonfinite_results = 0
        self.flushes = []
        self.matches = []
        self.reports = {}
        self.errors = []
        self.num_ended = 0

    def begin_sync(self):
        try:
            step = self.exchange.num_syncs
            if step in self.switches:
                plan, residuals = self.switches[step]
                self.reports[step] = self.exchange.switch(self.exchange.prepare(plan), residuals=residuals)
        except Exception as error:
            self.errors.append(error)

    def end_sync(self):
        self.num_ended += 1

    def bucket_ready(self, view):
        pass

    def bucket_done(self, timing):
        self.timings.append(timing)

    def nonfinite(self, parameters):
        self.nonfinite_parameters.append((self.exchange.num_syncs, parameters))

    def result_nonfinite(self):
        self.num_nonfinite_results += 1

    def flushed(self, num_steps, norm):
        self.flushes.append((self.exchange.num_syncs, num_steps, norm))

    def matched(self, match):
        self.matches.append(match)


def wrap(module, plan=None, switches=(), optimizer_class="SGD", nodes=(), loss_scale=None, **ddp_arguments):
    """Return (ddp model, exchange, script)."""
    model = DistributedDataParallel(module, **ddp_arguments)
    script = Script(switches)
    exchange = Exchange(
        list(module.named_parameters()),
        model.process_group,
        plan=plan or Plan(),
        optimizer_class=optimizer_class,
        observer=script,
        nodes=nodes,
        loss_scale=loss_scale,
    )
    script.exchange = exchange
    ddp.attach_ddp(model, exchange)
    return model, exchange, script


class Given(torch.nn.Module):
    """A model whose gradients are exactly what the caller gives: loss = sum of parameter * wanted gradient."""

    def __init__(self, *shapes, dtype=torch.float32):
        super().__init__()
        zeros = [torch.zeros(shape, dtype=dtype) for shape in shapes]
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(zero) for zero in zeros)

    def forward(self, gradients):
        return sum((weight * wanted).sum() for weight, wanted in zip(self.weights, gradients, strict=True))


def everything(codec, **fields):
    """A plan that compresses every tensor, whatever its size."""
    return Plan(codec=codec, exempt_1d=False, min_elements=0, **fields)


def gradients_of(model):
    return [parameter.grad.detach().clone() for parameter in model.parameters()]


def replicas_equal(model):
    """Whether all ranks hold the same parameters, bit for bit."""
    flat = torch.cat([parameter.detach().flatten().to(torch.float64) for parameter in model.parameters()])
    others = [torch.empty_like(flat) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(others, flat)
    return all(torch.equal(flat, other) for other in others)
