"""The report: complete, linked, the same each time, and clear about what it can't read."""

import importlib.util
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from maskprior.analysis.report import print_summary, write_report
from maskprior.experiments.files import write_tensors
from maskprior.experiments.record import RecordError, RunRecord, patterns_path, read_records

MakeRecord = Callable[..., RunRecord]
SaveRecords = Callable[[Path, list[RunRecord]], dict[Path, RunRecord]]
ReadPng = Callable[[bytes], np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]


def save_some(folder: Path, record: MakeRecord, save: SaveRecords, tasks: tuple[str, ...]) -> Path:
    """Two priors and two seeds of each task, and the patterns of the first run."""
    records = [
        record(prior, seed, task) for task in tasks for prior in ("mask", "vanilla") for seed in (0, 1)
    ]
    first = next(iter(save(folder, records)))
    uniform = torch.full((2, 1, 3, 3), 1 / 3)
    tensors = dict.fromkeys(("attention_start", "attention_end", "mask_logits_start"), uniform)
    write_tensors(patterns_path(first), tensors)
    return folder


@pytest.fixture
def folder(tmp_path: Path, boolean_record: MakeRecord, save_records: SaveRecords) -> Path:
    return save_some(tmp_path / "boolean", boolean_record, save_records, ("2parity",))


@pytest.fixture(scope="module")
def reported(
    tmp_path_factory: pytest.TempPathFactory, boolean_record: MakeRecord, save_records: SaveRecords
) -> Path:
    """A folder of two tasks with its report, to read only."""
    folder = tmp_path_factory.mktemp("report") / "boolean"
    save_some(folder, boolean_record, save_records, ("2parity", "cyclic3"))
    write_report(folder)
    return folder


def read_all(paths: list[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


def test_all_files_are_there_and_the_records_untouched(folder: Path, read_png: ReadPng) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    paths = write_report(folder)
    assert [path.name for path in paths] == [
        "report.md",
        "table.md",
        "table.tex",
        "table.csv",
        "runs.csv",
        "scores-accuracy.png",
        "curves-2parity-cpu.png",
        "coefficients-2parity-cpu.png",
        "patterns-2parity-cpu-mask.png",
    ]
    assert sorted(paths) == sorted((folder / "report").iterdir())
    for path in paths[5:]:
        pixels = read_png(path.read_bytes())
        assert min(pixels.shape[:2]) > 200
        assert (pixels != 255).any(axis=-1).mean() > 0.005
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_the_report_is_the_same_byte_for_byte(folder: Path) -> None:
    first = read_all(write_report(folder))
    assert read_all(write_report(folder)) == first


def test_links_lead_to_records_and_pictures(reported: Path) -> None:
    report = reported / "report" / "report.md"
    links = re.findall(r"\]\(([^)]+)\)", report.read_text())
    assert all((report.parent / link).is_file() for link in links)
    records = {(report.parent / link).resolve() for link in links if link.endswith(".json")}
    assert records == {path.resolve() for path in reported.glob("*.json")}
    assert {link for link in links if link.endswith(".png")} == {
        path.name for path in report.parent.glob("*.png")
    }


def test_the_report_says_what_was_measured_and_where(reported: Path) -> None:
    text = (reported / "report" / "report.md").read_text()
    assert text.startswith("# Report of boolean\n\n8 runs of 2 tasks, ")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## 2parity (cpu)", "## cyclic3 (cpu)", "## Provenance"]
    assert text.count("| vanilla |     2 |  75.00 ± 0.00 |  75.00 |  75.00 |") == 2
    assert "1.050 ± 0.071" in text  # vanilla's loss: 1.0 and 1.1
    assert "| x0·x1 | 1.000 | 0.000 | 0.005 ± 0.007 | 1.005 ± 0.007 |" in " ".join(text.split())
    assert "All runs share the training: steps 20." in text
    assert "- runs: 8, seeds 0, 1\n- time: 16.0 s of running" in text  # 4 × (1.5 + 2.5)
    assert "- commit: 5c0ffee\n- hardware: Zähler 3, 2 cores, 23.5 GiB memory\n" in text
    assert "`maskprior run cyclic3 --preset cpu --priors vanilla,mask --seeds 2 --out DIR`" in text


def test_tables_hold_the_means_of_the_records(reported: Path) -> None:
    folder = reported
    table = pd.read_csv(folder / "report" / "table.csv")
    assert table["variant"].tolist() == ["vanilla", "mask"] * 2
    assert table["loss_mean"].tolist() == pytest.approx([1.05, 1e-4] * 2)
    assert table["seconds_mean"].tolist() == [2.0] * 4
    runs = pd.read_csv(folder / "report" / "runs.csv")
    assert runs["file"].tolist() == [
        path.name
        for path, record in sorted(
            read_records(folder).items(),
            key=lambda run: (run[1].task, run[1].prior != "vanilla", run[1].seed),
        )
    ]
    assert (folder / "report" / "table.md").read_text().startswith("| task    | preset | variant | seeds |")
    assert (folder / "report" / "table.tex").read_text().startswith(r"\begin{tabular}{lllr")


def test_a_task_with_other_metrics_and_without_curves(
    tmp_path: Path, make_record: MakeRecord, save_records: SaveRecords
) -> None:
    sequence = [make_record(task="addition", seed=s, metrics={"sequence_accuracy": 0.5}) for s in (0, 1)]
    save_records(
        tmp_path, [*sequence, make_record(), make_record(task="silent", metrics={"note": "nothing"})]
    )
    names = [path.name for path in write_report(tmp_path)]
    assert names[5:] == ["scores-accuracy.png", "scores-sequence_accuracy.png"]
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| variant | seeds | sequence accuracy (%) |   min |   max | s/run |" in text
    assert "| mask    |     2 |          50.00 ± 0.00 | 50.00 | 50.00 |   2.0 |" in text
    table = pd.read_csv(tmp_path / "report" / "table.csv").set_index("task")
    assert table.loc["addition", "sequence_accuracy_mean"] == 0.5
    assert table["accuracy_mean"].isna().tolist() == [False, True, True]


def test_a_corrupt_record_is_named_and_nothing_is_written(folder: Path) -> None:
    path = sorted(folder.glob("*.json"))[0]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RecordError, match=re.escape(f"{path}: expected a run record")):
        write_report(folder)
    assert not (folder / "report").exists()


def test_corrupt_or_foreign_patterns_are_named(folder: Path) -> None:
    (path,) = folder.glob("*.patterns.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordError, match=re.escape(f"{path}: expected safetensors")):
        write_report(folder)
    write_tensors(path, {"weight": torch.ones(3)})
    with pytest.raises(RecordError, match=re.escape(f"{path}: expected attention_start and attention_end")):
        write_report(folder)


def test_an_empty_or_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=re.escape(f"{tmp_path}: expected run records")):
        write_report(tmp_path)
    with pytest.raises(RecordError, match="no such folder"):
        write_report(tmp_path / "gone")


def test_a_report_that_cannot_be_written_is_named(folder: Path) -> None:
    (folder / "report").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot write: .*report'"):
        write_report(folder)


@pytest.mark.parametrize("missing", ["matplotlib", "pandas"])
def test_a_missing_extra_says_how_to_get_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "maskprior.analysis.report.find_spec", lambda name: None if name == missing else find(name)
    )
    with pytest.raises(
        ModuleNotFoundError, match=rf"a report needs {missing}: pip install 'maskprior\[report\]'"
    ):
        write_report(folder)


def test_the_summary_needs_neither_pandas_nor_matplotlib() -> None:
    code = (
        "import sys; import maskprior.analysis.report;"
        "print(sorted({'pandas', 'matplotlib'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def printed(records: dict[Path, RunRecord]) -> list[str]:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    print_summary(records, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_summary_fits_into_eighty_columns(reported: Path) -> None:
    lines = printed(read_records(reported))
    assert max(map(len, lines)) <= 80
    assert [line.strip() for line in lines if "cpu" in line] == ["2parity (cpu)", "cyclic3 (cpu)"]
    rows = [line.split() for line in lines if line.split()[:1] in (["vanilla"], ["mask"])]
    assert rows[:2] == [
        ["vanilla", "2", "75.00", "75.00", "0.00", "1.050", "4.000", "2.0"],
        ["mask", "2", "100.00", "100.00", "100.00", "0.0001000", "0.0002000", "2.0"],
    ]


def test_long_names_are_folded_in_the_summary_not_cut(make_record: MakeRecord) -> None:
    variant = "mask-" + "-".join(f"part{index}" for index in range(20))
    metrics = {"accuracy": 1.0, "accuracy_unseen": 1.0, "loss": 1e-4, "loss_unseen": 1e-4}
    lines = printed({Path("a"): make_record(variant=variant, metrics=metrics)})
    assert "".join(line.split()[0] for line in lines[5:] if line.strip()).startswith(variant)
