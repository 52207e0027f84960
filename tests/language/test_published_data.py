"""WikiText-2 and TinyStories as they are published; MASKPRIOR_DATA is a folder with both in their layout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from maskprior.language.presets import tinystories, wikitext2
from maskprior.language.sources import read_corpus

FOLDER = os.environ.get("MASKPRIOR_DATA", "")
NAMES = ("wikitext2", "tinystories")
pytestmark = pytest.mark.skipif(not FOLDER, reason="MASKPRIOR_DATA names no folder of data sets")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, or what its ``prepare.py`` unpacks."""
    folder, script = Path(FOLDER), Path(FOLDER) / "prepare.py"
    if all((folder / name).is_dir() for name in NAMES):
        return folder
    if not script.is_file():
        pytest.skip(f"{folder} holds neither {' and '.join(NAMES)} nor a prepare.py")
    unpacked = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, script, unpacked, *NAMES], check=True, timeout=250)
    return unpacked


def test_wikitext_has_the_published_number_of_words(data: Path) -> None:
    """Merity et al. 2017, table 1: 2,088,628, 217,646 and 245,569 with 600, 60 and 60 articles."""
    corpus = read_corpus(wikitext2(str(data / "wikitext2")))
    words = [
        sum(len(text.split()) + text.count("\n") for text in split) for split in corpus.splits().values()
    ]
    assert words == [2_088_628, 217_646, 245_569]
    assert corpus.left_out == 0
    assert [len(split) for split in corpus.splits().values()][1:] == [60, 60]


def test_stories_are_in_one_split_each(data: Path) -> None:
    corpus = read_corpus(tinystories(str(data / "tinystories")))
    train, validation, test = map(set, corpus.splits().values())
    assert not train & (validation | test)
    assert not validation & test
    assert len(train) > 5000
    assert len(test) >= 290
