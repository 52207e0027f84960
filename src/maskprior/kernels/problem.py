"""One checked attention call: the arguments in the one form that every backend takes."""

import math
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

_NUMBERS = (Real, torch.SymInt, torch.SymFloat)


class AttentionProblem(NamedTuple):
    """dropout(softmax(scale · Q Kᵀ + bias)) V over the keys that are allowed, in canonical shapes.

    A NamedTuple, as its fields in this order are the arguments of the operators.

    Attributes:
        query: ``[B, Hq, Lq, d]``.
        key: ``[B, Hkv, Lk, d]``; query head h reads key head h // (Hq / Hkv).
        value: ``[B, Hkv, Lk, dv]``.
        bias: ``[1 or Hq, Lq, Lk]``, float32 at least, or None.
        allowed: bool ``[1 or B, 1 or Hq, 1 or Lq, 1 or Lk]`` (True = may attend) or None.
        is_causal: query i may attend to keys j ≤ i + Lk − Lq (the last query sees every key).
        scale: factor of Q Kᵀ.
        dropout_p: probability of dropping an attention weight.
        seed: int64 ``[1]``, of the dropout; None without dropout.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    allowed: Tensor | None
    is_causal: bool
    scale: float
    dropout_p: float
    seed: Tensor | None


def make_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    allowed: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> AttentionProblem:
    """Check the arguments of one call and bring them to canonical shapes.

    The seed of the dropout is drawn from torch's default generator, as every dropout of torch draws, so
    checkpointing (which restores that generator) repeats it.

    Raises:
        ValueError: shapes that do not fit, an empty key axis or a dropout probability out of [0, 1).
        TypeError: arguments of the wrong type.
    """
    optional = {"mask_logits or the bias": bias, "`allowed`": allowed}
    given = {name: tensor for name, tensor in optional.items() if tensor is not None}
    _check_tensors({"query": query, "key": key, "value": value, **given})
    _check_numbers(is_causal, scale, dropout_p)
    query, key, value = _autocast(query, key, value)
    _check_operands(query, key, value)
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    return AttentionProblem(
        query,
        key,
        value,
        None if bias is None else _canonical_bias(bias, heads, queries, keys, query.dtype),
        None if allowed is None else _canonical_allowed(allowed, (batch, heads, queries, keys)),
        is_causal,
        1.0 / math.sqrt(width) if scale is None else scale,
        dropout_p,
        torch.randint(2**62, (1,), device=query.device) if dropout_p > 0 else None,
    )


def causal_pattern(queries: int, keys: int, device: torch.device) -> Tensor:
    """Bool ``[queries, keys]``: key j ≤ i + keys − queries (bottom-right alignment)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def check_one_bias(mask_logits: Tensor | None, bias: Tensor | None) -> None:
    """Raise ValueError if both M and a ready log σ(M) are given."""
    if mask_logits is not None and bias is not None:
        raise ValueError("expected mask_logits or bias, got both")


def check_bias_dtype(name: str, bias: Tensor) -> None:
    """Raise TypeError unless it is a floating tensor: a bool or an integer is never added as 0/1."""
    if not isinstance(bias, Tensor):
        raise TypeError(f"expected {name} as a floating tensor, got {type(bias).__name__}")
    if not bias.dtype.is_floating_point:
        raise TypeError(
            f"expected {name} as a floating tensor, got {bias.dtype}; "
            "a bool constraint (True = may attend) belongs in `allowed`"
        )


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """What casts nothing inside; the device "meta" has no autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def _autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast the operands as autocast casts those of SDPA; the bias stays in float32."""
    device = query.device.type
    if query.dtype == torch.float64 or device == "meta" or not torch.is_autocast_enabled(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _check_tensors(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"expected {name} as a tensor, got {type(tensor).__name__}")
        device = tensors["query"].device
        if tensor.device != device:
            raise ValueError(f"expected {name} on the query's device {device}, got {tensor.device}")


def _check_numbers(is_causal: bool, scale: float | None, dropout_p: float) -> None:
    if not isinstance(is_causal, bool):
        raise TypeError(
            f"expected is_causal as True or False, got {type(is_causal).__name__}; "
            "a pattern belongs in `allowed`"
        )
    numbers: dict[str, object] = {"scale": 1.0 if scale is None else scale, "dropout_p": dropout_p}
    for name, number in numbers.items():
        if not isinstance(number, _NUMBERS):
            raise TypeError(f"expected {name} as a number, got {type(number).__name__}")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"expected dropout_p in [0, 1), got {dropout_p}")
    if isinstance(scale, float) and not math.isfinite(scale):
        raise ValueError(f"expected a finite scale, got {scale}")


def _check_operands(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise TypeError(
            "expected query, key and value of one floating dtype, "
            f"got {query.dtype}, {key.dtype} and {value.dtype}"
        )
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise ValueError(
            "expected query [B, Hq, Lq, d], key [B, Hkv, Lk, d] and value [B, Hkv, Lk, dv], "
            f"got {_shapes(query, key, value)}"
        )
    batch, heads, _, width = query.shape
    key_batch, key_heads, keys, key_width = key.shape
    if key_batch != batch or key_width != width or value.shape[:3] != key.shape[:3]:
        raise ValueError(
            "expected one batch size, one width of query and key, and one length and number of heads of key "
            f"and value, got {_shapes(query, key, value)}"
        )
    if key_heads == 0 or heads % key_heads != 0:
        raise ValueError(
            "expected the query heads to be a multiple of the key heads, "
            f"got {heads} query heads and {key_heads} key heads"
        )
    if keys == 0 or width == 0:
        raise ValueError(f"expected at least one key and a width, got {_shapes(query, key, value)}")


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    return f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"


def _canonical_bias(bias: Tensor, heads: int, queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    check_bias_dtype("the bias", bias)
    given = shape = tuple(bias.shape)
    if len(shape) == 4 and shape[0] == 1:
        bias, shape = bias[0], shape[1:]
    elif len(shape) == 2:
        bias, shape = bias[None], (1, *shape)
    if shape not in ((1, queries, keys), (heads, queries, keys)):
        raise ValueError(
            "expected mask_logits or a bias [Lq, Lk], [1 or Hq, Lq, Lk] or [1, 1 or Hq, Lq, Lk] "
            f"with Hq={heads}, Lq={queries}, Lk={keys}, got {list(given)}; of a larger M take the part "
            "[..., :Lq, :Lk], and what differs between batch items belongs in `allowed`"
        )
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return bias if bias.dtype == wide else bias.to(wide)


def _canonical_allowed(allowed: Tensor, scores: tuple[int, int, int, int]) -> Tensor:
    if allowed.dtype != torch.bool:
        raise TypeError(f"expected `allowed` as a bool tensor (True = may attend), got {allowed.dtype}")
    given, missing = list(allowed.shape), 4 - allowed.dim()
    allowed = allowed[(None,) * missing] if missing > 0 else allowed
    fits = all(size in (1, full) for size, full in zip(allowed.shape, scores, strict=False))
    if allowed.dim() != 4 or not fits:
        hint = "; a mask of keys [B, Lk] is given as mask[:, None, None]" if len(given) == 2 else ""
        raise ValueError(
            f"expected `allowed` broadcastable to [B, Hq, Lq, Lk] = {list(scores)}, got {given}{hint}"
        )
    return allowed


def check_bias_range(bias: Tensor) -> float:
    """The lowest bias. A bias of −∞ acts as not allowed.

    Raises:
        ValueError: the bias is +∞ somewhere.
    """
    if bias.numel() == 0:
        return 0.0
    lowest, highest = map(float, torch.aminmax(bias))
    if highest == float("inf"):
        raise ValueError(
            "expected a bias below +∞ (log σ(M) ≤ 0), got +∞; it means no finite attention pattern"
        )
    return lowest
