"""The pattern that every prior aims at, against the formula written out element by element."""

import math

import pytest
import torch
from torch import Tensor

from maskprior.models import Transformer, TransformerConfig
from maskprior.priors.targets import centred_scores, layer_structures, target_log_patterns

DEPTH, HEADS, N = 2, 3, 5


def make_model(causal: bool = False) -> Transformer:
    config = TransformerConfig(
        vocab_size=7, length=N, outputs=1, readout="tokens", causal=causal, depth=DEPTH, heads=HEADS
    )
    return Transformer(config)


def make_structure(*leading: int) -> Tensor:
    drawn = torch.rand(*leading, N, N, generator=torch.Generator().manual_seed(1))
    return drawn.where(drawn > 0.5, 0.0).maximum(torch.eye(N))


def log_sigmoid(logit: float) -> float:
    return -math.log1p(math.exp(-logit))


@pytest.mark.parametrize("causal", [False, True])
def test_target_is_the_softmax_of_log_sigmoid_over_allowed_keys(causal: bool) -> None:
    structure = make_structure(HEADS)
    patterns = target_log_patterns(make_model(causal), structure, allowed_logit=2.5, suppressed_logit=-7.0)
    for head in range(HEADS):
        for i in range(N):
            logits = [-7.0 + 9.5 * float(structure[head, i, j]) for j in range(N)]
            weights = [
                math.exp(log_sigmoid(logit)) if j <= i or not causal else 0.0
                for j, logit in enumerate(logits)
            ]
            expected = torch.tensor([weight / sum(weights) for weight in weights], dtype=torch.float64)
            torch.testing.assert_close(patterns[1][head, i].exp(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("leading", "layer_shape"),
    [((), (N, N)), ((1,), (1, N, N)), ((HEADS,), (HEADS, N, N)), ((DEPTH, HEADS), (HEADS, N, N))],
)
def test_each_layer_gets_its_structure(leading: tuple[int, ...], layer_shape: tuple[int, ...]) -> None:
    structure = make_structure(*leading)
    layers = layer_structures(make_model(), structure)
    assert len(layers) == DEPTH
    for depth, layer in enumerate(layers):
        assert layer.shape == layer_shape
        assert torch.equal(layer, structure[depth] if len(leading) == 2 else structure)


def test_targets_of_a_shared_structure_have_one_head() -> None:
    patterns = target_log_patterns(make_model(), make_structure(), allowed_logit=4.0, suppressed_logit=-10.0)
    assert [tuple(pattern.shape) for pattern in patterns] == [(1, N, N)] * DEPTH
    assert all(pattern.dtype == torch.float64 for pattern in patterns)


@pytest.mark.parametrize("causal", [False, True])
def test_centred_scores_give_the_pattern_and_have_mean_zero(causal: bool) -> None:
    (pattern, _) = target_log_patterns(
        make_model(causal), make_structure(HEADS), allowed_logit=4.0, suppressed_logit=-10.0
    )
    scores = centred_scores(pattern)
    allowed = pattern.isfinite()
    torch.testing.assert_close(scores.sum(-1), torch.zeros(HEADS, N, dtype=torch.float64), rtol=0, atol=1e-12)
    assert bool((scores[~allowed] == 0).all())
    again = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    torch.testing.assert_close(again, pattern.exp(), rtol=1e-12, atol=1e-15)
