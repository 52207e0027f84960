"""What every prior refuses, with which words, and that it leaves the model as it was."""

import re
from functools import partial

import pytest
import torch
from torch import Tensor

from maskprior.models import Transformer, TransformerConfig
from maskprior.priors import PRIORS

DEPTH, HEADS, N = 3, 2, 7

every_prior = pytest.mark.parametrize("name", list(PRIORS))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_model(causal: bool = False) -> Transformer:
    config = TransformerConfig(
        vocab_size=2, length=N, outputs=13, readout="tokens", causal=causal, depth=DEPTH, heads=HEADS
    )
    return Transformer(config, seeded(0))


def make_structure(causal: bool = False) -> Tensor:
    drawn = torch.rand(N, N, generator=seeded(1)) < 0.3
    structure = (drawn | torch.eye(N, dtype=torch.bool)).float()
    return structure.tril() if causal else structure


def state(model: Transformer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def refuses(name: str, structure: Tensor, message: str, model: Transformer | None = None) -> None:
    """The prior raises with this message and leaves the model as it was."""
    model = make_model() if model is None else model
    before = state(model)
    with pytest.raises(ValueError, match=re.escape(message)):
        PRIORS[name](model, structure, seeded(2))
    after = state(model)
    assert set(after) == set(before)
    assert all(torch.equal(after[key], value) for key, value in before.items())


@every_prior
@pytest.mark.parametrize(
    "shape",
    [
        (N, N + 1),
        (N + 1, N + 1),
        (HEADS + 1, N, N),
        (DEPTH, N, N),
        (DEPTH + 1, HEADS, N, N),
        (HEADS, DEPTH, N, N),
        (1, 1, N, N),
        (1, DEPTH, HEADS, N, N),
    ],
)
def test_refuses_a_wrong_shape(name: str, shape: tuple[int, ...]) -> None:
    message = (
        "expected a structure [7, 7], [1 or 2 heads, 7, 7] or [3 layers, 1 or 2 heads, 7, 7], "
        f"got shape {shape}"
    )
    refuses(name, torch.ones(shape), message)


@every_prior
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "expected a finite structure, got nan at index [2, 5]"),
        (float("inf"), "expected a finite structure, got inf at index [2, 5]"),
        (-0.5, "expected structure values in [0, 1], got values from -0.5 to 1"),
        (1.5, "expected structure values in [0, 1], got values from 0 to 1.5"),
    ],
)
def test_refuses_a_wrong_value(name: str, value: float, message: str) -> None:
    structure = make_structure()
    structure[2, 5] = value
    refuses(name, structure, message)


@every_prior
def test_refuses_an_empty_row(name: str) -> None:
    structure = make_structure()
    structure[3] = 0
    refuses(name, structure, "got 1 empty row(s), the first at index [3]")


@every_prior
def test_refuses_a_row_that_causality_empties(name: str) -> None:
    structure = make_structure(causal=True)
    structure[3] = 0
    structure[3, 5] = 1
    refuses(
        name, structure, "some key that the causal model lets it see, got none at index [3]", make_model(True)
    )


@every_prior
def test_refuses_what_is_no_structure(name: str) -> None:
    with pytest.raises(TypeError, match=r"expected a floating-point or bool structure, got torch\.int64"):
        PRIORS[name](make_model(), torch.ones(N, N, dtype=torch.int64), seeded(2))


@pytest.mark.parametrize("name", ["qk_svd", "qk_optimize", "mask"])
def test_refuses_disordered_logits(name: str) -> None:
    prior = partial(PRIORS[name], allowed_logit=-10.0, suppressed_logit=4.0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"expected finite allowed_logit > suppressed_logit"):
        prior(make_model(), make_structure(), seeded(2))
