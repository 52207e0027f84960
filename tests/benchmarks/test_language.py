"""The benchmark of generation measures what it says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.language import Options, run
from maskprior.language.presets import LanguageRecipe, docstrings, quick_recipe


def small() -> LanguageRecipe:
    return quick_recipe(docstrings())


def test_it_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(replace(Options(), tokens=2, rounds=1, json=tmp_path / "language.json"), small)
    found = json.loads((tmp_path / "language.json").read_text())
    assert list(found["priors"]) == ["alibi", "mask", "toeplitz", "vanilla"]
    assert found["priors"]["vanilla"]["ratio"] == 1.0
    rates = {name: values["tokens_per_second"] for name, values in found["priors"].items()}
    assert found["priors"]["mask"]["ratio"] == pytest.approx(rates["mask"] / rates["vanilla"])
    assert "of vanilla's" in capsys.readouterr().out
