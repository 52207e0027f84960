"""Small corpora in tokens."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from maskprior.language.tokens import Tokens

MakeTokens = Callable[[Sequence[int]], Tokens]


@pytest.fixture
def make_tokens() -> MakeTokens:
    """A split whose documents have so many tokens: 1, 2, 3, … through all, each ended by a 0."""

    def make(lengths: Sequence[int]) -> Tokens:
        pieces, number = [0], 1
        for length in lengths:
            pieces += [*range(number, number + length), 0]
            number += length
        starts = np.concatenate([[0], np.cumsum([length + 1 for length in lengths])])
        sizes = np.array(lengths, dtype=np.int64)
        return Tokens(np.array(pieces, dtype=np.uint16), starts, 2 * sizes, 3 * sizes)

    return make
