"""Packed and unpacked rows; the order of batches is a function of seed and step."""

from collections.abc import Callable, Sequence
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskprior.language.batches import IGNORED, Documents, Packed, batches
from maskprior.language.sources import TextError
from maskprior.language.tokens import Tokens

MakeTokens = Callable[[Sequence[int]], Tokens]


def test_packed_rows_are_pieces_of_the_text(make_tokens: MakeTokens) -> None:
    split = make_tokens([7, 2, 11])
    blocks = Packed(split, 5)
    assert len(blocks) == 3  # of 23 tokens, the first is not predicted: four blocks less one
    for offset, first in ((0.0, 0), (0.5, 4), (0.999, 8)):
        inputs, targets = blocks.rows(torch.tensor([2, 0]), offset)
        for row, start in enumerate([first + 10, first]):
            assert inputs[row].tolist() == split.tokens[start : start + 5].tolist()
            assert targets[row].tolist() == split.tokens[start + 1 : start + 6].tolist()


def test_a_text_of_one_block(make_tokens: MakeTokens) -> None:
    blocks = Packed(make_tokens([5]), 5)
    assert len(blocks) == 1
    assert blocks.rows(torch.tensor([0]), 0.7)[1].shape == (1, 5)


def test_a_text_shorter_than_a_block(make_tokens: MakeTokens) -> None:
    with pytest.raises(
        TextError, match="expected a training split of more than one block of 13 tokens, got 7"
    ):
        Packed(make_tokens([5]), 13)


def test_rows_of_documents(make_tokens: MakeTokens) -> None:
    blocks = Documents(make_tokens([2, 7, 0, 3]), 4, end=0)
    inputs, targets = blocks.rows(torch.arange(len(blocks)), 0.3)
    no = IGNORED
    assert inputs.tolist() == [[0, 1, 2, 0], [0, 3, 4, 5], [6, 7, 8, 9], [0, 0, 0, 0], [0, 10, 11, 12]]
    assert targets.tolist() == [
        [1, 2, 0, no],
        [3, 4, 5, 6],
        [7, 8, 9, 0],
        [0, no, no, no],
        [10, 11, 12, 0],
    ]


@given(st.lists(st.integers(0, 17), min_size=1, max_size=9), st.integers(1, 11))
def test_documents_predict_every_token_once(lengths: list[int], length: int) -> None:
    pieces = [0]
    for count, size in enumerate(lengths):
        pieces += [count + 1] * size + [0]
    import numpy as np

    starts = np.concatenate([[0], np.cumsum([size + 1 for size in lengths])])
    split = Tokens(np.array(pieces), starts, np.array(lengths), np.array(lengths))
    blocks = Documents(split, length, end=0)
    _, targets = blocks.rows(torch.arange(len(blocks)), 0.0)
    assert targets[targets != IGNORED].tolist() == pieces[1:]


def test_batches_go_on_from_any_step(make_tokens: MakeTokens) -> None:
    blocks = Packed(make_tokens([211]), 3)
    whole = list(islice(batches(blocks, 7, seed=5, first=0), 29))
    later = list(islice(batches(blocks, 7, seed=5, first=17), 12))
    for (inputs, targets), (again, targets_again) in zip(whole[17:], later, strict=True):
        assert torch.equal(inputs, again)
        assert torch.equal(targets, targets_again)
    other, _ = next(batches(blocks, 7, seed=6, first=0))
    assert not torch.equal(whole[0][0], other)


def test_an_epoch_has_every_row_once(make_tokens: MakeTokens) -> None:
    blocks = Packed(make_tokens([107]), 3)  # 36 blocks with 109 tokens, less one
    assert len(blocks) == 35
    epoch = torch.cat([inputs for inputs, _ in islice(batches(blocks, 7, seed=2, first=0), 5)])
    flat = [token for row in epoch.tolist() for token in row if token]
    assert len(set(flat)) == len(flat)


def test_processes_share_a_batch(make_tokens: MakeTokens) -> None:
    blocks = Packed(make_tokens([107]), 3)
    whole, _ = next(batches(blocks, 6, seed=3, first=4))
    shares = [next(batches(blocks, 6, 3, 4, index, 3))[0] for index in range(3)]
    assert torch.equal(torch.stack(shares, dim=1).flatten(0, 1), whole)
