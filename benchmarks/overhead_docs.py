"""The table of what an attached prior costs, written into docs/attach.md from the committed records.

python -m benchmarks.overhead_docs
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.blocks import fill_file

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "benchmarks"
NAMES = ("overhead.json", "overhead-without-native.json")
DOCS = ROOT / "docs" / "attach.md"
BLOCK = "overhead"

Record = Mapping[str, Any]


def block(records: Path = RECORDS) -> str:
    """Markdown: one row a host, two columns a record, and where the numbers come from."""
    found = [json.loads((records / name).read_text()) for name in NAMES]
    backends = [next(iter(record["hosts"].values()))["backend"] for record in found]
    header = "".join(f" `{name}`: ratio (central half of pairs) | seconds |" for name in backends)
    rows = [
        f"| {host} |{''.join(_cells(record['hosts'][host]) for record in found)}"
        for host in found[0]["hosts"]
    ]
    ruler = f"|---|{'---:|---:|' * len(found)}"
    return "\n".join([f"| host |{header}", ruler, *rows, "", *map(_origin, found)])


def _cells(host: Mapping[str, float]) -> str:
    low, high = host["ratio_of_pairs_25_percent"], host["ratio_of_pairs_75_percent"]
    seconds = f"{host['attached_seconds']:.3f} / {host['plain_seconds']:.3f}"
    return f" **{host['ratio']:.3f}** ({low:.3f}–{high:.3f}) | {seconds} |"


def _origin(record: Record) -> str:
    hardware, versions = record["hardware"], {**record["versions"], **record["libraries"]}
    packages = ", ".join(f"{name} {versions[name]}" for name in ("torch", "timm", "transformers"))
    changes = " with changes" if record["dirty"] else ""
    return (
        f"- `{record['command']}`: {hardware['cpu']}, {hardware['threads']} thread(s), {packages}, commit "
        f"`{record['commit'][:10]}`{changes}"
    )


if __name__ == "__main__":
    fill_file(DOCS, {BLOCK: block()})
