"""Attention against its equation written out per head, and its initial weights against their law."""

import math

import pytest
import torch
from torch import Tensor

from maskprior.models.attention import Attention, linear

BATCH, N, WIDTH, HEADS, HEAD_WIDTH = 2, 7, 11, 3, 5
INNER = HEADS * HEAD_WIDTH


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_attention(gain: float = 1.0, seed: int = 0) -> Attention:
    return Attention(WIDTH, HEADS, HEAD_WIDTH, query_key_gain=gain, generator=seeded(seed))


def make_double() -> Attention:
    """Float64, with biases that are not zero."""
    attention = make_attention().double()
    with torch.no_grad():
        for value in attention.parameters():
            value.copy_(torch.randn(value.shape, generator=seeded(7), dtype=torch.float64) / 3)
    return attention


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def by_hand(attention: Attention, x: Tensor, bias: Tensor | None, allowed: Tensor | None) -> Tensor:
    """One sequence, one head and one query at a time."""
    weight, offset = attention.qkv.weight.detach(), attention.qkv.bias.detach()
    output = torch.zeros(BATCH, N, INNER, dtype=torch.float64)
    for b in range(BATCH):
        for h in range(HEADS):
            rows = [
                slice((part * HEADS + h) * HEAD_WIDTH, (part * HEADS + h + 1) * HEAD_WIDTH)
                for part in range(3)
            ]
            q, k, v = (x[b] @ weight[row].T + offset[row] for row in rows)
            for i in range(N):
                scores = (k @ q[i]) / math.sqrt(HEAD_WIDTH)
                if bias is not None:
                    scores = scores + bias.expand(HEADS, N, N)[h, i]
                if allowed is not None:
                    scores = scores.masked_fill(~allowed[i], -torch.inf)
                weights = (scores - scores.max()).exp()
                output[b, i, h * HEAD_WIDTH : (h + 1) * HEAD_WIDTH] = (weights / weights.sum()) @ v
    return output @ attention.out.weight.detach().T + attention.out.bias.detach()


BIASES = {"none": None, "shared": -random(N, N, seed=2).abs(), "heads": -random(HEADS, N, N, seed=2).abs()}
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()


@pytest.mark.parametrize("allowed", [None, CAUSAL], ids=["all", "causal"])
@pytest.mark.parametrize("bias", list(BIASES))
def test_is_the_equation(bias: str, allowed: Tensor | None) -> None:
    attention, x = make_double(), random(BATCH, N, WIDTH)
    got = attention(x, BIASES[bias], allowed)
    torch.testing.assert_close(got, by_hand(attention, x, BIASES[bias], allowed), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("allowed", [None, CAUSAL], ids=["all", "causal"])
@pytest.mark.parametrize("bias", list(BIASES))
@pytest.mark.parametrize("rows", [slice(0, 1), slice(2, 5)])
def test_some_rows_are_the_rows_of_all(rows: slice, bias: str, allowed: Tensor | None) -> None:
    attention, x = make_double(), random(BATCH, N, WIDTH)
    whole = attention(x, BIASES[bias], allowed)
    got = attention(x, BIASES[bias], allowed, rows=rows)
    torch.testing.assert_close(got, whole[:, rows], rtol=1e-10, atol=1e-12)


def test_scores_and_weight_views_are_those_of_the_projection() -> None:
    attention, x = make_double(), random(BATCH, N, WIDTH)
    with torch.no_grad():
        attention.qkv.bias[: 2 * INNER] = 0
    query = torch.einsum("hdw,bnw->bhnd", attention.query_weight(), x)
    key = torch.einsum("hdw,bnw->bhnd", attention.key_weight(), x)
    expected = torch.einsum("bhid,bhjd->bhij", query, key) / math.sqrt(HEAD_WIDTH)
    torch.testing.assert_close(attention.scores(x), expected, rtol=1e-10, atol=1e-12)


def test_weight_views_write_through() -> None:
    attention = make_attention()
    before = attention.qkv.weight.detach().clone()
    assert attention.query_weight().shape == attention.key_weight().shape == (HEADS, HEAD_WIDTH, WIDTH)
    with torch.no_grad():
        attention.query_weight()[1] = 2.0
        attention.key_weight()[2] = 3.0
    changed = (attention.qkv.weight != before).any(dim=-1).nonzero().flatten().tolist()
    first_query, first_key = HEAD_WIDTH, INNER + 2 * HEAD_WIDTH
    assert changed == [*range(first_query, first_query + 5), *range(first_key, first_key + 5)]


def test_gradients_reach_input_bias_and_weights() -> None:
    attention, bias = make_double(), random(HEADS, N, N, seed=2).requires_grad_()
    x = random(1, N, WIDTH).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, bias: attention(x, bias, CAUSAL), (x, bias))
    attention(x, bias).sum().backward()
    assert all(value.grad is not None for value in attention.parameters())


def test_a_lower_bias_takes_attention_away() -> None:
    """The sign: a key with bias −20 is as good as removed."""
    attention, x = make_double(), random(BATCH, N, WIDTH)
    bias = torch.zeros(N, N, dtype=torch.float64)
    bias[:, 4] = -60.0
    kept = [j for j in range(N) if j != 4]
    got = attention(x, bias)[:, kept]
    torch.testing.assert_close(got, attention(x[:, kept], None), rtol=1e-10, atol=1e-12)


def test_initial_weights() -> None:
    plain, scaled = make_attention(), make_attention(gain=3.0)
    assert torch.equal(scaled.qkv.weight[: 2 * INNER], 3.0 * plain.qkv.weight[: 2 * INNER])
    assert torch.equal(scaled.qkv.weight[2 * INNER :], plain.qkv.weight[2 * INNER :])
    assert torch.equal(scaled.out.weight, plain.out.weight)
    for attention in (plain, scaled):
        assert bool((attention.qkv.bias[: 2 * INNER] == 0).all())
        assert bool((attention.qkv.bias[2 * INNER :] != 0).all())


def test_linear_draws_the_default_law_from_the_generator_alone() -> None:
    inputs, outputs = 101, 997
    state = torch.get_rng_state()
    layer = linear(inputs, outputs, seeded(0))
    assert torch.equal(torch.get_rng_state(), state)
    bound = 1 / math.sqrt(inputs)
    for values in (layer.weight.detach(), layer.bias.detach()):
        assert float(values.abs().max()) <= bound
        # A uniform law's mean and variance, to five standard errors.
        assert abs(float(values.mean())) < 5 * bound / math.sqrt(3 * values.numel())
        assert float(values.var()) == pytest.approx(bound**2 / 3, rel=5 / math.sqrt(values.numel()))
    again, other = linear(inputs, outputs, seeded(0)), linear(inputs, outputs, seeded(1))
    assert torch.equal(again.weight, layer.weight)
    assert not torch.equal(other.weight, layer.weight)
    assert all(value.requires_grad and value.is_leaf for value in layer.parameters())
