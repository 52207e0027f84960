"""Language modelling as a task: text, a causal structure of the distance, loss, perplexity."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from maskprior.language.batches import IGNORED, Blocks, Documents, Packed, batches
from maskprior.language.evaluation import DocumentLosses, document_losses
from maskprior.language.sources import SourceConfig, TextError
from maskprior.language.tokenizers import TokenizerConfig
from maskprior.language.tokens import Tokenised, tokenise
from maskprior.structures import linear_distance, relative_distance
from maskprior.tasks.base import Predict, Reader

EXAMPLES = 16
EXAMPLE_LENGTH = 128
Decay = Literal["halving", "linear"]


def distance_structure(length: int, reaches: Sequence[float], decay: Decay) -> Tensor:
    """Causal interaction that falls with the distance, ``[heads, length, length]``, one reach a head."""
    make = relative_distance if decay == "halving" else linear_distance
    return make(length, list(reaches), causal=True)


@dataclass(frozen=True)
class LanguageTask:
    """Predict every token from those before it:

        <end> Once  upon  a     time
        Once  upon  a     time  there

    Attributes:
        name: as in records.
        source: the text.
        tokenizer: of the text.
        vocab_size: size of the model's vocabulary; the tokenizer's may be smaller.
        length: trained number of tokens N.
        decay: how the structure falls with the distance: "halving" (``relative_distance``) or "linear"
            (``linear_distance``).
        reaches: half-life or reach of each head, in tokens.
        packing: "packed" cuts the text into blocks; "documents" makes each document a row, filled up.
        judge: what the final metrics are of: the "test" split, or "validation", with which the test split
            is not looked at.
        probe_tokens: about so many tokens of the validation split make a point of the curves.
        length_tokens: about so many tokens of the judged split are judged at longer lengths.
        times: the longer lengths, in trained lengths.
    """

    name: str
    source: SourceConfig
    tokenizer: TokenizerConfig
    vocab_size: int
    length: int
    reaches: tuple[float, ...]
    decay: Decay = "halving"
    packing: Literal["packed", "documents"] = "packed"
    judge: Literal["test", "validation"] = "test"
    probe_tokens: int = 8192
    length_tokens: int = 16384
    times: tuple[int, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        for name, choices in (
            ("decay", ("halving", "linear")),
            ("packing", ("packed", "documents")),
            ("judge", ("test", "validation")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"expected {name} in {choices}, got {getattr(self, name)!r}")
        for name in ("vocab_size", "length", "probe_tokens", "length_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} ≥ 1, got {getattr(self, name)}")
        if not self.reaches or min(self.times, default=0) < 1:
            raise ValueError(f"expected reaches and times ≥ 1, got {self.reaches} and {self.times}")

    def describe(self) -> dict[str, Any]:
        """Everything that defines the task, as JSON values."""
        return {
            "name": self.name,
            "source": self.source.describe(),
            "tokenizer": self.tokenizer.describe(),
            "vocab_size": self.vocab_size,
            "length": self.length,
            "decay": self.decay,
            "reaches": list(self.reaches),
            "packing": self.packing,
            "judge": self.judge,
            "probe_tokens": self.probe_tokens,
            "length_tokens": self.length_tokens,
            "times": list(self.times),
            "tokens": self.token_names(),
        }

    def structure(self) -> Tensor:
        """Causal interaction that falls with the distance, ``[heads, N, N]``."""
        return distance_structure(self.length, self.reaches, self.decay)

    def token_names(self) -> list[str]:
        """0, 1, …: the positions."""
        return [str(position) for position in range(self.length)]

    def open(self, seed: int, batch_size: int, reader: Reader) -> "LanguageStream":
        """Read the text, from the cache where it is there; the order of blocks depends on the seed alone.

        Raises:
            TextError: the text or tokenizer is not what it should be.
            ValueError: the processes cannot share a batch evenly.
        """
        corpus = tokenise(self.source, self.tokenizer)
        if corpus.vocab_size > self.vocab_size:
            raise TextError(
                f"expected a tokenizer of at most {self.vocab_size} tokens (the model's vocab_size), got "
                f"{corpus.vocab_size}"
            )
        blocks: Blocks = (
            Packed(corpus.train, self.length)
            if self.packing == "packed"
            else Documents(corpus.train, self.length, corpus.end)
        )
        if min(batch_size, len(blocks)) % reader.count:
            raise ValueError(
                f"expected batches that {reader.count} processes can share evenly, got "
                f"{min(batch_size, len(blocks))} rows"
            )
        return LanguageStream(self, seed, batch_size, reader, corpus, blocks)


@dataclass(frozen=True)
class LanguageStream:
    """The text of a run, opened. Batches are functions of seed and step.

    Attributes:
        task: what it is for.
        seed: root of all named generators.
        batch_size: rows a batch, over all processes.
        reader: this process.
        corpus: the tokens.
        blocks: rows of the training split.
    """

    task: LanguageTask
    seed: int
    batch_size: int
    reader: Reader
    corpus: Tokenised
    blocks: Blocks = field(repr=False)

    def batches(self, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The process's share of the batches from step ``first`` on: tokens and the tokens after them."""
        share = batches(self.blocks, self.batch_size, self.seed, first, self.reader.index, self.reader.count)
        for inputs, targets in share:
            yield inputs.to(self.reader.device), targets.to(self.reader.device)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy a token, in nats."""
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def probe(self, predict: Predict) -> dict[str, float]:
        """Loss and perplexity a token on the first validation documents, the same for every seed."""
        part = self.corpus.validation.first(self.task.probe_tokens)
        found = document_losses(predict, part, self.task.length)
        return {"loss_validation": found.loss, "perplexity_validation": found.perplexity}

    def metrics(self, predict: Predict) -> dict[str, Any]:
        """Perplexities, those at longer lengths, the loss of each document, and what the text was."""
        judge, corpus = self.task.judge, self.corpus
        judged = corpus.test if judge == "test" else corpus.validation
        found = document_losses(predict, judged, self.task.length)
        some = judged.first(self.task.length_tokens)
        at = {k: document_losses(predict, some, self.task.length, k) for k in self.task.times}
        return {
            **_named(judge, found),
            "perplexity_at": {str(k): losses.perplexity for k, losses in at.items()},
            "document_nll": _written(found.nll),
            "document_tokens": _written(found.tokens),
            "corpus": corpus.digest,
            "vocabulary": corpus.vocab_size,
            "left_out": corpus.left_out,
            "train_tokens": len(corpus.train.tokens),
            "judged_tokens": int(found.tokens.sum()),
            "judged_words": int(found.words.sum()),
            "judged_bytes": int(found.bytes.sum()),
        }

    def examples(self) -> Tensor:
        """The first blocks of the validation split, on which attention is shown."""
        tokens = self.corpus.validation.tokens
        length = min(self.task.length, EXAMPLE_LENGTH, len(tokens))
        count = min(EXAMPLES, len(tokens) // length)
        rows = torch.from_numpy(tokens[: count * length].astype("int64")).view(count, length)
        return rows.to(self.reader.device)


def _named(judge: str, found: DocumentLosses) -> dict[str, float]:
    return {
        f"{judge}_loss": found.loss,
        f"{judge}_perplexity": found.perplexity,
        "word_perplexity": found.word_perplexity,
        "bits_per_byte": found.bits_per_byte,
    }


def _written(values: Any) -> str:
    """Numbers as one string, which tables of metrics leave alone."""
    return " ".join(f"{value:.10g}" for value in values)
