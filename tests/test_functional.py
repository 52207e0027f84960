"""The equation as functions, against closed forms and float64 oracles."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from maskprior.functional import (
    attention,
    combine_bias,
    logits_to_bias,
    logits_to_structure,
    prior_pattern,
    structure_pattern,
    structure_to_logits,
)

LOGIT = st.floats(-30, 30)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def operands(*, grad: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query [2, 3, 5, 11], key [2, 3, 7, 11], value [2, 3, 7, 13] and M [3, 5, 7]."""
    shapes = [(2, 3, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13), (3, 5, 7)]
    query, key, value, logits = (
        normal(*shape, seed=i).requires_grad_(grad) for i, shape in enumerate(shapes)
    )
    return query, key, value, logits


@pytest.mark.parametrize(
    ("logit", "expected"),
    [
        (0.0, -math.log(2.0)),
        (4.0, -0.01814992791780978),
        (-10.0, -10.000045398899218),
        (-1e4, -1e4),
        (1e4, 0.0),
    ],
)
def test_bias_is_log_sigmoid(logit: float, expected: float) -> None:
    bias = logits_to_bias(torch.tensor(logit, dtype=torch.float64))
    assert bias.item() == pytest.approx(expected, rel=1e-12, abs=1e-300)


@given(st.lists(LOGIT, min_size=1, max_size=7))
def test_bias_is_the_logarithm_of_a_probability(values: list[float]) -> None:
    logits = torch.tensor(values, dtype=torch.float64)
    expected = [-math.log1p(math.exp(-value)) for value in values]
    torch.testing.assert_close(logits_to_bias(logits), torch.tensor(expected, dtype=torch.float64))


@given(LOGIT, LOGIT)
def test_a_higher_logit_never_suppresses_more(first: float, second: float) -> None:
    low, high = sorted((first, second))
    bias = logits_to_bias(torch.tensor([low, high], dtype=torch.float64))
    assert bias[0] <= bias[1] <= 0


def test_gradient_of_the_bias_is_the_complementary_probability() -> None:
    logits = normal(7).requires_grad_()
    (grad,) = torch.autograd.grad(logits_to_bias(logits).sum(), logits)
    torch.testing.assert_close(grad, 1 / (1 + logits.detach().exp()))
    assert gradcheck(logits_to_bias, logits)
    assert gradgradcheck(logits_to_bias, logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_bias_is_computed_in_float32_and_cast_last(dtype: torch.dtype) -> None:
    logits = torch.tensor([9.0, -9.0, 0.3], dtype=dtype)
    assert logits_to_bias(logits).dtype == torch.float32
    expected = torch.nn.functional.logsigmoid(logits.double()).to(dtype)
    torch.testing.assert_close(logits_to_bias(logits, dtype), expected, rtol=0, atol=0)


def test_structure_ends_are_exactly_the_two_logits() -> None:
    logits = structure_to_logits(torch.tensor([0, 1, 0.5]), allowed_logit=3.3, suppressed_logit=-7.7)
    assert logits.tolist() == torch.tensor([-7.7, 3.3, -2.2]).tolist()


def test_an_integer_structure_gives_float32_and_float64_stays() -> None:
    assert structure_to_logits(torch.tensor([[1, 0]])).dtype == torch.float32
    assert structure_to_logits(torch.ones(2, dtype=torch.float64)).dtype == torch.float64


@given(st.floats(0, 1), st.floats(-20, -1), st.floats(0, 20))
def test_structure_round_trip(degree: float, suppressed: float, allowed: float) -> None:
    structure = torch.tensor([degree], dtype=torch.float64)
    logits = structure_to_logits(structure, allowed_logit=allowed, suppressed_logit=suppressed)
    restored = logits_to_structure(logits, allowed_logit=allowed, suppressed_logit=suppressed)
    torch.testing.assert_close(restored, structure, rtol=0, atol=1e-12)


def test_structure_of_drifted_logits_is_not_clamped() -> None:
    assert logits_to_structure(torch.tensor([18.0, -24.0])).tolist() == [2.0, -1.0]


@pytest.mark.parametrize(
    ("allowed", "suppressed"), [(1.0, 1.0), (-1.0, 1.0), (float("inf"), 0.0), (0.0, float("nan"))]
)
def test_logits_that_are_not_finite_and_ordered_are_refused(allowed: float, suppressed: float) -> None:
    message = r"expected finite allowed_logit > suppressed_logit.*hard constraints belong in `allowed`"
    for function in (structure_to_logits, logits_to_structure):
        with pytest.raises(ValueError, match=message):
            function(torch.ones(2), allowed_logit=allowed, suppressed_logit=suppressed)


def test_combine_bias_is_the_bias_where_allowed() -> None:
    bias, allowed = torch.tensor([[-1.0, -2.0]]), torch.tensor([[True, False]])
    assert combine_bias(bias, None) is bias
    assert combine_bias(None, None) is None
    combined, constraint = combine_bias(bias, allowed), combine_bias(None, allowed)
    assert combined is not None
    assert constraint is not None
    assert combined.tolist() == [[-1.0, float("-inf")]]
    assert constraint.tolist() == [[0.0, float("-inf")]]
    with pytest.raises(
        TypeError, match=r"expected `allowed` as a bool tensor \(True = may attend\), got torch.float32"
    ):
        combine_bias(bias, torch.ones(1, 2))


def test_pattern_is_the_normalised_probability() -> None:
    logits = normal(3, 5, 7)
    probability = 1 / (1 + (-logits).exp())
    torch.testing.assert_close(prior_pattern(logits), probability / probability.sum(-1, keepdim=True))
    assert gradcheck(prior_pattern, normal(2, 3).requires_grad_())


@given(st.integers(0, 100))
def test_pattern_tends_to_the_structure_under_strong_suppression(seed: int) -> None:
    structure = (torch.rand(5, 7, generator=generator(seed)) < 0.5).double()
    structure[:, 0] = 1
    pattern = prior_pattern(structure_to_logits(structure, suppressed_logit=-40.0))
    torch.testing.assert_close(pattern, structure_pattern(structure), rtol=0, atol=1e-15)


def test_structure_pattern_refuses_an_empty_row() -> None:
    with pytest.raises(ValueError, match=r"got an empty row at index \[1, 0\]"):
        structure_pattern(torch.tensor([[[1.0, 1.0]], [[0.0, 0.0]]]))


def test_attention_is_the_equation() -> None:
    query, key, value, logits = operands()
    scores = torch.einsum("bhid,bhjd->bhij", query, key) / math.sqrt(11)
    weights = scores.exp() / (1 + (-logits).exp())  # exp(s + log σ(m)) = exp(s) · σ(m)
    weights = weights / weights.sum(-1, keepdim=True)
    output, got = attention(query, key, value, logits, need_weights=True)
    torch.testing.assert_close(got, weights)
    torch.testing.assert_close(output, torch.einsum("bhij,bhjd->bhid", weights, value))


# PyTorch builds its forward-mode decompositions with the deprecated torch.jit.script.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
def test_attention_derivatives() -> None:
    small = [normal(2, 2, 3, 2, seed=i).requires_grad_() for i in range(3)]
    logits = normal(2, 3, 3, seed=3).requires_grad_()

    def call(query: Tensor, key: Tensor, value: Tensor, m: Tensor) -> Tensor:
        return attention(query, key, value, m, backend="reference")

    assert gradcheck(call, (*small, logits), check_forward_ad=True)
    assert gradgradcheck(call, (*small, logits))


def test_gradient_of_the_logits_in_closed_form() -> None:
    # ∂L/∂m_ij = σ(−m_ij) Σ_b p_ij ⟨g_i, v_j − o_i⟩
    query, key, value, logits = operands(grad=True)
    output, weights = attention(query, key, value, logits, need_weights=True)
    upstream = normal(*output.shape, seed=4)
    (grad,) = torch.autograd.grad(output, logits, upstream)
    with torch.no_grad():
        read = torch.einsum("bhid,bhjd->bhij", upstream, value) - (upstream * output).sum(-1, keepdim=True)
        expected = torch.sigmoid(-logits) * (weights * read).sum(0)
    torch.testing.assert_close(grad, expected)


@given(st.floats(-50, 50), st.integers(0, 100))
def test_a_constant_added_to_a_row_of_the_bias_changes_nothing(shift: float, seed: int) -> None:
    query, key, value, _ = operands()
    bias = normal(3, 5, 7, seed=seed)
    offsets = shift * torch.rand(3, 5, 1, generator=generator(seed), dtype=torch.float64)
    expected = attention(query, key, value, bias=bias)
    torch.testing.assert_close(
        attention(query, key, value, bias=bias + offsets), expected, rtol=0, atol=1e-12
    )


def test_strong_suppression_tends_to_the_hard_constraint() -> None:
    query, key, value, _ = operands()
    structure = (torch.rand(3, 5, 7, generator=generator()) < 0.4).double()
    structure[..., 0] = 1
    hard = attention(query, key, value, allowed=structure.bool())
    errors = [
        (attention(query, key, value, structure_to_logits(structure, suppressed_logit=-strength)) - hard)
        .abs()
        .max()
        for strength in (5.0, 10.0, 50.0)
    ]
    assert errors[0] > errors[1] > errors[2]
    # What leaks is at most e^-50 · (number of keys) of each weight; σ(4) is common to all allowed keys.
    assert errors[2] < 1e-13


def test_suppressed_keys_get_less_weight() -> None:
    query, key, value, _ = operands()
    structure = torch.ones(5, 7, dtype=torch.float64)
    structure[:, 3:] = 0
    _, plain = attention(query, key, value, need_weights=True)
    _, prior = attention(query, key, value, structure_to_logits(structure), need_weights=True)
    assert (prior[..., 3:] < plain[..., 3:]).all()
    assert (prior[..., :3] > plain[..., :3]).all()


def test_a_ready_bias_equals_mask_logits() -> None:
    query, key, value, logits = operands()
    expected = attention(query, key, value, logits)
    torch.testing.assert_close(
        attention(query, key, value, bias=logits_to_bias(logits)), expected, rtol=0, atol=0
    )
    with pytest.raises(ValueError, match="expected mask_logits or bias, got both"):
        attention(query, key, value, logits, bias=logits)


def test_every_shape_of_the_logits_broadcasts() -> None:
    query, key, value, logits = operands()
    shared = logits[0]
    expected = attention(query, key, value, shared.expand(3, 5, 7))
    for form in (shared, shared[None], shared[None, None]):
        torch.testing.assert_close(attention(query, key, value, form), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(
        attention(query, key, value, logits[None]), attention(query, key, value, logits)
    )


@pytest.mark.parametrize(("queries", "keys"), [(3, 7), (7, 3), (5, 5)])
def test_causality_is_aligned_at_the_last_query(queries: int, keys: int) -> None:
    query, key, value = (
        normal(2, 3, queries, 11),
        normal(2, 3, keys, 11, seed=1),
        normal(2, 3, keys, 13, seed=2),
    )
    _, weights = attention(query, key, value, is_causal=True, need_weights=True)
    seen = (weights[0, 0] > 0).tolist()
    assert seen == [[j <= i + keys - queries for j in range(keys)] for i in range(queries)]


def test_queries_without_keys_give_zeros_with_zero_gradients() -> None:
    query, key, value, logits = operands(grad=True)
    allowed = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    allowed[0, :, 2] = False
    allowed[1] = False
    output = attention(query, key, value, logits, allowed=allowed)
    assert output[0, :, 2].abs().max() == 0
    assert output[1].abs().max() == 0
    grads = torch.autograd.grad(output.square().sum(), (query, key, value, logits))
    assert all(bool(grad.isfinite().all()) for grad in grads)
    assert grads[0][0, :, 2].abs().max() == 0
    assert all(grad[1].abs().max() == 0 for grad in grads[:3])
    assert grads[3][:, 2].abs().max() == 0


def test_grouped_queries_read_the_head_of_their_group() -> None:
    query, key, value = normal(2, 6, 5, 11), normal(2, 2, 7, 11, seed=1), normal(2, 2, 7, 13, seed=2)
    logits = normal(6, 5, 7, seed=3)
    group = [0, 0, 0, 1, 1, 1]
    expected = attention(query, key[:, group], value[:, group], logits)
    torch.testing.assert_close(attention(query, key, value, logits), expected)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            [(2, 3, 5), (2, 3, 7, 11), (2, 3, 7, 13)],
            r"expected query \[B, Hq, Lq, d\].*got query \[2, 3, 5\]",
        ),
        (
            [(2, 3, 5, 11), (2, 3, 7, 13), (2, 3, 7, 13)],
            "expected one batch size, one width of query and key",
        ),
        ([(2, 3, 5, 11), (1, 3, 7, 11), (1, 3, 7, 13)], "expected one batch size"),
        (
            [(2, 3, 5, 11), (2, 2, 7, 11), (2, 2, 7, 13)],
            "a multiple of the key heads, got 3 query heads and 2 key",
        ),
        ([(2, 3, 5, 11), (2, 3, 0, 11), (2, 3, 0, 13)], "expected at least one key"),
    ],
)
def test_operands_that_do_not_fit_are_refused(shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention(*(torch.zeros(shape) for shape in shapes))


@pytest.mark.parametrize("shape", [(7, 5), (2, 5, 7), (2, 1, 5, 7), (7,)])
def test_logits_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    query, key, value, _ = operands()
    with pytest.raises(
        ValueError, match=r"expected mask_logits or a bias \[Lq, Lk\].*Hq=3, Lq=5, Lk=7, got \["
    ):
        attention(query, key, value, torch.zeros(shape))


def test_bool_and_float_constraints_are_not_mixed_up() -> None:
    query, key, value, logits = operands()
    for wrong in (torch.ones(5, 7, dtype=torch.bool), torch.ones(5, 7, dtype=torch.int64)):
        with pytest.raises(
            TypeError, match=r"expected mask_logits as a floating tensor.*belongs in `allowed`"
        ):
            attention(query, key, value, wrong)
        with pytest.raises(TypeError, match="expected the bias as a floating tensor"):
            attention(query, key, value, bias=wrong)
    with pytest.raises(TypeError, match="expected `allowed` as a bool tensor"):
        attention(query, key, value, allowed=logits)
    with pytest.raises(
        ValueError, match=r"expected `allowed` broadcastable to .* = \[2, 3, 5, 7\], got \[2, 5, 7\]$"
    ):
        attention(query, key, value, allowed=torch.ones(2, 5, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"got \[2, 7\]; a mask of keys \[B, Lk\] is given as mask\[:, None"):
        attention(query, key, value, allowed=torch.ones(2, 7, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"of one floating dtype, got torch.float64, torch.float32"):
        attention(query, key.float(), value)
    with pytest.raises(ValueError, match=r"expected dropout_p in \[0, 1\), got 1.0"):
        attention(query, key, value, dropout_p=1.0)
    with pytest.raises(ValueError, match=r"expected backend in .*'reference'.*, got 'fastest'"):
        attention(query, key, value, backend="fastest")
