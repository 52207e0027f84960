"""PyTorch's scaled_dot_product_attention with the bias as its mask: any device, its faulty paths closed off.

A bias that learns costs a gradient buffer of B · H · Lq · Lk there, and in half precision it is rounded to
the query's type. Known faults that are avoided: cuDNN reads a float32 mask as half precision
(pytorch#191612); the memory-efficient kernel reads out of bounds where only the mask needs a gradient
(pytorch#148476) and gives NaN gradients where the length is 64 modulo 128 and a row is strongly suppressed
(pytorch#196678); `is_causal` beside a mask is refused or drops the mask; a row of −∞ may give NaN.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from maskprior.kernels.problem import AttentionProblem, causal_pattern, without_autocast


def attention(problem: AttentionProblem) -> Tensor:
    """Output ``[B, Hq, Lq, dv]``; zeros where a query may attend to nothing."""
    group = problem.query.shape[1] // problem.key.shape[1]
    key, value = problem.key, problem.value
    if group > 1:
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    added, is_empty = _mask(problem)
    with without_autocast(problem.query.device), sdpa_kernel(_kernels(problem)):
        output = F.scaled_dot_product_attention(
            problem.query, key, value, attn_mask=added, dropout_p=problem.dropout_p, scale=problem.scale
        )
    return output if is_empty is None else output.masked_fill(is_empty, 0.0)


def _mask(problem: AttentionProblem) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, and the queries that may attend to nothing (they attend to all, then)."""
    query, bias, allowed = problem.query, problem.bias, problem.allowed
    queries, keys = query.shape[2], problem.key.shape[2]
    if problem.is_causal:
        causal = causal_pattern(queries, keys, query.device)
        allowed = causal[None, None] if allowed is None else allowed & causal
    if bias is None and allowed is None:
        return None, None
    added = query.new_zeros(()) if bias is None else bias[None].to(query.dtype)
    if allowed is not None:
        added = torch.where(allowed, added, float("-inf"))
    is_empty = (added == float("-inf")).all(dim=-1, keepdim=True)
    return added.masked_fill(is_empty, 0.0).expand(-1, -1, queries, keys), is_empty


def _kernels(problem: AttentionProblem) -> list[SDPBackend]:
    """The kernels of SDPA that compute this problem rightly."""
    bias = problem.bias
    only_bias_learns = (
        bias is not None
        and bias.requires_grad
        and not (problem.query.requires_grad or problem.key.requires_grad)
    )
    if only_bias_learns or 64 in (problem.query.shape[2] % 128, problem.key.shape[2] % 128):
        return [SDPBackend.MATH]
    return [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
