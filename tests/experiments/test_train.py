"""The loop: batches, probes, divergence, and learning something."""

import math
from itertools import islice

import pytest
import torch
from accelerate import Accelerator

from maskprior.experiments.config import TrainingConfig
from maskprior.experiments.seeding import named_generator
from maskprior.experiments.train import (
    Curves,
    TrainingDivergedError,
    backward_in_chunks,
    batch_indices,
    probe_steps,
    train,
)
from maskprior.models import Transformer, TransformerConfig
from maskprior.tasks.gotu import two_parity


def test_an_epoch_shows_each_example_once() -> None:
    batches = list(islice(batch_indices(11, 3, named_generator(0, "batches")), 6))
    assert [len(batch) for batch in batches] == [3] * 6
    for epoch in (batches[:3], batches[3:]):
        assert len(set(torch.cat(epoch).tolist())) == 9
    assert not torch.equal(torch.cat(batches[:3]), torch.cat(batches[3:]))


def test_few_examples_are_one_batch() -> None:
    batch = next(batch_indices(5, 256, named_generator(0, "batches")))
    assert sorted(batch.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("steps", "points", "expected"), [(10, 3, {0, 5, 10}), (2, 7, {0, 1, 2})])
def test_probes_include_both_ends(steps: int, points: int, expected: set[int]) -> None:
    assert probe_steps(steps, points) == expected


def run(config: TrainingConfig) -> tuple[Curves, list[int]]:
    task = two_parity(5)
    model = Transformer(
        TransformerConfig(2, 5, 1, width=16, depth=1, heads=2, head_width=8, mlp_width=16),
        named_generator(0, "init"),
    )
    steps: list[int] = []
    curves = train(
        model,
        task,
        task.splits(named_generator(0, "data")),
        config,
        named_generator(0, "batches"),
        Accelerator(cpu=True),
        lambda step, point: steps.append(step),
    )
    return curves, steps


def test_training_lowers_the_loss_and_reports_it() -> None:
    curves, steps = run(TrainingConfig(steps=40, learning_rate=1e-2, batch_size=16, probes=5))
    assert steps == [0, 10, 20, 30, 40] == curves.points["step"]
    assert math.isnan(curves.points["loss_train"][0])
    assert curves.points["loss_seen"][-1] < 0.5 * curves.points["loss_seen"][0]
    assert {len(values) for values in curves.points.values()} == {5}


def test_the_same_seed_gives_bit_equal_curves() -> None:
    config = TrainingConfig(steps=6, learning_rate=1e-2, batch_size=16, probes=3)
    first, second = run(config)[0].points, run(config)[0].points
    assert {name: values[1:] for name, values in first.items()} == {
        name: values[1:] for name, values in second.items()
    }


def test_divergence_is_an_error_that_names_the_step() -> None:
    config = TrainingConfig(steps=20, learning_rate=1e6, batch_size=16, probes=5, optimizer="sgd")
    with pytest.raises(TrainingDivergedError, match=r"finite training loss, got (nan|inf) after step"):
        run(config)


@pytest.mark.parametrize("chunk", [None, 1, 3, 7, 100])
def test_chunks_give_the_loss_and_gradient_of_the_whole_batch(chunk: int | None) -> None:
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    inputs, targets = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    loss = backward_in_chunks(
        lambda x, y: (x @ weight - y).square().mean(), inputs, targets, chunk, torch.Tensor.backward
    )
    expected = (inputs @ weight - targets).square().mean()
    (gradient,) = torch.autograd.grad(expected, weight)
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-6)
    torch.testing.assert_close(weight.grad, gradient, rtol=1e-12, atol=1e-12)
