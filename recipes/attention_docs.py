"""Tables of the attention benchmark, written into docs/attention.md and README.md from the committed rows.

python -m recipes.attention_docs
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maskprior.analysis.formatting import MISSING, TextTable, to_markdown
from recipes.blocks import fill_file

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "attention.md"
README = ROOT / "README.md"
RESULTS = ROOT / "results" / "attention"
FILES = {1: "cpu-1-thread.json", 2: "cpu-2-threads.json"}
OTHER = "other-"  # the same of another processor, measured before aten had its present blocks
METHODS = ("sdpa_mask", "equation", "compiled", "aten", "native")
# Share of the time of SDPA without a mask (forward + backward) that was aimed at, by B, H, N, d.
TARGETS = {
    "aten": {
        (256, 6, 16, 64): 0.55,
        (64, 3, 65, 64): 0.85,
        (32, 3, 197, 64): 1.10,
        (8, 8, 512, 64): 1.35,
        (8, 2, 1024, 64): 1.60,
        (2, 8, 1024, 64): 1.95,
    },
    "native": {
        (256, 6, 16, 64): 0.40,
        (64, 3, 65, 64): 0.60,
        (32, 3, 197, 64): 0.75,
        (8, 8, 512, 64): 0.95,
        (8, 2, 1024, 64): 1.10,
        (2, 8, 1024, 64): 1.30,
        (1, 8, 4096, 64): 1.15,
    },
}
Rows = Sequence[dict[str, Any]]


def read_rows(threads: int, results: Path = RESULTS, prefix: str = "") -> Rows:
    """The rows of a measurement."""
    rows: Rows = json.loads((results / f"{prefix}{FILES[threads]}").read_text())
    return rows


def read_processor(results: Path, prefix: str = "") -> dict[int, Rows]:
    """Number of threads → the rows of a processor."""
    return {threads: read_rows(threads, results, prefix) for threads in FILES}


def blocks(results: Path = RESULTS) -> dict[str, str]:
    """Block name → Markdown."""
    found, other = read_processor(results), read_processor(results, OTHER)
    return {
        "attention-hardware": hardware(found[1]),
        **{f"attention-time-{threads}": to_markdown(time_table(rows)) for threads, rows in found.items()},
        "attention-targets": to_markdown(target_table(found)),
        "attention-other": "\n\n".join((hardware(other[1]), to_markdown(other_table(other)))),
        "attention-memory": to_markdown(memory_table(found[1])),
    }


def readme_blocks(results: Path = RESULTS) -> dict[str, str]:
    """Block name → Markdown, of the README."""
    found, other = read_processor(results), read_processor(results, OTHER)
    shares = [row["ratio_to_no_mask"] for rows in other.values() for row in rows if row["method"] == "native"]
    elsewhere = f"On another processor `native` took {min(shares):.2f} – {max(shares):.2f}."
    return {"attention-main": f"{headline(found)}\n{hardware(found[1])} {elsewhere}"}


def headline(found: dict[int, Rows]) -> str:
    """Least and largest share over the shapes, by method and number of threads."""
    names = {
        "sdpa_mask": "PyTorch's attention, given the bias",
        "compiled": "the equation, compiled by torch.compile",
        "aten": "maskprior without a C++ compiler (`aten`)",
        "native": "maskprior (`native`)",
    }
    lines = []
    for method, words in names.items():
        shares = (
            [row["ratio_to_no_mask"] for row in rows if row["method"] == method] for rows in found.values()
        )
        lines.append((words, *(f"{min(values):.2f} – {max(values):.2f}" for values in shares)))
    header = ("attention", *map(threads_of, found))
    return to_markdown(TextTable(header, tuple(lines), labels=1))


def hardware(rows: Rows) -> str:
    """Where the rows were measured."""
    found, rate = rows[0]["hardware"], rows[0]["product_gflops"]
    return (
        f"Measured on {found['cpu']}; one thread multiplies float32 matrices of 2048² at {rate:.0f} GFLOP/s."
    )


def threads_of(count: int) -> str:
    """The number in words of a heading."""
    return f"{count} thread{'s' * (count > 1)}"


def by_shape(rows: Rows) -> dict[tuple[int, ...], dict[str, dict[str, Any]]]:
    """Shape → method → row."""
    found: dict[tuple[int, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row["shape"]), {})[row["method"]] = row
    return found


def time_table(rows: Rows) -> TextTable:
    """Forward + backward as a share of that without a mask."""
    lines = []
    for shape, found in by_shape(rows).items():
        base = f"{found['sdpa_no_mask']['total_ms']:.1f}"
        shares = (f"{found[name]['ratio_to_no_mask']:.2f}" if name in found else MISSING for name in METHODS)
        lines.append((str(shape), base, *shares))
    header = (
        "(B, H, N, d)",
        "SDPA without a mask (ms)",
        "SDPA with it",
        "equation",
        "compiled",
        "aten",
        "native",
    )
    return TextTable(header, tuple(lines), labels=1)


def target_table(found: dict[int, Rows]) -> TextTable:
    """What was aimed at, what was reached, and whether that is enough."""
    lines = []
    shapes = by_shape(found[1])
    for method, targets in TARGETS.items():
        for shape, target in targets.items():
            shares = [by_shape(rows)[shape][method]["ratio_to_no_mask"] for rows in found.values()]
            words = ("met" if share <= target else "missed" for share in shares)
            reached = (f"{share:.2f} {word}" for share, word in zip(shares, words, strict=True))
            floor = f"{floor_share(shapes[shape]['sdpa_no_mask']):.2f}"
            lines.append((method, str(shape), floor, f"≤ {target:.2f}", *reached))
    header = ("backend", "(B, H, N, d)", "floor", "target", *map(threads_of, found))
    return TextTable(header, tuple(lines), labels=2)


def other_table(found: dict[int, Rows]) -> TextTable:
    """Shares of the methods but `aten`, whose blocks were others."""
    methods = ("equation", "compiled", "native")
    lines = []
    for shape in by_shape(found[1]):
        shares = (by_shape(found[n])[shape][name]["ratio_to_no_mask"] for n in found for name in methods)
        lines.append((str(shape), *(f"{share:.2f}" for share in shares)))
    header = ("(B, H, N, d)", *(f"{name}, {threads_of(n)}" for n in found for name in methods))
    return TextTable(header, tuple(lines), labels=1)


def floor_share(row: dict[str, Any]) -> float:
    """Seven products at torch's matrix-product rate, as a share of the time without a mask."""
    batch, heads, length, width = row["shape"]
    products_ms: float = 14e-6 * batch * heads * length**2 * width / row["product_gflops"]
    return products_ms / float(row["total_ms"])


def memory_table(rows: Rows) -> TextTable:
    """Peak memory beyond SDPA without a mask, and the limit 4 · H · N² · 4 bytes."""
    lines = []
    for shape, found in by_shape(rows).items():
        limit = 16 * shape[1] * shape[2] ** 2 / 2**20
        peaks = (f"{found[name]['extra_peak_mib']:.1f}" if name in found else MISSING for name in METHODS)
        lines.append((str(shape), f"{limit:.1f}", *peaks))
    header = ("(B, H, N, d)", "4·H·N² floats (MiB)", "SDPA with it", "equation", "compiled", "aten", "native")
    return TextTable(header, tuple(lines), labels=1)


def main() -> None:
    """Rewrite the blocks."""
    fill_file(PAGE, blocks())
    fill_file(README, readme_blocks())


if __name__ == "__main__":
    main()
