"""The suite has teeth: with the bias's sign flipped, the tests of the core fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE_TESTS = ("test_functional.py", "test_mask_prior.py")
SIGN_FLIPS = [
    ("functional.py", "F.logsigmoid(", "-F.logsigmoid("),
    ("kernels/reference.py", "scores + problem.bias", "scores - problem.bias"),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package, its settings and the tests of the core, away from the working tree."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    for name in ("pyproject.toml", "tests/conftest.py", *(f"tests/{name}" for name in CORE_TESTS)):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run_core_tests(copy: Path) -> subprocess.CompletedProcess[str]:
    """Run pytest with the copied package ahead of the installed one."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *CORE_TESTS],
        cwd=copy / "tests",
        env={**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_intact_copy_passes(copy: Path) -> None:
    done = run_core_tests(copy)
    assert done.returncode == pytest.ExitCode.OK, done.stdout


@pytest.mark.parametrize(("file", "original", "flipped"), SIGN_FLIPS)
def test_flipped_bias_fails(copy: Path, file: str, original: str, flipped: str) -> None:
    module = copy / "src" / "maskprior" / file
    source = module.read_text()
    assert source.count(original) == 1, f"the place to mutate has moved from {file}"
    module.write_text(source.replace(original, flipped))
    done = run_core_tests(copy)
    # TESTS_FAILED and nothing else: an error at import or collection would prove nothing.
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
