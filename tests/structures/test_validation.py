"""check_structure: what passes, and what each refusal says."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from maskprior.structures import check_structure

HEADS, LENGTH = 3, 5


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(LENGTH, LENGTH), (HEADS, LENGTH, LENGTH), (1, LENGTH, LENGTH)])
def test_accepts_floats_and_bools_with_any_heads(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check_structure(torch.ones(shape).to(dtype), length=LENGTH, heads=HEADS)


def test_accepts_rectangular_and_graded() -> None:
    check_structure(torch.full((2, 3, 5, 7), 0.25))


@pytest.mark.parametrize("bad", [np.ones((2, 2)), [[1.0]], None])
def test_refuses_what_is_no_tensor(bad: Tensor) -> None:
    with pytest.raises(TypeError, match=rf"as a torch.Tensor, got {type(bad).__name__}; from_adjacency"):
        check_structure(bad)


def test_refuses_integers() -> None:
    with pytest.raises(TypeError, match=r"floating-point or bool structure, got torch.int64"):
        check_structure(torch.ones(2, 2, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(), (5,), (0, 0), (3, 5, 0)])
def test_refuses_too_few_dimensions_and_empty_tensors(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"[*heads, query, key] with no dimension of size 0, got shape {shape}")
    ):
        check_structure(torch.ones(shape))


@pytest.mark.parametrize("shape", [(LENGTH, 7), (7, LENGTH), (7, 7), (HEADS, 7, 7)])
def test_refuses_another_length(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"expected a structure [*heads, 5, 5], got shape {shape}")
    ):
        check_structure(torch.ones(shape), length=LENGTH)


@pytest.mark.parametrize("leading", [(2,), (HEADS, HEADS), (1, 1)])
def test_refuses_other_heads(leading: tuple[int, ...]) -> None:
    shape = (*leading, LENGTH, LENGTH)
    with pytest.raises(ValueError, match=re.escape(f"[3, query, key] for 3 head(s), got shape {shape}")):
        check_structure(torch.ones(shape), heads=HEADS)


@pytest.mark.parametrize(
    ("value", "name"), [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf")]
)
def test_refuses_non_finite_values(value: float, name: str) -> None:
    structure = torch.ones(HEADS, LENGTH, LENGTH)
    structure[1, 2, 4] = value
    with pytest.raises(ValueError, match=re.escape(f"a finite structure, got {name} at index [1, 2, 4]")):
        check_structure(structure)


@pytest.mark.parametrize(("value", "span"), [(-0.5, "from -0.5 to 1"), (1.5, "from 1 to 1.5")])
def test_refuses_values_out_of_range(value: float, span: str) -> None:
    structure = torch.ones(LENGTH, LENGTH)
    structure[2, 3] = value
    with pytest.raises(ValueError, match=re.escape(f"values in [0, 1], got values {span}")):
        check_structure(structure)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_refuses_empty_rows_and_names_the_first(dtype: torch.dtype) -> None:
    structure = torch.ones(HEADS, LENGTH, LENGTH, dtype=dtype)
    structure[1, 3] = structure[2, 0] = 0
    with pytest.raises(
        ValueError, match=re.escape("got 2 empty row(s), the first at index [1, 3]; with_fallback_self")
    ):
        check_structure(structure)
