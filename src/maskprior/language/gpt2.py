"""Hugging Face's GPT-2, built from its configuration, as a model that priors can be put into."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from maskprior.functional import combine_bias
from maskprior.integrations.attachment import Attachment, put_in
from maskprior.integrations.bank import BANK_NAME, Plan, PriorBank
from maskprior.integrations.fitting import check_fit
from maskprior.integrations.lengths import Lengths
from maskprior.integrations.selection import select
from maskprior.mask_prior import MaskPrior
from maskprior.priors.toeplitz import ToeplitzPrior

LENGTHS = Lengths("relative")


@dataclass(frozen=True)
class Gpt2Config:
    """Shape of a :class:`Gpt2Model`.

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
        return Gpt2Model(self, generator)


class Gpt2Model(nn.Module):
    """``GPT2LMHeadModel`` with what priors ask of a model. Beyond N, positions and M go on as they ended.

    Args:
        config: shape.
        generator: the only source of randomness of the initial weights, which are the library's own.
    """

    def __init__(self, config: Gpt2Config, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        # transformers draws from the global generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
            self.gpt2 = _library_model(config)
        if config.positions == "none":
            with torch.no_grad():
                self._body().wpe.weight.zero_()
            self._body().wpe.weight.requires_grad_(False)

    def _body(self) -> Any:
        """The blocks and embeddings, whose parts are not typed."""
        return self.gpt2.transformer

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[batch, n, vocab]`` of tokens ``[batch, n]``."""
        logits: Tensor = self.run(tokens, 0, use_cache=False).logits
        return logits

    def run(self, tokens: Tensor, start: int, **cache: Any) -> Any:
        """The library's output for tokens from position ``start`` on; positions beyond N are the last one.

        Args:
            tokens: ``[batch, n]``.
            start: position of the first.
            cache: ``use_cache`` and the cache as the library takes them.
        """
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        positions = positions.clamp(max=self.config.length - 1)[None]
        # A dictionary: the library's own signature is that of the keywords above and more.
        return self.gpt2(input_ids=tokens, position_ids=positions, **cache)

    def decoder(self, longest: int) -> "Gpt2Decoder":
        """A decoder with an empty cache; it takes any number of tokens."""
        return Gpt2Decoder(self)

    def set_priors(self, priors: Sequence[MaskPrior | None]) -> None:
        """Give each layer its prior (None: no prior), full or Toeplitz, by what ``attach`` does.

        Raises:
            ValueError: the number of priors is not the depth, or a prior's shape does not fit.
        """
        if len(priors) != self.config.depth:
            raise ValueError(f"expected {self.config.depth} priors, one a layer, got {len(priors)}")
        if hasattr(self.gpt2, BANK_NAME):
            Attachment.of(self.gpt2).detach()
        chosen = [(layer, prior) for layer, prior in enumerate(priors) if prior is not None]
        if not chosen:
            return
        found = select(self.gpt2, [layer for layer, _ in chosen])
        check_fit(self.gpt2, found, [prior().detach() for _, prior in chosen], None, LENGTHS)
        unique = list(dict.fromkeys(prior for _, prior in chosen))
        places = tuple(unique.index(prior) for _, prior in chosen)
        put_in(self.gpt2, PriorBank(unique, Plan(tuple(each.name for each in found), places, None, LENGTHS)))

    def layer_priors(self) -> list[MaskPrior | None]:
        """The prior of each layer."""
        if not hasattr(self.gpt2, BANK_NAME):
            return [None] * self.config.depth
        attachment = Attachment.of(self.gpt2)
        names = [f"transformer.h.{layer}.attn" for layer in range(self.config.depth)]
        return [attachment.prior_of(name) if name in attachment.layers else None for name in names]

    def mask_logits(self) -> Tensor | None:
        """M of every layer, ``[depth, 1 or heads, N, N]``; None unless every layer has a prior."""
        priors = [prior for prior in self.layer_priors() if prior is not None]
        if len(priors) != self.config.depth:
            return None
        square = [p.square_logits() if isinstance(p, ToeplitzPrior) else p.mask_logits for p in priors]
        return torch.stack([each.view(-1, *each.shape[-2:]) for each in square])

    def allowed(self, length: int) -> Tensor | None:
        """The causal triangle."""
        device = next(self.parameters()).device
        return torch.ones(length, length, dtype=torch.bool, device=device).tril()

    @torch.no_grad()
    def attention_patterns(self, tokens: Tensor) -> Tensor:
        """Attention averaged over the batch, ``[depth, heads, n, n]``; rows sum to 1."""
        was_training, inputs = self.training, []
        hooks = [
            block.attn.register_forward_pre_hook(
                lambda module, args, kwargs: inputs.append(args[0] if args else kwargs["hidden_states"]),
                with_kwargs=True,
            )
            for block in self._body().h
        ]
        try:
            self.eval()
            self(tokens)
        finally:
            self.train(was_training)
            for hook in hooks:
                hook.remove()
        layers = zip(self._body().h, inputs, self.layer_priors(), strict=True)
        return torch.stack([self._pattern(block.attn, x, prior) for block, x, prior in layers])

    def _pattern(self, attention: Any, x: Tensor, prior: MaskPrior | None) -> Tensor:
        query, key, _ = attention.c_attn(x).split(self.config.width, dim=-1)
        query, key = (part.unflatten(-1, (self.config.heads, -1)).transpose(1, 2) for part in (query, key))
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        n = x.shape[1]
        bias = None if prior is None else LENGTHS.fit(prior(), n, n)
        term = combine_bias(bias, self.allowed(n))
        pattern: Tensor = (scores if term is None else scores + term).softmax(-1).mean(0)
        return pattern


class Gpt2Decoder:
    """Feeds a model piece by piece and keeps the library's key and value cache.

    Args:
        model: in evaluation mode.
    """

    def __init__(self, model: Gpt2Model) -> None:
        self._model, self._past, self.seen = model, None, 0
        # What the library calls keys and values that it keeps: another name from its version 5 on.
        names = inspect.signature(model.gpt2.forward).parameters
        self._cache = "cache" if "cache" in names else "past_key_values"

    @torch.no_grad()
    def feed(self, tokens: Tensor) -> Tensor:
        """Logits ``[batch, new, vocab]`` of new tokens ``[batch, new]``."""
        output = self._model.run(tokens, self.seen, **{"use_cache": True, self._cache: self._past})
        self._past, self.seen = output[self._cache], self.seen + tokens.shape[1]
        logits: Tensor = output.logits
        return logits


def _library_model(config: Gpt2Config) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel  # here, as recipes only need the configuration

    shape = GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.length,
        n_embd=config.width,
        n_layer=config.depth,
        n_head=config.heads,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout,
        resid_pdrop=config.dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(shape)
