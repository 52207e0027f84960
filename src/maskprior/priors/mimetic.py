"""Mimetic initialisation: attention weights with the statistics of pre-trained ones."""

import torch
from torch import Tensor

from maskprior.priors.positions import set_sinusoidal_positions
from maskprior.priors.targets import layer_structures
from maskprior.priors.vision_protocol import ProjectedAttention, VisionPriorModel, vision_model


def mimetic_(
    model: VisionPriorModel,
    structure: Tensor,
    generator: torch.Generator,
    *,
    query_key_noise: float = 0.7,
    query_key_identity: float = 0.7,
    value_noise: float = 0.4,
    value_identity: float = 0.4,
    query_key: bool = True,
    value_output: bool = True,
    sinusoidal: bool = True,
) -> None:
    """Query and key weights near the identity, value and output weights near its negative.

    For inputs as columns, width W, heads of width d, and Z with entries drawn from N(0, 1/W):

        W_Qᵀ W_K ≈ α₁ Z₁ + β₁ I   a head: the d largest singular values of its own draw, shared out as √S
        W_O W_V  = α₂ Z₂ − β₂ I   a layer: all heads together, exactly

    Tokens so attend to those like them and to themselves, and what they read is taken off. The structure is
    checked and not used.

    Args:
        model: the model to change in place.
        structure: checked against the model.
        generator: source of Z.
        query_key_noise: α₁.
        query_key_identity: β₁.
        value_noise: α₂.
        value_identity: β₂.
        query_key: set W_Q and W_K.
        value_output: set W_V and W_O.
        sinusoidal: set the position embedding to sines and cosines.

    Raises:
        TypeError, ValueError: the structure is not one or does not fit, or the model is not one of patches.

    Source: Trockman and Kolter 2023, arXiv 2305.09828, section 4.
    """
    host = vision_model(model, "mimetic")
    layer_structures(host, structure)
    if sinusoidal:
        set_sinusoidal_positions(host)
    for attention, _ in host.layer_positions():
        if query_key:
            _set_query_key(attention, query_key_noise, query_key_identity, generator)
        if value_output:
            set_value_output(attention, value_noise, -value_identity, generator)


@torch.no_grad()
def _set_query_key(
    attention: ProjectedAttention, noise: float, identity: float, generator: torch.Generator
) -> None:
    queries, keys = attention.query_weight(), attention.key_weight()
    _, rank, width = queries.shape
    for query, key in zip(queries, keys, strict=True):
        left, right = shared_roots(noisy_identity(width, noise, identity, generator), rank)
        query.copy_(left.T)
        key.copy_(right.T)


@torch.no_grad()
def set_value_output(
    attention: ProjectedAttention, noise: float, identity: float, generator: torch.Generator
) -> None:
    """W_O W_V = noise · Z + identity · I in one layer."""
    value, output = attention.value_weight(), attention.output_weight()
    width = value.shape[-1]
    left, right = shared_roots(noisy_identity(width, noise, identity, generator), width)
    output.copy_(left)
    value.copy_(right.T)


def noisy_identity(width: int, noise: float, identity: float, generator: torch.Generator) -> Tensor:
    """noise · Z + identity · I, ``[width, width]`` in float64, the entries of Z from N(0, 1 / width)."""
    drawn = torch.randn(width, width, generator=generator, device=generator.device, dtype=torch.float64).cpu()
    noisy: Tensor = noise * drawn / width**0.5 + identity * torch.eye(width, dtype=torch.float64)
    return noisy


def shared_roots(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(U √S, V √S) of the ``rank`` largest singular values: left rightᵀ is the best approximation."""
    left, values, right = torch.linalg.svd(matrix)
    roots: Tensor = values[:rank].sqrt()
    # torch.linalg is not typed.
    first: Tensor = left[:, :rank] * roots
    second: Tensor = right[:rank].T * roots
    return first, second
