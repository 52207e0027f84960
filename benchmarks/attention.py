"""Attention with a learnable bias against SDPA without and with a mask, the equation, and its compiled form.

    python -m benchmarks.attention --threads 1 --json results/attention/cpu-1-thread.json
    python -m benchmarks.attention --shape 8,8,512,64 --methods native sdpa_mask
    python -m benchmarks.attention --sweep --plot results/attention/cpu-1-thread.svg
    python -m benchmarks.attention --device cuda --dtype bfloat16 --json results/attention/cuda.json

Query, key and value are contiguous [B, H, N, d] or, with ``--layout interleaved``, lie as a model's
projections leave them ([B, N, H, d] seen as [B, H, N, d]). M [H, N, N] is specific to each head, learns, and
log σ(M) is part of every method's time. Each method is checked against the equation, then all are timed in
turn (forward, then backward), in another order each round, as what ran before leaves caches and threads as it
had them; they are compared by medians over the rounds. The allocator keeps what is freed, for all methods
alike, or page faults would be measured. Extra memory is the peak above the start, less that of
SDPA without a mask. ``--clock cpu`` counts processor time of one thread, for shared machines.
"""

import ctypes
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from maskprior.experiments.exit_code import exit_code
from maskprior.experiments.files import write_atomically
from maskprior.experiments.provenance import provenance
from maskprior.functional import attention

Method = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
GRID = (
    *("256,4,16,16", "256,6,16,64", "64,3,65,64", "32,3,197,64", "8,8,512,64", "8,2,1024,64", "2,8,1024,64"),
    "1,8,4096,64",
)
CUDA_GRID = (*GRID, "1,8,8192,64")
SWEEP = tuple(f"{max(1, 4096 // n)},4,{n},64" for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096))
WITHOUT_MASK = "sdpa_no_mask"


def no_mask(query: Tensor, key: Tensor, value: Tensor, logits: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value)


def sdpa_mask(query: Tensor, key: Tensor, value: Tensor, logits: Tensor) -> Tensor:
    bias = F.logsigmoid(logits).to(query.dtype)[None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def equation(query: Tensor, key: Tensor, value: Tensor, logits: Tensor) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1]) + F.logsigmoid(logits)
    return scores.softmax(-1).to(value.dtype) @ value


def ours(backend: str) -> Method:
    return lambda query, key, value, logits: attention(query, key, value, logits, backend=backend)


METHODS: dict[str, Method] = {
    WITHOUT_MASK: no_mask,
    "sdpa_mask": sdpa_mask,
    "equation": equation,
    "compiled": torch.compile(equation, dynamic=False),
    **{name: ours(name) for name in ("aten", "native", "triton", "flex")},
}
ON = {
    "cpu": (WITHOUT_MASK, "sdpa_mask", "equation", "compiled", "aten", "native"),
    "cuda": (WITHOUT_MASK, "sdpa_mask", "equation", "compiled", "flex", "triton"),
}


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        shape: problems B,H,N,d; the published grid if none is given.
        sweep: lengths 16 to 4096 at 4096 tokens and 4 heads instead.
        methods: names to compare with SDPA without a mask; all of the device if none is given.
        threads: of torch.
        dtype: of query, key and value.
        layout: of query, key and value in memory.
        device: where to run.
        rounds: how often each method is timed at least.
        seconds: for how long at least each problem is timed.
        clock: wall time, or processor time of the one thread.
        json: file for the rows.
        plot: file for the picture of total time over N.
    """

    shape: tuple[str, ...] = ()
    sweep: bool = False
    methods: tuple[str, ...] = ()
    threads: int = 1
    dtype: Literal["float32", "bfloat16"] = "float32"
    layout: Literal["contiguous", "interleaved"] = "contiguous"
    device: Literal["cpu", "cuda"] = "cpu"
    rounds: int = 9
    seconds: float = 5.0
    clock: Literal["wall", "cpu"] = "wall"
    json: Path | None = None
    plot: Path | None = None


@dataclass(frozen=True)
class Row:
    """One method on one problem; times are medians in ms, memory is in MiB beyond SDPA without a mask."""

    shape: tuple[int, int, int, int]
    threads: int
    dtype: str
    layout: str
    method: str
    forward_ms: float
    total_ms: float
    ratio_to_no_mask: float
    extra_peak_mib: float
    clock: str
    product_gflops: float
    hardware: dict[str, object]


@dataclass(frozen=True)
class Problem:
    """Leaves and the gradient of the output."""

    leaves: tuple[Tensor, Tensor, Tensor, Tensor]
    upstream: Tensor

    def forward(self, method: Method) -> Tensor:
        """Output of the method."""
        return method(*self.leaves)

    def backward(self, output: Tensor, method: Method) -> tuple[Tensor, ...]:
        """Gradients of query, key, value and, where the method has one, M."""
        leaves = self.leaves[: 3 if method is no_mask else 4]
        return torch.autograd.grad(output, leaves, self.upstream)


def make_problem(shape: tuple[int, int, int, int], options: Options) -> Problem:
    batch, heads, length, width = shape
    rng = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        tensor = torch.randn(batch, length, heads, width, generator=rng)
        tensor = tensor.to(options.device, getattr(torch, options.dtype)).transpose(1, 2)
        return tensor.contiguous() if options.layout == "contiguous" else tensor

    logits = 4 * torch.randn(heads, length, length, generator=rng).to(options.device)
    query, key, value = (draw().requires_grad_() for _ in range(3))
    return Problem((query, key, value, logits.requires_grad_()), draw())


def check(problem: Problem, methods: dict[str, Method]) -> None:
    """Every method with a mask computes the equation, outputs and the gradient of M."""
    tolerance = 2e-4 if problem.upstream.dtype == torch.float32 else 0.1
    right = problem.forward(equation)
    right_grad = problem.backward(right, equation)[3]
    for name, method in methods.items():
        if method is no_mask:
            continue
        output = problem.forward(method)
        grad = problem.backward(output, method)[3]
        for what, mine, exact in (("output", output, right), ("gradient of M", grad, right_grad)):
            error = ((mine - exact).abs().max() / exact.abs().max()).item()
            if not error < tolerance:
                raise ArithmeticError(f"{name}: the {what} is off by {error:.1e} of its largest element")


def clock(options: Options) -> float:
    if options.device == "cuda":
        torch.cuda.synchronize()
    return time.thread_time() if options.clock == "cpu" else time.perf_counter()


def time_methods(
    problem: Problem, methods: dict[str, Method], options: Options
) -> dict[str, tuple[float, float]]:
    """Median forward and total time in ms of each method, timed in turn."""
    forward: dict[str, list[float]] = {name: [] for name in methods}
    total: dict[str, list[float]] = {name: [] for name in methods}
    order, rng, begin, done = list(methods.items()), random.Random(0), time.perf_counter(), 0
    while done < options.rounds or time.perf_counter() - begin < options.seconds:
        done += 1
        rng.shuffle(order)
        for name, method in order:
            start = clock(options)
            output = problem.forward(method)
            middle = clock(options)
            problem.backward(output, method)
            forward[name].append(1e3 * (middle - start))
            total[name].append(1e3 * (clock(options) - start))
            del output
    return {name: (statistics.median(forward[name]), statistics.median(total[name])) for name in methods}


def peak_mib(problem: Problem, method: Method, device: str) -> float:
    """Peak memory of one forward and backward above what was held before."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        problem.backward(problem.forward(method), method)
        return (torch.cuda.max_memory_allocated() - held) / 2**20
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak of the resident set
    before = resident_mib("VmRSS")
    problem.backward(problem.forward(method), method)
    return resident_mib("VmHWM") - before


def keep_freed_memory() -> None:
    """Let glibc take all memory from its heap and never return it: fresh pages would be timed otherwise."""
    no_maps, no_trim = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD of malloc.h
    ctypes.CDLL(None).mallopt(no_maps, 0)
    ctypes.CDLL(None).mallopt(no_trim, -1)


def resident_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def product_gflops(options: Options) -> float:
    """Best rate of a matrix product of 2048³ (CUDA: 8192³): the floor of every attention."""
    size = 8192 if options.device == "cuda" else 2048
    left = torch.randn(size, size, device=options.device, dtype=getattr(torch, options.dtype))
    seconds = list[float]()
    for _ in range(5):
        start = clock(options)
        left @ left
        seconds.append(clock(options) - start)
    return 2e-9 * size**3 / min(seconds)


def measure(shape: tuple[int, int, int, int], options: Options, rate: float) -> list[Row]:
    names = options.methods or ON[options.device]
    methods = {name: METHODS[name] for name in (WITHOUT_MASK, *(n for n in names if n != WITHOUT_MASK))}
    problem = make_problem(shape, options)
    check(problem, methods)
    times = time_methods(problem, methods, options)
    peaks = {name: peak_mib(problem, method, options.device) for name, method in methods.items()}
    base, base_peak = times[WITHOUT_MASK][1], peaks[WITHOUT_MASK]
    hardware = provenance(options.device)["hardware"]
    rows = []
    for name, (forward, total) in times.items():
        timing = round(forward, 4), round(total, 4), round(total / base, 4)
        memory = round(peaks[name] - base_peak, 2)
        about = options.clock, round(rate, 1), hardware
        rows.append(Row(shape, options.threads, options.dtype, options.layout, name, *timing, memory, *about))
    return rows


def print_rows(rows: list[Row]) -> None:
    for row in rows:
        print(
            f"{row.shape!s:<20} {row.threads} thread(s) {row.dtype:<9} {row.method:<13} "
            f"forward {row.forward_ms:9.2f} ms  total {row.total_ms:9.2f} ms  "
            f"ratio {row.ratio_to_no_mask:5.2f}  extra {row.extra_peak_mib:8.1f} MiB",
            flush=True,
        )


def draw_plot(rows: list[Row], file: Path) -> None:
    """Total time over N, log-log, with the time that seven products take at the rate of a matrix product."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for method in dict.fromkeys(row.method for row in rows):
        points = sorted((row.shape[2], row.total_ms) for row in rows if row.method == method)
        thickness = 2.5 if method in ("native", "triton") else 1.2
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=method, linewidth=thickness)
    floor = sorted(
        {(row.shape[2], 14e-6 * math.prod(row.shape) * row.shape[2] / row.product_gflops) for row in rows}
    )
    axes.plot(
        *zip(*floor, strict=True), "k--", linewidth=1, label="seven products at the matrix-product rate"
    )
    axes.set(xscale="log", yscale="log", xlabel="length N", ylabel="forward + backward (ms)")
    batch, heads, length, width = rows[0].shape
    axes.set_title(
        f"{batch * length} tokens, {heads} heads of {width}, {rows[0].dtype}, {rows[0].threads} thread(s)"
    )
    axes.legend(fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


def read_shape(text: str) -> tuple[int, int, int, int]:
    """B, H, N, d.

    Raises:
        ValueError: the text is not four positive numbers.
    """
    parts = text.split(",")
    if len(parts) != 4 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"expected a shape B,H,N,d of four positive numbers, got {text!r}")
    batch, heads, length, width = map(int, parts)
    return batch, heads, length, width


def check_file(file: Path, shapes: list[tuple[int, int, int, int]]) -> None:
    """A file of rows may be written again, but not lose shapes.

    Raises:
        ValueError: the file has shapes that are not about to be measured.
    """
    if file.exists():
        lost = {tuple(row["shape"]) for row in json.loads(file.read_text())} - set(shapes)
        if lost:
            raise ValueError(f"{file} has rows of {sorted(lost)}, which would be lost; name another file")


def main(options: Options) -> None:
    """Measure, print, and write the rows.

    Raises:
        ValueError: an unknown method, a bad shape, or a file of rows that would lose some.
    """
    unknown = [name for name in options.methods if name not in METHODS]
    if unknown:
        raise ValueError(f"expected methods of {tuple(METHODS)}, got {unknown}")
    grid = CUDA_GRID if options.device == "cuda" else GRID
    shapes = [read_shape(text) for text in (SWEEP if options.sweep else options.shape or grid)]
    if options.json is not None:
        check_file(options.json, shapes)
    torch.set_num_threads(options.threads)
    if options.device == "cpu":
        keep_freed_memory()
    rate, rows = product_gflops(options), list[Row]()
    for shape in shapes:
        found = measure(shape, options, rate)
        print_rows(found)
        rows += found
        if options.json is not None:  # after every problem, so that a long run can be stopped
            text = json.dumps([asdict(row) for row in rows], indent=1) + "\n"
            write_atomically(options.json, text.encode())
    if options.plot is not None:
        draw_plot(rows, options.plot)


if __name__ == "__main__":
    chosen = tyro.cli(Options, description=__doc__)
    sys.exit(exit_code("benchmarks.attention", lambda: main(chosen), "the same command starts over"))
