"""CPU backend without a compiler: torch's own batched products over blocks of the problem.

A block is a range of batch items, of key heads and of queries, so that its weights fit the cache and every
thread has products of its own; the query heads that share a key head are joined into longer queries. Short
problems keep their weights for the backward (four products); long ones recompute them block by block (five),
so that memory does not grow with B · N². The bias gradient is summed over the batch in float32 in a fixed
order, so it is bit-equal over repeated runs.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from maskprior.kernels.operators import Gradients, Needs, define_operator, empty_gradients, empty_output
from maskprior.kernels.problem import AttentionProblem, causal_pattern, check_bias_range

BLOCK_ELEMENTS = 1 << 18  # numbers of one block: 1 MiB, about one core's second-level cache
BLOCK_PAIRS = 2  # pairs of item and key head that a block of a long problem has, for the threads to share
KEPT_ELEMENTS = 1 << 16  # weights per head and item up to which they are kept for the backward
FETCHED_KEYS = 128  # up to here products wait for memory, and blocks are read in one stretch before them
FLUSHED_BIAS = -80.0  # below it weights may be denormal numbers, which many CPUs multiply slowly


def lacks(problem: AttentionProblem) -> str:
    """What keeps this backend from the problem; empty if nothing."""
    device = problem.query.device.type
    return "" if device == "cpu" else f"runs on the CPU, got {device}"


def forward(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Output, and the weights ``[B, Hq, Lq, Lk]`` where they are kept."""
    call, output, kept = _Call(problem), empty_output(problem), empty_residual(problem)
    with torch.autocast("cpu", enabled=False):
        for block in call.blocks():
            weights = call.softmax(block, kept)
            keep = call.dropout(weights)
            dropped = weights if keep is None else weights * keep
            call.multiply(dropped, call.of_key(problem.value, block), block.of_query(output))
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
    return problem.query.new_empty(batch, heads, queries, room, dtype=dtype)


class _Block(NamedTuple):
    """Ranges of batch items, of key heads, of the query heads that read them, and of queries."""

    items: slice
    key_heads: slice
    heads: slice
    queries: slice

    def of_query(self, tensor: Tensor) -> Tensor:
        """The block of a tensor ``[B, Hq, Lq, width]``."""
        return tensor[self.items, self.heads, self.queries]

    def of_key(self, tensor: Tensor) -> Tensor:
        """The block of a tensor ``[B, Hkv, Lk, width]``."""
        return tensor[self.items, self.key_heads]


class _Call:
    """One call's operands in the type of the computation, its scratch memory and its dropout."""

    def __init__(self, problem: AttentionProblem) -> None:
        self.problem = problem
        self.dtype = torch.promote_types(problem.query.dtype, torch.float32)
        self.group = problem.query.shape[1] // problem.key.shape[1]
        self.is_short = problem.query.shape[2] * problem.key.shape[2] <= KEPT_ELEMENTS
        self.lowest = 0.0 if problem.bias is None else check_bias_range(problem.bias)
        self._scratch: dict[str, Tensor] = {}
        self._generator = None if problem.seed is None else torch.Generator().manual_seed(int(problem.seed))

    def blocks(self) -> Iterator[_Block]:
        """Ranges that cover the problem; each query of a block meets all keys."""
        batch, _, queries, width = self.problem.query.shape
        (key_heads, keys), group = self.problem.key.shape[1:3], self.group
        # Not by the number of threads: the backward may have another one, and drops what the forward dropped.
        together = max(1, min(BLOCK_PAIRS, batch * key_heads)) * group * keys
        rows = max(1, queries if self.is_short else min(queries, BLOCK_ELEMENTS // together))
        pairs = max(1, BLOCK_ELEMENTS // (max(keys, width) * group * rows))
        # All heads or one item: what several items have of some heads would not be one stretch of memory.
        items, heads = (pairs // key_heads, key_heads) if pairs >= key_heads else (1, pairs)
        for head in _ranges(key_heads, heads):
            for item in _ranges(batch, items):
                for row in _ranges(queries, rows):
                    yield _Block(item, head, slice(head.start * group, head.stop * group), row)

    def of_query(self, tensor: Tensor, block: _Block) -> Tensor:
        """The block of a tensor with one row per query, ``[items · key heads, group · queries, width]``."""
        part = self.fetched(block.of_query(tensor)).to(self.dtype)
        return part.reshape(-1, self.group * part.shape[2], part.shape[3])

    def of_key(self, tensor: Tensor, block: _Block) -> Tensor:
        """The block of a tensor with one row per key, ``[items · key heads, keys, width]``."""
        return self.fetched(block.of_key(tensor)).to(self.dtype).flatten(0, 1)

    def fetched(self, part: Tensor) -> Tensor:
        """The same, in the cache: small products would wait for each line, where a sum reads far ahead."""
        if self.problem.key.shape[2] <= FETCHED_KEYS and part.dtype == self.dtype and part.is_contiguous():
            part.sum()
        return part

    def by_head(self, scores: Tensor, block: _Block) -> Tensor:
        """Scores or weights of the block seen as ``[items, query heads, queries, keys]``."""
        heads, rows = block.heads.stop - block.heads.start, block.queries.stop - block.queries.start
        return scores.view(-1, heads, rows, scores.shape[2])

    def scratch(self, name: str, *shape: int) -> Tensor:
        """Memory that the blocks of a call reuse, as fresh pages cost more than the arithmetic on them."""
        size = math.prod(shape)
        if name not in self._scratch or self._scratch[name].numel() < size:
            self._scratch[name] = torch.empty(size, dtype=self.dtype)
        return self._scratch[name][:size].view(shape)

    def multiply(
        self, left: Tensor, right: Tensor, target: Tensor, scale: float = 1.0, adds: bool = False
    ) -> None:
        """Set the block ``target`` to the product, or add it: in place if it is one stretch of memory."""
        shape = (left.shape[0], left.shape[1], right.shape[2])
        if target.is_contiguous() and target.dtype == self.dtype:
            place = target.view(shape)
            torch.baddbmm(place, left, right, beta=int(adds), alpha=scale, out=place)
            return
        read = self.scratch("read", *shape)
        torch.baddbmm(read, left, right, beta=0, alpha=scale, out=read)
        part = read.view(target.shape)
        if adds:
            target.add_(part)
        else:
            target.copy_(part)

    def kept(self, residual: Tensor, block: _Block) -> Tensor | None:
        """The room for the block's weights, if there is one."""
        if not self.is_short or residual.shape[3] != self.problem.key.shape[2]:
            return None
        part = residual[block.items, block.heads]
        return part.view(-1, self.group * part.shape[2], part.shape[3])

    def softmax(self, block: _Block, kept: Tensor) -> Tensor:
        """Weights of the block, written into ``kept`` where that has room; zeros where nothing is allowed."""
        query, key = self.of_query(self.problem.query, block), self.of_key(self.problem.key, block)
        room = self.kept(kept, block)
        shape = (query.shape[0], query.shape[1], key.shape[1])
        weights = self.scratch("weights", *shape) if room is None else room
        bias, scale = self.problem.bias, self.problem.scale
        if bias is not None:
            heads = block.heads if bias.shape[0] > 1 else slice(0, 1)
            self.by_head(weights, block).copy_(bias[heads, block.queries])
        torch.baddbmm(weights, query, key.mT, beta=int(bias is not None), alpha=scale, out=weights)
        closed = self._close(weights, block)
        torch.softmax(weights, dim=-1, out=weights)
        if closed is not None:
            self.by_head(weights, block).masked_fill_(closed, 0.0)
        if self.lowest < FLUSHED_BIAS:
            torch.threshold_(weights, torch.finfo(self.dtype).tiny, 0.0)
        return weights

    def dropout(self, weights: Tensor) -> Tensor | None:
        """Factor of the weights: 0 or 1 / (1 − p); the same in forward and backward, block by block."""
        if self._generator is None:
            return None
        stays = 1.0 - self.problem.dropout_p
        return torch.empty_like(weights).bernoulli_(stays, generator=self._generator).div_(stays)

    def _close(self, weights: Tensor, block: _Block) -> Tensor | None:
        """Set what is not allowed to −∞; the rows ``[items, heads, queries, 1]`` left with nothing."""
        allowed, is_causal = self.problem.allowed, self.problem.is_causal
        scores = self.by_head(weights, block)
        batch, heads, queries, keys = self.problem.query.shape[:3] + self.problem.key.shape[2:3]
        if allowed is not None:
            shown = allowed.expand(batch, heads, queries, keys)[block.items, block.heads, block.queries]
            scores.masked_fill_(~shown, float("-inf"))
        if is_causal:
            scores.masked_fill_(~causal_pattern(queries, keys, scores.device)[block.queries], float("-inf"))
        if allowed is None and not is_causal and self.lowest > float("-inf"):
            return None
        return scores.amax(dim=-1, keepdim=True) == float("-inf")


def _ranges(length: int, step: int) -> Iterator[slice]:
    return (slice(start, min(length, start + step)) for start in range(0, length, step))


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
    if needs.bias:
        shared = grads.bias.shape[0] == 1
        total = grads.bias[slice(0, 1) if shared else block.heads, block.queries]
        parts = call.by_head(slope, block)
        parts = parts.flatten(0, 1)[:, None] if shared else parts
        if block.items.start == 0 and not (shared and block.heads.start > 0):
            torch.sum(parts, 0, out=total)
        else:
            total.add_(parts[0] if parts.shape[0] == 1 else parts.sum(0))
    if not needs.operands:
        return
    dropped = weights if keep is None else weights * keep
    adds = block.queries.start > 0
    call.multiply(dropped.mT, upstream, block.of_key(grads.value), adds=adds)
    query, key = call.of_query(problem.query, block), call.of_key(problem.key, block)
    call.multiply(slope.mT, query, block.of_key(grads.key), problem.scale, adds)
    call.multiply(slope, key, block.of_query(grads.query), problem.scale)


attention = define_operator("aten", forward, backward, empty_residual, "CPU")
