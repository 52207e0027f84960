"""timm's Vision Transformer as a model that priors can be put into."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from timm.layers.attention import Attention
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from maskprior.functional import combine_bias
from maskprior.integrations.attachment import Attachment, put_in
from maskprior.integrations.bank import BANK_NAME, Plan, PriorBank
from maskprior.integrations.fitting import check_fit
from maskprior.integrations.lengths import Lengths
from maskprior.integrations.selection import select
from maskprior.mask_prior import MaskPrior
from maskprior.priors.mimetic import set_value_output
from maskprior.priors.positions import set_sinusoidal_positions
from maskprior.priors.vision_protocol import ProjectedAttention


@dataclass(frozen=True)
class VitConfig:
    """Shape of a :class:`VitModel`.

    Attributes:
        image_size: height and width of the images, in pixels.
        patch_size: side of a patch, in pixels.
        channels: of the images.
        classes: number of classes.
        width, depth, heads: the usual sizes.
        mlp_ratio: hidden width of the MLP over the width.
        class_token: a learned token is read out; without one, the mean over patches.
        register_tokens: learned tokens that are not read out.
        drop_path: probability of skipping a branch in the last layer, growing linearly from 0 in the first.
        positions: "learned" starts the position embeddings at N(0, 0.02²), as timm does; "sinusoidal" at
            sines and cosines. They are learned in both cases. "none" has no position embeddings:
            where a patch is, only M tells.
        value_output: "default" starts W_V and W_O as timm does; "mimetic" at W_O W_V = 0.4 Z − 0.4 I, the
            half of the mimetic initialisation that is not about who attends to whom. The same for all priors.
    """

    image_size: tuple[int, int]
    classes: int
    patch_size: int = 4
    channels: int = 3
    width: int = 192
    depth: int = 12
    heads: int = 3
    mlp_ratio: float = 4.0
    class_token: bool = True
    register_tokens: int = 0
    drop_path: float = 0.0
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    value_output: Literal["default", "mimetic"] = "default"

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        size = self.image_size
        if not isinstance(size, (tuple, list)) or [type(side) for side in size] != [int, int]:
            raise ValueError(f"expected image_size (height, width) in whole pixels, got {size!r}")
        for name in ("classes", "patch_size", "channels", "width", "depth", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} ≥ 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"expected heads that divide width={self.width}, got {self.heads}")
        if any(side < self.patch_size or side % self.patch_size for side in self.image_size):
            raise ValueError(
                f"expected sides that are multiples of patch_size={self.patch_size}, got {self.image_size}"
            )
        if not 1 <= self.mlp_ratio * self.width < float("inf"):
            raise ValueError(f"expected an mlp_ratio of one hidden unit or more, got {self.mlp_ratio}")
        if self.register_tokens < 0 or not 0 <= self.drop_path < 1:
            raise ValueError(
                f"expected register_tokens ≥ 0 and drop_path in [0, 1), got {self.register_tokens} and "
                f"{self.drop_path}"
            )
        for name, choices in (
            ("positions", ("learned", "sinusoidal", "none")),
            ("value_output", ("default", "mimetic")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"expected {name} in {choices}, got {getattr(self, name)!r}")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = self.image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def prefix_tokens(self) -> int:
        """Class and register tokens."""
        return int(self.class_token) + self.register_tokens

    @property
    def attended_length(self) -> int:
        """Number of tokens N that attention sees."""
        return self.prefix_tokens + self.grid[0] * self.grid[1]

    def build(self, generator: torch.Generator) -> "VitModel":
        """The initial model; the generator is the only source of randomness."""
        return VitModel(self, generator)


class VitModel(nn.Module):
    """timm's ``VisionTransformer`` with what priors ask of a model.

    Args:
        config: shape.
        generator: the only source of randomness of the initial weights, which are timm's own.
    """

    def __init__(self, config: VitConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        pool: Literal["token", "avg"] = "token" if config.class_token else "avg"
        # timm draws from the global generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
            self.vit = VisionTransformer(
                img_size=config.image_size,
                patch_size=config.patch_size,
                in_chans=config.channels,
                num_classes=config.classes,
                global_pool=pool,
                embed_dim=config.width,
                depth=config.depth,
                num_heads=config.heads,
                mlp_ratio=config.mlp_ratio,
                class_token=config.class_token,
                reg_tokens=config.register_tokens,
                drop_path_rate=config.drop_path,
            )
        if config.positions == "sinusoidal":
            set_sinusoidal_positions(self)
        if config.positions == "none":  # only now, so that all other weights are those of the other choices
            self.vit.pos_embed = None
        if config.value_output == "mimetic":
            for block in self._blocks():
                set_value_output(VitAttention(block.attn), 0.4, -0.4, generator)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.config.grid

    @property
    def prefix_tokens(self) -> int:
        """Class and register tokens, which come before the patches."""
        return self.config.prefix_tokens

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[batch, classes]`` of images ``[batch, channels, height, width]``.

        Raises:
            ValueError: images of another shape.
        """
        wanted = (self.config.channels, *self.config.image_size)
        if tuple(images.shape[1:]) != wanted:
            raise ValueError(
                f"expected images [batch, {', '.join(map(str, wanted))}], got {list(images.shape)}"
            )
        logits: Tensor = self.vit(images)
        return logits

    def set_priors(self, priors: Sequence[MaskPrior | None]) -> None:
        """Give each layer its prior (None: no prior). One object named twice is shared, M and bias both.

        Raises:
            ValueError: the number of priors is not the depth, or a prior's shape does not fit.
        """
        if len(priors) != self.config.depth:
            raise ValueError(f"expected {self.config.depth} priors, one a layer, got {len(priors)}")
        if hasattr(self.vit, BANK_NAME):
            Attachment.of(self.vit).detach()
        chosen = [(layer, prior) for layer, prior in enumerate(priors) if prior is not None]
        if not chosen:
            return
        found = select(self.vit, [layer for layer, _ in chosen])
        check_fit(self.vit, found, [prior.mask_logits for _, prior in chosen], None, Lengths())
        unique = list(dict.fromkeys(prior for _, prior in chosen))
        places = tuple(unique.index(prior) for _, prior in chosen)
        put_in(self.vit, PriorBank(unique, Plan(tuple(each.name for each in found), places, None, Lengths())))

    def priors(self) -> list[MaskPrior | None]:
        """The prior of each layer."""
        if not hasattr(self.vit, BANK_NAME):
            return [None] * self.config.depth
        attachment = Attachment.of(self.vit)
        names = [f"blocks.{layer}.attn" for layer in range(self.config.depth)]
        return [attachment.prior_of(name) if name in attachment.layers else None for name in names]

    def mask_logits(self) -> Tensor | None:
        """M of every layer, ``[depth, 1 or heads, N, N]``; None unless every layer has a prior."""
        logits = [prior.mask_logits for prior in self.priors() if prior is not None]
        if len(logits) != self.config.depth:
            return None
        return torch.stack([each.view(-1, *each.shape[-2:]) for each in logits])

    def allowed(self, length: int) -> Tensor | None:
        """No hard constraint."""
        return None

    def sample_inputs(self, count: int, generator: torch.Generator) -> Tensor:
        """Images of noise, ``[count, channels, height, width]``, of mean 0 and variance 1."""
        shape = (count, self.config.channels, *self.config.image_size)
        noise = torch.randn(shape, generator=generator, device=generator.device)
        return noise.to(next(self.parameters()))

    def layer_inputs(self, images: Tensor) -> Iterator[tuple["VitAttention", Tensor]]:
        """Each attention with its normalised input ``[batch, N, width]``, layer by layer.

        Lazy on purpose: a layer changed between two steps changes the inputs of the layers after it.
        """
        x = self.vit.norm_pre(self.vit.patch_drop(self.vit._pos_embed(self.vit.patch_embed(images))))
        for block in self._blocks():
            yield VitAttention(block.attn), block.norm1(x)
            x = block(x)

    @torch.no_grad()
    def attention_maps(self, images: Tensor) -> Tensor:
        """Attention in each image, ``[batch, depth, heads, N, N]``; rows sum to 1."""
        was_training = self.training
        self.eval()
        maps = []
        for (attention, x), prior in zip(self.layer_inputs(images), self.priors(), strict=True):
            bias = combine_bias(None if prior is None else prior(), None)
            scores = attention.scores(x)
            maps.append((scores if bias is None else scores + bias).softmax(-1))
        self.train(was_training)
        return torch.stack(maps, dim=1)

    def attention_patterns(self, images: Tensor) -> Tensor:
        """Attention averaged over the batch, ``[depth, heads, N, N]``; rows sum to 1."""
        return self.attention_maps(images).mean(0)

    def position_embedding(self) -> Tensor:
        """View of the position embedding, ``[N, width]``, prefix tokens first."""
        return self._positions()[0]

    @torch.no_grad()
    def layer_positions(self) -> Iterator[tuple[ProjectedAttention, Tensor]]:
        """Each attention with its normalised input where tokens are their positions alone, ``[N, width]``."""
        for block in self._blocks():
            yield VitAttention(block.attn), block.norm1(self.position_embedding())

    def _blocks(self) -> Iterator[Any]:
        """timm's blocks, whose parts are not typed."""
        return iter(self.vit.blocks)

    def _positions(self) -> nn.Parameter:
        positions = self.vit.pos_embed
        if positions is None:
            raise ValueError("expected a model with position embeddings, got one without")
        return positions


class VitAttention:
    """The projections of one of timm's attention modules as views that can be written.

    Args:
        module: with one packed projection for queries, keys and values.
    """

    def __init__(self, module: Attention) -> None:
        self.module = module

    def _packed(self) -> Tensor:
        return self.module.qkv.weight.view(3, self.module.num_heads, self.module.head_dim, -1)

    def query_weight(self) -> Tensor:
        """View of W_Q, ``[heads, head_width, width]``: q = W_Q x."""
        return self._packed()[0]

    def key_weight(self) -> Tensor:
        """View of W_K, ``[heads, head_width, width]``: k = W_K x."""
        return self._packed()[1]

    def value_weight(self) -> Tensor:
        """View of W_V, ``[width, width]``: v = W_V x, the heads one after another."""
        return self._packed()[2].flatten(0, 1)

    def output_weight(self) -> Tensor:
        """View of W_O, ``[width, width]``: output = W_O v."""
        return self.module.proj.weight

    def scores(self, x: Tensor) -> Tensor:
        """Q Kᵀ / √d of inputs ``[batch, N, width]``: ``[batch, heads, N, N]``."""
        projected = self.module.qkv(x).unflatten(-1, (3, self.module.num_heads, -1))
        query, key, _ = projected.permute(2, 0, 3, 1, 4).unbind(0)
        scores: Tensor = self.module.scale * query @ key.transpose(-2, -1)
        return scores
