"""Which gradients already lay in DDP's bucket before backward added to them."""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor


class KeptGradients:
    """Notes, just before a gradient is accumulated, where the parameter's gradient lies.

    After the fact it cannot be told: with `gradient_as_bucket_view` every gradient is a view of the bucket by the
    time the hook runs. Needed only where x / W and x * (1 / W) differ, that is when W is not a power of two.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._addresses: dict[int, int] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_hook(self._noting(parameter))

    def take(self, buffer: Tensor, parameters: Sequence[Tensor]) -> list[bool] | None:
        """Return for each parameter of the bucket whether its gradient lay in `buffer`, and forget it.

        None if the buffer is not dense; such buckets are never kept.
        """
        addresses = [self._addresses.pop(id(parameter), 0) for parameter in parameters]
        if buffer.is_sparse:
            return None
        begin = buffer.data_ptr()
        end = begin + buffer.numel() * buffer.element_size()
        return [begin <= address < end for address in addresses]

    def _noting(self, parameter: Tensor) -> Callable[[Tensor], None]:
        # The parameter outlives its own hook, so holding it here makes no new cycle that matters.
        def note(_gradient: Tensor) -> None:
            gradient = parameter.grad
            is_dense = gradient is not None and not gradient.is_sparse
            self._addresses[id(parameter)] = gradient.data_ptr() if gradient is not None and is_dense else 0

        return note
