"""One logit a distance: against loops over the formula, and beyond the trained length."""

import math
from typing import cast

import pytest
import torch
from torch import Tensor

from maskprior import structures
from maskprior.functional import attention
from maskprior.language.model import DecoderConfig, LanguageModel
from maskprior.mask_prior import MaskPrior
from maskprior.parameter_groups import mask_parameters
from maskprior.priors import ToeplitzPrior, alibi_, mask_, toeplitz_
from maskprior.priors.toeplitz import Beyond, alibi_slopes

HEADS, LENGTH, WIDTH, BATCH = 3, 7, 5, 2


def decoder(positions: str = "none") -> LanguageModel:
    config = DecoderConfig(
        vocab_size=11,
        length=LENGTH,
        outputs=11,
        readout="tokens",
        causal=True,
        width=6,
        depth=2,
        heads=HEADS,
        head_width=2,
        mlp_width=13,
        positions="none" if positions == "none" else "learned",
    )
    return config.build(torch.Generator().manual_seed(0))


def decay() -> Tensor:
    half_lives = structures.geometric_half_lives(HEADS, 1.0, 9.0)
    return structures.relative_distance(LENGTH, half_lives, causal=True)


def log_sigmoid(m: float) -> float:
    return -math.log1p(math.exp(-m))


def test_forward_is_log_sigmoid_of_the_logit_of_the_distance() -> None:
    logits = torch.randn(HEADS, LENGTH, generator=torch.Generator().manual_seed(1))
    bias = ToeplitzPrior(logits)().detach()
    assert bias.shape == (HEADS, LENGTH, LENGTH)
    for head in range(HEADS):
        for query in range(LENGTH):
            for key in range(query + 1):
                wanted = log_sigmoid(float(logits[head, query - key]))
                assert float(bias[head, query, key]) == pytest.approx(wanted, abs=1e-6)


def test_starts_as_the_full_mask_where_a_decoder_may_look() -> None:
    full, toeplitz = MaskPrior.from_structure(decay()), ToeplitzPrior.from_structure(decay())
    torch.testing.assert_close(toeplitz().tril(), full().tril())
    torch.testing.assert_close(toeplitz.square_logits().tril(), full.mask_logits.tril())


def test_gradients_of_the_logits() -> None:
    logits = torch.randn(HEADS, LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    prior = ToeplitzPrior(logits)
    generator = torch.Generator().manual_seed(3)
    query, key, value = (
        torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64, generator=generator) for _ in range(3)
    )

    def output(mask_logits: Tensor) -> Tensor:
        prior_again = ToeplitzPrior(logits)
        prior_again.__dict__["_parameters"]["mask_logits"] = mask_logits
        return attention(query, key, value, bias=prior_again(), is_causal=True, backend="reference")

    assert torch.autograd.gradcheck(output, (prior.mask_logits.detach().requires_grad_(),))


@pytest.mark.parametrize("beyond", ["linear", "last"])
def test_distances_beyond_the_trained_ones(beyond: str) -> None:
    logits = torch.linspace(3, -5, LENGTH).repeat(HEADS, 1) - torch.arange(HEADS)[:, None]
    prior = ToeplitzPrior(logits, beyond=cast(Beyond, beyond))
    far = prior.by_distance(3 * LENGTH).detach()
    for head in range(HEADS):
        near = [log_sigmoid(float(m)) for m in logits[head]]
        half = LENGTH // 2
        slope = (near[-1] - near[-1 - half]) / half if beyond == "linear" else 0.0
        for distance in range(LENGTH, 3 * LENGTH):
            wanted = near[-1] + slope * (distance - LENGTH + 1)
            assert float(far[head, distance]) == pytest.approx(wanted, abs=1e-5)


def test_a_bias_that_rises_at_the_end_does_not_rise_beyond_it() -> None:
    prior = ToeplitzPrior(torch.linspace(-5, 3, LENGTH)[None])
    far = prior.by_distance(LENGTH + 4)
    assert torch.equal(far[:, LENGTH:], far[:, LENGTH - 1 : LENGTH].expand(-1, 4))


def test_a_longer_square_holds_the_shorter_one() -> None:
    prior = ToeplitzPrior(torch.randn(HEADS, LENGTH, generator=torch.Generator().manual_seed(4)))
    torch.testing.assert_close(prior.square(17)[:, :LENGTH, :LENGTH], prior())
    torch.testing.assert_close(prior.square(5), prior()[:, :5, :5])


def test_pattern_is_a_distribution_over_the_past() -> None:
    pattern = ToeplitzPrior.from_structure(decay()).pattern()
    torch.testing.assert_close(pattern.sum(-1), torch.ones(HEADS, LENGTH))
    assert torch.equal(pattern.triu(1), torch.zeros_like(pattern))


def test_optimisers_leave_the_logits_undecayed() -> None:
    model = decoder()
    toeplitz_(model, decay(), torch.Generator())
    found = mask_parameters(model)
    assert [tuple(p.shape) for p in found] == [(HEADS, LENGTH)] * 2


def test_toeplitz_and_mask_give_one_model_at_the_start() -> None:
    tokens = torch.arange(LENGTH)[None] % 11
    outputs = []
    for prior in (mask_, toeplitz_):
        model = decoder()
        prior(model, decay(), torch.Generator())
        outputs.append(model(tokens))
    torch.testing.assert_close(outputs[0], outputs[1])


def test_alibi_is_a_straight_line_of_the_distance() -> None:
    """softmax(scores − s (i − j)) by loops, beyond the trained length too."""
    model, longer = decoder(), 3 * LENGTH
    alibi_(model, decay(), torch.Generator())
    bias = model.layer_biases(longer)[1]
    assert bias is not None
    scores = torch.randn(HEADS, longer, longer, generator=torch.Generator().manual_seed(5))
    later = torch.ones(longer, longer, dtype=torch.bool).triu(1)
    found = (scores + bias.detach()).masked_fill(later, -torch.inf).softmax(-1)
    for head, slope in enumerate(alibi_slopes(HEADS)):
        for query in (0, 1, LENGTH, longer - 1):
            weights = [
                math.exp(float(scores[head, query, key]) - slope * (query - key)) for key in range(query + 1)
            ]
            for key, weight in enumerate(weights):
                assert float(found[head, query, key]) == pytest.approx(weight / sum(weights), abs=1e-4)
    assert not any(p.requires_grad for p in mask_parameters(model))


def test_alibi_slopes_of_eight_heads() -> None:
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_refuses_what_is_not_of_the_distance_alone() -> None:
    structure = decay()
    structure[0, 3, 1] = 0.9
    with pytest.raises(ValueError, match="of the distance alone"):
        ToeplitzPrior.from_structure(structure)


@pytest.mark.parametrize(
    ("logits", "beyond", "message"),
    [
        (torch.zeros(2, 3, 3), "last", r"expected mask_logits \[1 or heads, distances\], got \(2, 3, 3\)"),
        (torch.zeros(2, 3), "mirror", r"expected beyond in \('linear', 'last'\), got 'mirror'"),
    ],
)
def test_refuses_other_arguments(logits: Tensor, beyond: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToeplitzPrior(logits, beyond=cast(Beyond, beyond))


def test_refuses_the_wrong_number_of_distances() -> None:
    model = decoder()
    with pytest.raises(ValueError, match="expected 2 Toeplitz priors"):
        model.set_priors([ToeplitzPrior(torch.zeros(HEADS, LENGTH + 1))] * 2)
