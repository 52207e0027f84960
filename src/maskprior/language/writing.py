"""Text from a trained model, token by token, with cached keys and values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from maskprior.language.runs import Loaded
from maskprior.language.tokenizers import end_of_text

BROKEN = "\ufffd"


class Decoder(Protocol):
    """A model that is fed piece by piece."""

    def feed(self, tokens: Tensor) -> Tensor:
        """Logits ``[batch, new, vocab]`` of new tokens ``[batch, new]``."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0 takes the most probable token; else probabilities are softmax(logits / temperature).
        top_k: only the k most probable tokens; 0: all.
    """

    temperature: float = 0.0
    top_k: int = 0

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"expected a finite temperature ≥ 0, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"expected top_k ≥ 0, got {self.top_k}")

    def choose(self, logits: Tensor, generator: torch.Generator) -> int:
        """One token from logits ``[vocab]``.

        Raises:
            ValueError: a logit is NaN or ∞.
        """
        if not logits.max().isfinite():
            raise ValueError(
                f"expected finite logits, got {float(logits.max())}: the weights are not finite, or too large"
            )
        if self.temperature == 0:
            return int(logits.argmax())
        kept = logits.topk(min(self.top_k or len(logits), len(logits)))
        # Less the largest, in float64: however low the temperature, nothing overflows to ∞ − ∞.
        heights = (kept.values - kept.values[0]).double() / self.temperature
        drawn = torch.multinomial(heights.softmax(-1), 1, generator=generator)
        return int(kept.indices[drawn])


def continue_tokens(
    decoder: Decoder,
    prompt: list[int],
    steps: int,
    vocab_size: int,
    sampling: Sampling,
    generator: torch.Generator,
) -> Iterator[int]:
    """The next ``steps`` tokens, each as soon as it is chosen.

    Args:
        decoder: empty.
        prompt: at least one token.
        steps: how many.
        vocab_size: of the tokenizer; the model's spare entries are never chosen.
        sampling: how.
        generator: of the draws.
    """
    new = prompt
    for _ in range(steps):
        logits = decoder.feed(torch.tensor([new]))[0, -1, :vocab_size]
        token = sampling.choose(logits, generator)
        yield token
        new = [token]


def stream_text(
    run: Loaded, prompt: str, steps: int, sampling: Sampling, generator: torch.Generator
) -> Iterator[str]:
    """What the model writes after the prompt, piece by piece, until it ends the text or ``steps`` tokens.

    A piece never ends within a character.

    Raises:
        ValueError: ``steps`` < 1, prompt and answer don't fit into the model's positions, or the prompt is
            not Unicode text (bytes of a command line that are not UTF-8).
    """
    end = end_of_text(run.tokenizer)
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise ValueError(f"expected a prompt in UTF-8, got {prompt!r}")
    ids = [end, *run.tokenizer.encode(prompt, add_special_tokens=False).ids]
    total = len(ids) + steps
    if steps < 1:
        raise ValueError(f"expected at least one token to write, got {steps}")
    if run.longest is not None and total > run.longest:
        raise ValueError(
            f"expected a prompt and answer of at most {run.longest} tokens (the model's positions), got "
            f"{len(ids)} and {steps}; ask for fewer, or take a run of the prior toeplitz or alibi"
        )
    decoder = run.model.decoder(total)
    size = run.tokenizer.get_vocab_size()
    tokens = continue_tokens(decoder, ids, steps, size, sampling, generator)
    yield from _pieces(run.tokenizer, tokens, end)


def _pieces(tokenizer: Tokenizer, tokens: Iterator[int], end: int) -> Iterator[str]:
    written: list[int] = []
    shown = ""
    for token in tokens:
        if token == end:
            return
        written.append(token)
        text: str = tokenizer.decode(written)
        if not text.endswith(BROKEN):
            yield text[len(shown) :]
            shown = text
