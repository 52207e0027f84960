"""WikiText-2 and TinyStories as they are published; MASKPRIOR_DATA is a folder with both in their layout."""

import os
from pathlib import Path

import pytest

from maskprior.language.presets import tinystories, wikitext2
from maskprior.language.sources import read_corpus

FOLDER = os.environ.get("MASKPRIOR_DATA", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="MASKPRIOR_DATA names no folder of data sets")


def test_wikitext_has_the_published_number_of_words() -> None:
    """Merity et al. 2017, table 1: 2,088,628, 217,646 and 245,569 with 600, 60 and 60 articles."""
    corpus = read_corpus(wikitext2(str(Path(FOLDER) / "wikitext2")))
    words = [
        sum(len(text.split()) + text.count("\n") for text in split) for split in corpus.splits().values()
    ]
    assert words == [2_088_628, 217_646, 245_569]
    assert corpus.left_out == 0
    assert [len(split) for split in corpus.splits().values()][1:] == [60, 60]


def test_stories_are_in_one_split_each() -> None:
    corpus = read_corpus(tinystories(str(Path(FOLDER) / "tinystories")))
    train, validation, test = map(set, corpus.splits().values())
    assert not train & (validation | test)
    assert not validation & test
    assert len(train) > 5000
    assert len(test) >= 290
