"""The inputs on which query-key priors are fitted, and the refusal where they cannot be."""

import re

import pytest
import torch
from torch import Tensor

from maskprior.models import Transformer, TransformerConfig
from maskprior.priors import PRIORS, mask_, qk_svd_, vanilla_
from maskprior.priors.fitting import balanced_inputs, check_positions, evaluating
from maskprior.priors.targets import target_log_patterns

DEPTH, HEADS, LENGTH, VOCAB = 2, 3, 5, 7


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_model(
    position_std: float = 0.02, causal: bool = False, dropout: float = 0.0, depth: int = DEPTH
) -> Transformer:
    config = TransformerConfig(
        vocab_size=VOCAB,
        length=LENGTH,
        outputs=1,
        readout="tokens" if causal else "cls",
        causal=causal,
        width=17,
        depth=depth,
        heads=HEADS,
        head_width=11,
        position_std=position_std,
        dropout=dropout,
    )
    return Transformer(config, seeded(0))


def two_groups(model: Transformer) -> Tensor:
    """Even tokens read even ones, odd tokens odd ones."""
    parity = torch.arange(model.config.attended_length) % 2
    return (parity[:, None] == parity).float()


@pytest.mark.parametrize(("samples", "count"), [(1, 5), (5, 5), (6, 10), (23, 25)])
def test_every_position_sees_the_same_tokens(samples: int, count: int) -> None:
    inputs = balanced_inputs(make_model(), samples, seeded(1))
    assert inputs.shape == (count, LENGTH)
    counts = torch.stack([inputs[:, position].bincount(minlength=VOCAB) for position in range(LENGTH)])
    assert bool((counts == counts[0]).all())
    assert int(counts.sum()) == count * LENGTH


@pytest.mark.parametrize("samples", [0, -3])
def test_refuses_no_samples(samples: int) -> None:
    with pytest.raises(ValueError, match=f"expected samples ≥ 1, got {samples}"):
        balanced_inputs(make_model(), samples, seeded(1))


def test_evaluating_restores_modes_after_an_error() -> None:
    model = make_model(dropout=0.5)
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]

    def failing() -> None:
        with evaluating(model):
            assert not any(module.training for module in model.modules())
            assert not torch.is_grad_enabled()
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", ["qk_svd", "qk_optimize"])
def test_refuses_positions_that_look_alike(name: str) -> None:
    model = make_model(position_std=0.0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    message = (
        r"expected position features that tell apart the positions which the structure treats differently, "
        r"got two that differ by \S+ of a token's size or less in every layer; give the model position "
        r"embeddings \(position_std > 0\) or use mask_"
    )
    with pytest.raises(ValueError, match=message):
        PRIORS[name](model, two_groups(model), seeded(1))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_mask_and_vanilla_need_no_positions() -> None:
    for prior in (mask_, vanilla_):
        prior(make_model(position_std=0.0), two_groups(make_model()), seeded(1))


def test_alike_positions_that_are_treated_alike_are_fine() -> None:
    model = make_model(position_std=0.0)
    # [CLS] differs from the tokens, and nothing but [CLS] is told apart: all tokens read all tokens.
    structure = torch.ones(LENGTH + 1, LENGTH + 1)
    structure[0, 1:] = structure[1:, 0] = 0
    qk_svd_(model, structure, seeded(1))
    patterns = model.attention_patterns(model.sample_inputs(23, seeded(2)))
    torch.testing.assert_close(patterns[..., 0, 0], torch.ones(DEPTH, HEADS), rtol=0, atol=0.05)


def test_one_pair_of_alike_positions_is_found() -> None:
    model = make_model(depth=1)
    with torch.no_grad():
        position = model.get_parameter("position")
        position[3] = position[2]
    inputs = balanced_inputs(model, 23, seeded(1))
    targets = target_log_patterns(model, two_groups(model), allowed_logit=4.0, suppressed_logit=-10.0)
    with evaluating(model), pytest.raises(ValueError, match="got two that differ"):
        check_positions(model, inputs, targets)


def test_later_layers_of_a_decoder_may_tell_positions_apart() -> None:
    model = make_model(position_std=0.0, causal=True)
    structure = two_groups(model).tril()
    qk_svd_(model, structure, seeded(1))
    assert all(bool(value.isfinite().all()) for value in model.parameters())


def test_message_is_one_line() -> None:
    model = make_model(position_std=0.0)
    with pytest.raises(ValueError) as raised:
        qk_svd_(model, two_groups(model), seeded(1))
    assert "\n" not in str(raised.value)
    assert re.search(r"differ by \d", str(raised.value))
