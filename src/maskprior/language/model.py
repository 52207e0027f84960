"""The package's Transformer as a language model that runs at any length."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from typing_extensions import Self

from maskprior.integrations.lengths import Lengths
from maskprior.kernels.log_sigmoid import log_sigmoid
from maskprior.mask_prior import MaskPrior
from maskprior.models.decoding import CachedDecoder
from maskprior.models.transformer import INTEGERS, Transformer, TransformerConfig
from maskprior.priors.toeplitz import ToeplitzPrior


@dataclass(frozen=True)
class DecoderConfig(TransformerConfig):
    """A :class:`~maskprior.models.TransformerConfig` of a decoder; ``length`` is the trained one."""

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        super().__post_init__()
        if not self.causal or self.readout != "tokens":
            raise ValueError(
                f"expected causal=True and readout='tokens', got {self.causal} and {self.readout!r}"
            )

    def build(self, generator: torch.Generator) -> "LanguageModel":
        """The initial model; the generator is the only source of randomness."""
        return LanguageModel(self, generator)


class LanguageModel(Transformer):
    """A decoder that takes any number of tokens, n. Beyond the trained length N:

    - learned positions: positions from N on have the embedding of position N − 1;
    - a full M: each diagonal goes on with its mean (``Lengths("relative")``);
    - a :class:`ToeplitzPrior`: its own rule.
    """

    def set_priors(self, priors: Sequence[MaskPrior | None]) -> None:
        """Give each layer its prior (None: no prior), full or Toeplitz.

        Raises:
            ValueError: the number of priors is not the depth, or a prior's shape does not fit.
        """
        toeplitz = [prior for prior in priors if isinstance(prior, ToeplitzPrior)]
        if not toeplitz:
            super().set_priors(priors)
            return
        config = self.config
        fits = {(1, config.length), (config.heads, config.length)}
        wrong = [prior for prior in toeplitz if tuple(prior.mask_logits.shape) not in fits]
        if len(toeplitz) != config.depth or wrong:
            raise ValueError(
                f"expected {config.depth} Toeplitz priors with mask_logits of shape {sorted(fits)}, got "
                f"{[tuple(prior.mask_logits.shape) for prior in toeplitz]}"
            )
        unique = list(dict.fromkeys(toeplitz))
        self.priors = nn.ModuleList(unique)
        self.prior_of_layer = tuple(unique.index(prior) for prior in toeplitz)

    def layer_priors(self) -> list[MaskPrior | None]:
        """The prior of each layer."""
        found = [prior for prior in self.priors if isinstance(prior, MaskPrior)]
        return [None if index is None else found[index] for index in self.prior_of_layer]

    def mask_logits(self) -> Tensor | None:
        """M of every layer, ``[depth, 1 or heads, N, N]``; None unless every layer has a prior."""
        priors = self.layer_priors()
        if not any(isinstance(prior, ToeplitzPrior) for prior in priors):
            return super().mask_logits()
        return torch.stack([prior.square_logits() for prior in priors if isinstance(prior, ToeplitzPrior)])

    def layer_biases(self, length: int) -> list[Tensor | None]:
        """The bias of each layer at ``length`` tokens, each prior's computed once."""
        computed = {prior: self._bias(prior, length) for prior in self.layer_priors() if prior is not None}
        return [None if prior is None else computed[prior] for prior in self.layer_priors()]

    def _bias(self, prior: MaskPrior, length: int) -> Tensor:
        if isinstance(prior, ToeplitzPrior):
            return prior.square(length, self.token.dtype)
        if length <= prior.mask_logits.shape[-1]:  # log σ of what is needed alone
            return log_sigmoid(prior.mask_logits[..., :length, :length]).to(self.token.dtype)
        return Lengths("relative").fit(prior(self.token.dtype), length, length)

    def place(self, x: Tensor, start: int) -> Tensor:
        """Tokens with the embeddings of positions ``start, start + 1, …`` added; the last one goes on."""
        if self.position is None or start + x.shape[1] <= len(self.position):
            return super().place(x, start)
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        return x + self.position[positions.clamp(max=len(self.position) - 1)]

    def decoder(self, longest: int) -> CachedDecoder:
        """A decoder with an empty cache, for at most so many tokens."""
        return CachedDecoder(self.stretched(longest))

    def stretched(self, length: int) -> Self:
        """The same weights as a model of another length, for those who ask ``config`` how long it is."""
        model = self.__class__.__new__(self.__class__)
        nn.Module.__init__(model)
        model.__dict__.update(self.__dict__)
        model.config = replace(self.config, length=length)
        return model

    def _look_up(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        # A language's vocabulary is never small enough for the table of all tokens at all positions.
        return self.embed(tokens), None

    def _check_shape(self, tokens: Tensor) -> None:
        if tokens.dim() != 2 or tokens.shape[1] < 1 or tokens.dtype not in INTEGERS:
            raise ValueError(
                f"expected integer tokens [batch, length], got {tokens.dtype} {tuple(tokens.shape)}"
            )
