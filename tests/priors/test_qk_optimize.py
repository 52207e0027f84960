"""What qk_optimize_ minimises, against the formula, and how its whitened descent behaves."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior.models import Transformer, TransformerConfig
from maskprior.priors import pattern_distance, qk_optimize_
from maskprior.priors.qk_optimize import pattern_divergence, whitening

BATCH, HEADS, HEAD_WIDTH, N, WIDTH = 2, 3, 5, 7, 17


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def make_model(position_std: float = 0.02) -> Transformer:
    config = TransformerConfig(
        vocab_size=2,
        length=N - 1,
        outputs=1,
        width=WIDTH,
        depth=2,
        heads=HEADS,
        head_width=HEAD_WIDTH,
        mlp_width=11,
        position_std=position_std,
        query_key_gain=3.0,
    )
    return Transformer(config, seeded(0))


def log_targets(causal: bool) -> Tensor:
    scores = random(HEADS, N, N, seed=3)
    if causal:
        scores = scores.masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -torch.inf)
    return scores.log_softmax(-1)


@pytest.mark.parametrize("causal", [False, True])
def test_divergence_is_the_mean_kullback_leibler_divergence(causal: bool) -> None:
    query, key = random(2, BATCH, HEADS, N, HEAD_WIDTH)
    log_target = log_targets(causal)
    total = 0.0
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(N):
                seen = range(i + 1 if causal else N)
                weights = [math.exp(float(query[b, h, i] @ key[b, h, j]) / HEAD_WIDTH**0.5) for j in seen]
                for j, weight in zip(seen, weights, strict=True):
                    target = math.exp(float(log_target[h, i, j]))
                    total += target * math.log(target * sum(weights) / weight)
    got = float(pattern_divergence(query, key, log_target))
    assert got == pytest.approx(total / (BATCH * HEADS * N), rel=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_divergence_is_differentiable_and_zero_at_the_target(causal: bool) -> None:
    query, key = (tensor.requires_grad_() for tensor in random(2, 1, HEADS, N, HEAD_WIDTH))
    target = log_targets(causal)
    assert torch.autograd.gradcheck(lambda q, k: pattern_divergence(q, k, target), (query, key))
    scores = (query @ key.mT / HEAD_WIDTH**0.5).detach()[0]
    own = scores.masked_fill(target == -torch.inf, -torch.inf).log_softmax(-1)
    assert float(pattern_divergence(query, key, own).detach()) == pytest.approx(0.0, abs=1e-14)
    assert float(pattern_divergence(query, key, target).detach()) > 0.1


@given(seed=st.integers(0, 2**31), rank=st.integers(1, WIDTH))
def test_whitening_spans_what_varies_and_evens_it_out(seed: int, rank: int) -> None:
    scales = torch.logspace(0, -1, rank, dtype=torch.float64)
    x = (random(31, N, rank, seed=seed) * scales) @ random(rank, WIDTH, seed=seed + 1)
    into, back = whitening(x)
    assert into.shape == (WIDTH, rank)
    torch.testing.assert_close(x @ into @ back, x, rtol=1e-9, atol=1e-9 * float(x.abs().max()))
    torch.testing.assert_close(back @ into, torch.eye(rank, dtype=torch.float64), rtol=0, atol=1e-9)
    flat = (x @ into).flatten(0, 1)
    moments = flat.mT @ flat / len(flat)
    off_diagonal = moments - moments.diagonal().diag()
    assert float(off_diagonal.abs().max()) < 1e-9
    assert float(moments.diagonal().max()) <= 1.0


def test_strong_directions_get_unit_moments_and_weak_ones_less() -> None:
    x = random(997, 1, 3) * torch.tensor([1.0, 1e-3, 1e-5], dtype=torch.float64)
    into, _ = whitening(x)
    assert into.shape == (3, 2)  # the weakest is dropped
    moments = (x @ into).square().mean((0, 1)).sort().values
    assert float(moments[1]) == pytest.approx(1.0, abs=1e-3)
    assert 0.001 < float(moments[0]) < 0.1


def test_weights_outside_the_span_of_the_inputs_are_kept() -> None:
    model = make_model()
    attention, _ = next(model.layer_inputs(model.sample_inputs(1, seeded(1))))
    tokens = torch.cartesian_prod(*[torch.arange(2)] * (N - 1))
    _, x = next(model.layer_inputs(tokens))
    _, values, vectors = torch.linalg.svd(x.detach().double().flatten(0, 1), full_matrices=True)
    outside = vectors[int((values > 1e-4 * values[0]).sum()) :]
    assert len(outside) >= 5
    before = attention.query_weight().detach().double() @ outside.mT
    start = attention.query_weight().detach().clone()
    qk_optimize_(model, torch.eye(N), seeded(2), steps=20)
    after = attention.query_weight().detach().double() @ outside.mT
    change = float((attention.query_weight().detach() - start).norm())
    assert change > 1.0
    assert float((after - before).norm()) < 1e-3 * change


@pytest.mark.parametrize("position_std", [0.02, 1.0])
def test_more_steps_come_closer(position_std: float) -> None:
    structure = torch.eye(N).roll(2, 0)
    worst = []
    for steps in (1, 20, 200):
        model = make_model(position_std)
        qk_optimize_(model, structure, seeded(2), steps=steps)
        distance = pattern_distance(model, structure, model.sample_inputs(64, seeded(4)))
        worst.append(float(distance.max()))
    assert worst[0] > 0.5
    assert worst[0] > worst[1] > worst[2]
    assert worst[2] < 0.02


@pytest.mark.parametrize("samples", [1, 7, 100])
def test_samples_need_not_fill_batches(samples: int) -> None:
    model = make_model()
    qk_optimize_(model, torch.eye(N), seeded(2), steps=3, samples=samples)
    assert all(bool(value.isfinite().all()) for value in model.parameters())


@pytest.mark.parametrize(
    ("steps", "lr"), [(0, 0.1), (-1, 0.1), (5, 0.0), (5, -1.0), (5, math.inf), (5, math.nan)]
)
def test_refuses_wrong_steps_and_rates(steps: int, lr: float) -> None:
    message = f"expected steps ≥ 1 and a finite lr > 0, got steps={steps} and lr={lr}"
    with pytest.raises(ValueError, match=re.escape(message)):
        qk_optimize_(make_model(), torch.eye(N), seeded(2), steps=steps, lr=lr)
