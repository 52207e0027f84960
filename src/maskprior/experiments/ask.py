"""Ask a trained model for the result of an expression."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskprior.experiments.record import RunRecord
from maskprior.models import Transformer
from maskprior.models.decoding import decode
from maskprior.tasks.arithmetic_layout import Layout, compute

_SIGNS = {
    **dict.fromkeys("+", "addition"),
    **dict.fromkeys("-−", "subtraction"),
    **dict.fromkeys("*×x·", "multiplication"),
}


@dataclass(frozen=True)
class Answer:
    """What a model says.

    Attributes:
        operands: the two numbers asked.
        result: the number that it answers.
        exact: the right one.
        digits: its symbols, the most significant first.
        confidences: its probability of each of them.
        tokens: what it read, one symbol a token.
        attention: ``[layers, heads, query, key]``.
    """

    operands: tuple[int, int]
    result: int
    exact: int
    digits: str
    confidences: list[float]
    tokens: list[str]
    attention: Tensor

    @property
    def confidence(self) -> float:
        """Probability of the whole answer: the product over its digits."""
        return float(torch.tensor(self.confidences, dtype=torch.float64).prod())


def layout_of(record: RunRecord) -> Layout:
    """The layout of an arithmetic run.

    Raises:
        ValueError: the run is of another task.
    """
    task: dict[str, Any] = record.config["task"]
    if "operation" not in task:
        raise ValueError(f"expected a run of an arithmetic task, got one of {record.task!r}")
    known = Layout(task["operation"], tuple(task["digits"]), task["base"], task["layout"])
    scratch = tuple(name for name in task["tokens"] if name not in known.names)
    return Layout(known.operation, known.digits, known.base, known.order, scratch)


def parse(expression: str, layout: Layout) -> tuple[int, int]:
    """The operands of "123+456".

    Raises:
        ValueError: not two numbers with a sign between, another operation than the layout's, a digit that its
            base does not have, or a number with more digits than there is room for.
    """
    example = f"{'9' * layout.digits[0]}{layout.names[layout.digits[0]]}{'9' * layout.digits[1]}"
    match = re.fullmatch(r"\s*([0-9a-z]+?)\s*([+\-−*×x·])\s*([0-9a-z]+)\s*", expression)
    if match is None:
        raise ValueError(f"expected an expression like {example}, got {expression!r}")
    first, sign, second = match.groups()
    if _SIGNS[sign] != layout.operation:
        raise ValueError(f"expected {layout.operation}, which this run has learned, got {_SIGNS[sign]}")
    for number, room in zip((first, second), layout.digits, strict=True):
        if len(number.lstrip("0")) > room:
            raise ValueError(f"expected at most {room} digits at this place, got {number}")
    try:
        return int(first, layout.base), int(second, layout.base)
    except ValueError:
        raise ValueError(f"expected digits of base {layout.base}, got {expression!r}") from None


def ask(model: Transformer, layout: Layout, operands: tuple[int, int]) -> Answer:
    """Let the model compute; a decoder writes its answer digit by digit."""
    a, b = (torch.tensor([number]) for number in operands)
    if layout.causal:
        prompt = layout.prompts(a, b)
        decoded = decode(model, prompt, layout.columns)
        symbols, chances = decoded.tokens[0], decoded.probabilities[0]
        tokens = torch.cat([prompt, decoded.tokens[:, :-1]], dim=1)
        if layout.order == "decoder":
            symbols, chances = symbols.flip(0), chances.flip(0)
    else:
        tokens = layout.inputs(a, b)
        with torch.no_grad():
            best = model(tokens)[0, list(layout.slots)].softmax(-1).max(-1)
        symbols, chances = best.indices, best.values
    written = "".join("-" if symbol == layout.base else layout.symbols[symbol] for symbol in symbols.tolist())
    return Answer(
        operands,
        result=layout.result(symbols.tolist()),
        exact=int(compute(layout.operation, a, b)),
        digits=written[::-1],
        confidences=chances.flip(0).tolist(),
        tokens=[layout.symbols[symbol] for symbol in tokens[0].tolist()],
        attention=model.attention_patterns(tokens),
    )


def token_labels(names: Sequence[str], tokens: Sequence[str]) -> list[str]:
    """ "a2:1", "a1:2", …: where a symbol stands, and what it is; the name alone where it says nothing."""
    return [
        name if symbol in ("?", "_", name) else f"{name}:{symbol}"
        for name, symbol in zip(names, tokens, strict=True)
    ]
