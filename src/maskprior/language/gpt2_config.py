"""Shape of Hugging Face's GPT-2; the library itself is imported only where a model is built."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from maskprior.language.gpt2 import Gpt2Model


@dataclass(frozen=True)
class Gpt2Config:
    """Shape of a :class:`~maskprior.language.gpt2.Gpt2Model`.

    Attributes:
        vocab_size: number of tokens.
        length: trained number of tokens N.
        width, depth, heads: the usual sizes.
        dropout: of embeddings, attention and residual branches.
        positions: "learned", or "none": then they are zero and stay so.
        family: "gpt2", by which a record tells this model from others.
    """

    vocab_size: int
    length: int
    width: int = 768
    depth: int = 12
    heads: int = 12
    dropout: float = 0.1
    positions: Literal["learned", "none"] = "learned"
    family: Literal["gpt2"] = "gpt2"

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        for name in ("vocab_size", "length", "width", "depth", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} ≥ 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"expected heads that divide width={self.width}, got {self.heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"expected dropout in [0, 1), got {self.dropout}")
        if self.positions not in ("learned", "none"):
            raise ValueError(f"expected positions 'learned' or 'none', got {self.positions!r}")

    @property
    def attended_length(self) -> int:
        """Number of tokens N that attention sees."""
        return self.length

    def build(self, generator: torch.Generator) -> "Gpt2Model":
        """The initial model; the generator is the only source of randomness."""
        from maskprior.language.gpt2 import Gpt2Model

        return Gpt2Model(self, generator)
