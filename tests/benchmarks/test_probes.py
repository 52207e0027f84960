"""The benchmark of the probes measures what it says."""

import json
from pathlib import Path

import pytest

from benchmarks.probes import Options, main


def test_it_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(Options(task="majority3", steps=2, json=tmp_path / "probes.json"))
    found = json.loads((tmp_path / "probes.json").read_text())
    assert found["step_ms"] > 0
    assert found["percent_at_default_interval"] == pytest.approx(found["probe_in_steps"])
    assert "percent_in_own_runs" in capsys.readouterr().out
