"""Closed forms against autograd, bounds against thousands of draws, and bounds that are too tight."""

import math
from collections.abc import Callable
from dataclasses import astuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior import functional
from maskprior.analysis.gradients import (
    Gradients,
    attention_weights,
    loss_gradient_bounds,
    loss_gradients,
    softmax_jacobian,
    weight_gradient_bounds,
    weight_gradients,
)

DRAWS, KEYS, WIDTH = 2003, 7, 5
BATCH, HEADS, QUERIES, VALUE_WIDTH = 2, 3, 11, 13
SCALE = 1 / math.sqrt(WIDTH)
ROUNDING = 1e-12


def draw(*shape: int, seed: int, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(*shape, generator=generator, dtype=torch.float64)


def single_queries(seed: int = 0, draws: int = DRAWS) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and mask logits of all sizes: some draws are nearly uniform, some nearly one-hot."""
    sizes = draw(draws, seed=seed).exp()
    query = draw(draws, WIDTH, seed=seed + 1) * sizes[:, None]
    key = draw(draws, KEYS, WIDTH, seed=seed + 2) * sizes.flip(0)[:, None, None]
    return query, key, draw(draws, KEYS, seed=seed + 3, spread=5.0)


def attention_inputs(logits_shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        draw(BATCH, HEADS, QUERIES, WIDTH, seed=0),
        draw(BATCH, HEADS, KEYS, WIDTH, seed=1),
        draw(BATCH, HEADS, KEYS, VALUE_WIDTH, seed=2),
        draw(*logits_shape, seed=3, spread=3.0),
        draw(BATCH, HEADS, QUERIES, VALUE_WIDTH, seed=4),
    )


def test_weights_are_those_of_the_library() -> None:
    query, key, logits = single_queries(draws=17)
    _, expected = functional.attention(
        query[None, :, None], key[None], key[None], logits[:, None], need_weights=True
    )
    assert torch.allclose(attention_weights(query, key, logits, SCALE), expected[0, :, 0], atol=ROUNDING)


def test_weight_gradients_equal_autograd() -> None:
    query, key, logits = single_queries(draws=17)
    found = weight_gradients(query, key, logits, scale=SCALE)
    for row in range(17):
        arguments = (query[row], key[row], logits[row])
        by_query, by_key, by_logits = torch.autograd.functional.jacobian(
            lambda q, k, m: attention_weights(q, k, m, SCALE), arguments
        )
        assert torch.allclose(found.query[row], by_query, atol=ROUNDING)
        assert torch.allclose(found.key[row], by_key, atol=ROUNDING)
        assert torch.allclose(found.mask_logits[row], by_logits, atol=ROUNDING)


def test_softmax_jacobian_equals_autograd() -> None:
    scores = draw(KEYS, seed=5)
    expected = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    assert torch.allclose(softmax_jacobian(scores.softmax(-1)), expected, atol=ROUNDING)


@pytest.mark.parametrize(
    "logits_shape",
    [(QUERIES, KEYS), (HEADS, QUERIES, KEYS), (1, QUERIES, KEYS), (BATCH, HEADS, QUERIES, KEYS)],
)
def test_loss_gradients_equal_autograd(logits_shape: tuple[int, ...]) -> None:
    query, key, value, logits, output_gradient = attention_inputs(logits_shape)
    leaves = [tensor.clone().requires_grad_() for tensor in (logits, query, key)]
    bias = functional.logits_to_bias(leaves[0])
    output = (leaves[1] @ leaves[2].mT * SCALE + bias).softmax(-1) @ value
    expected = torch.autograd.grad(output, leaves, output_gradient)
    found = loss_gradients(query, key, value, logits, output_gradient, scale=SCALE)
    for closed, automatic in zip((found.mask_logits, found.query, found.key), expected, strict=True):
        assert closed.shape == automatic.shape
        assert torch.allclose(closed, automatic, atol=1e-11)


def test_loss_gradients_equal_those_of_the_library() -> None:
    query, key, value, logits, output_gradient = attention_inputs((HEADS, QUERIES, KEYS))
    leaves = [tensor.clone().requires_grad_() for tensor in (logits, query, key)]
    output = functional.attention(leaves[1], leaves[2], value, leaves[0])
    expected = torch.autograd.grad(output, leaves, output_gradient)
    found = loss_gradients(query, key, value, logits, output_gradient, scale=SCALE)
    for closed, automatic in zip((found.mask_logits, found.query, found.key), expected, strict=True):
        assert torch.allclose(closed, automatic, atol=1e-11)


def sizes(gradients: Gradients) -> tuple[Tensor, Tensor, Tensor]:
    """|∂/∂m|, ‖∂/∂q‖ and ‖∂/∂k‖."""
    return gradients.mask_logits.abs(), gradients.query.norm(dim=-1), gradients.key.norm(dim=-1)


def violations(size: Tensor, bound: Tensor) -> int:
    """How many entries exceed their bound by more than rounding."""
    assert size.shape == bound.shape
    return int((size > bound * (1 + ROUNDING) + 1e-300).sum())


@pytest.mark.parametrize("seed", range(3))
def test_weight_gradients_are_within_their_bounds(seed: int) -> None:
    query, key, logits = single_queries(seed)
    found = sizes(weight_gradients(query, key, logits, scale=SCALE))
    bounds = weight_gradient_bounds(query, key, logits, scale=SCALE)
    assert [violations(*pair) for pair in zip(found, astuple(bounds), strict=True)] == [0, 0, 0]
    weights = attention_weights(query, key, logits, SCALE)
    assert violations(bounds.mask_logits, weights.unsqueeze(-1).expand_as(bounds.mask_logits)) == 0


def test_the_bounds_are_tight() -> None:
    query, key, logits = single_queries()
    found = sizes(weight_gradients(query, key, logits, scale=SCALE))
    bounds = weight_gradient_bounds(query, key, logits, scale=SCALE)
    for size, bound in zip(found, astuple(bounds), strict=True):
        # Close to the bound somewhere: no bound smaller by a tenth would hold.
        assert violations(size, 0.9 * bound) > 0


WRONG_BOUNDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sign": lambda p, m: p.unsqueeze(-1) * torch.sigmoid(m).unsqueeze(-2),
    "transposed": lambda p, m: p.unsqueeze(-2) * torch.sigmoid(-m).unsqueeze(-1),
    "as if |δ − p| ≤ 1/2": lambda p, m: p.unsqueeze(-1) * torch.sigmoid(-m).unsqueeze(-2) / 2,
    "second order": lambda p, m: p.unsqueeze(-1) * torch.sigmoid(-m).unsqueeze(-2) ** 2,
}


@pytest.mark.parametrize("name", WRONG_BOUNDS)
def test_a_wrong_bound_is_caught(name: str) -> None:
    query, key, logits = single_queries()
    size = sizes(weight_gradients(query, key, logits, scale=SCALE))[0]
    assert violations(size, WRONG_BOUNDS[name](attention_weights(query, key, logits, SCALE), logits)) > 0


@pytest.mark.parametrize("logits_shape", [(QUERIES, KEYS), (BATCH, HEADS, QUERIES, KEYS)])
def test_loss_gradients_are_within_their_bounds(logits_shape: tuple[int, ...]) -> None:
    query, key, value, logits, output_gradient = attention_inputs(logits_shape)
    found = sizes(loss_gradients(query, key, value, logits, output_gradient, scale=SCALE))
    bounds = loss_gradient_bounds(query, key, value, logits, output_gradient, scale=SCALE)
    assert [violations(*pair) for pair in zip(found, astuple(bounds), strict=True)] == [0, 0, 0]


def test_a_loss_bound_that_forgets_the_output_gradient_is_caught() -> None:
    query, key, value, logits, output_gradient = attention_inputs((BATCH, HEADS, QUERIES, KEYS))
    found = loss_gradients(query, key, value, logits, output_gradient, scale=SCALE).mask_logits.abs()
    unit = output_gradient / output_gradient.norm(dim=-1, keepdim=True)
    wrong = loss_gradient_bounds(query, key, value, logits, unit, scale=SCALE).mask_logits
    assert violations(found, wrong) > 0


@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_scaled_keys_scale_the_query_gradient_and_leave_the_mask_gradient(factor: float, seed: int) -> None:
    """Attention is held fixed by shrinking the queries; only what the theorem names may change."""
    query, key, logits = single_queries(seed, draws=3)
    before = weight_gradients(query, key, logits, scale=SCALE)
    after = weight_gradients(query / factor, key * factor, logits, scale=SCALE)
    assert torch.allclose(after.mask_logits, before.mask_logits, rtol=1e-9, atol=1e-14)
    assert torch.allclose(after.query, factor * before.query, rtol=1e-9, atol=1e-14 * factor)
    assert torch.allclose(after.key, before.key / factor, rtol=1e-9, atol=1e-14 / factor)


@given(factor=st.floats(1e-3, 1e3))
def test_the_same_holds_for_gradients_of_a_loss(factor: float) -> None:
    query, key, value, logits, output_gradient = attention_inputs((QUERIES, KEYS))
    before = loss_gradients(query, key, value, logits, output_gradient, scale=SCALE)
    after = loss_gradients(query / factor, key * factor, value, logits, output_gradient, scale=SCALE)
    assert torch.allclose(after.mask_logits, before.mask_logits, rtol=1e-9, atol=1e-12)
    assert torch.allclose(after.query, factor * before.query, rtol=1e-9, atol=1e-12 * factor)
    assert torch.allclose(after.key, before.key / factor, rtol=1e-9, atol=1e-12 / factor)


def test_suppressed_and_allowed_logits_are_both_protected() -> None:
    """A suppressed pair has little attention, an allowed one little σ(−m): neither logit moves fast."""
    logits = functional.structure_to_logits(torch.eye(KEYS, dtype=torch.float64)[0])
    query, key = torch.zeros(WIDTH, dtype=torch.float64), torch.zeros(KEYS, WIDTH, dtype=torch.float64)
    bound = weight_gradient_bounds(query, key, logits, scale=SCALE).mask_logits
    allowed, suppressed = bound[0, 0], bound[1, 1]
    assert float(allowed) == pytest.approx(1 / (1 + math.exp(4)), rel=1e-2)
    assert float(suppressed) == pytest.approx(math.exp(-10) * (1 + math.exp(-4)), rel=1e-2)
