"""What an attached prior costs in a whole training step: forward, loss, backward and AdamW, on the CPU.

    python -m benchmarks.overhead [--steps 20] [--without-native] [--json results/benchmarks/overhead.json]
    python -m benchmarks.overhead_docs         (writes the records' table into docs/attach.md)

Each host is built twice from one state; one copy gets a learnable M in every layer. Both take the same steps
in turn (the order changes every step), and the ratio is that of the medians; beside it, the central half of
the ratios of neighbouring steps. float32, random weights and data. About three minutes with one thread.
"""

import copy
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path

import timm
import torch
import tyro
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import maskprior
from maskprior import structures
from maskprior.experiments.files import prepare_folder, write_atomically
from maskprior.experiments.provenance import provenance
from maskprior.functional import logits_to_bias, structure_to_logits
from maskprior.kernels import native, select_backend

Loss = Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class Host:
    """A model, its loss on a fixed batch, and the structure it gets."""

    model: nn.Module
    loss: Loss
    structure: Tensor


def vit(side: int, patch: int, batch: int) -> Host:
    """timm's ViT-Tiny with a 3 × 3 neighbourhood and a class token that reads and is read by all."""
    model = timm.create_model("vit_tiny_patch16_224", img_size=side, patch_size=patch, num_classes=10)
    images, labels = torch.randn(batch, 3, side, side), torch.randint(10, (batch,))
    grid = structures.grid_neighbourhood(side // patch, side // patch, radius=1)
    return Host(
        model,
        lambda host: nn.functional.cross_entropy(host(images), labels),
        structures.with_readout(grid, read_by="all", self_read=True),
    )


def gpt2(length: int, batch: int) -> Host:
    """GPT-2 of the small width (768, 12 heads), 4 layers, a small vocabulary, with a decay in distance."""
    config = GPT2Config(
        n_layer=4, vocab_size=1000, n_positions=length, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    ids = torch.randint(1000, (batch, length))
    return Host(
        GPT2LMHeadModel(config),
        lambda host: host(ids, labels=ids).loss,
        structures.relative_distance(length, half_life=32.0, causal=True),
    )


HOSTS: dict[str, Callable[[], Host]] = {
    "vit-tiny 32x32/4, 65 tokens, batch 32": lambda: vit(32, 4, 32),
    "vit-tiny 224x224/16, 197 tokens, batch 8": lambda: vit(224, 16, 8),
    "gpt2 width 768, 4 layers, 256 tokens, batch 4": lambda: gpt2(256, 4),
}


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        threads: torch threads.
        steps: timed steps of each copy, at least 2.
        only: measure hosts whose name contains this.
        without_native: leave the compiled kernel out, as where no C++ compiler was found.
        json: also write the result here.
    """

    threads: int = 1
    steps: int = 20
    only: str = ""
    without_native: bool = False
    json: Path | None = None


def command(options: Options) -> str:
    """The command line that gives these options."""
    words = ["python -m benchmarks.overhead"]
    for each in fields(options):
        value = getattr(options, each.name)
        if value != each.default:
            flag = f"--{each.name.replace('_', '-')}"
            words.append(flag if value is True else f"{flag} {value}")
    return " ".join(words)


def training_step(model: nn.Module, loss: Loss, groups: object) -> Callable[[], None]:
    """One step of AdamW on the fixed batch."""
    optimizer = torch.optim.AdamW(groups, lr=1e-4, weight_decay=0.0)  # type: ignore[arg-type]

    def step() -> None:
        loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(host: Host, steps: int) -> dict[str, float]:
    """Seconds of a step of both copies, interleaved, after three of warm-up."""
    plain, attached = host.model.train(), copy.deepcopy(host.model).train()
    attachment = maskprior.attach(attached, host.structure)
    contenders = {
        "plain": training_step(plain, host.loss, list(plain.parameters())),
        "attached": training_step(attached, host.loss, attachment.param_groups(1e-4)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(steps + 3):
        for name in contenders if repeat % 2 else reversed(contenders):
            started = time.perf_counter()
            contenders[name]()
            if repeat >= 3:
                seconds[name].append(time.perf_counter() - started)
    return summarise(seconds["plain"], seconds["attached"])


def summarise(plain: Sequence[float], attached: Sequence[float]) -> dict[str, float]:
    """Medians, their ratio, and the quartiles of the ratios of neighbouring steps."""
    low, _, high = statistics.quantiles(
        [mine / theirs for mine, theirs in zip(attached, plain, strict=True)], n=4, method="inclusive"
    )
    medians = statistics.median(plain), statistics.median(attached)
    return {
        "plain_seconds": medians[0],
        "attached_seconds": medians[1],
        "ratio": medians[1] / medians[0],
        "ratio_of_pairs_25_percent": low,
        "ratio_of_pairs_75_percent": high,
    }


def backend_of(structure: Tensor) -> str:
    """The backend that computes such a call on this machine."""
    query = torch.randn(1, 1, structure.shape[-1], 64, requires_grad=True)
    bias = logits_to_bias(structure_to_logits(structure))
    return select_backend(query, query, query, bias=bias).name


def chosen(only: str) -> Mapping[str, Callable[[], Host]]:
    """The hosts to measure.

    Raises:
        ValueError: none has such a name.
    """
    found = {name: build for name, build in HOSTS.items() if only in name}
    if not found:
        raise ValueError(f"expected part of the name of a host in {list(HOSTS)}, got {only!r}")
    return found


def main(options: Options) -> None:
    """Measure, print, write."""
    torch.set_num_threads(options.threads)
    if options.without_native:
        native.LIBRARY = native.Library(None, 0, "was left out by the benchmark")
    results = {}
    for name, build in chosen(options.only).items():
        torch.manual_seed(0)
        host = build()
        results[name] = {**measure(host, options.steps), "backend": backend_of(host.structure)}
        print(name, json.dumps(results[name]))
    if options.json is not None:
        libraries = {package: metadata.version(package) for package in ("timm", "transformers")}
        report = {"command": command(options), "hosts": results, "libraries": libraries, **provenance()}
        prepare_folder(options.json.parent)
        write_atomically(options.json, (json.dumps(report, indent=2) + "\n").encode())


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
