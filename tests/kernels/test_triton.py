"""The Triton backend in Triton's interpreter, which must be chosen before Triton is first imported."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CONTRACT = Path(__file__).with_name("test_backends.py")
ORACLE = "test_matches_the_oracle"


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="this is the inner run")
@pytest.mark.parametrize("part", [ORACLE, f"not {ORACLE}"])  # for two workers
def test_the_contract_holds_in_the_interpreter(part: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(CONTRACT),
        "-k",
        part,
    ]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:]
    assert " passed" in run.stdout.splitlines()[-1]
