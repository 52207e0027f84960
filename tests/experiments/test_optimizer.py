"""Parameter groups: every parameter once, mask logits never decayed and at their own learning rate."""

import pytest
import torch
from torch import nn

from maskprior import MaskPrior, structures
from maskprior.experiments.config import TrainingConfig
from maskprior.experiments.optimizer import (
    make_optimizer,
    make_schedule,
    mask_parameters,
    parameter_groups,
)
from maskprior.models import Transformer, TransformerConfig


def small_model(*, learnable: bool = True, shared: bool = False) -> Transformer:
    model = Transformer(TransformerConfig(2, 3, 1, width=5, depth=2, heads=2, head_width=3, mlp_width=7))

    def prior() -> MaskPrior:
        return MaskPrior.from_structure(structures.everything(4), learnable=learnable)

    one = prior()
    model.set_priors([one, one if shared else prior()])
    return model


def test_every_trainable_parameter_is_in_exactly_one_group() -> None:
    model = small_model()
    groups = parameter_groups(model, learning_rate=0.1, weight_decay=0.2, mask_learning_rate_factor=3.0)
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    assert [group["name"] for group in groups] == ["decayed", "undecayed", "mask_logits"]
    assert [group["weight_decay"] for group in groups] == [0.2, 0.0, 0.0]
    assert [group["lr"] for group in groups] == pytest.approx([0.1, 0.1, 0.3])
    assert all(p.dim() <= 1 for p in groups[1]["params"])


def test_a_shared_prior_is_one_parameter() -> None:
    assert len(mask_parameters(small_model(shared=True))) == 1
    assert len(mask_parameters(small_model())) == 2


def test_frozen_logits_have_no_group() -> None:
    groups = parameter_groups(small_model(learnable=False), learning_rate=0.1, weight_decay=0.0)
    assert [group["name"] for group in groups] == ["decayed", "undecayed"]


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_decay_moves_weights_and_not_mask_logits(kind: str) -> None:
    model = small_model()
    config = TrainingConfig(steps=3, learning_rate=0.1, optimizer=kind, weight_decay=0.5)  # type: ignore[arg-type]
    optimizer = make_optimizer(model, config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert "blocks.0.attention.qkv.weight" in moved
    assert not any("mask_logits" in name for name in moved)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_an_experiment_may_decay_mask_logits(kind: str) -> None:
    model = small_model()
    config = TrainingConfig(steps=3, learning_rate=0.1, optimizer=kind, mask_weight_decay=0.5)  # type: ignore[arg-type]
    optimizer = make_optimizer(model, config)
    before = [logits.detach().clone() for logits in mask_parameters(model)]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for logits, start in zip(mask_parameters(model), before, strict=True):
        assert torch.allclose(logits.detach(), (1 - 0.1 * 0.5) * start)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.5, 1.0, 1.0, 1.0, 1.0]), ("cosine", [0.5, 1.0, 1.0, 0.75, 0.25])],
)
def test_schedule_warms_up_then_follows_its_law(schedule: str, expected: list[float]) -> None:
    config = TrainingConfig(steps=5, learning_rate=2.0, warmup_steps=2, schedule=schedule, optimizer="sgd")  # type: ignore[arg-type]
    optimizer = make_optimizer(nn.Linear(1, 1), config)
    scheduler = make_schedule(optimizer, config)
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"] / 2.0)
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps ≥ 1"),
        ({"batch_size": 0}, "batch_size ≥ 1"),
        ({"probes": 1}, "probes ≥ 2"),
        ({"cpu_chunk": 0}, "cpu_chunk ≥ 1 or None"),
        ({"learning_rate": float("nan")}, "finite learning_rate"),
        ({"weight_decay": -0.1}, "weight_decay ≥ 0"),
        ({"mask_weight_decay": -0.1}, "mask_weight_decay ≥ 0"),
        ({"optimizer": "lion"}, "'adam', 'adamw', 'sgd'"),
        ({"schedule": "linear"}, "'constant', 'cosine'"),
        ({"precision": "int8"}, "'no', 'bf16', 'fp16'"),
    ],
)
def test_bad_training_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**({"steps": 5, "learning_rate": 0.1} | change))  # type: ignore[arg-type]
