"""CPU backend without a compiler: torch's own batched products over blocks of the problem.

A block is a range of batch items, of key heads and of queries, so that its weights fit the cache and every
thread has products of its own; the query heads that share a key head are joined into longer queries. Short
problems keep their weights for the backward (four products); long ones recompute them block by block (five),
so that memory does not grow with B · N². The bias gradient is summed over the batch in float32 in a fixed
order, so it is bit-equal over repeated runs.
"""

import math
from collections.abc import Iterator
from itertools import product, repeat

import torch
from torch import Tensor

from maskprior.kernels.operators import Gradients, Needs, define_operator, empty_gradients, empty_output
from maskprior.kernels.problem import AttentionProblem, causal_pattern, check_bias_range

BLOCK_ELEMENTS = 1 << 19  # numbers of one block for each thread: 2 MiB
FETCHED_KEYS = 128  # up to here the products of one thread wait for memory, and blocks are read ahead of them
BLOCK_PAIRS = 2  # least pairs of item and key head of a block of a long problem, for the threads to share
KEPT_ELEMENTS = 1 << 16  # weights per head and item up to which they are kept for the backward
FLUSHED_BIAS = -80.0  # below it weights may be denormal numbers, which many CPUs multiply slowly


def lacks(problem: AttentionProblem) -> str:
    """What keeps this backend from the problem; empty if nothing."""
    device = problem.query.device.type
    return "" if device == "cpu" else f"runs on the CPU, got {device}"


def forward(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Output, and the weights ``[B, Hq, Lq, Lk]`` where they are kept."""
    output, kept = empty_output(problem), empty_residual(problem)
    if output.numel() == 0:
        return output, kept
    call = _Call(problem)
    blocks = zip(call.softmax(kept), call.by_key(problem.value), call.by_query(output), strict=True)
    with torch.autocast("cpu", enabled=False):
        for weights, value, target in blocks:
            keep = call.dropout(weights)
            call.multiply(weights if keep is None else weights * keep, call.of_key(value), target)
    return output, kept


def backward(
    problem: AttentionProblem, output: Tensor, residual: Tensor, gradient: Tensor, needs: Needs
) -> Gradients:
    """Gradients in one pass over the blocks (``output`` is not needed)."""
    dtype, wide = problem.query.dtype, torch.promote_types(problem.query.dtype, torch.float32)
    grads = Gradients._make(grad.to(wide) for grad in empty_gradients(problem, needs))
    if gradient.numel() == 0:
        return Gradients._make(grad.zero_() for grad in grads)
    with torch.autocast("cpu", enabled=False):
        _fill_gradients(_Call(problem), residual, gradient, grads, needs)
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


class _Call:
    """One call's operands in the type of the computation, its division into blocks and its scratch memory.

    The methods that yield give one thing per block, all in the order of ``starts``.
    """

    def __init__(self, problem: AttentionProblem) -> None:
        self.problem = problem
        self.dtype = torch.promote_types(problem.query.dtype, torch.float32)
        self.group = problem.query.shape[1] // problem.key.shape[1]
        self.is_short = problem.query.shape[2] * problem.key.shape[2] <= KEPT_ELEMENTS
        # Dropout takes the same blocks for any number of threads, as the backward may run with another one.
        self.threads = 1 if problem.seed is not None else torch.get_num_threads()
        self.waits = self.threads == 1 and problem.key.shape[2] <= FETCHED_KEYS
        items, heads, self.rows = self._block_shape(self._room())
        batch, _, queries, _ = problem.query.shape
        starts = product(
            range(0, problem.key.shape[1], heads), range(0, batch, items), range(0, queries, self.rows)
        )
        self.starts = list(starts)  # the first key head, item and query of each block
        self._of_keys = [
            (slice(item, item + items), slice(head, head + heads)) for head, item, _ in self.starts
        ]
        self._of_queries = [
            (
                slice(item, item + items),
                slice(head * self.group, (head + heads) * self.group),
                slice(row, row + self.rows),
            )
            for head, item, row in self.starts
        ]
        self.is_fetched = self.waits and len(self.starts) > 1
        self._memory: dict[str, Tensor] = {}
        self._generator = None if problem.seed is None else torch.Generator().manual_seed(int(problem.seed))

    def _room(self) -> int:
        """Numbers of one block."""
        least, most = BLOCK_ELEMENTS // 2, BLOCK_ELEMENTS * self.threads
        if self.waits:
            return least
        if self.is_short:  # the calls of a block cost as much for several threads as for one: fewer of them
            return most * 2 if self.threads > 1 else most
        # Weights and their gradient together take less than a bias, with what the products need.
        _, heads, queries, _ = self.problem.query.shape
        return min(most, max(least, heads * queries * self.problem.key.shape[2] // 2 - least))

    def _block_shape(self, room: int) -> tuple[int, int, int]:
        """Items, key heads and queries of one block of ``room`` numbers; each query meets all keys."""
        batch, _, queries, width = self.problem.query.shape
        (key_heads, keys), group = self.problem.key.shape[1:3], self.group
        together = max(1, min(max(BLOCK_PAIRS, self.threads), batch * key_heads)) * group * keys
        rows = max(1, queries if self.is_short else min(queries, room // together))
        pairs = max(1, room // (max(keys, width) * group * rows))
        pairs -= pairs % self.threads if pairs > self.threads else 0  # or some threads would wait
        # All heads or one item: what several items have of some heads would not be one stretch of memory.
        items, heads = (pairs // key_heads, key_heads) if pairs >= key_heads else (1, pairs)
        return items, heads, rows

    def by_query(self, tensor: Tensor) -> Iterator[Tensor]:
        """The blocks of a tensor ``[B, Hq, Lq, width]``."""
        return map(tensor.__getitem__, self._of_queries)

    def by_key(self, tensor: Tensor) -> Iterator[Tensor]:
        """The blocks of a tensor ``[B, Hkv, Lk, width]``."""
        return map(tensor.__getitem__, self._of_keys)

    def by_score(self, tensor: Tensor | None) -> Iterator[Tensor | None]:
        """The blocks of a tensor that broadcasts to ``[B, Hq, Lq, Lk]``."""
        if tensor is None:
            return repeat(None)
        return self.by_query(tensor.expand(*self.problem.query.shape[:3], self.problem.key.shape[2]))

    def of_query(self, block: Tensor) -> Tensor:
        """A block with one row per query, ``[items · key heads, group · queries, width]``."""
        return self._fetched(block).to(self.dtype).reshape(-1, self.group * block.shape[2], block.shape[3])

    def of_key(self, block: Tensor) -> Tensor:
        """A block with one row per key, ``[items · key heads, keys, width]``."""
        return self._fetched(block).to(self.dtype).flatten(0, 1)

    def _fetched(self, block: Tensor) -> Tensor:
        """The same, in the cache: small products would wait for each line, where a sum reads far ahead."""
        if self.is_fetched and block.dtype == self.dtype and block.is_contiguous():
            block.sum()
        return block

    def scratch(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Memory that the blocks of a call reuse, as fresh pages cost more than the arithmetic on them."""
        memory, size = self._memory.get(name), math.prod(shape)
        if memory is None or memory.numel() < size:
            memory = self._memory[name] = torch.empty(shape, dtype=self.dtype, device="cpu")
        return memory if memory.shape == shape else memory.view(-1)[:size].view(shape)

    def multiply(
        self, left: Tensor, right: Tensor, target: Tensor, scale: float = 1.0, adds: bool = False
    ) -> None:
        """Set the block ``target`` to the product, or add it: in place if it is one stretch of memory."""
        shape = (left.shape[0], left.shape[1], right.shape[2])
        if target.is_contiguous() and target.dtype == self.dtype:
            place = target.view(shape)
            if self.is_fetched and not adds:
                place.zero_()  # its lines come into the cache in one stretch
            torch.baddbmm(place, left, right, beta=int(adds), alpha=scale, out=place)
            return
        result = self.scratch("result", shape)
        torch.baddbmm(result, left, right, beta=0, alpha=scale, out=result)
        part = result.view(target.shape)
        if adds:
            target.add_(part)
        else:
            target.copy_(part)

    def weights(self, residual: Tensor) -> Iterator[Tensor]:
        """Weights of each block, as they were kept or computed again."""
        if not self.is_kept(residual):
            return self.softmax(residual)
        rows, keys = self.group * self.rows, residual.shape[3]
        return (room.view(-1, rows, keys) for room in self.by_query(residual))

    def is_kept(self, residual: Tensor) -> bool:
        """Whether ``residual`` has room for the weights."""
        return self.is_short and residual.shape[3] == self.problem.key.shape[2]

    def softmax(self, residual: Tensor) -> Iterator[Tensor]:
        """Weights of each block, written into ``residual`` where it has room; zeros where nothing is allowed.

        Shape ``[items · key heads, group · queries, keys]``.
        """
        problem, adds = self.problem, int(self.problem.bias is not None)
        lowest = 0.0 if problem.bias is None else check_bias_range(problem.bias)
        causal = None
        if problem.is_causal:
            causal = causal_pattern(problem.query.shape[2], problem.key.shape[2], problem.query.device)
        for query_block, key_block, room, bias, allowed, past in zip(
            self.by_query(problem.query),
            self.by_key(problem.key),
            self.by_query(residual) if self.is_kept(residual) else repeat(None),
            self.by_score(problem.bias),
            self.by_score(problem.allowed),
            self.by_score(causal),
            strict=False,  # what is not there repeats without end
        ):
            query, key = self.of_query(query_block), self.of_key(key_block)
            shape = (query.shape[0], query.shape[1], key.shape[1])
            scores = self.scratch("scores", shape)
            # Into other memory: in place, rows of odd lengths would wait for one another.
            weights = scores if room is None else room.view(shape)
            by_head = scores.view(*query_block.shape[:3], shape[2])
            if bias is not None:
                by_head.copy_(bias)
            torch.baddbmm(scores, query, key.mT, beta=adds, alpha=problem.scale, out=scores)
            closed = _close(by_head, lowest, allowed, past)
            torch.softmax(scores, dim=-1, out=weights)
            if closed is not None:
                weights.view(by_head.shape).masked_fill_(closed, 0.0)
            if lowest < FLUSHED_BIAS:
                torch.threshold_(weights, torch.finfo(self.dtype).tiny, 0.0)
            yield weights

    def dropout(self, weights: Tensor) -> Tensor | None:
        """Factor of the weights: 0 or 1 / (1 − p); the same in forward and backward, block by block."""
        if self._generator is None:
            return None
        stays = 1.0 - self.problem.dropout_p
        return torch.empty_like(weights).bernoulli_(stays, generator=self._generator).div_(stays)


def _close(scores: Tensor, lowest: float, *patterns: Tensor | None) -> Tensor | None:
    """Set what is not allowed to −∞; the rows ``[items, heads, queries, 1]`` left with nothing."""
    given = [pattern for pattern in patterns if pattern is not None]
    for pattern in given:
        scores.masked_fill_(~pattern, float("-inf"))
    if not given and lowest > float("-inf"):
        return None
    return scores.amax(dim=-1, keepdim=True) == float("-inf")


def _fill_gradients(call: _Call, residual: Tensor, gradient: Tensor, grads: Gradients, needs: Needs) -> None:
    """dS = P ∘ (dP − rowsum(P ∘ dP)) with dP = g Vᵀ, and the products that follow from it."""
    problem, by_query, by_key = call.problem, call.by_query, call.by_key
    operands: Iterator[tuple[Tensor, ...] | None] = repeat(None)
    if needs.operands:
        operands = zip(
            *(by_query(problem.query), by_key(problem.key), by_query(grads.query), by_key(grads.key)),
            by_key(grads.value),
            strict=True,
        )
    for (head, item, row), weights, upstream_block, value_block, total, more in zip(
        call.starts,
        call.weights(residual),
        by_query(gradient),
        by_key(problem.value),
        call.by_score(grads.bias if needs.bias else None),
        operands,
        strict=False,  # what is not needed repeats without end
    ):
        upstream, value = call.of_query(upstream_block), call.of_key(value_block)
        read = torch.bmm(upstream, value.mT, out=call.scratch("read", weights.shape))
        keep = call.dropout(weights)
        if keep is not None:
            read.mul_(keep)
        slope = call.scratch("scores", weights.shape) if call.is_kept(residual) else read
        torch._softmax_backward_data(read, weights, -1, call.dtype, grad_input=slope)
        if total is not None:
            is_shared = grads.bias.shape[0] == 1
            parts = slope.view(total.shape)
            parts = parts.flatten(0, 1)[:, None] if is_shared else parts
            _add_sum(total[0, :1] if is_shared else total[0], parts, item > 0 or (is_shared and head > 0))
        if more is None:
            continue
        query_block, key_block, query_target, key_target, value_target = more
        dropped = weights if keep is None else weights * keep
        call.multiply(dropped.mT, upstream, value_target, adds=row > 0)
        query, key = call.of_query(query_block), call.of_key(key_block)
        call.multiply(slope.mT, query, key_target, problem.scale, adds=row > 0)
        call.multiply(slope, key, query_target, problem.scale)


def _add_sum(total: Tensor, parts: Tensor, adds: bool) -> None:
    """Set ``total`` to the sum of ``parts`` over their first axis, or add it."""
    if not adds:
        torch.sum(parts, 0, out=total)
    else:
        total.add_(parts[0] if parts.shape[0] == 1 else parts.sum(0))


attention = define_operator("aten", forward, backward, empty_residual, "CPU")
