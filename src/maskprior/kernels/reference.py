"""The equation itself, in plain torch: any dtype and device, double backward, forward-mode derivatives.

    output = dropout(softmax(scale · Q Kᵀ + bias)) V

Half precision is computed in float32 and cast last. Stores the scores: B · Hq · Lq · Lk.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from maskprior.kernels.problem import AttentionProblem, causal_pattern, without_autocast


def attention_with_weights(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Output ``[B, Hq, Lq, dv]`` and the weights before dropout ``[B, Hq, Lq, Lk]``, in the query's dtype.

    A query that may attend to nothing gets weights, output and gradients of zero.
    """
    dtype = problem.query.dtype
    with without_autocast(problem.query.device):
        weights = safe_softmax(_scores(problem))
        dropped = F.dropout(weights, problem.dropout_p) if problem.dropout_p > 0 else weights
        output = dropped @ _per_query_head(problem.value, problem).to(weights.dtype)
    return output.to(dtype), weights.to(dtype)


def safe_softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis; a row of −∞ gives zeros (with zero gradients) rather than NaN."""
    peak = scores.detach().amax(dim=-1, keepdim=True)
    exponentials = (scores - peak.masked_fill(peak == float("-inf"), 0.0)).exp()
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / total.masked_fill(total == 0.0, 1.0)


def _scores(problem: AttentionProblem) -> Tensor:
    """scale · Q Kᵀ + bias, −∞ where not allowed."""
    query, key = problem.query, _per_query_head(problem.key, problem)
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(dtype) * problem.scale) @ key.to(dtype).mT
    if problem.bias is not None:
        scores = scores + problem.bias
    if problem.allowed is not None:
        scores = scores.masked_fill(~problem.allowed, float("-inf"))
    if problem.is_causal:
        scores = scores.masked_fill(
            ~causal_pattern(scores.shape[-2], scores.shape[-1], scores.device), float("-inf")
        )
    return scores


def _per_query_head(tensor: Tensor, problem: AttentionProblem) -> Tensor:
    group = problem.query.shape[1] // tensor.shape[1]
    return tensor if group == 1 else tensor.repeat_interleave(group, dim=1)
