"""The recorder sees what is there, at the right moment, and leaves training as it was."""

import gc
import math
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from maskprior import MaskPrior, functional, structures
from maskprior.analysis.observation import patterns_of, watched_attention
from maskprior.analysis.persistence import Target
from maskprior.analysis.persistence_log import Log, read_log
from maskprior.analysis.recorder import PersistenceRecorder, Subject, head_means

TOKENS, HEADS, HEAD_WIDTH, BATCH = 5, 2, 3, 7
WIDTH = HEADS * HEAD_WIDTH


class Layer(nn.Module):
    """Self-attention with a prior and dropout."""

    def __init__(self, prior: MaskPrior | None) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.prior = prior
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.qkv(x).view(len(x), TOKENS, 3, HEADS, HEAD_WIDTH)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        bias = None if self.prior is None else self.prior()
        attended = functional.attention(query, key, value, bias=bias)
        mixed: Tensor = x + self.dropout(attended.transpose(1, 2).flatten(2))
        return mixed

    def expected_pattern(self, x: Tensor) -> Tensor:
        projected = self.qkv(x).view(len(x), TOKENS, 3, HEADS, HEAD_WIDTH)
        query, key, _ = projected.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.mT / math.sqrt(HEAD_WIDTH)
        bias = (
            torch.zeros(()) if self.prior is None else torch.nn.functional.logsigmoid(self.prior.mask_logits)
        )
        pattern: Tensor = (scores + bias).softmax(-1).mean(0)
        return pattern.detach()


WANTED = structures.window(TOKENS, 1, 0)


def make_model(*, prior: bool = True, learnable: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(Layer(MaskPrior.from_structure(WANTED, learnable=learnable) if prior else None) for _ in range(3))
    )


def inputs(seed: int = 1) -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.manual_seed(3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs(2)).square().mean().backward()
        optimizer.step()


def follow(
    path: Path,
    *,
    model: nn.Sequential | None = None,
    steps: int = 4,
    every: int | Collection[int] = 2,
    structure: Tensor | None = None,
    frame_every: int = 1,
) -> Log:
    model = make_model() if model is None else model
    subject = Subject(
        model,
        patterns_of(model, lambda: model(inputs())),
        structure=structure,
        every=every,
        frame_every=frame_every,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with PersistenceRecorder(subject, path).watching(optimizer):
        train(model, optimizer, steps)
    return read_log(path)


def test_watched_patterns_are_the_models_own() -> None:
    model = make_model()
    model.eval()
    x = inputs()
    with watched_attention() as seen:
        output = model(x)
    assert torch.allclose(output, model(x), atol=1e-6)
    for layer, pattern in zip(model, seen, strict=True):
        assert isinstance(layer, Layer)
        assert torch.allclose(pattern, layer.expected_pattern(x), atol=1e-6)
        x = layer(x)


def test_watching_restores_modes_and_uses_no_randomness() -> None:
    model = make_model()
    list(model)[1].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    patterns = patterns_of(model, lambda: model(inputs()))
    assert torch.equal(patterns()[2], patterns()[2])
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_with_other_attention_is_told_what_to_do() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(
        ValueError, match=r"Sequential to call maskprior\.functional\.attention.* got no call"
    ):
        patterns_of(model, lambda: model(torch.zeros(1, 3)))()


def test_training_is_bit_equal_with_and_without_a_recorder(tmp_path: Path) -> None:
    watched, alone = make_model(), make_model()
    follow(tmp_path / "x.jsonl", model=watched, steps=5, every=1)
    train(alone, torch.optim.Adam(alone.parameters(), lr=0.05), 5)
    assert all(torch.equal(a, b) for a, b in zip(watched.parameters(), alone.parameters(), strict=True))


@pytest.mark.parametrize(
    ("every", "steps", "expected"), [(2, 5, [0, 2, 4, 5]), (2, 4, [0, 2, 4]), ({0, 3}, 4, [0, 3, 4])]
)
def test_probes_are_at_the_due_steps_and_the_last(
    every: int | Collection[int], steps: int, expected: list[int], tmp_path: Path
) -> None:
    assert follow(tmp_path / "x.jsonl", steps=steps, every=every).steps == expected


def test_measures_are_those_of_the_moment(tmp_path: Path) -> None:
    """Each probe against a second training that is stopped there and looked at."""
    log = follow(tmp_path / "x.jsonl", steps=3, every=1)
    target = Target.of_structure(WANTED)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    torch.manual_seed(3)
    for probe in log.probes:
        model.eval()
        x = inputs()
        for index, layer in enumerate(model):
            assert isinstance(layer, Layer)
            expected = target.measure(layer.expected_pattern(x))
            found = {name: probe.measures[f"attention_{name}"][index] for name in expected}
            assert found == pytest.approx(expected, abs=2e-5, rel=1e-4)
            assert layer.prior is not None
            prior = target.measure(layer.prior.pattern())
            found = {name: probe.measures[f"prior_{name}"][index] for name in prior}
            assert found == pytest.approx(prior, abs=2e-5, rel=1e-4)
            x = layer(x)
        model.train()
        optimizer.zero_grad()
        model(inputs(2)).square().mean().backward()
        if "gradient_query" in probe.measures:
            check_gradients_and_updates(model, optimizer, {n: list(v) for n, v in probe.measures.items()})
        else:
            assert probe.step == 3


def check_gradients_and_updates(
    model: nn.Sequential, optimizer: torch.optim.Optimizer, measures: dict[str, list[float]]
) -> None:
    layers = [layer for layer in model if isinstance(layer, Layer) and layer.prior is not None]
    before = []
    for index, layer in enumerate(layers):
        assert layer.prior is not None
        assert layer.qkv.weight.grad is not None
        assert layer.prior.mask_logits.grad is not None
        for name, rows in (("query", slice(0, WIDTH)), ("key", slice(WIDTH, 2 * WIDTH))):
            expected = float(layer.qkv.weight.grad[rows].norm())
            assert measures[f"gradient_{name}"][index] == pytest.approx(expected, rel=1e-4)
        expected = float(layer.prior.mask_logits.grad.norm())
        assert measures["gradient_mask"][index] == pytest.approx(expected, rel=1e-4)
        bias = layer.prior().detach()
        before.append((layer.qkv.weight[:WIDTH].detach().clone(), bias - bias.mean(-1, keepdim=True)))
    optimizer.step()
    for index, (layer, (query, centred)) in enumerate(zip(layers, before, strict=True)):
        assert layer.prior is not None
        change = float((layer.qkv.weight.detach()[:WIDTH] - query).norm() / query.norm())
        assert measures["update_query"][index] == pytest.approx(change, rel=1e-4)
        bias = layer.prior().detach()
        change = float((bias - bias.mean(-1, keepdim=True) - centred).norm() / centred.norm())
        assert measures["update_mask"][index] == pytest.approx(change, rel=1e-3)


def test_frozen_logits_have_no_gradient_and_do_not_move(tmp_path: Path) -> None:
    log = follow(tmp_path / "x.jsonl", model=make_model(learnable=False))
    assert all(math.isnan(value) for value in log.probes[0].measures["gradient_mask"])
    assert log.probes[0].measures["update_mask"] == [0, 0, 0]
    assert log.probes[-1].measures["prior_advantage"] == log.probes[0].measures["prior_advantage"]


def test_a_model_without_priors_is_compared_with_the_given_structure(tmp_path: Path) -> None:
    log = follow(tmp_path / "x.jsonl", model=make_model(prior=False), structure=WANTED)
    assert log.header.prior_limit == []
    assert set(log.probes[0].measures) == {
        *("attention_variation", "attention_divergence", "attention_suppressed", "attention_advantage"),
        *("gradient_query", "gradient_key", "update_query", "update_key"),
    }
    assert set(log.probes[0].frames) == {"attention"}


def test_priors_alone_can_be_followed(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = PersistenceRecorder(Subject(model, None), tmp_path / "x.jsonl")
    with recorder.watching(optimizer):
        recorder.note({"loss_train": 1.5})
        train(model, optimizer, 1)
        recorder.note({"loss_train": 0.5})
    log = read_log(tmp_path / "x.jsonl")
    assert log.header.attention_limit == []
    assert {name.partition("_")[0] for name in log.probes[0].measures} == {"prior", "gradient", "update"}
    assert [probe.notes for probe in log.probes] == [{"loss_train": 1.5}, {"loss_train": 0.5}]


def test_frames_come_with_some_probes_and_the_last(tmp_path: Path) -> None:
    log = follow(tmp_path / "x.jsonl", steps=6, every=1, frame_every=4)
    assert [bool(probe.frames) for probe in log.probes] == [True, *[False] * 3, True, False, True]
    assert set(log.probes[0].frames) == {"attention", "sigma"}


def train_and_fail(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    train(model, optimizer, 2)
    raise RuntimeError("interrupted")


def test_an_exception_ends_the_log_and_removes_the_hooks(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    subject = Subject(model, None, every=1)
    with (
        pytest.raises(RuntimeError, match="interrupted"),
        PersistenceRecorder(subject, tmp_path / "x.jsonl").watching(optimizer),
    ):
        train_and_fail(model, optimizer)
    train(model, optimizer, 1)
    assert read_log(tmp_path / "x.jsonl").steps == [0, 1]


def test_nothing_to_follow_is_an_error(tmp_path: Path) -> None:
    model = make_model(prior=False)
    recorder = PersistenceRecorder(Subject(model, None), tmp_path / "x.jsonl")
    with (
        pytest.raises(ValueError, match="attention or mask priors to follow, got neither"),
        recorder.watching(torch.optim.SGD(model.parameters(), lr=0.1)),
    ):
        pass


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (None, "for each of 3 attention calls, got 0; pass structure="),
        (torch.ones(2, 1, TOKENS, TOKENS), "for each of 3 attention calls, got 2"),
        (torch.ones(7, 7), r"pattern of \[7, 7\] queries and keys, as the structure has"),
    ],
)
def test_a_structure_that_does_not_fit_is_refused_before_training(
    structure: Tensor | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        follow(tmp_path / "x.jsonl", model=make_model(prior=False), structure=structure)
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize("name", ["every", "frame_every"])
def test_intervals_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} ≥ 1, got 0"):
        Subject(make_model(), None, **{name: 0})  # type: ignore[arg-type]


def test_head_means_bring_other_sizes_to_the_first() -> None:
    means = head_means([torch.eye(2).repeat(3, 1, 1), torch.ones(4, 4)])
    assert torch.equal(means, torch.stack([torch.eye(2), torch.ones(2, 2)]))


def test_memory_does_not_grow_with_the_number_of_probes(tmp_path: Path) -> None:
    """As many tensors are alive after 40 probes as after 4."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    subject = Subject(model, patterns_of(model, lambda: model(inputs())), every=1)
    counts = []
    with PersistenceRecorder(subject, tmp_path / "x.jsonl").watching(optimizer):
        for steps in (4, 36):
            train(model, optimizer, steps)
            gc.collect()
            counts.append(sum(issubclass(type(item), Tensor) for item in gc.get_objects()))
    assert counts[0] == counts[1]
