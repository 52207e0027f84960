"""Probes in this package's runs and around a loop of one's own."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from maskprior import MaskPrior, functional, structures
from maskprior.analysis.persistence_log import log_path, read_log
from maskprior.analysis.recorded_run import RunLabel, retained_curve
from maskprior.experiments.config import PriorConfig, RunConfig, TrainingConfig
from maskprior.experiments.files import RecordError
from maskprior.experiments.presets import fit_model
from maskprior.experiments.probes import persistence_probe
from maskprior.experiments.progress import SilentReporter
from maskprior.experiments.record import read_records
from maskprior.experiments.run import record_path
from maskprior.experiments.sweep import Device, sweep
from maskprior.models import TransformerConfig
from maskprior.tasks.gotu import two_parity

TOKENS, WIDTH = 5, 3
TINY = TransformerConfig(1, 1, 1, width=16, depth=2, heads=2, head_width=8, mlp_width=16)


class Attend(nn.Module):
    """One head, queries and keys the tokens themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(WIDTH, WIDTH)
        self.prior = MaskPrior.from_structure(structures.window(TOKENS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        heads = x[:, None]
        return functional.attention(heads, heads, self.value(heads), self.prior.mask_logits)[:, 0]


def run_config(prior: str = "mask") -> RunConfig:
    task = two_parity(5)
    training = TrainingConfig(steps=20, learning_rate=1e-2, batch_size=16, probes=11)
    return RunConfig(task, PriorConfig(prior), fit_model(TINY, task.interface()), training, "tiny", 0)


@pytest.mark.parametrize("prior", ["mask", "qk_svd", "vanilla"])
def test_a_run_leaves_a_log_at_the_points_of_its_curves_and_early_on(prior: str, tmp_path: Path) -> None:
    config = run_config(prior)
    (record,) = sweep([config], tmp_path, SilentReporter(), device=Device("cpu")).values()
    log = read_log(log_path(record_path(tmp_path, config)))
    assert log.steps == sorted({*record.curves["step"], 1, 2, 4, 8})
    assert [probe.step for probe in log.probes if probe.frames] == [0, 4, 8, 12, 16, 20]
    assert list(log.header.tokens) == config.task.token_names()
    assert len(log.header.attention_limit) == 2
    assert (retained_curve(log, "prior") is not None) == (prior == "mask")
    for name in ("attention_advantage", "attention_divergence", "attention_suppressed"):
        assert len(log.curve(name)[0]) == 2


def test_a_wrong_structure_is_followed_as_such(tmp_path: Path) -> None:
    """What persists is what was put in, right or wrong."""
    config = run_config()
    wrong = replace(config, task=replace(two_parity(5), interaction=structures.identity(6)), variant="wrong")
    sweep([wrong], tmp_path, SilentReporter(), device=Device("cpu"))
    log = read_log(log_path(record_path(tmp_path, wrong)))
    assert torch.equal(log.header.structure[0], structures.identity(6))


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    x = torch.randn(7, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def follow(folder: Path, label: RunLabel | None = None) -> float:
    model = Attend()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with persistence_probe(
        model, optimizer, torch.randn(2, TOKENS, WIDTH), folder, label=label, every=3
    ) as probe:
        loss = loop(model, optimizer, 7)
        probe.note({"loss_train": loss})
    return loss


def test_a_loop_of_ones_own_becomes_a_record(tmp_path: Path) -> None:
    label = RunLabel(task="rolling", seed=4, variant="mask-adamw")
    loss = follow(tmp_path / "new", label)
    ((path, record),) = read_records(tmp_path / "new").items()
    assert path == label.path(tmp_path / "new")
    assert (record.task, record.prior, record.variant, record.seed) == ("rolling", "mask", "mask-adamw", 4)
    assert record.curves["step"] == [0, 3, 6, 7]
    assert record.curves["loss_train"][-1] == pytest.approx(loss, rel=1e-4)
    log = read_log(log_path(path))
    prior, attention = retained_curve(log, "prior"), retained_curve(log, "attention")
    assert prior is not None
    assert attention is not None
    assert record.metrics == {"prior_retained": prior[-1], "attention_retained": attention[-1]}
    assert prior[0] == attention[0] == 1
    assert 0.9 < prior[-1] < 1


def test_the_same_label_is_the_same_record_and_another_seed_another(tmp_path: Path) -> None:
    follow(tmp_path)
    follow(tmp_path)
    assert len(read_records(tmp_path)) == 1
    follow(tmp_path, RunLabel(seed=1))
    assert {record.seed for record in read_records(tmp_path).values()} == {0, 1}


def test_a_loop_that_fails_leaves_a_log_and_no_record(tmp_path: Path) -> None:
    model = Attend()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (
        pytest.raises(ValueError, match="got wrong"),
        persistence_probe(model, optimizer, None, tmp_path, every=1),
    ):
        fail_after(model, optimizer)
    assert list(tmp_path.glob("*.json")) == []
    (path,) = tmp_path.glob("*.persistence.jsonl")
    assert read_log(path).steps == [0, 1]


def fail_after(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loop(model, optimizer, 2)
    raise ValueError("got wrong")


def test_a_label_that_cannot_name_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="expected `task` as a name"):
        follow(tmp_path, RunLabel(task="a/b"))
