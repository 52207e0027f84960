"""Losses of documents under a model, with windows of any length, and what they say: perplexities."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from maskprior.language.batches import IGNORED
from maskprior.language.tokens import Tokens
from maskprior.tasks.base import Predict

TOKENS_AT_ONCE = 4096
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DocumentLosses:
    """Negative log-likelihood in nats of each document, its end included, with its sizes.

    Attributes:
        nll, tokens, words, bytes: ``[documents]``.
    """

    nll: Floats
    tokens: Floats
    words: Floats
    bytes: Floats

    @property
    def loss(self) -> float:
        """Mean over tokens, in nats."""
        return float(self.nll.sum() / self.tokens.sum())

    @property
    def perplexity(self) -> float:
        """exp(loss), a token."""
        return perplexity(self.loss)

    @property
    def word_perplexity(self) -> float:
        """exp(nats a word), which does not depend on the tokenizer; a line feed counts as a word."""
        return perplexity(float(self.nll.sum() / self.words.sum()))

    @property
    def bits_per_byte(self) -> float:
        """Bits a byte of UTF-8, which does not depend on the tokenizer."""
        return float(self.nll.sum() / (math.log(2) * self.bytes.sum()))


def perplexity(loss: float) -> float:
    """exp(loss); infinite where that is beyond a float."""
    return math.exp(loss) if loss < 700 else math.inf


def document_losses(predict: Predict, split: Tokens, length: int, times: int = 1) -> DocumentLosses:
    """Losses with sliding windows: each token is predicted once, within a window of ``times · length``.

    The windows end every ``length`` tokens and the last ``length`` targets of each are scored. So with
    ``times`` = k every scored token has at least (k − 1) · length tokens of context, and lies beyond as many
    positions (but for the first k − 1 windows, which are shorter, as the text begins there).

    Args:
        predict: logits ``[batch, n, vocab]`` of tokens ``[batch, n]``.
        split: the text.
        length: trained length N.
        times: k.
    """
    losses = np.empty(len(split.tokens) - 1)
    for starts, stops in _windows(len(split.tokens) - 1, length, times):
        inputs, targets = _cut(split, starts, stops, length)
        scored = _losses(predict(inputs)[:, -targets.shape[1] :], targets)
        for row, stop in enumerate(stops):
            kept = scored[row][targets[row] != IGNORED].cpu().double().numpy()
            losses[stop - length : stop - length + len(kept)] = kept
    sizes = np.diff(split.starts).astype(np.float64)
    return DocumentLosses(
        np.add.reduceat(losses, split.starts[:-1]),
        sizes,
        split.words.astype(np.float64),
        split.bytes.astype(np.float64),
    )


def _windows(targets: int, length: int, times: int) -> list[tuple[list[int], list[int]]]:
    """First and last place of the windows, in batches of equal ones; the last may end after the text."""
    stops = list(range(length, targets + length, length))
    size = max(1, TOKENS_AT_ONCE // (times * length))
    early, whole = stops[: times - 1], stops[times - 1 :]
    groups = [[stop] for stop in early] + [whole[i : i + size] for i in range(0, len(whole), size)]
    return [([max(0, stop - times * length) for stop in group], group) for group in groups]


def _cut(split: Tokens, starts: list[int], stops: list[int], length: int) -> tuple[Tensor, Tensor]:
    """Inputs of the windows and the last ``length`` targets of each, −100 beyond the text."""
    end = int(split.tokens[0])
    inputs = torch.full((len(stops), stops[0] - starts[0]), end)
    targets = torch.full((len(stops), length), IGNORED)
    for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        read = torch.from_numpy(split.tokens[start:stop].astype(np.int64))
        wanted = torch.from_numpy(split.tokens[stop - length + 1 : stop + 1].astype(np.int64))
        inputs[row, : len(read)], targets[row, : len(wanted)] = read, wanted
    return inputs, targets


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), targets.to(logits.device), ignore_index=IGNORED, reduction="none"
    )
