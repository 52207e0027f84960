"""Files that a killed process never leaves half-written."""

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from maskprior.experiments.files import (
    RecordError,
    prepare_folder,
    read_tensors,
    write_atomically,
    write_tensors,
)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")

# Forks in an interpreter of its own, which has no threads; each child writes until killed.
KILLED_AT_ANY_MOMENT = """
import os, signal, sys, time
from pathlib import Path
from maskprior.experiments.files import write_atomically
path, pauses = Path(sys.argv[1]), [float(pause) for pause in sys.argv[2:]]
versions = [letter.encode() * 1_000_000 + b"\\n" for letter in "ab"]
write_atomically(path, versions[0])
for pause in pauses:
    child = os.fork()
    if child == 0:
        while True:
            for version in versions:
                write_atomically(path, version)
    time.sleep(pause)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert path.read_bytes() in versions, f"half-written: {path.stat().st_size} bytes"
    print("whole", flush=True)
"""

KILLED_AT = """
import os, pathlib, signal, sys
from maskprior.experiments.files import write_atomically
def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
{patch}
write_atomically(pathlib.Path(sys.argv[1]), b"new\\n")
"""


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_fork
def test_killed_at_any_moment_a_file_is_whole(tmp_path: Path) -> None:
    pauses = [random.Random(0).uniform(0.001, 0.03) for _ in range(31)]
    done = run_python(KILLED_AT_ANY_MOMENT, tmp_path / "run.json", *pauses)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["whole"] * 31
    assert [path.name for path in tmp_path.glob("*.json")] == ["run.json"]


@needs_fork
@pytest.mark.parametrize("patch", ["os.fsync = die", "pathlib.Path.replace = die"])
def test_killed_before_the_rename_the_old_file_stays(tmp_path: Path, patch: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old\n")
    assert run_python(KILLED_AT.format(patch=patch), path).returncode == -9
    assert path.read_bytes() == b"old\n"


def test_write_replaces_makes_folders_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.txt"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode  # readable as any other file


def test_a_full_disk_keeps_the_old_file_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"cannot write: No space left on device: '.*/run\.json'"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_ctrl_c_keeps_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, b"old")

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "act",
    [prepare_folder, lambda folder: write_atomically(folder / "run.json", b"")],
    ids=["prepare", "write"],
)
def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path, act: Callable[[Path], None]) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(OSError, match=r"cannot write: .*taken"):
        act(tmp_path / "taken")


def test_prepare_makes_the_folder_and_leaves_it_empty(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_prepare_names_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: int = 0o666, exist_ok: bool = True) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "touch", refuse)  # root may write everywhere, so permissions can't be used
    with pytest.raises(PermissionError, match=rf"cannot write: Permission denied: '{tmp_path}'"):
        prepare_folder(tmp_path)


def test_tensors_round_trip_tied_strided_and_of_any_type(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(3, 5, 7))
    tensors = {
        "weight": weight,
        "tied": weight,
        "transposed": weight.transpose(0, 2),
        "slice": weight[1:, ::2],
        "half": torch.randn(2).bfloat16(),
        "steps": torch.arange(11),
        "empty": torch.zeros(0, 3),
    }
    write_tensors(tmp_path / "weights.safetensors", tensors)
    again = read_tensors(tmp_path / "weights.safetensors")
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name], tensor)
        assert not again[name].requires_grad


def test_a_corrupt_tensor_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_tensors(path, {"weight": torch.randn(3, 5)})
    data = path.read_bytes()
    for corrupt in (b"", data[:4], data[:20], data[:-1], data + b"x", b"\xff" * len(data)):
        path.write_bytes(corrupt)
        with pytest.raises(
            RecordError, match=r"weights\.safetensors: expected safetensors, got a truncated or"
        ):
            read_tensors(path)


def test_a_missing_tensor_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors"):
        read_tensors(tmp_path / "gone.safetensors")
