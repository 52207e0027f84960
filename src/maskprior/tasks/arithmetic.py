"""Addition, subtraction and multiplication of numbers written digit by digit, learned from few pairs.

Source: Ma et al. 2026, section 5. The layout of the tokens there is not known; this one is drawn in
:class:`~maskprior.tasks.arithmetic_layout.Layout`.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskprior.structures import check_structure
from maskprior.tasks.arithmetic_layout import Layout
from maskprior.tasks.arithmetic_pairs import (
    carries,
    draw_distinct,
    draw_of_length,
    longest_run,
    written_length,
)
from maskprior.tasks.base import Predict, Split, Splits, TokenInterface

EVALUATION_BATCH = 2048
PROBE_SIZE = 512


@dataclass(frozen=True, eq=False)
class ArithmeticTask:
    """Learn an operation from some of all pairs of operands; be judged on pairs that were held out.

    One row of 3-digit addition, 123 + 456 = 0579, in the encoder layout; cross-entropy at the four slots::

        1 2 3 + 4 5 6 = ? ? ? ?      a pair counts as right
                        0 5 7 9      if all its slots are

    Attributes:
        name: short name.
        layout: operation, digits, base and order of the tokens.
        interaction: structure ``[N, N]``, ``[heads, N, N]`` or ``[layers, heads or 1, N, N]``.
        pairs: how many pairs to train on (int ≥ 1), or which share of all pairs (float in (0, 1)).
        trained_digits: train on operands of at most so many digits and test longer ones too; None: all.
        test_pairs: at most so many held-out pairs, and so many of each longer length, are tested.

    Raises:
        ValueError: the structure does not fit, no pair is left to train on or to test, or ``trained_digits``
            is not less than the digits of an operand.

    The answer of a decoder is judged with the true earlier digits as its input. That is exact for whole
    answers: greedy decoding gives the right one if and only if each digit is right after the right ones.
    """

    name: str
    layout: Layout
    interaction: Tensor
    pairs: int | float
    trained_digits: int | None = None
    test_pairs: int = 10_000

    def __post_init__(self) -> None:
        """Check the fields."""
        check_structure(self.interaction, length=len(self.layout.names))
        longest = max(self.layout.digits)
        if self.trained_digits is not None and not 1 <= self.trained_digits < longest:
            raise ValueError(f"expected 1 ≤ trained_digits < {longest}, got {self.trained_digits}")
        if self.test_pairs < 1:
            raise ValueError(f"expected test_pairs ≥ 1, got {self.test_pairs}")
        if not 1 <= self.pair_count < self.all_pairs:
            raise ValueError(
                f"expected at least one pair to train on and one left to test, got pairs={self.pairs} "
                f"({self.pair_count}) of {self.all_pairs}"
            )

    @property
    def trained_lengths(self) -> tuple[int, int]:
        """Digits of the two operands in training."""
        m, n = self.layout.digits
        most = self.trained_digits or max(m, n)
        return min(m, most), min(n, most)

    @property
    def all_pairs(self) -> int:
        """Number of pairs of operands that training could draw from."""
        count: int = self.layout.base ** sum(self.trained_lengths)
        return count

    @property
    def pair_count(self) -> int:
        """Number of pairs that training sees."""
        return self.pairs if isinstance(self.pairs, int) else round(self.pairs * self.all_pairs)

    def describe(self) -> dict[str, Any]:
        """Operation, digits, layout, numbers of pairs, tokens, and a fingerprint of the structure."""
        layout = self.layout
        return {
            "name": self.name,
            "operation": layout.operation,
            "digits": list(layout.digits),
            "base": layout.base,
            "layout": layout.order,
            "tokens": list(layout.names),
            "pairs": self.pair_count,
            "all_pairs": self.all_pairs,
            "trained_digits": self.trained_digits,
            "test_pairs": self.test_pairs,
            "fingerprint": hashlib.sha256(
                self.interaction.float().contiguous().numpy().tobytes()
            ).hexdigest()[:16],
        }

    def interface(self) -> TokenInterface:
        """Symbols in; at each token a distribution over the symbols of an answer out."""
        return TokenInterface(
            vocab_size=len(self.layout.symbols),
            length=len(self.layout.names),
            outputs=self.layout.outputs,
            readout="tokens",
            causal=self.layout.causal,
        )

    def structure(self) -> Tensor:
        """The interaction structure."""
        return self.interaction

    def token_names(self) -> list[str]:
        """a2, a1, a0, +, …, s0."""
        return list(self.layout.names)

    def splits(self, generator: torch.Generator) -> Splits:
        """Distinct pairs to train on and to test, and pairs of both as the probe for curves."""
        n = self.layout.base ** self.trained_lengths[1]
        tested = min(self.test_pairs, self.all_pairs - self.pair_count)
        codes = draw_distinct(self.pair_count + tested, self.all_pairs, generator)
        train, test = codes[: self.pair_count], codes[self.pair_count :]
        probe = torch.cat([train[:PROBE_SIZE], test[:PROBE_SIZE]])
        return Splits(
            train=self._split(train // n, train % n),
            probe=self._split(probe // n, probe % n),
            test=self._split(*self._with_longer(test // n, test % n, generator)),
        )

    def _with_longer(self, a: Tensor, b: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        m, n = self.layout.digits
        for length in range(max(self.trained_lengths) + 1, max(m, n) + 1):
            longer = [
                draw_of_length(self.test_pairs, min(length, digits), self.layout.base, generator)
                for digits in (m, n)
            ]
            a, b = torch.cat([a, longer[0]]), torch.cat([b, longer[1]])
        return a, b

    def _split(self, a: Tensor, b: Tensor) -> Split:
        return Split(self.layout.inputs(a, b), self.layout.targets(a, b))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of the answer's symbols, mean over slots and examples."""
        return F.cross_entropy(self._answers(outputs).flatten(0, 1), targets.flatten())

    def _answers(self, outputs: Tensor) -> Tensor:
        """Outputs at the slots, ``[batch, columns, symbols]``, the least significant first."""
        return outputs[:, list(self.layout.slots)]

    def probe_metrics(self, outputs: Tensor, probe: Split) -> dict[str, float]:
        """Accuracy on trained and held-out pairs, and the loss on the latter."""
        trained = min(PROBE_SIZE, self.pair_count)
        right = self._answers(outputs).argmax(-1) == probe.targets
        return {
            "sequence_accuracy_train": share(right[:trained].all(-1)),
            "sequence_accuracy_test": share(right[trained:].all(-1)),
            "digit_accuracy_test": share(right[trained:]),
            "loss_test": float(self.loss(outputs[trained:], probe.targets[trained:])),
        }

    def metrics(self, predict: Predict, test: Split) -> dict[str, Any]:
        """Accuracy on held-out pairs: of whole answers, of digits, by column, by carry chain and by length.

        The first four are of the trained lengths; ``length_accuracy`` is of whole answers, by the number of
        digits of the longer operand where that is more than training has seen. A pair's carry chain is the
        longest run of columns that carry (or borrow) into the next.
        """
        answers = torch.cat([self._answers(predict(batch)) for batch in test.inputs.split(EVALUATION_BATCH)])
        right = answers.argmax(-1).cpu() == test.targets
        a, b = self.layout.operands(test.inputs)
        trained = max(self.trained_lengths)
        lengths = written_length(torch.maximum(a, b), self.layout.base).clamp(min=trained)
        chains = longest_run(carries(self.layout.operation, a, b, self.layout.columns, self.layout.base))
        seen = lengths == trained
        whole = right.all(-1)
        loss = F.cross_entropy(answers[seen].flatten(0, 1), test.targets[seen].flatten())
        return {
            "sequence_accuracy": share(whole[seen]),
            "digit_accuracy": share(right[seen]),
            "column_accuracy": {str(k): share(right[seen][:, k]) for k in range(self.layout.columns)},
            "carry_chain_accuracy": _by_group(whole[seen], chains[seen]),
            "length_accuracy": _by_group(whole, lengths),
            "loss": float(loss),
        }


def share(right: Tensor) -> float:
    """Share of True, in [0, 1]."""
    return float(right.double().mean())


def _by_group(right: Tensor, groups: Tensor) -> dict[str, float]:
    return {str(int(group)): share(right[groups == group]) for group in groups.unique()}
