"""Mimetic initialisation, against its closed form."""

from typing import Any

import pytest
import torch
from torch import Tensor

from maskprior.priors.mimetic import mimetic_, noisy_identity, shared_roots
from maskprior.priors.positions import sinusoidal_positions
from maskprior.priors.vision_protocol import ProjectedAttention
from maskprior.vision.model import VitConfig, VitModel

WIDTH, HEADS = 88, 4  # heads of 22


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_model() -> VitModel:
    config = VitConfig(image_size=(6, 10), patch_size=2, classes=5, width=WIDTH, depth=2, heads=HEADS)
    return VitModel(config, seeded(0))


def attentions(**options: Any) -> list[ProjectedAttention]:
    model = make_model()
    mimetic_(model, torch.ones(16, 16), seeded(1), **options)
    model.requires_grad_(False)
    return [attention for attention, _ in model.layer_positions()]


def query_key(attention: ProjectedAttention) -> Tensor:
    """W_Qᵀ W_K of each head."""
    return torch.einsum("hdi,hdj->hij", attention.query_weight(), attention.key_weight())


def test_values_are_near_the_negative_identity() -> None:
    for attention in attentions():
        product = attention.output_weight() @ attention.value_weight()
        diagonal = product.diagonal()
        rest = product - diagonal.diag()
        # Entries of 0.4 Z are N(0, 0.16 / W): the mean of W of them has a deviation of 0.4 / W.
        assert float(diagonal.mean()) == pytest.approx(-0.4, abs=4 * 0.4 / WIDTH)
        assert float(rest.std()) == pytest.approx(0.4 / WIDTH**0.5, rel=0.05)
        # √S is shared out evenly: both factors have the same singular values.
        torch.testing.assert_close(
            torch.linalg.svdvals(attention.output_weight()),
            torch.linalg.svdvals(attention.value_weight()),
            rtol=1e-4,
            atol=1e-4,
        )


def test_queries_and_keys_are_near_the_identity() -> None:
    for attention in attentions():
        product = query_key(attention)
        diagonal = product.diagonal(dim1=1, dim2=2).mean(1)
        off = (product.sum((1, 2)) - product.diagonal(dim1=1, dim2=2).sum(1)) / (WIDTH * (WIDTH - 1))
        # The 22 largest of 88 singular values keep more than their share of the trace of 0.7 I.
        assert bool((diagonal > 0.7 * 22 / WIDTH).all())
        assert bool((off.abs() < 0.02).all())
        assert bool((torch.linalg.matrix_rank(product, rtol=1e-4) == 22).all())


def test_without_noise_it_is_the_identity_exactly() -> None:
    (attention, _) = attentions(query_key_noise=0.0, value_noise=0.0)
    torch.testing.assert_close(
        attention.output_weight() @ attention.value_weight(), -0.4 * torch.eye(WIDTH), atol=1e-6, rtol=0
    )
    product = query_key(attention)
    torch.testing.assert_close(product @ product, 0.7 * product, atol=1e-5, rtol=0)  # 0.7 of a projection
    assert product.diagonal(dim1=1, dim2=2).sum(1).tolist() == pytest.approx([0.7 * 22] * HEADS, rel=1e-4)


def test_heads_and_layers_draw_their_own() -> None:
    first, second = attentions()
    products = torch.cat([query_key(first), query_key(second)])
    distances = torch.cdist(products.flatten(1), products.flatten(1))
    assert bool((distances[~torch.eye(8, dtype=torch.bool)] > 1).all())


def test_truncation_is_the_best_of_its_rank() -> None:
    matrix = noisy_identity(13, 0.7, 0.7, seeded(2))
    left, right = shared_roots(matrix, 5)
    assert left.shape == right.shape == (13, 5)
    error = torch.linalg.svdvals(matrix - left @ right.T)
    torch.testing.assert_close(error[0], torch.linalg.svdvals(matrix)[5])
    torch.testing.assert_close(left.norm(dim=0), right.norm(dim=0))


@pytest.mark.parametrize("half", ["query_key", "value_output"])
def test_halves_can_be_left_out(half: str) -> None:
    plain, part = make_model(), attentions(**{half: False})[0]
    own, _ = next(plain.layer_positions())
    same_query_key = torch.equal(own.query_weight(), part.query_weight())
    same_value = torch.equal(own.value_weight(), part.value_weight())
    assert (same_query_key, same_value) == (half == "query_key", half == "value_output")


@pytest.mark.parametrize("sinusoidal", [True, False])
def test_positions_are_optional(sinusoidal: bool) -> None:
    model, before = make_model(), make_model().position_embedding()
    mimetic_(model, torch.ones(16, 16), seeded(1), sinusoidal=sinusoidal)
    after = model.position_embedding()
    if sinusoidal:
        torch.testing.assert_close(after[1:], sinusoidal_positions(3, 5, WIDTH))
        assert not bool(after[0].any())
    else:
        assert torch.equal(after, before)
