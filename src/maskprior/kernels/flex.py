"""PyTorch's FlexAttention with the bias as its score modification: a fused CUDA kernel without a dense mask.

The gradient of the bias is scattered with atomics, so it is not deterministic. Only on request, never `auto`.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from maskprior.kernels.problem import AttentionProblem


def lacks(problem: AttentionProblem) -> str:
    """What keeps this backend from the problem; empty if nothing."""
    learns = any(tensor is not None and tensor.requires_grad for tensor in problem[:4])
    if problem.query.device.type == "cpu" and learns and torch.is_grad_enabled():
        return "has no backward on the CPU"
    if problem.query.dtype == torch.float64:
        return "computes float32, bfloat16 and float16, got torch.float64"
    return "has no dropout" if problem.dropout_p > 0 else ""


def attention(problem: AttentionProblem) -> Tensor:
    """Output ``[B, Hq, Lq, dv]``. On the CPU it is not compiled: for trying out, not for speed."""
    run = _compiled() if problem.query.device.type == "cuda" else _plain
    return run(problem, _score_modification(problem))


def _plain(problem: AttentionProblem, modify: Callable[..., Tensor]) -> Tensor:
    is_grouped = problem.query.shape[1] != problem.key.shape[1]
    output: Tensor = flex_attention(*problem[:3], modify, scale=problem.scale, enable_gqa=is_grouped)
    return output


@lru_cache(maxsize=1)
def _compiled() -> Callable[[AttentionProblem, Callable[..., Tensor]], Tensor]:
    return torch.compile(_plain)


def _score_modification(problem: AttentionProblem) -> Callable[..., Tensor]:
    """score(item, head, i, j) + bias[head, i, j], −∞ where not allowed."""
    bias, allowed = problem.bias, problem.allowed
    lead = problem.key.shape[2] - problem.query.shape[2]
    bias_heads = 1 if bias is None else bias.shape[0]
    sizes = (1, 1, 1, 1) if allowed is None else tuple(allowed.shape)

    def modify(score: Tensor, item: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if bias is not None:
            score = score + bias[head if bias_heads > 1 else 0, query, key]
        if allowed is not None:
            place = (item, head, query, key)
            index = tuple(at if size > 1 else 0 for at, size in zip(place, sizes, strict=True))
            score = torch.where(allowed[index], score, float("-inf"))
        if problem.is_causal:
            score = torch.where(key <= query + lead, score, float("-inf"))
        return score

    return modify
