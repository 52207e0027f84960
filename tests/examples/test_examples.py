"""The first two examples run and show what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples import custom_boolean_task, quickstart

ROOT = Path(__file__).parents[2]


def test_quickstart_keeps_its_prior(capsys: pytest.CaptureFixture[str]) -> None:
    quickstart.main()
    printed = capsys.readouterr().out
    assert "· · ■ · ■ ·" in printed
    shares = [float(line.split()[-1].rstrip("%")) for line in printed.splitlines() if line.endswith("%")]
    assert len(shares) == 2
    assert min(shares) > 99


def test_quickstart_is_a_command() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "MaskPrior(" in done.stdout


def test_custom_task_compares_priors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    custom_boolean_task.main(tmp_path, steps=3)
    printed = capsys.readouterr().out
    assert "x1-times-x3" in printed
    assert len(list(tmp_path.glob("x1-times-x3-*.json"))) == 4


def test_custom_task_has_the_interpolator_it_names() -> None:
    task = custom_boolean_task.make_task()
    assert task.mdi_spectrum == pytest.approx({(): -1.0, (1,): 1.0, (3,): 1.0})
