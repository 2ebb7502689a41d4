"""The first step after a state was loaded, in the buckets of the step before it was saved."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.futures import Future

from gradwire_compression.buckets import BucketShape, BucketView
from gradwire_compression.collectives.lane import unwrap

Average = Callable[[BucketView], Future[Tensor]]


class Relay:
    """Holds back a step's buckets, averages the gradients in other buckets, and copies the results back.

    DDP deals its parameters out to other buckets after its first backward pass, and a resumed training begins with
    the first deal again. What becomes of an element may depend on its bucket: three or more ranks sum in an order
    that depends on the place, and a power of two or a shard belongs to a whole bucket. So a resumed training would
    not go on with the same bits.

    Cost: a copy of the gradients for one step, and no overlap with backward in it.
    """

    def __init__(self, shapes: Sequence[BucketShape], parameters: Mapping[str, Tensor], average: Average) -> None:
        """`shapes` are the buckets wanted, of these parameters; `average` averages one, in their order."""
        self.shapes, self._parameters, self._average = shapes, parameters, average
        self._views: list[BucketView] = []
        self._futures: list[Future[Tensor]] = []
        self.is_done = False

    def average(self, view: BucketView) -> Future[Tensor]:
        """Take the next bucket of the step; with the last one all are averaged."""
        if view.index == 0:
            # An earlier step that ended in an error left its buckets here.
            self._views, self._futures = [], []
        self._views.append(view)
        self._futures.append(Future())
        answer = self._futures[-1].then(unwrap)
        if view.is_last:
            self.is_done = True
            self._send()
        return answer

    def _send(self) -> None:
        views, futures = self._views, self._futures
        wanted = self._wanted()
        if wanted is None:
            # The parameters are others than before, so their buckets are too.
            wanted = views
        torch.futures.collect_all([self._average(view) for view in wanted]).then(
            lambda done: _give_back(done, wanted, views, futures)
        )

    def _wanted(self) -> list[BucketView] | None:
        """Return the step's gradients in the wanted buckets, None if they are not made for each other."""
        arrived = {tuple(map(id, view.parameters)): view for view in self._views}
        places = {key: place for view in self._views for key, place in _places(view).items()}
        wanted = []
        for shape in self.shapes:
            parameters = [self._parameters[slot.name] for slot in shape.slots]
            is_last = shape.index == len(self.shapes) - 1
            if view := arrived.get(tuple(map(id, parameters))):
                # Sparse gradients come this way, in a bucket for each.
                wanted.append(BucketView(shape.index, is_last, view.buffer, view.parameters, view.kept))
                continue
            if not all(id(parameter) in places for parameter in parameters):
                return None
            parts, kept = zip(*(places[id(parameter)] for parameter in parameters), strict=True)
            wanted.append(
                BucketView(shape.index, is_last, torch.cat(parts), parameters, kept if any(kept) else None)
            )
        num_wanted = sum(len(view.parameters) for view in wanted)
        return wanted if num_wanted == sum(len(view.parameters) for view in self._views) else None


def relay_to(shapes: Sequence[BucketShape], parameters: Mapping[str, Tensor], average: Average) -> Relay | None:
    """Return a relay if there is anything to relay to, on the CPU.

    On an accelerator the parts of a bucket would have to be gathered in the order of its streams.
    """
    is_on_cpu = all(parameter.device.type == "cpu" for parameter in parameters.values())
    return Relay(shapes, parameters, average) if shapes and is_on_cpu else None


def _places(view: BucketView) -> dict[int, tuple[Tensor, bool]]:
    """Return each parameter's part of the bucket and whether it was kept, by the parameter's id."""
    sizes = [parameter.numel() for parameter in view.parameters]
    if view.buffer.is_sparse or view.buffer.numel() != sum(sizes):
        return {}
    kept = view.kept or [False] * len(sizes)
    parts = zip(view.buffer.split(sizes), kept, strict=True)
    return dict(zip(map(id, view.parameters), parts, strict=True))


def _give_back(
    done: Future[list[Future[Tensor]]],
    averaged: Sequence[BucketView],
    views: Sequence[BucketView],
    futures: Sequence[Future[Tensor]],
) -> None:
    """Complete the futures of the buckets that arrived."""
    try:
        results = [future.value() for future in done.value()]
        by_key = {tuple(map(id, view.parameters)): result for view, result in zip(averaged, results, strict=True)}
        parts = {
            key: part
            for view, result in zip(averaged, results, strict=True)
            for key, (part, _) in _places(BucketView(view.index, False, result, view.parameters)).items()
        }
        for view, future in zip(views, futures, strict=True):
            whole = by_key.get(tuple(map(id, view.parameters)))
            if whole is None:
                whole = view.buffer
                for parameter, (part, _) in zip(view.parameters, _places(view).values(), strict=True):
                    part.copy_(parts[id(parameter)])
            future.set_result(whole)
    except Exception as error:
        for future in futures:
            if not future.done():
                future.set_exception(error)  # type: ignore[arg-type]
