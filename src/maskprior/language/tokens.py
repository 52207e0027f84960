"""Tokenised once: the tokens of a corpus in a cache named by content, memory-mapped."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Tokenizer

from maskprior.experiments.files import prepare_folder
from maskprior.language.sources import Corpus, SourceConfig, TextError, read_corpus
from maskprior.language.tokenizers import TokenizerConfig, end_of_text, load_tokenizer

FORMAT = 1
CHUNK = 1024
SPLITS = ("train", "validation", "test")
Integers = npt.NDArray[Any]


@dataclass(frozen=True)
class Tokens:
    """One split: ``end, document 0, end, document 1, end, …`` as one row of tokens.

    Attributes:
        tokens: integers ``[n]``, memory-mapped.
        starts: place of the end token before each document, and of the last one, int64 ``[documents + 1]``.
            What is to be predicted of document i are the tokens ``starts[i] + 1 … starts[i + 1]``.
        words: of each document, split at blanks, and one for each line feed, as WikiText counts.
        bytes: of each document in UTF-8.
    """

    tokens: Integers
    starts: Integers
    words: Integers
    bytes: Integers

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.words)

    def first(self, tokens: int) -> "Tokens":
        """The first whole documents with at most so many tokens, one at least."""
        count = max(1, int(np.searchsorted(self.starts, tokens, side="right")) - 1)
        end = int(self.starts[count])
        return Tokens(
            self.tokens[: end + 1], self.starts[: count + 1], self.words[:count], self.bytes[:count]
        )


@dataclass(frozen=True)
class Tokenised:
    """A corpus, ready.

    Attributes:
        digest: of text, tokenizer and format: the name in the cache.
        tokenizer: that made them.
        vocab_size: number of its tokens.
        end: number of the token that ends a text.
        left_out: see :class:`~maskprior.language.sources.Corpus`.
        train, validation, test: the splits.
    """

    digest: str
    tokenizer: Tokenizer
    vocab_size: int
    end: int
    left_out: int
    train: Tokens
    validation: Tokens
    test: Tokens


def cache_folder() -> Path:
    """``$MASKPRIOR_CACHE``, or ``maskprior`` in the user's cache."""
    own = os.environ.get("MASKPRIOR_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maskprior"


def tokenise(source: SourceConfig, tokenizer: TokenizerConfig, cache: Path | None = None) -> Tokenised:
    """The corpus in tokens, from the cache where it is there.

    Args:
        source: the text.
        tokenizer: which one; a BPE is trained on the training split alone.
        cache: folder; None: :func:`cache_folder`.

    Raises:
        TextError: the text or the tokenizer is not what it should be, or the cache is corrupt.
        OSError: something can't be read, or the cache not be written; the error names the folder.
    """
    corpus = read_corpus(source)
    digest = digest_of(corpus, tokenizer)
    folder = (cache_folder() if cache is None else cache) / digest
    if not folder.exists():
        _make(folder, corpus, tokenizer)
    return _read(folder, digest)


def digest_of(corpus: Corpus, tokenizer: TokenizerConfig) -> str:
    """Sixteen hexadecimal digits of SHA-256 over the documents, the tokenizer and the format."""
    how = load_tokenizer(tokenizer.location).to_str() if tokenizer.location else str(tokenizer.vocab_size)
    digest = hashlib.sha256(f"{FORMAT}/{tokenizers.__version__}/{how}".encode())
    for name, documents in corpus.splits().items():
        digest.update(f"{name}/{len(documents)}/".encode())
        for text in documents:
            encoded = text.encode()
            digest.update(len(encoded).to_bytes(8, "big"))
            digest.update(encoded)
    return digest.hexdigest()[:16]


def _make(folder: Path, corpus: Corpus, config: TokenizerConfig) -> None:
    """Fill a temporary folder and rename it: a killed process leaves no half of a cache."""
    prepare_folder(folder.parent)
    tokenizer = config.load(corpus.train)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir(parents=True)
        for name, documents in corpus.splits().items():
            _write_split(temporary, name, documents, tokenizer)
        tokenizer.save(str(temporary / "tokenizer.json"))
        (temporary / "facts.json").write_text(json.dumps({"left_out": corpus.left_out}))
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was as far
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_split(folder: Path, name: str, documents: Sequence[str], tokenizer: Tokenizer) -> None:
    kind = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
    end = np.array([end_of_text(tokenizer)], dtype=kind)
    pieces, lengths = [end], []
    for ids in _encoded(documents, tokenizer):
        pieces += [np.array(ids, dtype=kind), end]
        lengths.append(len(ids) + 1)
    np.save(folder / f"{name}.tokens.npy", np.concatenate(pieces))
    columns = {
        "starts": np.concatenate([[0], np.cumsum(lengths)]),
        "words": [len(text.split()) + text.count("\n") for text in documents],
        "bytes": [len(text.encode()) for text in documents],
    }
    for column, values in columns.items():
        np.save(folder / f"{name}.{column}.npy", np.array(values, dtype=np.int64))


def _encoded(documents: Sequence[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    rest = iter(documents)
    while chunk := list(islice(rest, CHUNK)):
        for encoding in tokenizer.encode_batch_fast(chunk, add_special_tokens=False):
            yield encoding.ids


def _read(folder: Path, digest: str) -> Tokenised:
    try:
        facts: Mapping[str, int] = json.loads((folder / "facts.json").read_text())
        left_out = facts["left_out"]
        splits = {name: _read_split(folder, name) for name in SPLITS}
        tokenizer = load_tokenizer(str(folder / "tokenizer.json"))
    except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
        raise TextError(f"{folder}: expected a tokenised corpus, got {error}; delete the folder") from error
    return Tokenised(
        digest, tokenizer, tokenizer.get_vocab_size(), end_of_text(tokenizer), left_out, **splits
    )


def _read_split(folder: Path, name: str) -> Tokens:
    columns = (np.load(folder / f"{name}.{c}.npy") for c in ("starts", "words", "bytes"))
    return Tokens(np.load(folder / f"{name}.tokens.npy", mmap_mode="r"), *columns)
