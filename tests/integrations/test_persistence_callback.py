"""The callback follows a real Trainer and changes nothing in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from maskprior import attach, structures
from maskprior.analysis.persistence_log import log_path, read_log
from maskprior.analysis.recorded_run import RunLabel
from maskprior.experiments.record import read_records

transformers = pytest.importorskip("transformers")

from maskprior.integrations.persistence_callback import PersistenceCallback  # noqa: E402

TOKENS, VOCABULARY = 7, 13


class Sequences(Dataset[dict[str, Tensor]]):
    """Fixed random sequences, to be continued."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(VOCABULARY, (count, TOKENS), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self[index] for index in range(len(self)))


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        n_embd=6,
        n_layer=2,
        n_head=3,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
    attach(model, structures.relative_distance(TOKENS, 1.5, causal=True))
    return model


def train(model: torch.nn.Module, folder: Path, callbacks: list[PersistenceCallback]) -> None:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=5,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=2,
        learning_rate=1e-2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )
    transformers.Trainer(model, arguments, train_dataset=Sequences(24), callbacks=callbacks).train()


def test_a_trainer_is_followed(tmp_path: Path) -> None:
    label = RunLabel(task="continuing", variant="mask-gpt2")
    allowed = structures.causal(TOKENS).bool()
    inputs = {"input_ids": Sequences(3).tokens}
    model = make_model()
    callback = PersistenceCallback(inputs, tmp_path / "runs", label=label, allowed=allowed, every=2)
    train(model, tmp_path / "out", [callback])

    ((path, record),) = read_records(tmp_path / "runs").items()
    assert record.curves["step"] == [0, 2, 4, 5]
    assert record.curves["loss_train"][-1] > 0
    log = read_log(log_path(path))
    assert len(log.header.attention_limit) == len(log.header.prior_limit) == 2
    first = log.probes[0].measures
    assert {"gradient_mask", "gradient_query", "update_key", "attention_suppressed"} <= set(first)
    assert first["update_mask"][0] > 0
    assert record.metrics["prior_retained"] > 0.9

    alone = make_model()
    train(alone, tmp_path / "out", [])
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    assert all(torch.equal(watched, unwatched) for watched, unwatched in pairs)
