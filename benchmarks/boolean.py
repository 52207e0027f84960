"""Training throughput at the reference architecture of the Boolean tasks, against plain eager PyTorch.

    python -m benchmarks.boolean [--threads 1] [--json results/benchmarks/boolean.json]

Both models have the same parameters, compute the same function with a mask prior in every layer (checked
before timing) and take the same steps with the ``paper`` preset's settings; a step is forward, backward and
Adam. They are timed in turn, step by step, and compared by medians. Unit: samples per second, float32, CPU.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor, nn

from maskprior.experiments.config import TrainingConfig
from maskprior.experiments.files import write_atomically
from maskprior.experiments.optimizer import make_optimizer
from maskprior.experiments.presets import find_recipe, fit_model
from maskprior.experiments.provenance import provenance
from maskprior.experiments.train import backward_in_chunks
from maskprior.models import Transformer
from maskprior.priors import mask_
from maskprior.tasks.gotu import two_parity


class PlainLayer(nn.Module):
    """One layer as the equations stand: softmax(Q Kᵀ/√d + log σ(M)) V, then the MLP, pre-norm."""

    def __init__(self, width: int, heads: int, head_width: int, mlp_width: int, tokens: int) -> None:
        super().__init__()
        inner = heads * head_width
        self.heads, self.head_width = heads, head_width
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, inner) for _ in range(3))
        self.out = nn.Linear(inner, width)
        self.up, self.down = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)
        self.mask_logits = nn.Parameter(torch.zeros(tokens, tokens))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, width]`` → the same shape."""
        batch, tokens, _ = x.shape
        h = self.attention_norm(x)
        query, key, value = (
            projection(h).view(batch, tokens, self.heads, self.head_width).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_width)
        weights = torch.softmax(scores + torch.log(torch.sigmoid(self.mask_logits)), dim=-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, tokens, -1))
        mixed: Tensor = x + self.down(nn.functional.gelu(self.up(self.mlp_norm(x))))
        return mixed


class Plain(nn.Module):
    """The whole model in eager PyTorch, without anything clever."""

    def __init__(self, like: Transformer) -> None:
        super().__init__()
        c = like.config
        self.token = nn.Parameter(torch.zeros(c.vocab_size, c.width))
        self.position = nn.Parameter(torch.zeros(c.attended_length, c.width))
        self.readout = nn.Parameter(torch.zeros(1, c.width))
        self.layers = nn.ModuleList(
            PlainLayer(c.width, c.heads, c.head_width, c.mlp_width, c.attended_length) for _ in range(c.depth)
        )
        self.norm, self.head = nn.LayerNorm(c.width), nn.Linear(c.width, c.outputs)
        self.load_state_dict(plain_state(like))

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs ``[batch, outputs]``."""
        x = torch.cat([self.readout.expand(len(tokens), 1, -1), self.token[tokens]], dim=1) + self.position
        for layer in self.layers:
            x = layer(x)
        outputs: Tensor = self.head(self.norm(x))[:, 0]
        return outputs


def plain_state(model: Transformer) -> dict[str, Tensor]:
    """The parameters of the library's model under the plain one's names."""
    state = {}
    for name, value in model.state_dict().items():
        if name.startswith("priors."):
            state[f"layers.{name.split('.')[1]}.mask_logits"] = value
        elif ".attention.qkv." in name:
            prefix, kind = name.replace("blocks", "layers").split(".attention.qkv.")
            for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                state[f"{prefix}.{part}.{kind}"] = piece
        else:
            for old, new in (
                ("blocks", "layers"),
                ("attention.out", "out"),
                ("mlp.0", "up"),
                ("mlp.2", "down"),
            ):
                name = name.replace(old, new)
            state[name] = value
    return state


def plain_step(model: nn.Module, tokens: Tensor, targets: Tensor, rate: float) -> Callable[[], None]:
    """One training step as it is usually written."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(tokens), targets).backward()
        optimizer.step()

    return step


def library_step(
    model: nn.Module, tokens: Tensor, targets: Tensor, config: TrainingConfig
) -> Callable[[], None]:
    """One step of the library's training loop."""
    optimizer = make_optimizer(model, config)

    def loss(inputs: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(inputs), wanted)

    def step() -> None:
        backward_in_chunks(loss, tokens, targets, config.cpu_chunk, torch.Tensor.backward)
        optimizer.step()
        optimizer.zero_grad()

    return step


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        threads: torch threads.
        batch: samples a step.
        steps: timed steps of each model.
        json: also write the result here.
    """

    threads: int = 1
    batch: int = 256
    steps: int = 30
    json: Path | None = None


def measure(options: Options) -> dict[str, float]:
    """Median seconds of a step of both, interleaved, after three of warm-up."""
    torch.set_num_threads(options.threads)
    recipe, task = find_recipe("paper", "2parity"), two_parity()
    generator = torch.Generator().manual_seed(0)
    ours = Transformer(fit_model(recipe.model, task.interface()), generator)
    mask_(ours, task.structure(), generator)
    plain = Plain(ours)
    tokens = ours.sample_inputs(options.batch, generator)
    targets = torch.randn(options.batch, 1, generator=generator)
    torch.testing.assert_close(ours(tokens), plain(tokens), rtol=1e-4, atol=1e-4)
    steps = {
        "maskprior": library_step(ours, tokens, targets, recipe.training),
        "plain": plain_step(plain, tokens, targets, recipe.training.learning_rate),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(options.steps + 3):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if repeat >= 3:
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "maskprior_samples_per_second": options.batch / medians["maskprior"],
        "plain_samples_per_second": options.batch / medians["plain"],
        "ratio": medians["plain"] / medians["maskprior"],
    }


def main(options: Options) -> None:
    """Measure, print, write."""
    result = measure(options)
    for name, value in result.items():
        print(f"{name:<30} {value:10.2f}")
    if options.json is not None:
        report = {
            **result,
            "options": {
                key: str(value) if isinstance(value, Path) else value
                for key, value in asdict(options).items()
            },
            **provenance(),
        }
        write_atomically(options.json, (json.dumps(report, indent=2) + "\n").encode())


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
