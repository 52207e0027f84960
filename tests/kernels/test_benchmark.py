"""The attention benchmark runs, checks its methods and writes what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.attention", "--rounds", "1", "--seconds", "0", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_row_for_each_method(tmp_path: Path) -> None:
    file, plot = tmp_path / "rows.json", tmp_path / "plot.svg"
    shapes = ("--shape", "2,3,5,8", "2,3,7,8")
    done = run(*shapes, "--methods", "aten", "equation", "--json", str(file), "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    names = ["sdpa_no_mask", "aten", "equation"]
    assert [(row["shape"], row["method"]) for row in rows] == [
        ([2, 3, length, 8], name) for length in (5, 7) for name in names
    ]
    assert all(row["ratio_to_no_mask"] == 1 for row in rows[::3])
    assert all(row["total_ms"] > row["forward_ms"] > 0 for row in rows)
    assert {"threads", "dtype", "extra_peak_mib", "hardware"} < set(rows[0])
    assert "<svg" in plot.read_text()
    assert len(done.stdout.splitlines()) == len(rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shape", "4,2,32"), "expected a shape B,H,N,d of four positive numbers, got '4,2,32'"),
        (("--shape", "4,2,0,8"), "got '4,2,0,8'"),
        (("--methods", "nativ"), "expected methods of ('sdpa_no_mask', "),
    ],
)
def test_errors_of_use_are_one_line(options: tuple[str, ...], message: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_never_loses_shapes(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"shape": [2, 3, 7, 8]}, {"shape": [2, 3, 5, 8]}]))
    before = file.read_text()
    done = run("--shape", "2,3,5,8", "--methods", "aten", "--json", str(file))
    assert done.returncode == 2
    assert "has rows of [(2, 3, 7, 8)], which would be lost; name another file" in done.stderr
    assert file.read_text() == before
