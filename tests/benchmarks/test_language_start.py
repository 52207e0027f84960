"""The benchmark of a start trains a step and writes what it measured."""

import json
from pathlib import Path

import pytest

from benchmarks.language_start import Options, first_step, run
from maskprior.language.presets import docstrings, quick_recipe


def test_a_first_step_has_a_loss_of_about_that_of_a_uniform_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASKPRIOR_CACHE", str(tmp_path))
    assert first_step(quick_recipe(docstrings())) == pytest.approx(6.24, abs=0.5)  # ln 512
    assert any(tmp_path.iterdir())


def test_it_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(Options(data="docstrings", json=tmp_path / "start.json"))
    seconds = json.loads((tmp_path / "start.json").read_text())["seconds"]
    assert set(seconds) == {"empty_cache", "full_cache"}
    assert all(value > 0 for value in seconds.values())
    assert "full_cache" in capsys.readouterr().out
