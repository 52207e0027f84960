"""Tokenizers: a byte-level BPE trained on the training split, or any that ``tokenizers`` can load."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from maskprior.language.sources import END, TextError

BYTES = 256
_ENDS = (END, "</s>", "<|end_of_text|>", "<eos>", "[SEP]")


@dataclass(frozen=True)
class TokenizerConfig:
    """Which tokenizer.

    Attributes:
        vocab_size: of the BPE that is trained on the training split, the end-of-text token included; a short
            text may give fewer. Ignored with a location.
        location: a ``tokenizer.json``, a folder that has one, or a hub id ("gpt2"); "" trains a BPE.
    """

    vocab_size: int = 2048
    location: str = ""

    def __post_init__(self) -> None:
        """Check the size (ValueError)."""
        if not self.location and self.vocab_size <= BYTES:
            raise ValueError(f"expected vocab_size > {BYTES} (bytes and an end), got {self.vocab_size}")

    def describe(self) -> dict[str, Any]:
        """What is part of a run's identity: the size, or the last part of the location."""
        if self.location:
            return {"location": Path(self.location).name}
        return {"vocab_size": asdict(self)["vocab_size"]}

    def load(self, training: Iterable[str]) -> Tokenizer:
        """The tokenizer; ``training`` is read only where a BPE is trained.

        Raises:
            TextError: there is no such tokenizer, or it has no token for the end of a text.
        """
        tokenizer = load_tokenizer(self.location) if self.location else train_bpe(training, self.vocab_size)
        end_of_text(tokenizer)
        return tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: every text comes back as it was, and no token is unknown.

    Source: Sennrich, Haddow, Birch 2016, "Neural Machine Translation of Rare Words with Subword Units";
    Radford et al. 2019 for bytes.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return as_text(tokenizer)


def load_tokenizer(location: str) -> Tokenizer:
    """From a file, a folder or the hub.

    Raises:
        TextError: there is none, or it is corrupt.
    """
    path = Path(location).expanduser()
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.is_file():
        return as_text(_read(file))
    if path.is_dir() or path.is_absolute() or path.suffix == ".json":
        raise TextError(f"{location}: expected tokenizer.json there, or the hub id of a tokenizer")
    return as_text(Tokenizer.from_pretrained(location))


def _read(file: Path) -> Tokenizer:
    text = _checked_json(file)
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # what the library raises is of this very class, and of no other
        if type(error) is not Exception:
            raise
        raise TextError(f"{file}: expected the JSON of a tokenizer, got: {error}") from error


def _checked_json(file: Path) -> str:
    """The file's text, if it is that of a tokenizer."""
    try:
        text = file.read_text("utf-8")
        values = json.loads(text)
    except ValueError as error:
        raise TextError(f"{file}: expected the JSON of a tokenizer, got: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
        raise TextError(f"{file}: expected the JSON of a tokenizer with a model, got another")
    return text


def as_text(tokenizer: Tokenizer) -> Tokenizer:
    """The same, for which a text that contains "<|endoftext|>" is text like any other."""
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def end_of_text(tokenizer: Tokenizer) -> int:
    """Number of the token that ends a text.

    Raises:
        TextError: there is none of the known ones.
    """
    for name in _ENDS:
        number: int | None = tokenizer.token_to_id(name)
        if number is not None:
            return number
    raise TextError(f"expected a tokenizer with one of the tokens {', '.join(_ENDS)}, got none of them")
