"""Arithmetic tasks: disjoint data, exact metrics, clear refusals."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior import structures
from maskprior.tasks.arithmetic import ArithmeticTask
from maskprior.tasks.arithmetic_layout import Layout, Operation, Order
from maskprior.tasks.base import Split

OPERATIONS: tuple[Operation, ...] = ("addition", "subtraction", "multiplication")
ORDERS: tuple[Order, ...] = ("encoder", "decoder", "decoder-reversed")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(
    operation: Operation = "addition",
    digits: tuple[int, int] = (2, 2),
    order: Order = "encoder",
    **fields: Any,
) -> ArithmeticTask:
    layout = Layout(operation, digits, order=order)
    defaults: dict[str, Any] = {"pairs": 37, "interaction": structures.everything(len(layout.names))}
    return ArithmeticTask("made", layout, **defaults | fields)


def answering(task: ArithmeticTask, edit: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A model that reads the operands and writes the exact answer, edited, at the slots."""

    def predict(tokens: Tensor) -> Tensor:
        a, b = task.layout.operands(tokens)
        answers = edit(task.layout.targets(a, b), a)
        outputs = torch.zeros(len(tokens), len(task.layout.names), task.layout.outputs)
        for column, slot in enumerate(task.layout.slots):
            outputs[torch.arange(len(tokens)), slot, answers[:, column]] = 50.0
        return outputs

    return predict


def exact(answers: Tensor, _: Tensor) -> Tensor:
    return answers


def operand_pairs(task: ArithmeticTask, split: Split) -> list[tuple[int, int]]:
    a, b = task.layout.operands(split.inputs)
    return list(zip(a.tolist(), b.tolist(), strict=True))


@given(
    st.sampled_from(OPERATIONS),
    st.sampled_from([(1, 2), (2, 1), (2, 2)]),
    st.sampled_from(ORDERS),
    st.sampled_from([3, 10]),
    st.data(),
)
def test_trained_and_tested_pairs_are_disjoint_and_distinct(
    operation: Operation, digits: tuple[int, int], order: Order, base: int, data: st.DataObject
) -> None:
    total = base ** sum(digits)
    layout = Layout(operation, digits, base, order)
    pairs = data.draw(st.integers(1, total - 1))
    task = ArithmeticTask("made", layout, structures.everything(len(layout.names)), pairs)
    splits = task.splits(generator(3))
    train, test = operand_pairs(task, splits.train), operand_pairs(task, splits.test)
    assert len(train) == len(set(train)) == pairs
    assert len(test) == len(set(test)) == min(total - pairs, task.test_pairs)
    assert not set(train) & set(test)
    assert splits.train.inputs.shape == (pairs, task.interface().length)
    assert int(splits.train.inputs.max()) < task.interface().vocab_size
    assert int(splits.train.targets.max()) < task.interface().outputs


def test_the_probe_is_of_trained_pairs_then_of_held_out_ones() -> None:
    task = make(pairs=1000, digits=(2, 2))
    splits = task.splits(generator())
    probe = operand_pairs(task, splits.probe)
    assert probe[:512] == operand_pairs(task, splits.train)[:512]
    assert probe[512:] == operand_pairs(task, splits.test)[:512]


def test_data_depend_on_the_generator_alone() -> None:
    task = make()
    first, again, other = (task.splits(generator(seed)).train.inputs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("pairs", "expected"), [(37, 37), (0.03, 300), (0.00016, 2)])
def test_pairs_are_a_count_or_a_share(pairs: float, expected: int) -> None:
    task = make(pairs=pairs)
    assert task.pair_count == expected == task.describe()["pairs"] == len(task.splits(generator()).train)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_perfect_model_has_perfect_metrics(operation: Operation, order: Order) -> None:
    task = make(operation, order=order, test_pairs=200)
    test = task.splits(generator()).test
    metrics = task.metrics(answering(task, exact), test)
    assert metrics["sequence_accuracy"] == metrics["digit_accuracy"] == 1.0
    assert set(metrics["column_accuracy"].values()) == set(metrics["carry_chain_accuracy"].values()) == {1.0}
    assert metrics["loss"] == pytest.approx(0.0, abs=1e-6)
    outputs = answering(task, exact)(test.inputs)
    assert float(task.loss(outputs, test.targets)) == pytest.approx(0.0, abs=1e-6)


def test_metrics_count_slots_and_whole_answers() -> None:
    def wrong_tens_of_odd(answers: Tensor, a: Tensor) -> Tensor:
        return answers + torch.tensor([0, 1, 0]) * (a % 2).unsqueeze(-1) * (1 - 2 * (answers > 8).long())

    task = make(test_pairs=500)
    test = task.splits(generator()).test
    odd = sum(a % 2 for a, _ in operand_pairs(task, test)) / 500
    metrics = task.metrics(answering(task, wrong_tens_of_odd), test)
    assert metrics["sequence_accuracy"] == pytest.approx(1 - odd)
    assert metrics["digit_accuracy"] == pytest.approx(1 - odd / 3)
    assert metrics["column_accuracy"] == pytest.approx({"0": 1.0, "1": 1 - odd, "2": 1.0})


def test_accuracy_is_told_by_carry_chain() -> None:
    def wrong_where_carried(answers: Tensor, a: Tensor) -> Tensor:
        return torch.where((answers[:, 2:] > 0) & (answers[:, :1] >= 0), 9 - answers, answers)

    task = make(test_pairs=2000)
    test = task.splits(generator()).test
    metrics = task.metrics(answering(task, wrong_where_carried), test)
    # Without a carry there is no hundreds digit; with a chain of two there always is one.
    assert metrics["carry_chain_accuracy"]["0"] == 1.0
    assert metrics["carry_chain_accuracy"]["2"] == 0.0
    assert 0.0 < metrics["carry_chain_accuracy"]["1"] < 1.0


def test_longer_numbers_are_tested_apart() -> None:
    def wrong_if_long(answers: Tensor, a: Tensor) -> Tensor:
        return torch.where((a >= 1000).unsqueeze(-1), 9 - answers, answers)

    task = make(digits=(4, 4), trained_digits=2, pairs=0.01, test_pairs=150)
    splits = task.splits(generator())
    assert max(max(pair) for pair in operand_pairs(task, splits.train)) < 100
    longer = operand_pairs(task, splits.test)[150:]
    assert {tuple(map(len, map(str, pair))) for pair in longer} == {(3, 3), (4, 4)}
    metrics = task.metrics(answering(task, wrong_if_long), splits.test)
    assert metrics["length_accuracy"] == {"2": 1.0, "3": 1.0, "4": 0.0}
    assert metrics["sequence_accuracy"] == 1.0


def test_probe_metrics_tell_trained_from_held_out() -> None:
    task = make(pairs=40, test_pairs=60)
    probe = task.splits(generator()).probe
    outputs = answering(task, exact)(probe.inputs)
    outputs[40:] = outputs[40:].roll(1, dims=-1)
    point = task.probe_metrics(outputs, probe)
    assert point["sequence_accuracy_train"] == 1.0
    assert point["sequence_accuracy_test"] == point["digit_accuracy_test"] == 0.0
    assert point["loss_test"] == pytest.approx(50.0, rel=1e-3)


def test_the_description_defines_the_task() -> None:
    task = make("multiplication", order="decoder", pairs=0.5)
    assert task.describe() | {"fingerprint": ""} == {
        "name": "made",
        "operation": "multiplication",
        "digits": [2, 2],
        "base": 10,
        "layout": "decoder",
        "tokens": ["a1", "a0", "×", "b1", "b0", "s3", "s2", "s1", "s0"],
        "pairs": 5000,
        "all_pairs": 10_000,
        "trained_digits": None,
        "test_pairs": 10_000,
        "fingerprint": "",
    }
    other = replace(task, interaction=structures.causal(9))
    assert other.describe()["fingerprint"] != task.describe()["fingerprint"]
    assert pickle.loads(pickle.dumps(task)).describe() == task.describe()  # noqa: S301


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pairs": 0}, r"one pair to train on and one left to test, got pairs=0 \(0\) of 10000"),
        ({"pairs": 10_000}, r"got pairs=10000 \(10000\) of 10000"),
        ({"pairs": 0.00001}, r"got pairs=1e-05 \(0\) of 10000"),
        ({"pairs": 1.0}, r"got pairs=1.0 \(10000\) of 10000"),
        ({"trained_digits": 2}, "1 ≤ trained_digits < 2, got 2"),
        ({"trained_digits": 0}, "1 ≤ trained_digits < 2, got 0"),
        ({"test_pairs": 0}, "test_pairs ≥ 1, got 0"),
        ({"interaction": torch.ones(3, 3)}, r"\[\*heads, 9, 9\]"),
        ({"interaction": torch.zeros(9, 9)}, "empty row"),
    ],
)
def test_impossible_tasks_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**fields)
