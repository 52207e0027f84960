"""Logs: what is written is what is read; nothing is kept; corrupt lines are named."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskprior.analysis.persistence_log import (
    LARGEST_FRAME,
    Header,
    LogWriter,
    Probe,
    decode_frame,
    encode_frame,
    log_path,
    read_log,
)
from maskprior.experiments.files import RecordError

HEADER = Header(torch.eye(5)[None], [0.8, 0.8, 0.8], [0.8], ["a", "b", "c", "d", "e"])


def probe(step: int) -> Probe:
    return Probe(
        step,
        measures={"attention_variation": [0.25, 1 / 3, math.nan], "gradient_mask": [1e-30]},
        notes={"loss_train": 2.5, "accuracy": math.inf},
        frames={"attention": torch.eye(5).repeat(3, 1, 1)},
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "new" / "x.jsonl", HEADER)
    for step in (0, 7):
        writer.write(probe(step))
    log = read_log(tmp_path / "new" / "x.jsonl")
    assert torch.equal(log.header.structure, HEADER.structure)
    assert log.header.attention_limit == [0.8, 0.8, 0.8]
    assert log.header.prior_limit == [0.8]
    assert log.header.tokens == ["a", "b", "c", "d", "e"]
    assert log.steps == [0.0, 7.0]
    last = log.probes[-1]
    assert last.measures["attention_variation"][:2] == [0.25, 0.33333]
    assert math.isnan(last.measures["attention_variation"][2])
    assert last.measures["gradient_mask"] == [1e-30]
    assert last.notes["loss_train"] == 2.5
    assert math.isnan(last.notes["accuracy"])
    assert torch.equal(last.frames["attention"], torch.eye(5).repeat(3, 1, 1))
    assert log.curve("gradient_mask") == [[1e-30], [1e-30]]
    assert log.curve("gradient_query") == []


def test_each_probe_is_in_the_file_at_once_and_a_new_writer_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    writer = LogWriter(path, HEADER)
    for step in range(4):
        writer.write(probe(step))
        assert len(read_log(path).probes) == step + 1
    LogWriter(path, HEADER)
    assert read_log(path).probes == []


def test_a_log_lies_beside_its_record() -> None:
    assert log_path(Path("runs/a-b.c-seed0-12.json")) == Path("runs/a-b.c-seed0-12.persistence.jsonl")


@given(value=st.floats(0, 1), rows=st.integers(1, 7), columns=st.integers(1, 5))
def test_frames_keep_values_to_a_part_of_their_root(value: float, rows: int, columns: int) -> None:
    frame = torch.full((2, rows, columns), value)
    assert torch.allclose(decode_frame(encode_frame(frame)).sqrt(), frame.sqrt(), atol=0.5 / 255 + 1e-6)


def test_large_frames_are_averaged_down() -> None:
    coded = encode_frame(torch.eye(128)[None])
    assert coded["shape"] == [1, LARGEST_FRAME, LARGEST_FRAME]
    assert torch.allclose(decode_frame(coded)[0], torch.eye(LARGEST_FRAME) / 4, atol=0.005)
    assert len(json.dumps(coded)) < 1500


def test_a_frame_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[layers, query, key\], got \[5, 5\]"):
        encode_frame(torch.eye(5))


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (1, lambda text: text.replace("log 1", "log 9")),
        (2, lambda text: text[:40]),
        (2, lambda text: text.replace('"step"', '"stage"')),
        (3, lambda text: text.replace('"measures":{', '"measures":[{', 1)),
        (3, lambda text: text.replace('"shape":[3', '"shape":[4')),
        (3, lambda text: text.replace('"data":"', '"data":"!')),
        (3, lambda text: "3\n"),
    ],
)
def test_corrupt_logs_are_named_with_their_line(line: int, change: object, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    writer = LogWriter(path, HEADER)
    writer.write(probe(0))
    writer.write(probe(1))
    lines = path.read_text().splitlines()
    assert callable(change)
    lines[line - 1] = change(lines[line - 1])
    path.write_text("\n".join(lines))
    with pytest.raises(RecordError, match=f"x.jsonl, line {line}: expected a persistence log"):
        read_log(path)


def test_an_empty_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    with pytest.raises(RecordError, match="empty file"):
        read_log(tmp_path / "x.jsonl")
