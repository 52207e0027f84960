"""Hugging Face models, through the library's own attention interface and mask interface.

Every attention module of a model calls the function that its configuration names. Here this is
:func:`prior_attention`, which finds the prior on the module, and for modules without one is SDPA. Its masks
come from :func:`position_mask`: without a registered mask function, transformers would drop causality.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from maskprior.integrations.site import Site, attend, with_constraint

try:  # its hooks collect attention weights where the argument `output_attentions` is not handed on
    from transformers.utils import output_capturing

    _collected: Callable[[], Any] = output_capturing._active_collector.get
except (ImportError, AttributeError):  # other versions hand it on

    def _collected() -> Any:
        return None


IMPLEMENTATION = "maskprior"
_SITE = "_maskprior_site"
_GUARD = "_maskprior_guard"
_BEFORE = "_attention_before_maskprior"
_KEY_BITS = 32


def prior_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention function of the interface: the module's prior, the model's own bias and its mask, together.

    Args:
        module: the attention module.
        query: ``[batch, heads, queries, width]``.
        key: ``[batch, key heads, keys, width]``.
        value: ``[batch, key heads, keys, width]``.
        attention_mask: None (causal if the module is, no padding), bool, additive, or of
            :func:`position_mask`.
        dropout: probability of dropping a weight.
        scaling: factor of Q Kᵀ.
        is_causal: overrides the module's own ``is_causal``.
        position_bias: the model's own bias ``[1, heads, queries, keys]`` (T5).
        kwargs: whatever else models pass; what would change the equation is refused.

    Returns:
        ``[batch, queries, heads, width]``, and the weights where ``output_attentions`` asks for them, by the
        argument or by the hooks that transformers collects outputs with.
    """
    site = getattr(module, _SITE, None)
    if site is None:
        constraint = _may_attend(attention_mask)
        if _wants_weights(kwargs):
            kwargs["output_attentions"] = True  # SDPA has none to give, and says so
        result: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, constraint, dropout, scaling, is_causal, position_bias, **kwargs
        )
        return result
    _refuse_other_equations(site, kwargs)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = causal and attention_mask is None and query.shape[2] > 1
    if causal and key.shape[2] > query.shape[2]:
        # Without a mask, only the first call on an empty static cache has spare keys: not written yet.
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
        position_bias = None if position_bias is None else position_bias[..., : query.shape[2]]
    bias, allowed = _bias_and_allowed(site, query.shape[2], key.shape[2], attention_mask)
    output, weights = attend(
        query,
        key,
        value,
        bias if position_bias is None else bias + position_bias,
        allowed=allowed,
        is_causal=causal,
        scale=scaling,
        dropout_p=dropout,
        need_weights=_wants_weights(kwargs),
    )
    return output.transpose(1, 2).contiguous(), weights


def _wants_weights(kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("output_attentions")) or any("attentions" in key for key in _collected() or ())


def position_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,  # an int, or a tensor from a static cache
    kv_offset: Any = 0,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """Mask function of the interface: what may attend and, where it is not plain, the positions of tokens.

    Plain is: keys are tokens 0, 1, … and queries are the last of them. Then the mask is that of SDPA (bool,
    or None). With left padding, a static cache or a sliding one it is int64 ``[batch, 1, queries, keys]``: −1
    where not allowed, else query position · 2³² + key position, padding not counted.
    """
    positions = _real_positions(attention_mask)
    plain = (
        positions is None
        and isinstance(q_offset, int)
        and isinstance(kv_offset, int)
        and kv_offset == 0
        and q_offset + q_length == kv_length
    )
    if not plain:
        kwargs = {**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    allowed: Tensor | None = sdpa_mask(
        batch_size, q_length, kv_length, q_offset, kv_offset, attention_mask=attention_mask, **kwargs
    )
    if plain or allowed is None:
        return allowed
    query_slots = torch.arange(q_length, device=allowed.device) + q_offset
    key_slots = torch.arange(kv_length, device=allowed.device) + kv_offset
    query, key = _positions(positions, query_slots), _positions(positions, key_slots)
    pair = (query[:, None, :, None] << _KEY_BITS) | key[:, None, None, :]
    return torch.where(allowed, pair, -1)


def _real_positions(attention_mask: Tensor | None) -> Tensor | None:
    """Position of each token, padding not counted; None where it is the index (no padding on the left)."""
    if attention_mask is None or attention_mask.dim() != 2:
        return None
    real = attention_mask.to(torch.long)
    positions = real.cumsum(-1) - 1
    if not (torch.compiler.is_compiling()):
        index = torch.arange(real.shape[1], device=real.device)
        if not bool(((positions != index) & (real > 0)).any()):
            return None
    return positions.clamp(min=0)


def _positions(real: Tensor | None, slots: Tensor) -> Tensor:
    """Positions ``[1 or batch, slots]``; beyond the mask (not written yet) it does not matter which."""
    return slots[None] if real is None else real[:, slots.clamp(max=real.shape[1] - 1)]


def _may_attend(mask: Tensor | None) -> Tensor | None:
    return mask >= 0 if mask is not None and mask.dtype == torch.long else mask


def _bias_and_allowed(
    site: Site, queries: int, keys: int, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if mask is None or mask.dtype != torch.long:
        return with_constraint(site.bias(queries, keys), None, mask)
    pair = mask[:, 0].clamp(min=0)
    bias = site.bias_at(pair >> _KEY_BITS, pair & ((1 << _KEY_BITS) - 1))
    return bias, mask >= 0


def _refuse_other_equations(site: Site, kwargs: dict[str, Any]) -> None:
    for name in ("softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise ValueError(
                f"attention module {site.name!r} uses {name!r}, which changes the equation: a prior is for "
                "plain softmax attention"
            )


class HuggingFaceFamily:
    """Attention modules of transformers that call the attention interface, whatever the model."""

    def owns(self, module: nn.Module) -> bool:
        """An attention module, told by what its ``forward`` calls."""
        return _config(module) is not None and "ALL_ATTENTION_FUNCTIONS" in _names_in_forward(module)

    def reason_against(self, name: str, module: nn.Module) -> str:
        """Cross-attention, and hosts that run another equation or kernels that take no bias."""
        before = vars(module).get(_BEFORE, _config(module)._attn_implementation)
        if self.is_cross(name, module):
            return "in cached decoding, cross-attention does not tell the positions of its queries"
        if getattr(_config(module), "attn_logit_softcapping", None) is not None:
            return "attn_logit_softcapping changes the equation: a prior is for plain softmax attention"
        if getattr(module, "sinks", None) is not None:
            return "attention sinks change the equation: a prior is for plain softmax attention"
        if before not in (None, "sdpa", "eager", IMPLEMENTATION):
            return f"the model runs {before!r}: call set_attn_implementation('sdpa') first"
        return ""

    def is_cross(self, name: str, module: nn.Module) -> bool:
        """By the names that the library uses."""
        last = name.rpartition(".")[2].lower()
        return (
            bool(getattr(module, "is_cross_attention", False))
            or "cross" in f"{last} {type(module).__name__.lower()}"
            or last in ("encdecattention", "encoder_attn")
        )

    def heads(self, module: nn.Module) -> int:
        """The module's own count, else the configuration's."""
        for name in ("num_heads", "num_attention_heads", "n_heads"):
            if isinstance(heads := getattr(module, name, None), int):
                return heads
        return int(_config(module).num_attention_heads)

    def length(self, model: nn.Module, name: str) -> int | None:
        """Tokens of a vision model with a learned position for each; text has no fixed length."""
        while name:
            name = name.rpartition(".")[0]
            host = getattr(model.get_submodule(name), "embeddings", None)
            table = getattr(host, "position_embeddings", None)
            if hasattr(host, "patch_embeddings") and isinstance(table, Tensor):
                return int(table.shape[1])
        return None

    def install(self, module: nn.Module, site: Site) -> None:
        """Leave the site where :func:`prior_attention` finds it, and see that the model calls that."""
        vars(module)[_SITE] = site
        vars(module)[_GUARD] = module.register_forward_pre_hook(_check_implementation)

    def uninstall(self, module: nn.Module) -> None:
        """Take both away."""
        del vars(module)[_SITE]
        vars(module).pop(_GUARD).remove()

    def prepare(self, model: nn.Module) -> None:
        """Register both functions and name them in every configuration, so that all masks are made alike."""
        AttentionInterface.register(IMPLEMENTATION, prior_attention)
        AttentionMaskInterface.register(IMPLEMENTATION, position_mask)
        owners = _owners(model)
        for owner in owners:
            vars(owner)[_BEFORE] = _config(owner)._attn_implementation
        for owner in owners:
            _config(owner)._attn_implementation = IMPLEMENTATION

    def restore(self, model: nn.Module) -> None:
        """Give every configuration its own implementation back; outer ones first, as they set inner ones."""
        for owner in _owners(model):
            _config(owner)._attn_implementation = vars(owner).pop(_BEFORE)


def _check_implementation(module: nn.Module, inputs: object) -> None:
    """Hook: another implementation, set after attaching, would drop the prior without a word."""
    implementation = _config(module)._attn_implementation
    if implementation != IMPLEMENTATION:
        raise ValueError(
            f"attention module {vars(module)[_SITE].name!r} has a prior, but the model runs "
            f"{implementation!r}, which would drop it: call set_attn_implementation({IMPLEMENTATION!r}), or "
            "detach() the attachment first"
        )


def _names_in_forward(module: nn.Module) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code.co_names if code is not None else ()


def _config(module: nn.Module) -> Any:
    config = getattr(module, "config", None)
    return config if isinstance(config, PreTrainedConfig) else None


def _owners(model: nn.Module) -> list[nn.Module]:
    """For each configuration in the model, the first module that has it."""
    owners: dict[int, nn.Module] = {}
    for module in model.modules():
        if (config := _config(module)) is not None:
            owners.setdefault(id(config), module)
    return list(owners.values())
