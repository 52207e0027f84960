"""CPU backend without a compiler: torch's own products over blocks, reached without a copy.

One head at a time, a block of batch items (or of queries, where one item is long) makes one batched product
from strided views. Short problems keep their weights for the backward (four products); long ones recompute
them block by block (five), so that memory does not grow with B · N². The bias gradient is summed over the
batch in float32 in a fixed order, so it is bit-equal over repeated runs.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from maskprior.kernels.operators import Gradients, Needs, define_operator, empty_gradients, empty_output
from maskprior.kernels.problem import AttentionProblem, causal_pattern, check_bias_range

BLOCK_ELEMENTS = 1 << 18  # weights of one block: 1 MiB, about one core's second-level cache
KEPT_ELEMENTS = 1 << 16  # weights per head and item up to which they are kept for the backward
FLUSHED_BIAS = -80.0  # below it weights may be denormal numbers, which many CPUs multiply slowly


def lacks(problem: AttentionProblem) -> str:
    """What keeps this backend from the problem; empty if nothing."""
    device = problem.query.device.type
    return "" if device == "cpu" else f"runs on the CPU, got {device}"


def forward(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Output, and the weights ``[Hq, B, Lq, Lk]`` where they are kept."""
    call, output, kept = _Call(problem), empty_output(problem), empty_residual(problem)
    with torch.autocast("cpu", enabled=False):
        for block in call.blocks():
            weights = call.softmax(block, kept)
            keep = call.dropout(weights)
            dropped = weights if keep is None else weights * keep
            value = call.of_key(problem.value, block)
            read = call.scratch("read", *weights.shape[:2], value.shape[2])
            output[block.items, block.head, block.queries] = torch.bmm(dropped, value, out=read)
    return output, kept


def backward(
    problem: AttentionProblem, output: Tensor, residual: Tensor, gradient: Tensor, needs: Needs
) -> Gradients:
    """Gradients in one pass over the blocks (``output`` is not needed)."""
    call = _Call(problem)
    grads = Gradients._make(grad.to(call.dtype) for grad in empty_gradients(problem, needs))
    if gradient.numel() == 0:
        return Gradients._make(grad.zero_() for grad in grads)
    with torch.autocast("cpu", enabled=False):
        for block in call.blocks():
            weights = call.kept(residual, block)
            weights = call.softmax(block, residual) if weights is None else weights
            _add_gradients(call, block, weights, gradient, grads, needs)
    dtype = problem.query.dtype
    return Gradients(grads.query.to(dtype), grads.key.to(dtype), grads.value.to(dtype), grads.bias)


def empty_residual(problem: AttentionProblem) -> Tensor:
    """Room for the weights of a short problem; else a last axis of 2, which is no room.

    By arithmetic rather than `if`, and never of length 0 or 1: for these torch.compile makes other graphs.
    """
    batch, heads, queries, _ = problem.query.shape
    keys = problem.key.shape[2]
    is_short = torch.sym_min(KEPT_ELEMENTS // torch.sym_max(queries * keys, 1), 1)
    room = torch.sym_max(keys * is_short, 2)
    dtype = torch.promote_types(problem.query.dtype, torch.float32)
    return problem.query.new_empty(heads, batch, queries, room, dtype=dtype)


class _Block(NamedTuple):
    """A head with a range of batch items and a range of queries."""

    head: int
    items: slice
    queries: slice


class _Call:
    """One call's operands in the type of the computation, its scratch memory and its dropout."""

    def __init__(self, problem: AttentionProblem) -> None:
        self.problem = problem
        self.dtype = torch.promote_types(problem.query.dtype, torch.float32)
        self.group = problem.query.shape[1] // problem.key.shape[1]
        self.lowest = 0.0 if problem.bias is None else check_bias_range(problem.bias)
        self._scratch: dict[str, Tensor] = {}
        self._generator = None if problem.seed is None else torch.Generator().manual_seed(int(problem.seed))

    def blocks(self) -> Iterator[_Block]:
        batch, heads, queries, _ = self.problem.query.shape
        rows = min(queries, max(1, BLOCK_ELEMENTS // self.problem.key.shape[2]))
        items = max(1, BLOCK_ELEMENTS // max(1, rows * self.problem.key.shape[2]))
        for head in range(heads):
            for item in range(0, batch, items):
                for row in range(0, queries, max(1, rows)):
                    yield _Block(
                        head, slice(item, min(batch, item + items)), slice(row, min(queries, row + rows))
                    )

    def of_query(self, tensor: Tensor, block: _Block) -> Tensor:
        """The block of a tensor with one row per query, ``[items, queries, width]``."""
        return tensor[block.items, block.head, block.queries].to(self.dtype)

    def of_key(self, tensor: Tensor, block: _Block) -> Tensor:
        """The block of a tensor with one row per key, ``[items, keys, width]``."""
        return tensor[block.items, block.head // self.group].to(self.dtype)

    def scratch(self, name: str, *shape: int) -> Tensor:
        """Memory that the blocks of a call reuse, as fresh pages cost more than the arithmetic on them."""
        size = math.prod(shape)
        if name not in self._scratch or self._scratch[name].numel() < size:
            self._scratch[name] = torch.empty(size, dtype=self.dtype)
        return self._scratch[name][:size].view(shape)

    def kept(self, residual: Tensor, block: _Block) -> Tensor | None:
        """The room for the block's weights, if there is one."""
        has_room = residual.shape[3] == self.problem.key.shape[2]
        return residual[block.head, block.items, block.queries] if has_room else None

    def softmax(self, block: _Block, kept: Tensor) -> Tensor:
        """Weights of the block, written into ``kept`` where that has room; zeros where nothing is allowed."""
        query, key = self.of_query(self.problem.query, block), self.of_key(self.problem.key, block)
        shape = (query.shape[0], query.shape[1], key.shape[1])
        room = self.kept(kept, block)
        weights = self.scratch("weights", *shape) if room is None else room
        if self.problem.bias is None:
            torch.baddbmm(weights, query, key.mT, beta=0, alpha=self.problem.scale, out=weights)
        else:
            bias = self.problem.bias[block.head % self.problem.bias.shape[0], block.queries].expand(shape)
            torch.baddbmm(bias, query, key.mT, alpha=self.problem.scale, out=weights)
        closed = self._close(weights, block)
        torch.softmax(weights, dim=-1, out=weights)
        if closed is not None:
            weights.masked_fill_(closed, 0.0)
        if self.lowest < FLUSHED_BIAS:
            torch.threshold_(weights, torch.finfo(self.dtype).tiny, 0.0)
        return weights

    def dropout(self, weights: Tensor) -> Tensor | None:
        """Factor of the weights: 0 or 1 / (1 − p); the same in forward and backward, block by block."""
        if self._generator is None:
            return None
        stays = 1.0 - self.problem.dropout_p
        return torch.empty_like(weights).bernoulli_(stays, generator=self._generator).div_(stays)

    def _close(self, scores: Tensor, block: _Block) -> Tensor | None:
        """Set what is not allowed to −∞; the rows ``[items, queries, 1]`` that are left with nothing."""
        allowed, is_causal = self.problem.allowed, self.problem.is_causal
        if allowed is not None:
            batch, heads, queries, keys = self.problem.query.shape[:3] + self.problem.key.shape[2:3]
            shown = allowed.expand(batch, heads, queries, keys)[block.items, block.head, block.queries]
            scores.masked_fill_(~shown, float("-inf"))
        if is_causal:
            queries, keys = self.problem.query.shape[2], self.problem.key.shape[2]
            scores.masked_fill_(~causal_pattern(queries, keys, scores.device)[block.queries], float("-inf"))
        if allowed is None and not is_causal and self.lowest > float("-inf"):
            return None
        return scores.amax(dim=-1, keepdim=True) == float("-inf")


def _add_gradients(
    call: _Call, block: _Block, weights: Tensor, gradient: Tensor, grads: Gradients, needs: Needs
) -> None:
    """dS = P ∘ (dP − rowsum(P ∘ dP)) with dP = g Vᵀ, and the products that follow from it."""
    problem = call.problem
    upstream, value = call.of_query(gradient, block), call.of_key(problem.value, block)
    slope = torch.bmm(upstream, value.mT, out=call.scratch("slope", *weights.shape))
    keep = call.dropout(weights)
    if keep is not None:
        slope.mul_(keep)
    torch._softmax_backward_data(slope, weights, -1, call.dtype, grad_input=slope)
    items, queries, head = block.items, block.queries, block.head // call.group
    if needs.bias:
        shared = grads.bias.shape[0] == 1
        is_first = items.start == 0 and not (shared and block.head > 0)
        _add(grads.bias[0 if shared else block.head, queries], slope.sum(0), is_first)
    if not needs.operands:
        return
    dropped = weights if keep is None else weights * keep
    is_first = queries.start == 0 and block.head % call.group == 0
    read = torch.bmm(dropped.mT, upstream, out=call.scratch("read", *value.shape))
    _add(grads.value[items, head], read, is_first)
    query, key = call.of_query(problem.query, block), call.of_key(problem.key, block)
    slope.mul_(problem.scale)
    read = torch.bmm(slope.mT, query, out=call.scratch("read", *key.shape))
    _add(grads.key[items, head], read, is_first)
    grads.query[items, block.head, queries] = torch.bmm(slope, key, out=call.scratch("read", *query.shape))


def _add(total: Tensor, part: Tensor, is_first: bool) -> None:
    """Add in place, or set what nothing was added to yet."""
    if is_first:
        total.copy_(part)
    else:
        total.add_(part)


attention = define_operator("aten", forward, backward, empty_residual, "CPU")
