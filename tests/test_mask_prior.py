"""The contract of MaskPrior: raw parameter, meaning, precision, copying and errors."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from maskprior.functional import logits_to_bias, prior_pattern
from maskprior.mask_prior import MaskPrior


def logits(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def structure() -> Tensor:
    return torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]])


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7)])
def test_forward_is_the_bias_of_its_shape(shape: tuple[int, ...]) -> None:
    prior = MaskPrior(logits(*shape))
    assert prior().shape == shape
    torch.testing.assert_close(prior(), torch.sigmoid(logits(*shape)).log())
    assert prior(torch.bfloat16).dtype == torch.bfloat16


def test_suppression_lowers_the_bias() -> None:
    bias = MaskPrior.from_structure(structure(), allowed_logit=4.0, suppressed_logit=-10.0)()
    assert bias[0, 0].item() == pytest.approx(-0.01815, abs=1e-5)
    assert bias[0, 1].item() == pytest.approx(-10.00005, abs=1e-5)
    assert bias[0, 2].item() == pytest.approx(-3.04859, abs=1e-5)


def test_from_structure_fills_the_two_logits() -> None:
    prior = MaskPrior.from_structure(structure(), allowed_logit=2.0, suppressed_logit=-6.0, learnable=False)
    assert prior.mask_logits.tolist() == [[2.0, -6.0, -2.0], [-6.0, 2.0, 2.0]]
    assert not prior.mask_logits.requires_grad


def test_gradient_reaches_the_logits() -> None:
    prior = MaskPrior(logits(3, 5, 7))
    prior().sum().backward()
    assert prior.mask_logits.grad is not None
    torch.testing.assert_close(prior.mask_logits.grad, torch.sigmoid(-logits(3, 5, 7)))


def test_pattern_is_the_softmax_of_the_bias() -> None:
    prior = MaskPrior(logits(5, 7))
    torch.testing.assert_close(prior.pattern(), prior_pattern(logits(5, 7)))
    torch.testing.assert_close(prior.pattern().sum(-1), torch.ones(5))


def test_the_parameter_is_a_copy() -> None:
    source = logits(5, 7)
    prior = MaskPrior(source)
    source.zero_()
    torch.testing.assert_close(prior.mask_logits.detach(), logits(5, 7), rtol=0, atol=0)


@pytest.mark.parametrize("cast", ["half", "bfloat16"])
def test_half_precision_leaves_the_logits_in_float32(cast: str) -> None:
    prior, linear = MaskPrior(logits(5, 7)), nn.Linear(3, 2)
    getattr(nn.ModuleList([prior, linear]), cast)()
    assert linear.weight.dtype in (torch.float16, torch.bfloat16)
    assert prior.mask_logits.dtype == torch.float32
    torch.testing.assert_close(prior.mask_logits.detach(), logits(5, 7), rtol=0, atol=0)


def test_casting_keeps_the_parameter_and_double_follows() -> None:
    prior = MaskPrior(logits(5, 7))
    parameter = prior.mask_logits
    assert prior.to(torch.bfloat16).mask_logits is parameter
    assert prior.to(torch.float64).pattern().dtype == torch.float64


def test_half_precision_logits_are_raised_to_float32() -> None:
    assert MaskPrior(logits(5, 7).half()).mask_logits.dtype == torch.float32
    assert MaskPrior(logits(5, 7).double()).mask_logits.dtype == torch.float64


def test_deepcopy_is_independent() -> None:
    prior = MaskPrior(logits(5, 7))
    twin = copy.deepcopy(prior)
    with torch.no_grad():
        twin.mask_logits.zero_()
    torch.testing.assert_close(prior(), logits_to_bias(logits(5, 7)), rtol=0, atol=0)


def test_state_dict_round_trip() -> None:
    prior, other = MaskPrior(logits(3, 5, 7)), MaskPrior(torch.zeros(3, 5, 7))
    assert list(prior.state_dict()) == ["mask_logits"]
    buffer = io.BytesIO()
    torch.save(prior.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    torch.testing.assert_close(other(), prior(), rtol=0, atol=0)


def test_repr_tells_shape_range_and_whether_it_learns() -> None:
    prior = MaskPrior.from_structure(structure(), learnable=False)
    assert repr(prior) == "MaskPrior(shape=[2, 3], range=[-10, 4], learnable=False)"


@pytest.mark.parametrize("shape", [(5,), (1, 3, 5, 7)])
def test_other_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"expected mask_logits \[query, key\] or \[heads, query, key\], got \("
    ):
        MaskPrior(logits(*shape))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"expected finite mask_logits.*use `allowed` for hard constraints"):
        MaskPrior(torch.full((5, 7), value))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loaded_logits_that_are_not_finite_are_refused(value: float) -> None:
    model = torch.nn.Sequential(MaskPrior(torch.zeros(2, 3)))
    broken = {"0.mask_logits": torch.full((2, 3), value)}
    with pytest.raises(RuntimeError, match=r"expected finite 0\.mask_logits, got NaN or ±inf"):
        model.load_state_dict(broken)
    assert torch.equal(model.state_dict()["0.mask_logits"], torch.zeros(2, 3))


def test_logits_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="expected finite allowed_logit > suppressed_logit"):
        MaskPrior.from_structure(structure(), allowed_logit=-1.0, suppressed_logit=1.0)


def test_an_invalid_structure_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        MaskPrior.from_structure(torch.zeros(5, 7))
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        MaskPrior.from_structure(torch.full((5, 7), 2.0))


def test_a_prior_without_values_can_be_printed() -> None:
    prior = MaskPrior.from_structure(torch.ones(3, 3))
    assert "range=[4, 4]" in repr(prior)
    assert repr(prior.to("meta")) == "MaskPrior(shape=[3, 3], learnable=True)"
