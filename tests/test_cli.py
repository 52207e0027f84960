"""The command line, called as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from maskprior.cli import main


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "maskprior", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the command line has run two priors."""
    folder = tmp_path_factory.mktemp("cli") / "runs"
    arguments = ["run", "2parity", "--priors", "vanilla,mask", "--seeds", "1", "--dimension", "3"]
    done = call(*arguments, "--preset", "quick", "--out", str(folder), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "2parity mask seed 0" in done.stdout
    return folder


def test_run_writes_a_record_for_each_prior(runs: Path) -> None:
    records = [json.loads(path.read_text()) for path in runs.glob("*.json")]
    assert sorted(record["prior"] for record in records) == ["mask", "vanilla"]
    assert {record["seed"] for record in records} == {0}


def test_report_writes_tables_and_figures(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs)]) == 0
    printed = capsys.readouterr().out
    report = runs / "report"
    assert "2parity" in printed
    names = {path.suffix for path in report.iterdir()}
    assert {".md", ".csv", ".tex", ".png"} <= names
    for figure in report.glob("*.png"):
        assert figure.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert figure.stat().st_size > 5_000


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in (
        "2parity",
        "majority3",
        "cyclic3",
        "vanilla",
        "qk_svd",
        "qk_optimize",
        "mask",
        "quick",
        "cpu",
        "digits",
    ):
        assert name in printed
    assert all(line.startswith(("  ", "Tasks", "Priors", "Presets")) for line in printed.splitlines())


def test_show_draws_in_the_terminal_and_as_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "2parity", "--dimension", "3", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "■ · · ·\n· · ■ ·\n· ■ · ·\n· · · ■" in printed
    assert "[CLS] x0 x1 x2" in printed
    assert (tmp_path / "2parity-structure.png").read_bytes().startswith(b"\x89PNG")


def test_show_draws_the_patches_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "digits", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "heads: offset 0 1, offset 0 -1, offset 1 0, offset -1 0." in " ".join(printed.split())
    assert "[CLS] 0,0 0,1" in printed
    assert (tmp_path / "digits-structure.png").read_bytes().startswith(b"\x89PNG")


def test_doctor_names_the_backend_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    subjects = {" ".join(line[4:].split("  ")[0].split()) for line in lines}
    assert {"maskprior", "torch", "cuda", "native attention", "cpu float32", "triton"} <= subjects
    assert all(line.startswith(("ok  ", "--  ")) for line in lines)


@pytest.mark.parametrize("command", ["list", "show", "run", "report", "doctor"])
def test_help_is_a_page(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) >= 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "3parity"],
            "expected a task among 2parity, majority3, cyclic3, addition, subtraction, multiplication",
        ),
        (["run", "2parity", "--priors", "masc"], "expected a prior among vanilla, qk_svd, qk_optimize, mask"),
        (
            ["run", "2parity", "--preset", "huge"],
            "expected a preset among quick, cpu, paper-budget, paper; got 'huge'",
        ),
        (["run", "2parity", "--seeds", "0"], "expected seeds ≥ 1"),
        (["run", "2parity", "--jobs", "0"], "expected jobs ≥ 1"),
        (["run", "2parity", "--device", "gpu"], "expected device 'auto' or 'cpu', got 'gpu'"),
        (["run", "2parity", "--dimension", "1"], "expected dimension ≥ 2, got 1"),
        (["show", "2parity", "--dimension", "0"], "expected dimension ≥ 2, got 0"),
        (["show", "digits", "--dimension", "3"], "expected no dimension with the task digits, got 3"),
        (["run", "digits", "--dimension", "3"], "expected no dimension with the task digits, got 3"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_exit_code_2_with_the_choices(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("**/*.json"))


def test_an_unwritable_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    obstacle = tmp_path / "file"
    obstacle.write_text("kept")
    assert main(["run", "2parity", "--out", str(obstacle)]) == 2
    assert str(obstacle) in "".join(capsys.readouterr().err.split("\n"))
    assert obstacle.read_text() == "kept"


def test_a_corrupt_record_is_named_and_kept(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = next(runs.glob("*mask*.json"))
    broken = tmp_path / good.name
    broken.write_text(good.read_text()[:100])
    assert main(["report", str(tmp_path)]) == 2
    assert good.name in "".join(capsys.readouterr().err.split("\n"))
    assert broken.read_text() == good.read_text()[:100]


def test_unknown_commands_and_options_are_exit_code_2() -> None:
    for arguments in (["fly"], ["run", "2parity", "--speed", "9"]):
        assert call(*arguments).returncode == 2
