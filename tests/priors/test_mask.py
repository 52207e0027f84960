"""mask_ puts M into each layer as asked; vanilla_ only looks."""

import re

import pytest
import torch
from torch import Tensor

from maskprior.functional import structure_to_logits
from maskprior.models import Transformer, TransformerConfig
from maskprior.priors import mask_, vanilla_

DEPTH, HEADS, N = 2, 3, 5


def make_model() -> Transformer:
    config = TransformerConfig(
        vocab_size=7, length=N, outputs=1, readout="tokens", depth=DEPTH, heads=HEADS, query_key_gain=0.0
    )
    return Transformer(config)


def make_structure(*leading: int) -> Tensor:
    drawn = torch.rand(*leading, N, N, generator=torch.Generator().manual_seed(1))
    return drawn.where(drawn > 0.5, 0.0).maximum(torch.eye(N))


def mask_logits(model: Transformer) -> list[Tensor]:
    return [prior.get_parameter("mask_logits") for prior in model.priors]


@pytest.mark.parametrize("leading", [(), (1,), (HEADS,), (DEPTH, 1), (DEPTH, HEADS)])
def test_each_layer_gets_its_own_logits(leading: tuple[int, ...]) -> None:
    model, structure = make_model(), make_structure(*leading)
    mask_(model, structure, torch.Generator(), allowed_logit=2.0, suppressed_logit=-3.0)
    assert model.prior_of_layer == tuple(range(DEPTH))
    expected = structure_to_logits(structure, allowed_logit=2.0, suppressed_logit=-3.0)
    for layer, logits in enumerate(mask_logits(model)):
        assert torch.equal(logits, expected[layer] if len(leading) == 2 else expected)
        assert logits.requires_grad


def test_layers_do_not_share_storage() -> None:
    model = make_model()
    mask_(model, make_structure(), torch.Generator())
    first, second = mask_logits(model)
    with torch.no_grad():
        first.zero_()
    assert bool((second != 0).any())


def test_attention_is_the_prior_pattern_where_scores_vanish() -> None:
    model, structure = make_model(), make_structure(HEADS)
    mask_(model, structure, torch.Generator())
    patterns = model.attention_patterns(model.sample_inputs(11, torch.Generator()))
    weights = structure_to_logits(structure).sigmoid()
    expected = (weights / weights.sum(-1, keepdim=True)).expand_as(patterns)
    torch.testing.assert_close(patterns, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("leading", [(), (HEADS,)])
def test_layers_may_share_one_mask(leading: tuple[int, ...]) -> None:
    model = make_model()
    mask_(model, make_structure(*leading), torch.Generator(), share_layers=True)
    assert len(model.priors) == 1
    assert model.prior_of_layer == (0,) * DEPTH
    assert [key for key in model.state_dict() if "mask_logits" in key] == ["priors.0.mask_logits"]


def test_sharing_and_a_structure_per_layer_contradict() -> None:
    message = f"without a layer dimension with share_layers=True, got shape ({DEPTH}, 1, {N}, {N})"
    with pytest.raises(ValueError, match=re.escape(message)):
        mask_(make_model(), make_structure(DEPTH, 1), torch.Generator(), share_layers=True)


def test_frozen_masks_take_no_gradient() -> None:
    model = make_model()
    mask_(model, make_structure(), torch.Generator(), learnable=False)
    assert not any(logits.requires_grad for logits in mask_logits(model))


def test_a_second_prior_replaces_the_first() -> None:
    model = make_model()
    for suppressed in (-3.0, -5.0):
        mask_(model, torch.eye(N), torch.Generator(), suppressed_logit=suppressed)
    assert len(model.priors) == DEPTH
    assert all(float(logits.detach().min()) == -5.0 for logits in mask_logits(model))


def test_nothing_is_drawn() -> None:
    for prior in (mask_, vanilla_):
        generator = torch.Generator().manual_seed(5)
        before = generator.get_state()
        prior(make_model(), make_structure(), generator)
        assert torch.equal(generator.get_state(), before)
