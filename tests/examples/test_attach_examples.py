"""The examples of attaching priors run, and show what they say."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_timm_vit_learns_the_digits() -> None:
    results = load("attach_timm_vit").main(steps=100)
    assert set(results) == {"no prior", "neighbourhood"}
    assert min(results.values()) > 0.3  # chance is 0.1


def test_hf_gpt2_learns_generates_and_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = load("attach_hf_gpt2").main(tmp_path, steps=15)
    assert results["losses"][-1] < 0.97 * results["losses"][0]
    assert results["text"].startswith("maskmask")
    assert len(results["text"]) == 40  # beyond the 24 tokens of the structure
    assert results["same"]
    assert "restored from disk, bit by bit: True" in capsys.readouterr().out


def test_graph_prior_generalises_where_no_prior_cannot() -> None:
    results = load("graph_prior").main(steps=25)
    assert results["hops"] < 0.7 * results["no prior"]
