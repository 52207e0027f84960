"""Peak memory of training ViT-Tiny with and without the mask prior, on the CPU.

    python -m benchmarks.vision_memory [--json results/benchmarks/vision-memory.json]

Each variant trains for a few steps (AdamW, random images) in a process of its own, whose peak resident memory
is compared with what was resident before the model was built. float32, one thread; half a minute.
"""

import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import nn

from maskprior import attach, structures
from maskprior.experiments.files import prepare_folder, write_atomically
from maskprior.experiments.provenance import provenance
from maskprior.parameter_groups import parameter_groups

SIDE, PATCH, BATCH, STEPS = 32, 4, 32, 2


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        json: file of the record; none by default.
        only: "plain" or "attached" measures that variant here and prints its bytes; "" starts both.
    """

    json: Path | None = None
    only: str = ""


def resident() -> int:
    """Bytes in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def train(*, attached: bool) -> int:
    """Peak bytes over those before the model was built."""
    import timm

    torch.set_num_threads(1)
    before = resident()
    model = timm.create_model("vit_tiny_patch16_224", img_size=SIDE, patch_size=PATCH, num_classes=10)
    if attached:
        grid = structures.grid_neighbourhood(SIDE // PATCH, SIDE // PATCH, radius=1)
        attach(model, structures.with_readout(grid, read_by="all", self_read=True))
    optimizer = torch.optim.AdamW(parameter_groups(model, learning_rate=1e-3, weight_decay=0.05))
    images, labels = torch.randn(BATCH, 3, SIDE, SIDE), torch.arange(BATCH) % 10
    for _ in range(STEPS):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def measure(variant: str) -> int:
    """The variant's peak in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.vision_memory", "--only", variant]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def report() -> dict[str, Any]:
    """Bytes of both variants and their ratio."""
    peaks = {variant: measure(variant) for variant in ("plain", "attached")}
    return {
        "command": "python -m benchmarks.vision_memory --json results/benchmarks/vision-memory.json",
        "host": f"vit-tiny {SIDE}x{SIDE}/{PATCH}, batch {BATCH}, AdamW",
        "peak_bytes": peaks,
        "ratio": peaks["attached"] / peaks["plain"],
        **provenance(),
    }


def main(options: Options) -> None:
    if options.only:
        print(train(attached=options.only == "attached"))
        return
    found = report()
    print(json.dumps(found, indent=2))
    if options.json is not None:
        prepare_folder(options.json.parent)
        write_atomically(options.json, (json.dumps(found, indent=2) + "\n").encode())


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
