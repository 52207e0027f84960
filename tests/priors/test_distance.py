"""pattern_distance against total variation written out in loops, and at its two ends."""

import pytest
import torch

from maskprior.functional import structure_to_logits
from maskprior.models import Transformer, TransformerConfig
from maskprior.priors import mask_, pattern_distance

DEPTH, HEADS, N = 2, 3, 5


def make_model(causal: bool = False, gain: float = 3.0, dropout: float = 0.0) -> Transformer:
    config = TransformerConfig(
        vocab_size=7,
        length=N,
        outputs=1,
        readout="tokens",
        causal=causal,
        width=11,
        depth=DEPTH,
        heads=HEADS,
        head_width=13,
        query_key_gain=gain,
        dropout=dropout,
    )
    return Transformer(config, torch.Generator().manual_seed(0))


def inputs(model: Transformer) -> torch.Tensor:
    return model.sample_inputs(17, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("leading", [(), (HEADS,), (DEPTH, HEADS)])
def test_is_the_mean_total_variation(causal: bool, leading: tuple[int, ...]) -> None:
    model = make_model(causal)
    structure = torch.rand(*leading, N, N, generator=torch.Generator().manual_seed(2))
    patterns = model.attention_patterns(inputs(model)).double()
    every_layer = structure.expand(DEPTH, HEADS, N, N).double()
    got = pattern_distance(model, structure, inputs(model), allowed_logit=1.5, suppressed_logit=-2.0)
    for layer in range(DEPTH):
        total = 0.0
        for head in range(HEADS):
            for i in range(N):
                weights = 1 / (1 + (2.0 - 3.5 * every_layer[layer, head, i]).exp())
                weights = weights * (torch.arange(N) <= i) if causal else weights
                target = weights / weights.sum()
                total += float((patterns[layer, head, i] - target).abs().sum()) / 2
        assert float(got[layer]) == pytest.approx(total / (HEADS * N), rel=1e-9)


def test_is_zero_for_the_prior_alone_and_one_for_its_opposite() -> None:
    model = make_model(gain=0.0)
    structure = torch.eye(N)
    mask_(model, structure, torch.Generator(), allowed_logit=20.0, suppressed_logit=-40.0)
    exact = pattern_distance(model, structure, inputs(model), allowed_logit=20.0, suppressed_logit=-40.0)
    opposite = pattern_distance(
        model, 1 - structure, inputs(model), allowed_logit=20.0, suppressed_logit=-40.0
    )
    torch.testing.assert_close(exact, torch.zeros(DEPTH, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(opposite, torch.ones(DEPTH, dtype=torch.float64), rtol=0, atol=1e-6)


def test_ignores_dropout_and_draws_nothing() -> None:
    plain, dropped = make_model(), make_model(dropout=0.5)
    state = torch.get_rng_state()
    expected = pattern_distance(plain, torch.eye(N), inputs(plain))
    assert torch.equal(pattern_distance(dropped, torch.eye(N), inputs(plain)), expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert dropped.training


def test_needs_no_mask_prior_but_sees_one() -> None:
    model = make_model()
    before = pattern_distance(model, torch.eye(N), inputs(model))
    mask_(model, torch.eye(N), torch.Generator())
    assert bool((pattern_distance(model, torch.eye(N), inputs(model)) < before).all())
    assert structure_to_logits(torch.eye(N)).shape == model.priors[0].mask_logits.shape
