"""Batches of tokens as functions of seed and step."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from maskprior.experiments.seeding import named_generator
from maskprior.language.sources import TextError
from maskprior.language.tokens import Integers, Tokens

IGNORED = -100


class Blocks(Protocol):
    """Rows of equally many tokens with what is to be predicted after each."""

    def __len__(self) -> int:
        """Number of rows."""

    def rows(self, chosen: Tensor, offset: float) -> tuple[Tensor, Tensor]:
        """Inputs and targets ``[rows, length]`` of these rows, int64; ``offset`` in [0, 1) moves all cuts."""


@dataclass(frozen=True)
class Packed:
    """The text cut into blocks without regard to documents; attention may read across their borders.

    Raises:
        TextError: the text is shorter than one block.
    """

    tokens: Tokens
    length: int

    def __post_init__(self) -> None:
        """Check the length."""
        if len(self.tokens.tokens) <= self.length:
            raise TextError(
                f"expected a training split of more than one block of {self.length} tokens, got "
                f"{len(self.tokens.tokens)}; give more text or a shorter length"
            )

    def __len__(self) -> int:
        """One less than there are, where it can be, so that the cuts can be elsewhere in each epoch."""
        return max(1, (len(self.tokens.tokens) - 1) // self.length - 1)

    def rows(self, chosen: Tensor, offset: float) -> tuple[Tensor, Tensor]:
        """Row r is the tokens from ``r · length + shift`` on."""
        slack = len(self.tokens.tokens) - 1 - len(self) * self.length
        first = int(offset * (slack + 1))
        parts = [self._cut(first + int(row) * self.length) for row in chosen]
        both = torch.from_numpy(np.stack(parts).astype(np.int64))
        return both[:, :-1], both[:, 1:]

    def _cut(self, start: int) -> Integers:
        return self.tokens.tokens[start : start + self.length + 1]


@dataclass(frozen=True)
class Documents:
    """Each document alone, filled up with ends that are not predicted; longer ones are cut."""

    tokens: Tokens
    length: int
    end: int

    def __len__(self) -> int:
        """Number of pieces."""
        return len(self._pieces())

    def rows(self, chosen: Tensor, offset: float) -> tuple[Tensor, Tensor]:
        """Row r is piece r; the offset is of no use here."""
        pieces = self._pieces()[chosen.numpy()]
        inputs = torch.full((len(pieces), self.length), self.end)
        targets = torch.full((len(pieces), self.length), IGNORED)
        for row, (start, stop) in enumerate(pieces):
            part = torch.from_numpy(self.tokens.tokens[start : stop + 1].astype(np.int64))
            inputs[row, : len(part) - 1], targets[row, : len(part) - 1] = part[:-1], part[1:]
        return inputs, targets

    def _pieces(self) -> Integers:
        """First and last place of each piece, ``[pieces, 2]``."""
        starts, stops = self.tokens.starts[:-1], self.tokens.starts[1:]
        counts = -(-(stops - starts) // self.length)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        first = np.repeat(starts, counts) + number * self.length
        return np.stack([first, np.minimum(first + self.length, np.repeat(stops, counts))], axis=1)


def batches(
    blocks: Blocks, batch_size: int, seed: int, first: int, index: int = 0, count: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """The share of process ``index`` of ``count`` in the batches of step ``first``, ``first`` + 1, …

    Each epoch is a new permutation of the rows with cuts elsewhere; both depend on the seed alone.
    """
    size, step, epoch = min(batch_size, len(blocks)), first, -1
    order, offset = torch.empty(0, dtype=torch.long), 0.0
    while True:
        turn, place = divmod(step, len(blocks) // size)
        if turn != epoch:
            epoch, generator = turn, named_generator(seed, f"order/{turn}")
            order = torch.randperm(len(blocks), generator=generator)
            offset = float(torch.rand((), generator=generator, dtype=torch.float64))
        yield blocks.rows(order[place * size : (place + 1) * size][index::count], offset)
        step += 1
