"""``nn.MultiheadAttention``, alone or inside torch.nn's Transformer layers.

In evaluation the encoder layer takes a fused path that never calls the attention module. A forward hook on
the module closes it (torch's own condition), and nested tensors, which only it understands, are switched off.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskprior.integrations.family import ForwardFamily
from maskprior.integrations.site import Site, attend, join_heads, with_constraint

_NESTED = "_nested_tensor_before_attach"
_HOOK = "_maskprior_fast_path_guard"


def multi_head_attention(
    module: nn.MultiheadAttention,
    site: Site,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``nn.MultiheadAttention.forward`` with a prior; the weights are those before dropout.

    Raises:
        ValueError: nested tensors, ``is_causal`` without ``attn_mask``, or lengths that the structure does
            not fit.
    """
    _check_call(site, query, key, is_causal, attn_mask)
    batched = query.dim() == 3
    if not batched and key_padding_mask is not None:
        key_padding_mask = key_padding_mask[None]
    projected = _project(module, query, key, value)
    bias, allowed = _constrained(module, site, projected[0], projected[1], key_padding_mask, attn_mask)
    attended, weights = attend(
        *projected,
        bias,
        allowed=allowed,
        dropout_p=module.dropout if module.training else 0.0,
        need_weights=need_weights,
    )
    output: Tensor = module.out_proj(join_heads(attended))
    if weights is not None and average_attn_weights:
        weights = weights.mean(dim=1)
    if not batched:
        return output[0], None if weights is None else weights[0]
    return (output if module.batch_first else output.transpose(0, 1)), weights


def _check_call(site: Site, query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None) -> None:
    if query.is_nested or key.is_nested:
        raise ValueError(
            f"attention module {site.name!r}: expected padded tensors, got nested ones; attach to the whole "
            "nn.TransformerEncoder, or build it with enable_nested_tensor=False"
        )
    if is_causal and attn_mask is None:
        raise ValueError(f"attention module {site.name!r}: expected attn_mask together with is_causal=True")


def _project(
    module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each ``[batch, heads, length, head_dim]``."""
    if module.in_proj_weight is not None and query is key and key is value:
        packed = F.linear(query, module.in_proj_weight, module.in_proj_bias)
        q, k, v = (_split_heads(module, part) for part in packed.chunk(3, dim=-1))
        return q, k, v
    weights = (
        (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        if module.in_proj_weight is None
        else module.in_proj_weight.chunk(3)
    )
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    q, k, v = (
        _split_heads(module, F.linear(x, weight, offset))
        for x, weight, offset in zip((query, key, value), weights, biases, strict=True)
    )
    return q, k, v


def _split_heads(module: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """``[batch, heads, length, head_dim]`` from the module's own layout, which may have no batch."""
    if x.dim() == 2:
        x = x[None]
    elif not module.batch_first:
        x = x.transpose(0, 1)
    heads: Tensor = x.unflatten(-1, (module.num_heads, module.head_dim)).transpose(1, 2)
    return heads


def _constrained(
    module: nn.MultiheadAttention,
    site: Site,
    query: Tensor,
    key: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Bias and ``allowed`` from the prior and both masks; their polarity (True = ignore) flips here."""
    queries, keys = query.shape[2], key.shape[2]
    if queries != keys and site.prior().shape[-2:] != (queries, keys):
        # A length rule counts queries from the end, as in cached decoding, which this module has not.
        raise ValueError(
            f"attention module {site.name!r}: expected {list(site.prior().shape[-2:])} queries and keys, got "
            f"{[queries, keys]}; between sequences of different lengths the structure must fit exactly"
        )
    bias, allowed = site.bias(queries, keys), None
    if attn_mask is not None:
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (-1, module.num_heads))
        bias, allowed = with_constraint(bias, allowed, _may_attend(attn_mask))
    if key_padding_mask is not None:
        bias, allowed = with_constraint(bias, allowed, _may_attend(key_padding_mask[:, None, None]))
    return bias, allowed


def _may_attend(ignored: Tensor) -> Tensor:
    """From torch's Boolean masks (True = ignore) to this package's; additive ones stay."""
    return ~ignored if ignored.dtype == torch.bool else ignored


class MultiheadAttentionFamily(ForwardFamily):
    """``nn.MultiheadAttention`` wherever it stands."""

    def __init__(self) -> None:
        super().__init__(nn.MultiheadAttention, multi_head_attention)

    def reason_against(self, name: str, module: nn.Module) -> str:
        """Keys that the module adds by itself have no column in a structure."""
        if isinstance(module, nn.MultiheadAttention):
            if module.bias_k is not None:
                return "add_bias_kv=True adds a key that no structure knows"
            if module.add_zero_attn:
                return "add_zero_attn=True adds a key that no structure knows"
        return super().reason_against(name, module)

    def is_cross(self, name: str, module: nn.Module) -> bool:
        """The name of cross-attention in ``nn.TransformerDecoderLayer``."""
        return name.rpartition(".")[2] == "multihead_attn"

    def install(self, module: nn.Module, site: Site) -> None:
        """Replace ``forward`` and keep the layer around from bypassing it."""
        super().install(module, site)
        vars(module)[_HOOK] = module.register_forward_hook(_keep_output)

    def uninstall(self, module: nn.Module) -> None:
        """Undo both."""
        super().uninstall(module)
        vars(module).pop(_HOOK).remove()

    def prepare(self, model: nn.Module) -> None:
        """Encoders must not pack padded batches into nested tensors."""
        for encoder in _encoders(model):
            vars(encoder)[_NESTED] = encoder.use_nested_tensor
            encoder.use_nested_tensor = False

    def restore(self, model: nn.Module) -> None:
        """As before."""
        for encoder in _encoders(model):
            encoder.use_nested_tensor = vars(encoder).pop(_NESTED)


def _encoders(model: nn.Module) -> list[nn.TransformerEncoder]:
    return [module for module in model.modules() if isinstance(module, nn.TransformerEncoder)]


def _keep_output(module: nn.Module, inputs: object, output: object) -> None:
    """A hook that does nothing: its presence is what closes the fused paths."""
