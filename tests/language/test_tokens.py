"""Tokenised once: what is in the cache, when it is made anew, and what can go wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskprior.language import tokens as module
from maskprior.language.sources import END, Corpus, SourceConfig, TextError
from maskprior.language.tokenizers import TokenizerConfig, end_of_text, load_tokenizer, train_bpe
from maskprior.language.tokens import digest_of, tokenise

TRAIN = ["the cat sat on the mat", "the dog sat\non the log ☃", "a cat and a dog"]
SMALL = TokenizerConfig(vocab_size=269)


@pytest.fixture
def source(tmp_path: Path) -> SourceConfig:
    folder = tmp_path / "text"
    folder.mkdir()
    for name, texts in (("train", TRAIN), ("validation", ["the end"]), ("test", ["a mat", "a log"])):
        (folder / f"{name}.txt").write_text(END.join(texts), "utf-8")
    return SourceConfig("some", str(folder))


def test_documents_come_back_from_their_places(source: SourceConfig, tmp_path: Path) -> None:
    corpus = tokenise(source, SMALL, tmp_path / "cache")
    split = corpus.train
    assert len(split) == 3
    for index, text in enumerate(TRAIN):
        first, last = split.starts[index], split.starts[index + 1]
        assert split.tokens[first] == split.tokens[last] == corpus.end
        assert corpus.tokenizer.decode(split.tokens[first + 1 : last].tolist()) == text
    assert split.words.tolist() == [6, 8, 5]
    assert split.bytes.tolist() == [len(text.encode()) for text in TRAIN]
    assert isinstance(split.tokens, np.memmap)


def test_a_second_start_reads_the_cache(
    source: SourceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tokenise(source, SMALL, tmp_path / "cache")

    def refuse(*arguments: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(module, "_make", refuse)
    again = tokenise(source, SMALL, tmp_path / "cache")
    assert again.digest == first.digest
    assert np.array_equal(again.train.tokens, first.train.tokens)
    with pytest.raises(AssertionError, match="tokenised again"):
        tokenise(source, TokenizerConfig(vocab_size=271), tmp_path / "cache")


def test_the_name_in_the_cache_is_that_of_the_content() -> None:
    corpus = Corpus(["ab", "c"], ["d"], ["e"])
    others = [
        Corpus(["a", "bc"], ["d"], ["e"]),
        Corpus(["ab"], ["c", "d"], ["e"]),
        Corpus(["ab", "c"], ["d"], ["f"]),
    ]
    digests = [digest_of(each, SMALL) for each in (corpus, *others)]
    digests.append(digest_of(corpus, replace(SMALL, vocab_size=300)))
    assert len(set(digests)) == 5
    assert digest_of(Corpus(["ab", "c"], ["d"], ["e"]), SMALL) == digests[0]


def test_the_tokenizer_knows_the_training_split_alone(source: SourceConfig, tmp_path: Path) -> None:
    corpus = tokenise(source, SMALL, tmp_path / "cache")
    assert corpus.tokenizer.to_str() == train_bpe(TRAIN, 269).to_str()


def test_no_half_cache_is_left(source: SourceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write_split", fail)
        with pytest.raises(KeyboardInterrupt):
            tokenise(source, SMALL, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    tokenise(source, SMALL, tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "keep"),
    [
        ("train.tokens.npy", -9),
        ("train.tokens.npy", 0),
        ("test.words.npy", 0),
        ("tokenizer.json", 99),
        ("facts.json", 0),
    ],
)
def test_a_corrupt_cache_is_named(source: SourceConfig, tmp_path: Path, name: str, keep: int) -> None:
    corpus = tokenise(source, SMALL, tmp_path / "cache")
    file = tmp_path / "cache" / corpus.digest / name
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(TextError, match=r"expected a tokenised corpus, got .*; delete the folder"):
        tokenise(source, SMALL, tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "content"), [("facts.json", "[]"), ("facts.json", "{}"), ("tokenizer.json", '{"model": {}}')]
)
def test_a_cache_of_something_else_is_named(
    source: SourceConfig, tmp_path: Path, name: str, content: str
) -> None:
    corpus = tokenise(source, SMALL, tmp_path / "cache")
    (tmp_path / "cache" / corpus.digest / name).write_text(content)
    with pytest.raises(TextError, match=r"expected a tokenised corpus, got .*; delete the folder"):
        tokenise(source, SMALL, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(source: SourceConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot write: .*file/cache'"):
        tokenise(source, SMALL, tmp_path / "file" / "cache")


def test_first_documents(source: SourceConfig, tmp_path: Path) -> None:
    split = tokenise(source, SMALL, tmp_path / "cache").train
    two = int(split.starts[2])
    assert [len(split.first(n)) for n in (1, two - 1, two, 10**6)] == [1, 1, 2, 3]
    assert len(split.first(two).tokens) == two + 1


def test_the_cache_is_where_the_environment_says(
    source: SourceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASKPRIOR_CACHE", str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere" / tokenise(source, SMALL).digest).is_dir()


TOKENIZER = train_bpe(TRAIN, 269)


@given(st.text(max_size=40))
def test_every_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False).ids) == text


def test_the_name_of_the_end_is_text_like_any_other() -> None:
    assert end_of_text(TOKENIZER) not in TOKENIZER.encode(f"a{END}b").ids


def test_a_tokenizer_from_a_file_and_a_folder(source: SourceConfig, tmp_path: Path) -> None:
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    for location in (tmp_path, tmp_path / "tokenizer.json"):
        corpus = tokenise(source, TokenizerConfig(location=str(location)), tmp_path / "cache")
        assert corpus.tokenizer.to_str() == TOKENIZER.to_str()


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"model": 3}', '{"model": {}}', '{"model": {"type": "None"}}']
)
def test_corrupt_tokenizers(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TextError, match=r"tokenizer\.json: expected the JSON of a tokenizer"):
        load_tokenizer(str(tmp_path))


def test_missing_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="or the hub id of a tokenizer"):
        load_tokenizer(str(tmp_path / "none.json"))


def test_a_vocabulary_must_hold_the_bytes() -> None:
    with pytest.raises(ValueError, match="expected vocab_size > 256"):
        TokenizerConfig(vocab_size=256)
