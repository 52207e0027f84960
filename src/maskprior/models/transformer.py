"""One pre-norm Transformer, encoder or decoder, whose attention takes an optional prior per layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from maskprior.functional import combine_bias
from maskprior.mask_prior import MaskPrior
from maskprior.models.attention import Attention, linear


@dataclass(frozen=True)
class TransformerConfig:
    """Shape and initial scales of a :class:`Transformer`.

    Attributes:
        vocab_size: number of distinct input tokens.
        length: number of input tokens (the read-out token not counted).
        outputs: size of one output vector.
        readout: "cls" puts a learned token first and returns its output ``[batch, outputs]``; "tokens"
            returns one output per token ``[batch, length, outputs]``.
        causal: decoder: a token sees itself and earlier tokens only.
        width, depth, heads, head_width, mlp_width: the usual sizes.
        token_std: standard deviation of the initial token embeddings.
        position_std: the same for the learned absolute position embeddings; 0 starts them at zero.
        positions: "learned", or "none": then the prior alone tells positions apart, and what is learned at
            one holds at all that the structure treats alike.
        block_of_layer: which block's weights serve each layer, such as (0, 1, 1, 1), numbered as they come
            (Dehghani et al. 2019, "Universal Transformers"); priors stay one a layer. Empty: one block each.
        query_key_gain: factor on the initial query and key weights.
        dropout: probability, on the residual branches.
    """

    vocab_size: int
    length: int
    outputs: int
    readout: Literal["cls", "tokens"] = "cls"
    causal: bool = False
    width: int = 64
    depth: int = 4
    heads: int = 4
    head_width: int = 16
    mlp_width: int = 64
    token_std: float = 1.0
    position_std: float = 0.02
    query_key_gain: float = 1.0
    dropout: float = 0.0
    positions: Literal["learned", "none"] = "learned"
    block_of_layer: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        for name in ("vocab_size", "length", "outputs", "width", "depth", "heads", "head_width", "mlp_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} ≥ 1, got {getattr(self, name)}")
        for name in ("token_std", "position_std", "query_key_gain"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"expected a finite {name} ≥ 0, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"expected dropout in [0, 1), got {self.dropout}")
        if self.readout not in ("cls", "tokens"):
            raise ValueError(f"expected readout 'cls' or 'tokens', got {self.readout!r}")
        if self.positions not in ("learned", "none"):
            raise ValueError(f"expected positions 'learned' or 'none', got {self.positions!r}")
        if self.block_of_layer and len(self.block_of_layer) != self.depth:
            raise ValueError(f"expected block_of_layer for {self.depth} layers, got {self.block_of_layer}")
        if list(dict.fromkeys(self.block_of_layer)) != list(range(len(set(self.block_of_layer)))):
            raise ValueError(f"expected blocks numbered 0, 1, … as they come, got {self.block_of_layer}")
        if self.causal and self.readout == "cls":
            raise ValueError("expected readout='tokens' with causal=True: a first token sees no other")

    @property
    def attended_length(self) -> int:
        """Number of tokens N that attention sees: the side of the structure."""
        return self.length + (self.readout == "cls")

    def build(self, generator: torch.Generator) -> "Transformer":
        """The initial model; the generator is the only source of randomness."""
        return Transformer(self, generator)


INTEGERS = (torch.int32, torch.int64)


class Block(nn.Module):
    """x ← x + Attention(LN x), then x ← x + MLP(LN x)."""

    def __init__(self, config: TransformerConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(
            config.width,
            config.heads,
            config.head_width,
            query_key_gain=config.query_key_gain,
            generator=generator,
        )
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            linear(config.width, config.mlp_width, generator),
            nn.GELU(),
            linear(config.mlp_width, config.width, generator),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None,
        allowed: Tensor | None,
        rows: slice | None = None,
        projected: Tensor | None = None,
    ) -> Tensor:
        """One layer; ``rows`` keeps these positions only, ``projected`` is qkv(LN x) if it is known."""
        kept = x if rows is None else x[:, rows]
        normed = x if projected is not None else self.attention_norm(x)
        kept = kept + self.dropout(self.attention(normed, bias, allowed, rows=rows, projected=projected))
        mixed: Tensor = kept + self.dropout(self.mlp(self.mlp_norm(kept)))
        return mixed


class Transformer(nn.Module):
    """Pre-norm Transformer with learned positions; its attention takes log σ(M) of an optional prior.

    Args:
        config: shape and initial scales.
        generator: the only source of randomness of the initial weights (default: seed 0).

    Source of the equation: Ma et al. 2026, section 3.
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.config = config
        self.token = embedding(config.vocab_size, config.width, config.token_std, generator)
        position = embedding(config.attended_length, config.width, config.position_std, generator)
        self.position = position if config.positions == "learned" else None
        self.readout = (
            embedding(1, config.width, config.token_std, generator) if config.readout == "cls" else None
        )
        blocks = len(set(config.block_of_layer)) or config.depth
        self.blocks = nn.ModuleList(Block(config, generator) for _ in range(blocks))
        self.norm = nn.LayerNorm(config.width)
        self.head = linear(config.width, config.outputs, generator)
        self.priors = nn.ModuleList()
        self.prior_of_layer: tuple[int | None, ...] = (None,) * config.depth

    @property
    def layer_blocks(self) -> list[Block]:
        """The block of each layer."""
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [blocks[index] for index in self.config.block_of_layer or range(len(blocks))]

    def set_priors(self, priors: Sequence[MaskPrior | None]) -> None:
        """Give each layer its prior (None: no prior). One object named twice is shared, M and bias both.

        Raises:
            ValueError: the number of priors is not the depth, or a prior's shape does not fit.
        """
        config = self.config
        if len(priors) != config.depth:
            raise ValueError(f"expected {config.depth} priors, one a layer, got {len(priors)}")
        side = config.attended_length
        fits = {(side, side), (1, side, side), (config.heads, side, side)}
        for prior in priors:
            if prior is not None and tuple(prior.mask_logits.shape) not in fits:
                raise ValueError(
                    f"expected mask_logits of shape {' or '.join(map(str, sorted(fits, key=len)))}, "
                    f"got {tuple(prior.mask_logits.shape)}"
                )
        unique = list(dict.fromkeys(prior for prior in priors if prior is not None))
        self.priors = nn.ModuleList(unique)
        self.prior_of_layer = tuple(None if prior is None else unique.index(prior) for prior in priors)

    def mask_logits(self) -> Tensor | None:
        """M of every layer, ``[depth, 1 or heads, N, N]``; None unless every layer has a prior."""
        if None in self.prior_of_layer:
            return None
        logits = [prior.get_parameter("mask_logits") for prior in self.priors]
        return torch.stack(
            [logits[i].view(-1, *logits[i].shape[-2:]) for i in self.prior_of_layer if i is not None]
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Token plus position embeddings, the read-out token first: ``[batch, attended_length, width]``."""
        x = nn.functional.embedding(tokens, self.token)
        if self.readout is not None:
            x = torch.cat([self.readout.expand(len(x), 1, -1), x], dim=1)
        return self.place(x, 0)

    def place(self, x: Tensor, start: int) -> Tensor:
        """Tokens ``[batch, length, width]`` plus the embeddings of positions ``start, start + 1, …``."""
        return x if self.position is None else x + self.position[start : start + x.shape[1]]

    def _look_up(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """``embed(tokens)``, and qkv(LN x) of the first layer where it is cheap.

        The first layer's input takes one of ``vocab_size`` values at each position. Where these are few, each
        is embedded and projected once and then looked up. The projection is None where that is no less work
        (a large vocabulary, a small batch), or the only layer is the last.
        """
        block, (batch, length), kinds = self.layer_blocks[0], tokens.shape, self.config.vocab_size
        extra = int(self.readout is not None)
        rows = extra + length * kinds
        position = self.position
        if position is None or 2 * rows > batch * (extra + length) or self.config.depth == 1:
            return self.embed(tokens), None
        table = (self.token + position[extra : extra + length, None]).flatten(0, 1)
        index = tokens + kinds * torch.arange(length, device=tokens.device) + extra
        if self.readout is not None:
            table = torch.cat([self.readout + position[:1], table])
            index = nn.functional.pad(index, (1, 0))
        projected = block.attention.qkv(block.attention_norm(table))
        return nn.functional.embedding(index, table), nn.functional.embedding(index, projected)

    def layer_biases(self, length: int) -> list[Tensor | None]:
        """The bias of each layer, each prior's log σ(M) computed once; causality is kept apart."""
        computed = [prior(self.token.dtype)[..., :length, :length] for prior in self.priors]
        return [None if index is None else computed[index] for index in self.prior_of_layer]

    def allowed(self, length: int) -> Tensor | None:
        """Hard constraint: the causal triangle of a decoder, None for an encoder."""
        if not self.config.causal:
            return None
        return torch.ones(length, length, dtype=torch.bool, device=self.token.device).tril()

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs for integer tokens ``[batch, length]``.

        Returns:
            ``[batch, outputs]`` with the "cls" read-out, else ``[batch, length, outputs]``.

        Raises:
            ValueError: tokens are not ``[batch, length]`` with 1 ≤ length ≤ ``config.length``.
        """
        self._check(tokens)
        x, projected = self._look_up(tokens)
        biases, allowed = self.layer_biases(x.shape[1]), self.allowed(x.shape[1])
        for depth, (block, bias) in enumerate(zip(self.layer_blocks, biases, strict=True), start=1):
            # Nothing reads the other positions of the last layer when the read-out token alone is used.
            last = self.readout is not None and depth == len(biases)
            x = block(x, bias, allowed, slice(0, 1) if last else None, projected)
            projected = None
        outputs: Tensor = self.head(self.norm(x))
        return outputs if self.readout is None else outputs[:, 0]

    def layer_inputs(self, tokens: Tensor) -> Iterator[tuple[Attention, Tensor]]:
        """Each attention with its normalised input ``[batch, N, width]``, layer by layer.

        Lazy on purpose: a layer changed between two steps changes the inputs of the layers after it.
        """
        self._check(tokens)
        x = self.embed(tokens)
        biases, allowed = self.layer_biases(x.shape[1]), self.allowed(x.shape[1])
        for block, bias in zip(self.layer_blocks, biases, strict=True):
            yield block.attention, block.attention_norm(x)
            x = block(x, bias, allowed)

    @torch.no_grad()
    def attention_patterns(self, tokens: Tensor) -> Tensor:
        """Attention averaged over the batch, ``[depth, heads, N, N]``; rows sum to 1."""
        self._check(tokens)
        length = tokens.shape[1] + (self.readout is not None)
        biases, allowed = self.layer_biases(length), self.allowed(length)
        patterns = []
        for (attention, x), bias in zip(self.layer_inputs(tokens), biases, strict=True):
            term = combine_bias(bias, allowed)
            scores = attention.scores(x)
            patterns.append((scores if term is None else scores + term).softmax(-1).mean(0))
        return torch.stack(patterns)

    def sample_inputs(self, count: int, generator: torch.Generator) -> Tensor:
        """Uniformly random tokens ``[count, length]``: the inputs on which priors are fitted and shown."""
        shape = (count, self.config.length)
        tokens = torch.randint(self.config.vocab_size, shape, generator=generator, device=generator.device)
        return tokens.to(self.token.device)

    def _check(self, tokens: Tensor) -> None:
        self._check_shape(tokens)
        # On an accelerator the embedding's own check must do: reading the values would stall it.
        if tokens.device.type == "cpu" and tokens.numel() > 0 and not torch.compiler.is_compiling():
            low, high = (int(end) for end in tokens.aminmax())
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(
                    f"expected tokens from 0 to {self.config.vocab_size - 1}, got values from {low} to {high}"
                )

    def _check_shape(self, tokens: Tensor) -> None:
        if (
            tokens.dim() != 2
            or not 1 <= tokens.shape[1] <= self.config.length
            or tokens.dtype not in INTEGERS
        ):
            raise ValueError(
                f"expected integer tokens [batch, length ≤ {self.config.length}], got "
                f"{tokens.dtype} {tuple(tokens.shape)}"
            )


def embedding(count: int, width: int, std: float, generator: torch.Generator) -> nn.Parameter:
    """Embedding table ``[count, width]`` drawn from N(0, std²)."""
    return nn.Parameter(std * torch.randn(count, width, generator=generator, device=generator.device))
