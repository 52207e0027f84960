"""timm: ViT and DeiT, EVA, BEiT and Swin, block by block.

timm's own ``attn_mask`` argument bypasses gradient checkpointing and is one mask for all layers, so the
attention of each block is replaced instead. A relative bias of the host's own is kept and added.
"""

from collections.abc import Callable
from typing import Any

import torch
from timm.layers.attention import Attention, AttentionRope
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from timm.models.beit import Attention as BeitAttention
from timm.models.eva import EvaAttention
from timm.models.swin_transformer import WindowAttention
from torch import Tensor, nn

from maskprior.integrations.family import ForwardFamily
from maskprior.integrations.site import Site, attend, join_heads, with_constraint


def vit_attention(
    module: Attention, site: Site, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Attention of ViT and DeiT; class, distillation and register tokens are tokens like others."""
    query, key, value = _query_key_value(module, x)
    query, key = module.q_norm(query), module.k_norm(key)
    return _vit_output(module, site, x, (query, key, value), attn_mask, is_causal)


def rope_attention(
    module: AttentionRope | EvaAttention,
    site: Site,
    x: Tensor,
    rope: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Attention of EVA and of the ViTs with rotary positions; grouped keys stay grouped."""
    query, key, value = _query_key_value(module, x)
    query, key = module.q_norm(query), module.k_norm(key)
    if rope is not None:
        query = _rotate(module, query, rope).type_as(value)
        key = _rotate(module, key, rope).type_as(value)
    return _vit_output(module, site, x, (query, key, value), attn_mask, is_causal)


def beit_attention(
    module: BeitAttention, site: Site, x: Tensor, shared_rel_pos_bias: Tensor | None = None
) -> Tensor:
    """Attention of BEiT with its relative bias, its own or shared by the layers."""
    bias = site.bias(x.shape[1], x.shape[1])
    if module.relative_position_bias_table is not None:
        bias = bias + module._get_rel_pos_bias()
    if shared_rel_pos_bias is not None:
        bias = bias + shared_rel_pos_bias
    attended, _ = attend(*_query_key_value(module, x), bias, dropout_p=_dropout(module))
    return _dropped(module, module.proj(join_heads(attended)))


def window_attention(module: WindowAttention, site: Site, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of Swin: the structure is that of one window, the same for all windows.

    Where shifted windows join parts of the image that are not neighbours, the host's mask (−100) keeps them
    apart; here they are not allowed.
    """
    tokens = x.shape[1]
    bias = site.bias(tokens, tokens) + module._get_rel_pos_bias()[0]
    allowed = None if mask is None else (mask >= 0).repeat(len(x) // len(mask), 1, 1)[:, None]
    attended, _ = attend(*_query_key_value(module, x), bias, allowed=allowed, dropout_p=_dropout(module))
    return _dropped(module, module.proj(join_heads(attended)))


# The classes share these parts and no base class.


def _query_key_value(module: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each ``[batch, heads, tokens, head_dim]``, from one projection or from three."""
    if module.qkv is None:
        width = module.head_dim
        separate = (module.q_proj(x), module.k_proj(x), module.v_proj(x))
        query, key, value = (part.unflatten(-1, (-1, width)).transpose(1, 2) for part in separate)
        return query, key, value
    packed = module.qkv(x)
    if getattr(module, "q_bias", None) is not None:
        packed = packed + torch.cat((module.q_bias, module.k_bias, module.v_bias)).to(packed.dtype)
    query, key, value = packed.unflatten(-1, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return query, key, value


def _rotate(module: AttentionRope | EvaAttention, x: Tensor, rope: Tensor) -> Tensor:
    prefix = module.num_prefix_tokens
    rotated = apply_rot_embed_cat(x[:, :, prefix:], rope, half=getattr(module, "rotate_half", False))
    return torch.cat([x[:, :, :prefix], rotated], dim=2)


def _vit_output(
    module: Attention | AttentionRope | EvaAttention,
    site: Site,
    x: Tensor,
    projected: tuple[Tensor, Tensor, Tensor],
    attn_mask: Tensor | None,
    is_causal: bool,
) -> Tensor:
    """Attend with the prior and the caller's mask, both; then norm, gate and output projection."""
    bias, allowed = with_constraint(site.bias(x.shape[1], x.shape[1]), None, attn_mask)
    attended, _ = attend(*projected, bias, allowed=allowed, is_causal=is_causal, dropout_p=_dropout(module))
    joined: Tensor = module.norm(join_heads(attended))
    if module.gate is not None:
        joined = joined * module.gate(x).sigmoid()
    return _dropped(module, module.proj(joined))


def _dropout(module: Any) -> float:
    return float(module.attn_drop.p) if module.training else 0.0


def _dropped(module: Any, x: Tensor) -> Tensor:
    dropped: Tensor = module.proj_drop(x)
    return dropped


class TimmFamily(ForwardFamily):
    """Attention of a timm model whose number of tokens its patch embedding tells."""

    def length(self, model: nn.Module, name: str) -> int | None:
        """Prefix tokens and patches, where the image size is fixed.

        Raises:
            ValueError: the model drops patches in training, so that tokens have no fixed rows.
        """
        host = _host_of(model, name)
        if host is None:
            return None
        if not isinstance(getattr(host, "patch_drop", None), nn.Identity | None):
            raise ValueError(
                f"expected a model without patch dropout, got {type(host).__name__} with patch_drop: tokens "
                "would not keep the rows of the structure; build it with patch_drop_rate=0"
            )
        if getattr(host, "dynamic_img_size", False):
            return None
        return int(host.patch_embed.num_patches) + int(getattr(host, "num_prefix_tokens", 1))


class WindowFamily(ForwardFamily):
    """Attention inside Swin's windows."""

    def length(self, model: nn.Module, name: str) -> int | None:
        """The window's area."""
        return int(getattr(model.get_submodule(name), "window_area"))  # noqa: B009


def _host_of(model: nn.Module, name: str) -> Any:
    """The nearest module around that has a patch embedding."""
    while name:
        name = name.rpartition(".")[0]
        host = model.get_submodule(name)
        if hasattr(getattr(host, "patch_embed", None), "num_patches"):
            return host
    return None


_FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {
    Attention: vit_attention,
    AttentionRope: rope_attention,
    EvaAttention: rope_attention,
    BeitAttention: beit_attention,
}


def timm_families() -> list[ForwardFamily]:
    """The families of timm."""
    families: list[ForwardFamily] = [TimmFamily(kind, forward) for kind, forward in _FORWARDS.items()]
    return [*families, WindowFamily(WindowAttention, window_attention)]
