"""Losses of documents: each token once, within the right window, against a loop."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from maskprior.language.evaluation import DocumentLosses, document_losses, perplexity
from maskprior.language.tokens import Tokens

MakeTokens = Callable[[Sequence[int]], Tokens]
VOCAB = 31


def logits_of(context: list[int]) -> Tensor:
    """Logits that depend on every token of the context and its length."""
    code = sum((place + 1) * (token + 2) for place, token in enumerate(context)) % 97
    return torch.sin(torch.arange(VOCAB, dtype=torch.float64) * (code + 1))


def predict(inputs: Tensor) -> Tensor:
    rows = [[logits_of(row[: i + 1]) for i in range(len(row))] for row in inputs.tolist()]
    return torch.stack([torch.stack(row) for row in rows])


def by_loop(tokens: list[int], length: int, times: int) -> list[float]:
    losses = []
    for target in range(1, len(tokens)):
        stop = math.ceil(target / length) * length
        start = max(0, stop - times * length)
        wanted = logits_of(tokens[start:target]).log_softmax(-1)[tokens[target]]
        losses.append(-float(wanted))
    return losses


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("lengths", [[3, 0, 7, 11], [1], [4, 4]])
def test_against_a_loop(make_tokens: MakeTokens, lengths: list[int], times: int) -> None:
    split = make_tokens(lengths)
    found = document_losses(predict, split, 5, times)
    losses = by_loop(split.tokens.tolist(), 5, times)
    ends = np.cumsum([length + 1 for length in lengths])
    sums = [sum(losses[end - length - 1 : end]) for length, end in zip(lengths, ends, strict=True)]
    np.testing.assert_allclose(found.nll, sums, rtol=1e-9)
    assert found.tokens.tolist() == [length + 1 for length in lengths]


def test_what_the_losses_say() -> None:
    found = DocumentLosses(
        np.array([6.0, 4.0]), np.array([3.0, 2.0]), np.array([2.0, 2.0]), np.array([9.0, 1.0])
    )
    assert found.loss == 2.0
    assert found.perplexity == pytest.approx(math.exp(2))
    assert found.word_perplexity == pytest.approx(math.exp(2.5))
    assert found.bits_per_byte == pytest.approx(1 / math.log(2))


def test_a_loss_beyond_floats() -> None:
    assert perplexity(1000.0) == math.inf
