"""How an arithmetic expression is written as tokens: which digit stands where."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

Operation = Literal["addition", "subtraction", "multiplication"]
Order = Literal["encoder", "decoder", "decoder-reversed"]

SYMBOLS = {"addition": "+", "subtraction": "-", "multiplication": "×"}
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Layout:
    """The tokens of one expression; numbers are zero-padded, the most significant digit first.

    3-digit addition, 123 + 456 = 0579, and what each token is called::

        encoder           1  2  3  +  4  5  6  =  ?  ?  ?  ?      read at the ?
                          a2 a1 a0 +  b2 b1 b0 =  s3 s2 s1 s0
        decoder           1  2  3  +  4  5  6  =  0  5  7         each token is read for the next digit
                          a2 a1 a0 +  b2 b1 b0 s3 s2 s1 s0
        decoder-reversed  1  2  3  +  4  5  6  =  9  7  5
                          a2 a1 a0 +  b2 b1 b0 s0 s1 s2 s3

    ``s2`` is the *slot* of column 2: the token at which the answer's digit of value base² is read. Scratch
    tokens, if any, stand before the ``=`` and say nothing: they are room to compute in. The difference of a
    subtraction may be negative: its first slot holds the sign, ``-`` or ``0``.

    Attributes:
        operation: "addition", "subtraction" or "multiplication".
        digits: how many digits the two operands have.
        base: of the digits, 2 to 36.
        order: "encoder", "decoder" or "decoder-reversed".
        scratch: names of the scratch tokens, in their order.

    Raises:
        ValueError: an operand without digits, an impossible base, an unknown operation or order, or scratch
            tokens that share a name with each other or with other tokens.
    """

    operation: Operation
    digits: tuple[int, int]
    base: int = 10
    order: Order = "encoder"
    scratch: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the fields."""
        if min(self.digits) < 1:
            raise ValueError(f"expected operands of at least one digit, got digits={self.digits}")
        if not 2 <= self.base <= len(DIGITS):
            raise ValueError(f"expected a base from 2 to {len(DIGITS)}, got {self.base}")
        if self.base**self.columns >= 2**63:
            raise ValueError(f"expected results below 2⁶³, got {self.columns} columns in base {self.base}")
        for name, value, choices in (
            ("operation", self.operation, get_args(Operation)),
            ("order", self.order, get_args(Order)),
        ):
            if value not in choices:
                raise ValueError(f"expected {name} among {', '.join(choices)}; got {value!r}")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"expected tokens of different names, got scratch={self.scratch}")

    @property
    def columns(self) -> int:
        """Number of answer slots: as many as the largest result needs, with the sign of a difference."""
        m, n = self.digits
        return m + n if self.operation == "multiplication" else max(m, n) + 1

    @property
    def causal(self) -> bool:
        """Whether a token sees itself and earlier ones only."""
        return self.order != "encoder"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One name a token, in order."""
        m, n = self.digits
        operands = [*_descending("a", m), SYMBOLS[self.operation], *_descending("b", n)]
        answer = self.slot_names if self.order == "decoder-reversed" else self.slot_names[::-1]
        # A decoder's first digit is read at the "=", which so is a slot itself.
        return (*operands, *self.scratch, *(() if self.causal else ("=",)), *answer)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """s0, s1, …: the slots, the least significant first."""
        return tuple(f"s{column}" for column in range(self.columns))

    def index(self, name: str) -> int:
        """Position of the token of that name.

        Raises:
            ValueError: there is none.
        """
        if name not in self.names:
            raise ValueError(f"expected a token among {', '.join(self.names)}; got {name!r}")
        return self.names.index(name)

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Positions of the slots, the least significant first."""
        return tuple(self.index(name) for name in self.slot_names)

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the first digit of the answer is known."""
        return sum(self.digits) + 2 + len(self.scratch)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The vocabulary: digits, the operation's symbol, =, ? (an empty slot), _ (scratch)."""
        return (*DIGITS[: self.base], SYMBOLS[self.operation], "=", "?", "_")

    @property
    def outputs(self) -> int:
        """Number of symbols an answer is made of: the digits, and the - of a subtraction."""
        return self.base + (self.operation == "subtraction")

    def to_tokens(self, expression: str) -> Tensor:
        """Token ids of symbols.

        Raises:
            ValueError: a symbol that is not in the vocabulary.
        """
        unknown = sorted(set(expression) - set(self.symbols))
        if unknown:
            raise ValueError(f"expected symbols among {' '.join(self.symbols)}; got {' '.join(unknown)}")
        return torch.tensor([self.symbols.index(symbol) for symbol in expression], dtype=torch.long)

    def prompts(self, a: Tensor, b: Tensor) -> Tensor:
        """Tokens up to the ``=``, ``[pairs, prompt_length]``."""
        return torch.cat(
            [
                digits_of(a, self.digits[0], self.base).flip(-1),
                self._constant(SYMBOLS[self.operation], a),
                digits_of(b, self.digits[1], self.base).flip(-1),
                self._constant("_" * len(self.scratch) + "=", a),
            ],
            dim=-1,
        )

    def inputs(self, a: Tensor, b: Tensor) -> Tensor:
        """Tokens that training shows, ``[pairs, len(names)]``: with empty slots, or the true digits."""
        if not self.causal:
            return torch.cat([self.prompts(a, b), self._constant("?" * self.columns, a)], dim=-1)
        answer = self.targets(a, b)
        ordered = answer if self.order == "decoder-reversed" else answer.flip(-1)
        return torch.cat([self.prompts(a, b), ordered[:, :-1]], dim=-1)

    def targets(self, a: Tensor, b: Tensor) -> Tensor:
        """Output symbols of the exact result, ``[pairs, columns]``, the least significant first."""
        result = compute(self.operation, a, b)
        if self.operation != "subtraction":
            return digits_of(result, self.columns, self.base)
        sign = torch.where(result < 0, self.base, 0).unsqueeze(-1)
        return torch.cat([digits_of(result.abs(), self.columns - 1, self.base), sign], dim=-1)

    def operands(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The two numbers in tokens ``[…, ≥ prompt_length]``: the inverse of :meth:`prompts`."""
        m, n = self.digits
        return (
            number_of(tokens[..., :m].flip(-1), self.base),
            number_of(tokens[..., m + 1 : m + 1 + n].flip(-1), self.base),
        )

    def result(self, symbols: Sequence[int]) -> int:
        """The number that output symbols stand for, the least significant first: the inverse of targets."""
        digits = torch.tensor([symbol if symbol < self.base else 0 for symbol in symbols])
        return int(number_of(digits, self.base)) * (-1 if self.base in symbols else 1)

    def _constant(self, expression: str, like: Tensor) -> Tensor:
        return self.to_tokens(expression).to(like.device).expand(len(like), -1)


def compute(operation: Operation, a: Tensor, b: Tensor) -> Tensor:
    """The exact result, elementwise, in the operands' integer type."""
    if operation == "addition":
        return a + b
    return a - b if operation == "subtraction" else a * b


def digits_of(numbers: Tensor, count: int, base: int) -> Tensor:
    """Digits ``[..., count]`` of integers ≥ 0, the least significant first; higher ones are cut off."""
    powers = torch.tensor([base**column for column in range(count)], device=numbers.device)
    return numbers.unsqueeze(-1) // powers % base


def number_of(digits: Tensor, base: int) -> Tensor:
    """Inverse of :func:`digits_of`."""
    powers = torch.tensor([base**column for column in range(digits.shape[-1])], device=digits.device)
    return (digits * powers).sum(-1)


def _descending(letter: str, count: int) -> list[str]:
    return [f"{letter}{column}" for column in reversed(range(count))]
