"""The decoder at any length, and what its priors do there."""

import pytest
import torch
from torch import Tensor

from maskprior import structures
from maskprior.language.model import DecoderConfig, LanguageModel
from maskprior.mask_prior import MaskPrior
from maskprior.models import Transformer
from maskprior.priors import LANGUAGE_PRIORS, Prior, ToeplitzPrior

HEADS, LENGTH, VOCAB, DEPTH = 3, 7, 11, 2


def config(**changes: object) -> DecoderConfig:
    values: dict[str, object] = {
        "vocab_size": VOCAB,
        "length": LENGTH,
        "outputs": VOCAB,
        "readout": "tokens",
        "causal": True,
        "width": 6,
        "depth": DEPTH,
        "heads": HEADS,
        "head_width": 2,
        "mlp_width": 13,
        "position_std": 1.0,
    }
    return DecoderConfig(**values | changes)  # type: ignore[arg-type]


def decay() -> Tensor:
    return structures.relative_distance(LENGTH, [1.0, 2.0, 5.0], causal=True)


def make(name: str, **changes: object) -> LanguageModel:
    model = config(**changes).build(torch.Generator().manual_seed(1))
    LANGUAGE_PRIORS[name](model, decay(), torch.Generator().manual_seed(2))
    return model.eval()


def tokens(count: int, length: int) -> Tensor:
    return torch.randint(VOCAB, (count, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", ["vanilla", "mask"])
def test_within_the_trained_length_it_is_the_transformer(name: str) -> None:
    own, plain = make(name), Transformer(config(), torch.Generator().manual_seed(1)).eval()
    prior: Prior = LANGUAGE_PRIORS[name]
    prior(plain, decay(), torch.Generator())
    for length in (LENGTH, 4):
        assert torch.equal(own(tokens(5, length)), plain(tokens(5, length)))


@pytest.mark.parametrize("name", list(LANGUAGE_PRIORS))
@pytest.mark.parametrize("positions", ["learned", "none"])
def test_any_length_is_causal(name: str, positions: str) -> None:
    """What comes later, however much, changes nothing."""
    model, long = make(name, positions=positions), tokens(2, 3 * LENGTH)
    whole = model(long)
    for length in (1, LENGTH, LENGTH + 1, 2 * LENGTH + 3):
        torch.testing.assert_close(model(long[:, :length]), whole[:, :length], atol=1e-5, rtol=1e-4)


def test_positions_beyond_the_trained_ones_are_the_last() -> None:
    model = make("vanilla")
    assert model.position is not None
    x = torch.zeros(1, 2 * LENGTH, 6)
    placed = model.place(x, 0)[0]
    assert torch.equal(placed[:LENGTH], model.position)
    assert torch.equal(placed[LENGTH:], model.position[-1:].expand(LENGTH, -1))
    assert torch.equal(model.place(x[:, :3], LENGTH - 1)[0], model.position[-1:].expand(3, -1))


def test_a_full_mask_goes_on_along_its_diagonals() -> None:
    model = make("mask")
    bias, longer = model.layer_biases(LENGTH)[0], model.layer_biases(2 * LENGTH)[0]
    assert bias is not None
    assert longer is not None
    torch.testing.assert_close(longer[:, :LENGTH, :LENGTH], bias)
    for distance in range(2 * LENGTH):
        wanted = bias.diagonal(-min(distance, LENGTH - 1), -2, -1).mean(-1)
        torch.testing.assert_close(longer[:, 2 * LENGTH - 1, 2 * LENGTH - 1 - distance], wanted)


def test_without_positions_only_distances_count() -> None:
    """The same text later in the row: with a window of attention, the same outputs."""
    model = make("toeplitz", positions="none")
    near = torch.full((HEADS, LENGTH), -60.0)
    near[:, 0] = 4.0
    model.set_priors([ToeplitzPrior(near, beyond="last") for _ in range(DEPTH)])
    row = tokens(1, 5)
    shifted = torch.cat([tokens(1, 13), row], dim=1)
    torch.testing.assert_close(model(shifted)[:, 13:], model(row), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["mask", "toeplitz", "alibi"])
def test_mask_logits_and_patterns_are_squares_of_the_trained_length(name: str) -> None:
    model = make(name)
    logits = model.mask_logits()
    assert logits is not None
    assert logits.shape == (DEPTH, HEADS, LENGTH, LENGTH)
    patterns = model.attention_patterns(tokens(5, LENGTH))
    torch.testing.assert_close(patterns.sum(-1), torch.ones(DEPTH, HEADS, LENGTH))
    assert make("vanilla").mask_logits() is None


def test_stretched_shares_weights_and_leaves_the_model() -> None:
    model = make("toeplitz", positions="none")
    longer = model.stretched(50)
    assert (longer.config.length, model.config.length) == (50, LENGTH)
    assert longer.token is model.token
    assert torch.equal(longer(tokens(2, 20)), model(tokens(2, 20)))


def test_state_comes_back() -> None:
    model, other = make("toeplitz"), make("toeplitz")
    with torch.no_grad():
        model.priors[0].get_parameter("mask_logits").add_(1.0)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(tokens(2, 9)), model(tokens(2, 9)))


def test_kinds_of_priors_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="expected 2 Toeplitz priors"):
        make("vanilla").set_priors(
            [ToeplitzPrior(torch.zeros(1, LENGTH)), MaskPrior(torch.zeros(LENGTH, LENGTH))]
        )


@pytest.mark.parametrize(
    "bad", [torch.zeros(2, 3), torch.zeros(3, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long)]
)
def test_other_inputs_are_refused(bad: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected integer tokens \[batch, length\]"):
        make("vanilla")(bad)


def test_encoders_are_refused() -> None:
    with pytest.raises(ValueError, match="expected causal=True and readout='tokens', got False"):
        config(causal=False)
