"""Whole runs on a small text: records, pairing, interruption, and text from what they leave."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from maskprior.analysis.report import print_summary
from maskprior.cli import main
from maskprior.experiments.files import RecordError, read_tensors
from maskprior.experiments.progress import SilentReporter
from maskprior.experiments.record import patterns_path, weights_path
from maskprior.experiments.run import record_path
from maskprior.experiments.streamed import build_streamed
from maskprior.experiments.sweep import Device, sweep
from maskprior.language.compare import read_numbers
from maskprior.language.presets import LanguageRecipe, LanguageRun, quick_recipe
from maskprior.language.runs import keep_tokenizers, load_run
from maskprior.language.sources import SourceConfig, TextError
from maskprior.language.writing import Sampling, continue_tokens, stream_text
from maskprior.tasks.base import Reader

CPU, READER = Device("cpu", threads=1), Reader(torch.device("cpu"))
NOUNS, VERBS = ("cat", "dog", "bird", "mouse", "horse"), ("sees", "hears", "likes", "follows")


def stories() -> Iterator[str]:
    draw = np.random.default_rng(0)
    for number in range(400):
        words = [
            f"the {NOUNS[draw.integers(5)]} {VERBS[draw.integers(4)]} the {NOUNS[draw.integers(5)]} ."
            for _ in range(4)
        ]
        yield f"{number} : {' '.join(words)}"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageRecipe]:
    """Seconds for all priors; the cache is the test's own."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "stories.txt").write_text("\n\n".join(stories()))
    whole = quick_recipe(SourceConfig("stories", str(folder / "stories.txt")), vocab_size=300)
    small = replace(
        whole,
        task=replace(
            whole.task, length=13, reaches=(1.0, 2.0, 4.0, 8.0), probe_tokens=300, length_tokens=300
        ),
        model=replace(whole.model, length=13, width=16, head_width=4, mlp_width=23),  # type: ignore[arg-type]
        training=replace(whole.training, steps=12, batch_size=6, probes=4),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASKPRIOR_CACHE", str(folder / "cache"))
        yield small


@pytest.fixture(scope="module")
def finished(
    recipe: LanguageRecipe, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[LanguageRun]]:
    folder, runs = tmp_path_factory.mktemp("records"), recipe.runs([0])
    sweep(runs, folder, SilentReporter(), device=CPU)
    keep_tokenizers(runs, folder)
    return folder, runs


def test_records_say_what_was_measured(finished: tuple[Path, list[LanguageRun]]) -> None:
    folder, runs = finished
    records = sweep(runs, folder, SilentReporter(), device=CPU)  # nothing left to do
    assert [record.prior for record in records.values()] == ["vanilla", "alibi", "mask", "toeplitz"]
    for record in records.values():
        metrics = record.metrics
        nll, tokens = read_numbers(metrics["document_nll"]), read_numbers(metrics["document_tokens"])
        assert metrics["test_loss"] == pytest.approx(nll.sum() / tokens.sum(), rel=1e-6)
        assert metrics["test_perplexity"] == pytest.approx(np.exp(metrics["test_loss"]))
        assert metrics["word_perplexity"] == pytest.approx(np.exp(nll.sum() / metrics["judged_words"]))
        assert set(metrics["perplexity_at"]) == {"1", "2", "4"}
        assert record.curves["step"] == [0, 4, 8, 12]
        assert record.curves["loss_validation"][-1] < record.curves["loss_validation"][0]
        assert len({r.metrics["corpus"] for r in records.values()}) == 1
    console = Console(record=True, width=80)
    print_summary(records, console)
    assert "test perplexity" in console.export_text()


def test_patterns_are_there(finished: tuple[Path, list[LanguageRun]]) -> None:
    folder, runs = finished
    for run in runs:
        tensors = read_tensors(patterns_path(record_path(folder, run)))
        assert tensors["attention_end"].shape == (2, 4, 13, 13)
        assert ("mask_logits_end" in tensors) == (run.prior.name != "vanilla")


def test_priors_share_data_and_all_other_weights(recipe: LanguageRecipe) -> None:
    runs = recipe.runs([3])
    streams = [run.task.open(run.seed, 6, READER) for run in runs]
    for batches in zip(*(islice(stream.batches(0), 5) for stream in streams), strict=True):
        for inputs, targets in batches[1:]:
            assert torch.equal(inputs, batches[0][0])
            assert torch.equal(targets, batches[0][1])
    states = [build_streamed(run).state_dict() for run in runs]
    for state in states[1:]:
        for name, tensor in states[0].items():
            assert name == "position" or torch.equal(state[name], tensor)


def test_an_interrupted_run_ends_with_the_same_bits(
    recipe: LanguageRecipe, finished: tuple[Path, list[LanguageRun]], tmp_path: Path
) -> None:
    class Interrupt(SilentReporter):
        def step(self, config: object, step: int, point: dict[str, float]) -> None:
            if step == 8:
                raise KeyboardInterrupt

    run = recipe.run("toeplitz", 0)
    with pytest.raises(KeyboardInterrupt):
        sweep([run], tmp_path, Interrupt(), device=CPU)
    sweep([run], tmp_path, SilentReporter(), device=CPU)
    whole = read_tensors(weights_path(record_path(finished[0], run)))
    again = read_tensors(weights_path(record_path(tmp_path, run)))
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_documents_as_rows_train_too(recipe: LanguageRecipe, tmp_path: Path) -> None:
    run = replace(recipe.run("mask", 0), task=replace(recipe.task, packing="documents", judge="validation"))
    (record,) = sweep([run], tmp_path, SilentReporter(), device=CPU).values()
    assert "validation_perplexity" in record.metrics
    assert "test_perplexity" not in record.metrics


@pytest.mark.parametrize("prior", ["vanilla", "alibi", "mask", "toeplitz"])
def test_cached_decoding_is_full_recomputation(finished: tuple[Path, list[LanguageRun]], prior: str) -> None:
    """Greedy, token for token, over eight prompts; without positions far beyond the trained length."""
    folder, runs = finished
    loaded = load_run(record_path(folder, next(run for run in runs if run.prior.name == prior)))
    size = loaded.tokenizer.get_vocab_size()
    steps = 9 if loaded.longest else 31
    with torch.no_grad():
        for seed in range(8):
            prompt = torch.randint(size, (1, 1 + seed % 4), generator=torch.Generator().manual_seed(seed))[
                0
            ].tolist()
            decoder = loaded.model.decoder(len(prompt) + steps)
            found = list(continue_tokens(decoder, prompt, steps, size, Sampling(), torch.Generator()))
            whole = list(prompt)
            for _ in range(steps):
                whole.append(int(loaded.model(torch.tensor([whole]))[0, -1, :size].argmax()))
            assert found == whole[len(prompt) :]


def test_generate_prints_the_prompt_and_what_follows(
    finished: tuple[Path, list[LanguageRun]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, runs = finished
    path = str(record_path(folder, runs[-1]))
    assert main(["generate", path, "the cat", "--tokens", "5"]) == 0
    first = capsys.readouterr().out
    assert first.startswith("the cat")
    assert main(["generate", path, "the cat", "--tokens", "5", "--temperature", "1.5", "--seed", "1"]) == 0
    drawn = capsys.readouterr().out
    assert main(["generate", path, "the cat", "--tokens", "5", "--temperature", "1.5", "--seed", "1"]) == 0
    assert capsys.readouterr().out == drawn


def test_generate_says_what_is_wrong(
    finished: tuple[Path, list[LanguageRun]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, runs = finished
    path = str(record_path(folder, runs[0]))
    for arguments, message in (
        ([path, "a", "--tokens", "100"], "at most 13 tokens"),
        ([path, "a", "--tokens", "0"], "at least one token to write, got 0"),
        ([path, "a", "--temperature", "-1"], "expected a finite temperature"),
        ([path, "a", "--top-k", "-1"], "expected top_k"),
        ([path, "a\udcff", "--tokens", "2"], r"expected a prompt in UTF-8, got 'a\udcff'"),
        ([str(folder), "a"], "name one of them"),
    ):
        assert main(["generate", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_a_run_without_its_tokenizer(finished: tuple[Path, list[LanguageRun]], tmp_path: Path) -> None:
    path = record_path(finished[0], finished[1][0])
    for each in (path, weights_path(path)):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    with pytest.raises(RecordError, match=r"expected tokenizers/.*\.json beside it"):
        load_run(tmp_path / path.name)


def test_weights_of_another_run(finished: tuple[Path, list[LanguageRun]], tmp_path: Path) -> None:
    folder, runs = finished
    vanilla, toeplitz = (record_path(folder, runs[place]) for place in (0, 3))
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / toeplitz.name
    shutil.copy(weights_path(vanilla), weights_path(path))
    with pytest.raises(
        RecordError, match=rf"(?s)expected the weights of {path.name}, got others: .*mask_logits"
    ):
        load_run(path)
    assert main(["generate", str(path), "a"]) == 2


@pytest.mark.parametrize(("part", "key"), [("model", "colour"), ("task", "reaches")])
def test_a_record_of_another_kind_of_model(
    finished: tuple[Path, list[LanguageRun]], tmp_path: Path, part: str, key: str
) -> None:
    folder, runs = finished
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / record_path(folder, runs[0]).name
    record = json.loads(path.read_text())
    values = record["config"][part]
    values |= {key: 1} if part == "model" else {}
    record["config"][part] = {name: value for name, value in values.items() if part == "model" or name != key}
    path.write_text(json.dumps(record))
    with pytest.raises(RecordError, match=rf"expected the record of a language model, got another .*'{key}'"):
        load_run(path)


@pytest.mark.parametrize("temperature", [1e-10, 1e-40, 5e-324])
def test_a_low_temperature_takes_the_most_probable(temperature: float) -> None:
    logits = torch.tensor([1.0, -torch.inf, 29.0, 30.0, -4.0])
    assert Sampling(temperature).choose(logits, torch.Generator().manual_seed(0)) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logit", [torch.nan, torch.inf])
def test_logits_that_are_not_finite(temperature: float, logit: float) -> None:
    with pytest.raises(ValueError, match=r"expected finite logits, got (nan|inf)"):
        Sampling(temperature).choose(torch.tensor([1.0, logit]), torch.Generator())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 290, "outputs": 290}, "expected one vocab_size of task and model, got 300 and 290"),
        ({"length": 11}, "expected one length of task and model, got 13 and 11"),
        ({"outputs": 290}, "expected as many outputs as vocab_size=300, got 290"),
    ],
)
def test_task_and_model_of_other_sizes(
    recipe: LanguageRecipe, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(recipe, model=replace(recipe.model, **change))  # type: ignore[arg-type]


def test_pieces_of_text_end_between_characters(finished: tuple[Path, list[LanguageRun]]) -> None:
    folder, runs = finished
    loaded = load_run(record_path(folder, runs[-1]))
    sampling, generator = Sampling(temperature=50.0), torch.Generator().manual_seed(4)
    pieces = list(stream_text(loaded, "the", 60, sampling, generator))
    assert len(pieces) > 1
    assert not any(piece.endswith("\ufffd") for piece in pieces)


def test_a_tokenizer_larger_than_the_model(recipe: LanguageRecipe) -> None:
    with pytest.raises(TextError, match="expected a tokenizer of at most 290 tokens"):
        replace(recipe.task, vocab_size=290).open(0, 6, READER)


def test_batches_that_cannot_be_shared(recipe: LanguageRecipe) -> None:
    with pytest.raises(ValueError, match="that 4 processes can share evenly, got 6 rows"):
        recipe.task.open(0, 6, Reader(torch.device("cpu"), 0, 4))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("decay", "cubic", "expected decay in"),
        ("packing", "loose", "expected packing in"),
        ("length", 0, "expected length ≥ 1"),
        ("reaches", (), "expected reaches"),
        ("times", (0, 1), "expected reaches and times ≥ 1"),
    ],
)
def test_other_values_are_refused(recipe: LanguageRecipe, name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(recipe.task, **{name: value})  # type: ignore[arg-type]


def test_an_unknown_prior(recipe: LanguageRecipe) -> None:
    with pytest.raises(ValueError, match="expected a prior among vanilla, alibi, mask, toeplitz"):
        recipe.run("rope", 0)
