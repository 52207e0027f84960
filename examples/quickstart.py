"""A mask prior in your own model: one module, one argument.

    python examples/quickstart.py         (seconds, CPU)

Tokens of one sequence are two interleaved streams; each should be read by its own kind. The structure says
so, the prior starts there, and training may still change it.
"""

import torch
from torch import Tensor, nn

from maskprior import MaskPrior, functional, structures
from maskprior.experiments.optimizer import parameter_groups


class SelfAttention(nn.Module):
    """Your own attention, with the prior's bias added to the scores."""

    def __init__(self, width: int, heads: int, structure: Tensor) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.prior = MaskPrior.from_structure(structure)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, width]`` → the same shape."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.attention(query, key, value, bias=self.prior())
        return attended.transpose(1, 2).reshape(batch, tokens, width)


def main() -> None:
    """Show the structure, the pattern that the prior starts with, and that it learns."""
    structure = structures.groups(6, [[0, 2, 4], [1, 3, 5]])
    layer = SelfAttention(width=8, heads=2, structure=structure)
    print(structures.draw(structure))
    print(layer.prior)
    print("share of attention inside the structure:", share(layer.prior.pattern(), structure))

    x = torch.randn(32, 6, 8, generator=torch.Generator().manual_seed(0))
    # Mask logits are never decayed: decay would erase the prior.
    groups = parameter_groups(layer, learning_rate=1e-2, weight_decay=0.1)
    optimizer = torch.optim.AdamW(groups)
    for _ in range(100):
        optimizer.zero_grad()
        (layer(x) - x.roll(2, dims=1)).square().mean().backward()
        optimizer.step()
    print("the same after 100 steps:               ", share(layer.prior.pattern(), structure))


def share(pattern: Tensor, structure: Tensor) -> str:
    """Mean attention on pairs that should interact, in percent."""
    return f"{float((pattern.detach() * structure).sum(-1).mean()):.2%}"


if __name__ == "__main__":
    main()
