"""Does the prior of your own model survive your own training loop? Four lines and a page say.

    python examples/persistence_own_loop.py [FOLDER]        (seconds, CPU)

The lines marked with ← are all that is added to an ordinary loop. They record, while training goes, how far
the attention and the prior have moved, and leave FOLDER/report/report.html, which opens offline.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from maskprior import MaskPrior, functional, structures
from maskprior.analysis.html import write_html  # ←
from maskprior.experiments.probes import persistence_probe  # ←

TOKENS, WIDTH, HEADS = 8, 24, 3


class SelfAttention(nn.Module):
    """Your own attention, with the prior's bias added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.prior = MaskPrior.from_structure(structures.window(TOKENS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, width]`` → the same shape."""
        qkv = self.qkv(x).view(len(x), TOKENS, 3, HEADS, WIDTH // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return functional.attention(query, key, value, bias=self.prior()).transpose(1, 2).flatten(2)


def main(folder: Path, steps: int = 300) -> Path:
    """Train on a running mean over three neighbours, which needs no more than the structure gives."""
    torch.manual_seed(0)
    model = nn.Sequential(SelfAttention(), nn.Linear(WIDTH, WIDTH), SelfAttention())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    x = torch.randn(256, TOKENS, WIDTH)
    target = (x.roll(1, dims=1) + x + x.roll(-1, dims=1)) / 3
    with persistence_probe(model, optimizer, x[:32], folder, every=25) as probe:  # ←
        for _ in range(steps):
            loss = (model(x) - target).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.note({"loss_train": loss.item()})  # ← if you want the loss on the page
    return write_html(folder)  # ←


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            page = main(Path(temporary))
            print(f"a page of {page.stat().st_size // 1000} kB; give a folder to keep it")
