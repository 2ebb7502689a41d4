"""What is owed to parameters beside their buckets: it waits for a bucket, or is flushed into exact averages."""

from collections.abc import Mapping

from torch import Tensor

from gradwire_compression.flush import Flush
from gradwire_compression.observer import GuardedObserver
from gradwire_compression.prepared import Prepared
from gradwire_compression.ranks import Ranks
from gradwire_compression.residuals import gather_owners
from gradwire_compression.waiting import Waiting


class Owed:
    """One exchange's; nothing runs on the Lane while it is changed.

    Args:
        parameters: That require a gradient, by name.
        ranks: All that average them; replaced where they give up their group.
        observer: Told when a flush has ended.
    """

    def __init__(self, parameters: Mapping[str, Tensor], ranks: Ranks, observer: GuardedObserver) -> None:
        self._parameters, self.ranks, self._observer = parameters, ranks, observer
        self.waiting = Waiting()
        self.flush: Flush | None = None

    def begin_step(self) -> None:
        """Decide what this step's exact averages pay back; in the hook of bucket 0."""
        if self.flush is not None:
            self.flush.begin_step()
            if self.flush.is_done:
                self._observer.flushed(self.flush.num_steps, self.flush.norm)
                self.flush = None

    def rescale(self, factor: float) -> None:
        """Multiply all of it."""
        self.waiting.rescale(factor)
        if self.flush is not None:
            self.flush.rescale(factor)

    def with_buckets(self, active: Prepared) -> dict[str, Tensor]:
        """Return all that this rank owes by name, also in `active`'s buckets, its share as an owner included."""
        return {**self.waiting.folded(), **active.owed(), **self._flushed()}

    def worker_with_buckets(self, active: Prepared) -> dict[str, Tensor]:
        """Return it without what this rank holds as an owner."""
        return {**self.waiting.worker, **active.worker_residuals(), **self._flushed()}

    def take(self, active: Prepared) -> dict[str, Tensor]:
        """Give up all of it, that of `active`'s buckets too, and return it by name."""
        held = self.with_buckets(active)
        active.drop()
        self.waiting, self.flush = Waiting(), None
        return held

    def move_out(self, active: Prepared, first_index: int) -> None:
        """Let buckets from `first_index` on give up theirs; what was owned goes to whoever owns it afterwards.

        Folded in, it would conserve the mean too, but a resumed training has one such deal more than one that was
        never interrupted, and both must go on with the same bits.
        """
        self.waiting.worker.update(active.worker_residuals(first_index))
        pieces, owned = active.owner_pieces(first_index), active.owned(first_index)
        self.waiting.owners.update(gather_owners(pieces, owned, self._parameters, self.ranks.total))
        active.drop(first_index)

    def go_on_with(self, held: dict[str, Tensor], active: Prepared, *, is_partial: bool) -> None:
        """Keep what still has to find its bucket, and flush what is averaged exactly from now on."""
        self.waiting.worker = held
        self.flush_exact(active, is_partial=is_partial)

    def flush_exact(self, active: Prepared, *, is_partial: bool) -> None:
        """Flush what waits for parameters that are averaged exactly, beside what is being flushed.

        `is_partial` says whether they are views of tensors that hold more.
        """
        if exact := self.waiting.take_exact(active.is_compressed):
            # Views would keep the memory of the tensors beside them.
            owed = {name: tensor.clone() if is_partial else tensor for name, tensor in exact.items()}
            self.flush = Flush({**self._flushed(), **owed}, self.ranks.mean)

    def _flushed(self) -> dict[str, Tensor]:
        return self.flush.owed if self.flush is not None else {}
