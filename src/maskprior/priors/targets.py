"""The structure of each layer, checked against the model, and the attention pattern it asks for."""

import torch
from torch import Tensor

from maskprior.functional import logits_to_bias, structure_to_logits
from maskprior.priors.protocol import ModelShape, PriorModel
from maskprior.structures import check_structure


def layer_structures(model: PriorModel, structure: Tensor) -> list[Tensor]:
    """The structure of each layer, ``[N, N]`` or ``[1 or heads, N, N]``, checked.

    Args:
        model: the model that the structure must fit.
        structure: ``[N, N]`` or ``[1 or heads, N, N]`` for all layers, or ``[layers, 1 or heads, N, N]``.

    Raises:
        TypeError: the structure is not a floating-point or bool tensor.
        ValueError: not finite, out of [0, 1], an empty row (also among the keys that a causal model lets a
            query see), or a shape that does not fit the model.
    """
    shape = model.config
    check_structure(structure)
    _check_shape(tuple(structure.shape), shape)
    _check_reachable(structure, model.allowed(shape.attended_length))
    return list(structure) if structure.dim() == 4 else [structure] * shape.depth


def target_log_patterns(
    model: PriorModel, structure: Tensor, *, allowed_logit: float, suppressed_logit: float
) -> list[Tensor]:
    """Logarithm of each layer's target pattern, softmax over keys of log σ(M₀).

    M₀ is what :func:`maskprior.functional.structure_to_logits` makes of the structure, so all priors aim at
    the pattern that the mask prior alone would give.

    Returns:
        One ``[1 or heads, N, N]`` a layer, float64 on the CPU, −∞ where the model does not allow attention.

    Raises:
        TypeError, ValueError: see :func:`layer_structures`; or the logits are not finite and ordered.
    """
    allowed = model.allowed(model.config.attended_length)
    allowed = None if allowed is None else allowed.cpu()
    patterns = []
    for layer in layer_structures(model, structure):
        graded = layer.detach().cpu().double().reshape(-1, *layer.shape[-2:])
        logits = structure_to_logits(graded, allowed_logit=allowed_logit, suppressed_logit=suppressed_logit)
        bias = logits_to_bias(logits)
        patterns.append((bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)).log_softmax(-1))
    return patterns


def centred_scores(log_pattern: Tensor) -> Tensor:
    """The scores T of a pattern, with mean 0 over the allowed keys of each row and 0 at the others.

    softmax(T) over the allowed keys is the pattern; the row means are free, as softmax is shift-invariant.
    """
    allowed = log_pattern.isfinite()
    finite = log_pattern.masked_fill(~allowed, 0.0)
    mean = finite.sum(dim=-1, keepdim=True) / allowed.sum(dim=-1, keepdim=True)
    return (finite - mean).masked_fill(~allowed, 0.0)


def _check_shape(got: tuple[int, ...], shape: ModelShape) -> None:
    side, heads, layers = shape.attended_length, shape.heads, shape.depth
    leading = got[:-2]
    fits = leading in {(), (1,), (heads,), (layers, 1), (layers, heads)}
    if not fits or got[-2:] != (side, side):
        raise ValueError(
            f"expected a structure [{side}, {side}], [1 or {heads} heads, {side}, {side}] or "
            f"[{layers} layers, 1 or {heads} heads, {side}, {side}], got shape {got}"
        )


def _check_reachable(structure: Tensor, allowed: Tensor | None) -> None:
    """Raise if all that a query should interact with is forbidden: it would attend uniformly to the rest."""
    if allowed is None:
        return
    empty = ~((structure > 0) & allowed.to(structure.device)).any(dim=-1)
    if bool(empty.any()):
        raise ValueError(
            f"expected every query to interact with some key that the causal model lets it see, got none at "
            f"index {empty.nonzero()[0].tolist()}; with_fallback_self lets such rows attend to themselves"
        )
