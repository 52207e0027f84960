"""The transform and its readings against dense characters, Parseval, and functions known by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from maskprior.analysis.fourier import (
    check_subset,
    code_subset,
    coefficient,
    coefficients,
    cube_dimension,
    degree_profile,
    enumerate_cube,
    estimate_coefficients,
    inverse_walsh_hadamard,
    monomial_name,
    monomial_values,
    parse_monomial,
    polynomial_values,
    relevant_variables,
    subset_code,
    subset_degrees,
    top_monomials,
    walsh_hadamard,
)


def random_values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense_characters(dimension: int) -> Tensor:
    """χ_S(row) as a product over the bits: [code, row]."""
    size = 2**dimension
    entries = [
        [math.prod(-1 if code >> i & row >> i & 1 else 1 for i in range(dimension)) for row in range(size)]
        for code in range(size)
    ]
    return torch.tensor(entries, dtype=torch.float64)


def majority(dimension: int) -> Tensor:
    cube = enumerate_cube(dimension)
    return (cube[:, 0] + cube[:, 1] + cube[:, 2]).sign()


subsets = st.sets(st.integers(0, 63), max_size=7).map(lambda variables: tuple(sorted(variables)))


class TestCube:
    def test_rows_follow_the_bits(self) -> None:
        expected = torch.tensor([[1, 1], [-1, 1], [1, -1], [-1, -1]], dtype=torch.float32)
        cube = enumerate_cube(2)
        assert cube.dtype == torch.float32
        assert torch.equal(cube, expected)

    def test_every_row_of_a_larger_cube(self) -> None:
        cube = enumerate_cube(7, torch.int64)
        assert cube.tolist() == [[-1 if row >> i & 1 else 1 for i in range(7)] for row in range(2**7)]

    def test_largest_dimension(self) -> None:
        cube = enumerate_cube(20, torch.int8)
        assert cube.shape == (2**20, 20)
        assert cube[2**19 + 1].tolist() == [-1, *[1] * 18, -1]

    @pytest.mark.parametrize("dimension", [21, 0, -1])
    def test_limit(self, dimension: int) -> None:
        with pytest.raises(ValueError, match=rf"dimension in 1…20 .* got {dimension}; sample points"):
            enumerate_cube(dimension)

    @pytest.mark.parametrize("shape", [(3,), (2, 0), (4, 6), ()])
    def test_dimension_of_a_wrong_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"\[\.\.\., 2\*\*n\] over the cube, got shape"):
            cube_dimension(torch.zeros(shape))

    def test_dimension(self) -> None:
        assert [cube_dimension(torch.zeros(3, 2**n)) for n in range(6)] == list(range(6))


class TestTransform:
    @pytest.mark.parametrize("dimension", [0, 1, 2, 3, 5, 7])
    def test_against_dense_characters(self, dimension: int) -> None:
        values = random_values(3, 2, 2**dimension)
        characters = dense_characters(dimension)
        torch.testing.assert_close(walsh_hadamard(values), values @ characters.T / 2**dimension)
        torch.testing.assert_close(inverse_walsh_hadamard(values), values @ characters)

    @given(st.integers(0, 8), st.integers(0, 2**31))
    def test_round_trip_and_parseval(self, dimension: int, seed: int) -> None:
        values = random_values(2, 2**dimension, seed=seed)
        spectrum = walsh_hadamard(values)
        torch.testing.assert_close(inverse_walsh_hadamard(spectrum), values)
        torch.testing.assert_close(degree_profile(spectrum).sum(-1), values.square().mean(-1))

    def test_monomials_are_unit_vectors_exactly(self) -> None:
        dimension = 5
        cube = enumerate_cube(dimension)
        monomials = torch.stack([monomial_values(cube, code_subset(code)) for code in range(2**dimension)])
        assert torch.equal(walsh_hadamard(monomials), torch.eye(2**dimension, dtype=torch.float64))

    def test_integer_values_are_exact(self) -> None:
        values = torch.arange(2**11) ** 2
        spectrum = walsh_hadamard(values)
        assert spectrum.dtype == torch.float64
        assert torch.equal(inverse_walsh_hadamard(spectrum), values.double())

    def test_gradient(self) -> None:
        assert gradcheck(walsh_hadamard, random_values(3, 8).requires_grad_())

    def test_empty_batch(self) -> None:
        assert walsh_hadamard(torch.zeros(0, 8)).shape == (0, 8)

    def test_wrong_length(self) -> None:
        with pytest.raises(ValueError, match=r"got shape \[3, 12\]"):
            walsh_hadamard(torch.zeros(3, 12))


class TestNames:
    @pytest.mark.parametrize(
        ("subset", "name", "code"), [((), "1", 0), ((0, 1), "x0*x1", 3), ((2, 13), "x2*x13", 4 + 2**13)]
    )
    def test_examples(self, subset: tuple[int, ...], name: str, code: int) -> None:
        assert monomial_name(subset) == name
        assert parse_monomial(name) == subset
        assert subset_code(subset) == code
        assert code_subset(code) == subset

    @given(subsets)
    def test_round_trips(self, subset: tuple[int, ...]) -> None:
        assert parse_monomial(monomial_name(subset)) == subset
        assert code_subset(subset_code(subset)) == subset

    def test_order_and_spaces_do_not_matter(self) -> None:
        assert parse_monomial(" x5 * x0*x3") == (0, 3, 5)

    @pytest.mark.parametrize("name", ["", "x", "y0", "x0x1", "x0**x1", "x-1", "x0*1", "x²", "x1.5"])
    def test_not_a_monomial(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"monomial such as 'x0\*x1', or '1'"):
            parse_monomial(name)

    def test_repeated_factor(self) -> None:
        with pytest.raises(ValueError, match=r"each variable once \(x² = 1 on the cube\), got 'x2\*x0\*x2'"):
            parse_monomial("x2*x0*x2")

    @pytest.mark.parametrize("subset", [(1, 0), (2, 2), (-1, 3)])
    def test_not_a_subset(self, subset: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="ascending distinct variables ≥ 0, got"):
            check_subset(subset)

    def test_negative_code(self) -> None:
        with pytest.raises(ValueError, match="code ≥ 0, got -2"):
            code_subset(-2)


class TestCoefficients:
    def test_majority(self) -> None:
        spectrum = walsh_hadamard(majority(5))
        named = coefficients(spectrum, [(0,), (1,), (2,), (0, 1, 2), (), (3,)])
        assert named == {"x0": 0.5, "x1": 0.5, "x2": 0.5, "x0*x1*x2": -0.5, "1": 0.0, "x3": 0.0}

    def test_beyond_the_dimension(self) -> None:
        with pytest.raises(ValueError, match=r"expected variables x0…x2, got x1\*x3"):
            coefficient(torch.zeros(8), (1, 3))

    def test_one_spectrum_only(self) -> None:
        with pytest.raises(ValueError, match=r"one function on the cube \[2\*\*n\], got shape \[2, 8\]"):
            coefficient(torch.zeros(2, 8), (1,))

    def test_degree_profile_of_majority(self) -> None:
        spectra = walsh_hadamard(torch.stack([majority(5), torch.full((32,), 3.0)]))
        expected = torch.tensor([[0, 0.75, 0, 0.25, 0, 0], [9, 0, 0, 0, 0, 0]], dtype=torch.float64)
        assert torch.equal(degree_profile(spectra), expected)

    def test_degrees_count_bits(self) -> None:
        assert subset_degrees(7).tolist() == [code.bit_count() for code in range(2**7)]

    def test_top_monomials(self) -> None:
        terms = {(0, 1): 0.25, (): -3.0, (4,): -0.25, (1, 2, 4): 2.0}
        spectrum = walsh_hadamard(polynomial_values(terms, enumerate_cube(5)))
        top = top_monomials(spectrum, 4)
        assert list(top.items()) == [("1", -3.0), ("x1*x2*x4", 2.0), ("x4", -0.25), ("x0*x1", 0.25)]

    @pytest.mark.parametrize("count", [0, 9])
    def test_top_monomials_count(self, count: int) -> None:
        with pytest.raises(ValueError, match=f"count in 1…8, got {count}"):
            top_monomials(torch.zeros(8), count)

    def test_polynomial_values(self) -> None:
        inputs = torch.tensor([[1, -1, -1], [-1, -1, 1]])
        values = polynomial_values({(): 0.5, (0, 2): 2.0, (1,): -3.0}, inputs)
        assert values.tolist() == [0.5 - 2 + 3, 0.5 - 2 + 3]
        assert values.dtype == torch.float64

    def test_points_must_be_a_matrix(self) -> None:
        with pytest.raises(ValueError, match=r"inputs \[batch, n\], got shape \[3\]"):
            monomial_values(torch.ones(3), (0,))


class TestEstimates:
    def test_whole_cube_gives_the_spectrum(self) -> None:
        values = random_values(2**5)
        chosen = [(), (3,), (0, 2, 4)]
        estimates = estimate_coefficients(enumerate_cube(5), values, chosen)
        assert estimates == pytest.approx(coefficients(walsh_hadamard(values), chosen), abs=1e-15)

    def test_samples_stay_within_the_standard_error(self) -> None:
        generator = torch.Generator().manual_seed(0)
        inputs = 1.0 - 2 * torch.randint(2, (40_000, 31), generator=generator)
        values = polynomial_values({(3, 29): 1.5, (7,): -0.5}, inputs)
        estimates = estimate_coefficients(inputs, values, [(3, 29), (7,), (7, 30)])
        error = (2.5 / 40_000) ** 0.5
        assert estimates == pytest.approx({"x3*x29": 1.5, "x7": -0.5, "x7*x30": 0.0}, abs=5 * error)

    @pytest.mark.parametrize(("inputs", "values"), [((5, 3), (3,)), ((5,), (5,)), ((0, 3), (0,))])
    def test_shapes(self, inputs: tuple[int, ...], values: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"inputs \[batch, n\] and values \[batch\] with batch ≥ 1"):
            estimate_coefficients(torch.ones(inputs), torch.ones(values), [(0,)])

    def test_entries(self) -> None:
        with pytest.raises(ValueError, match=r"entries \+1 and −1 only"):
            estimate_coefficients(torch.tensor([[1.0, 0.0]]), torch.ones(1), [(0,)])


class TestRelevantVariables:
    @given(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True))
    def test_of_a_polynomial(self, variables: list[int]) -> None:
        values = polynomial_values({tuple(sorted(variables)): 1.0}, enumerate_cube(7))
        assert relevant_variables(values) == tuple(sorted(variables))

    def test_of_a_condition_and_a_constant(self) -> None:
        cube = enumerate_cube(5)
        assert relevant_variables((cube[:, 1] > 0) | (cube[:, 4] > 0)) == (1, 4)
        assert relevant_variables(torch.zeros(32)) == ()
