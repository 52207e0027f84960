"""Provenance: the commit of the code that ran, and when the tree counts as dirty."""

import json
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import torch

from maskprior.experiments.provenance import describe_hardware, provenance, source_state

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="asks git")


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a source file and a published result."""
    for name in ("src/package/module.py", "results/table/run.json", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "First")
    return tmp_path


@needs_git
@pytest.mark.parametrize(
    ("changed", "dirty"),
    [
        ([], False),
        (["results/table/run.json"], False),
        (["results/table/new.json", "src/package/new.py"], False),
        (["src/package/module.py"], True),
        (["README.md", "results/table/run.json"], True),
    ],
)
def test_only_tracked_files_outside_results_make_it_dirty(
    repository: Path, changed: list[str], dirty: bool
) -> None:
    for name in changed:
        (repository / name).write_text("new\n")
    state = source_state(repository / "src" / "package" / "module.py")
    assert state == (git(repository, "rev-parse", "HEAD"), dirty)


@needs_git
def test_staged_results_do_not_make_it_dirty_but_a_deleted_source_does(repository: Path) -> None:
    (repository / "results" / "table" / "new.json").write_text("new\n")
    git(repository, "add", ".")
    ask = source_state.__wrapped__  # without the cache
    assert ask(repository / "README.md")[1] is False
    (repository / "src" / "package" / "module.py").unlink()
    assert ask(repository / "README.md")[1] is True


@needs_git
def test_an_installed_copy_inside_a_repository_has_no_commit(repository: Path) -> None:
    copy = repository / ".venv" / "site-packages" / "module.py"
    copy.parent.mkdir(parents=True)
    copy.write_text("old\n")
    assert source_state(copy) == ("unknown", False)


def test_outside_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    (tmp_path / "module.py").touch()
    assert source_state(tmp_path / "module.py") == ("unknown", False)


@needs_git
def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    (tmp_path / "module.py").touch()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    assert source_state(tmp_path / "module.py") == ("unknown", False)


@needs_git
def test_without_git_there_is_no_commit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert source_state(repository / "README.md") == ("unknown", False)


@needs_git
def test_the_variables_of_a_git_hook_do_not_mislead(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert source_state(repository / "README.md") == (commit, False)


def test_provenance_is_complete_and_fits_into_json() -> None:
    found = provenance("cpu")
    assert found["versions"] == {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "numpy", "accelerate", "maskprior")},
    }
    assert found["commit"]
    assert isinstance(found["dirty"], bool)
    assert json.loads(json.dumps(found)) == found


def test_hardware_names_processor_threads_and_no_accelerator_on_the_cpu() -> None:
    hardware = describe_hardware(torch.device("cpu"))
    assert hardware["cpu"]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and "cpu family" in cpuinfo.read_text():
        assert re.search(r"\(family \d+ model \d+\)$", hardware["cpu"])
    assert hardware["cores"] >= 1
    assert hardware["threads"] == torch.get_num_threads()
    assert hardware["memory_gib"] is None or hardware["memory_gib"] > 0
    assert hardware["accelerator"] is None


def test_hardware_names_another_accelerator() -> None:
    assert describe_hardware(torch.device("mps"))["accelerator"] == "mps"
