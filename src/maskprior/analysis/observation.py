"""What a model attends to, seen from outside: whichever model, as long as its attention is this package's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor, nn

from maskprior import functional
from maskprior.kernels.problem import AttentionProblem
from maskprior.kernels.reference import attention_with_weights

Patterns = Callable[[], list[Tensor]]
"""Present attention of each layer, ``[heads, query, key]``, averaged over a fixed batch."""


@contextmanager
def watched_attention() -> Iterator[list[Tensor]]:
    """Within the context, every :func:`maskprior.functional.attention` leaves its pattern in the list.

    A pattern is the weights ``[heads, query, key]`` before dropout, averaged over the batch, float32 at
    least. The outputs are the reference backend's. Not for use while another thread runs a model.
    """
    seen: list[Tensor] = []

    def watch(
        problem: AttentionProblem, *, need_weights: bool = False, backend: str = "auto"
    ) -> tuple[Tensor, Tensor | None]:
        output, weights = attention_with_weights(problem)
        seen.append(weights.detach().to(torch.promote_types(weights.dtype, torch.float32)).mean(dim=0))
        return output, weights if need_weights else None

    with mock.patch.object(functional, "compute_attention", watch):
        yield seen


def patterns_of(model: nn.Module, forward: Callable[[], object]) -> Patterns:
    """Patterns of the attention calls that a forward pass makes, in their order.

    Args:
        model: put into evaluation mode meanwhile, without gradients.
        forward: runs the model on a fixed batch.

    Returns:
        A function that runs it and gives the patterns. It raises ValueError where there is no such call.
    """

    def look() -> list[Tensor]:
        with evaluating(model), watched_attention() as seen:
            forward()
        if not seen:
            raise ValueError(
                f"expected {type(model).__name__} to call maskprior.functional.attention in its forward pass "
                "(attach gives that to models of torch.nn, timm and Hugging Face), got no call; pass "
                "patterns=, or inputs=None to follow the mask priors alone"
            )
        return seen

    return look


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without gradients and in evaluation mode, each module's own mode restored after."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
