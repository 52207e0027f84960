"""Peak memory beyond attention without a mask: a few bias-sized buffers, whatever the batch."""

import sys

import pytest

from benchmarks.attention import METHODS, WITHOUT_MASK, Options, make_problem, peak_mib
from maskprior.kernels import native

HEADS, LENGTH = 1, 1024
LIMIT = 4 * HEADS * LENGTH**2 * 4 / 2**20


def extra_peak_mib(method: str, batch: int) -> float:
    problem = make_problem((batch, HEADS, LENGTH, 16), Options())
    for name in (WITHOUT_MASK, method):  # what is allocated once and kept
        problem.backward(problem.forward(METHODS[name]), METHODS[name])
    peaks = [peak_mib(problem, METHODS[name], "cpu") for name in (method, WITHOUT_MASK)]
    return peaks[0] - peaks[1]


# More threads than twice the heads cost native an N x N each: the page says so.
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize(
    ("backend", "threads"), [("aten", 1), ("aten", 8), ("native", 1), ("native", 2)], indirect=["threads"]
)
def test_extra_memory_is_four_biases_at_most(backend: str, batch: int) -> None:
    if backend == "native" and native.LIBRARY.functions is None:
        pytest.skip(native.LIBRARY.reason)
    assert extra_peak_mib(backend, batch) <= LIMIT


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_equation_would_exceed_it() -> None:
    assert extra_peak_mib("equation", 32) > 2 * LIMIT
