"""Residuals between two homes: given up by one bucket, not yet taken over by another."""

from collections.abc import Callable

from torch import Tensor

from gradwire_compression.state import Pieces


class Waiting:
    """Residuals of parameters whose bucket has not been seen since they were given up."""

    def __init__(self) -> None:
        # This rank's, by parameter name.
        self.worker: dict[str, Tensor] = {}
        # Those of all owners, the same on every rank: whoever owns a part afterwards takes it from here.
        self.owners: dict[str, Tensor] = {}

    def owner_pieces(self) -> Pieces:
        """Return copies of the owners', each parameter whole."""
        return {name: [(0, residual.clone())] for name, residual in self.owners.items()}

    def rescale(self, factor: float) -> None:
        """Multiply all of them."""
        for residual in (*self.worker.values(), *self.owners.values()):
            residual.mul_(factor)

    def folded(self) -> dict[str, Tensor]:
        """Return this rank's residuals with its share of the owners': the mean over ranks has theirs once."""
        held = dict(self.worker)
        for name, owned in self.owners.items():
            held[name] = held[name] + owned if name in held else owned
        return held

    def take_exact(self, is_compressed: Callable[[str], bool]) -> dict[str, Tensor]:
        """Take out what is owed to parameters that no codec is used for, owners' shares folded in."""
        taken = {name: tensor for name, tensor in self.folded().items() if not is_compressed(name)}
        for name in taken:
            self.worker.pop(name, None)
            self.owners.pop(name, None)
        return taken
