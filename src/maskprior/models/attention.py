"""Multi-head attention whose scores take an additive bias."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from maskprior import functional


class Attention(nn.Module):
    """Multi-head self-attention, softmax(Q Kᵀ / √d + bias) V per head, with one fused projection.

    Args:
        width: size W of a token.
        heads: number of heads H.
        head_width: size d of a head (H·d need not equal W).
        query_key_gain: factor on the initial query and key weights.
        generator: source of the initial weights, U(−1/√W, 1/√W) as ``nn.Linear`` draws them.
    """

    def __init__(
        self, width: int, heads: int, head_width: int, *, query_key_gain: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        inner = heads * head_width
        self.qkv = linear(width, 3 * inner, generator)
        self.out = linear(inner, width, generator)
        with torch.no_grad():
            self.qkv.weight[: 2 * inner] *= query_key_gain
            self.qkv.bias[: 2 * inner] = 0.0

    def query_weight(self) -> Tensor:
        """View of W_Q, ``[heads, head_width, width]``: q = x W_Qᵀ."""
        return self._weight(0)

    def key_weight(self) -> Tensor:
        """View of W_K, ``[heads, head_width, width]``."""
        return self._weight(1)

    def _weight(self, which: int) -> Tensor:
        return self.qkv.weight.view(3, self.heads, self.head_width, -1)[which]

    def scores(self, x: Tensor) -> Tensor:
        """Scaled scores Q Kᵀ / √d without the bias, ``[batch, heads, query, key]``."""
        query, key, _ = self.project(x)
        return query @ key.transpose(-2, -1) / math.sqrt(self.head_width)

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None,
        allowed: Tensor | None = None,
        *,
        rows: slice | None = None,
        projected: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            x: tokens ``[batch, length, width]``.
            bias: log σ(M), ``[query, key]`` or ``[heads, query, key]``, or None.
            allowed: bool, broadcastable to ``[batch, heads, query, key]``, True = may attend.
            rows: compute these query positions only (bias and ``allowed`` still cover all of them); each must
                be allowed to attend to some key.
            projected: ``qkv(x)`` where the caller has it already; then x is not read, and rows must be None.

        Returns:
            ``[batch, query positions, width]``.
        """
        if rows is not None:
            return self._attend_rows(x, bias, allowed, rows)
        query, key, value = self.project(x) if projected is None else self._split(projected, 3)
        return self.mix(functional.attention(query, key, value, bias=bias, allowed=allowed))

    def mix(self, attended: Tensor) -> Tensor:
        """The fused projection of all heads' results ``[batch, heads, length, head_width]``."""
        mixed: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return mixed

    def _attend_rows(self, x: Tensor, bias: Tensor | None, allowed: Tensor | None, rows: slice) -> Tensor:
        """The same function for few queries, without projecting every token to a key and a value.

        qᵀ(W_K x_j) = (W_Kᵀ q)ᵀ x_j and Σ_j p_j (W_V x_j + b_V) = W_V Σ_j p_j x_j + b_V, as Σ_j p_j = 1; the
        key bias adds the same to all scores of a row. The tokens themselves are the keys and values of all
        heads (grouped queries).
        """
        inner, shape = self.heads * self.head_width, (3, self.heads, self.head_width)
        batch, count, _ = x[:, rows].shape
        query_weight, key_weight, value_weight = self.qkv.weight.view(*shape, -1).unbind(0)
        query = nn.functional.linear(x[:, rows], query_weight.flatten(0, 1), self.qkv.bias[:inner])
        query = query.view(-1, *shape[1:]).transpose(0, 1) @ key_weight
        attended = functional.attention(
            query.unflatten(1, (batch, count)).transpose(0, 1),
            x[:, None],
            x[:, None],
            bias=None if bias is None else bias[..., rows, :],
            allowed=None if allowed is None else allowed[..., rows, :],
            scale=1 / math.sqrt(self.head_width),
        )
        value = attended.transpose(0, 1).flatten(1, 2) @ value_weight.mT
        value = value.transpose(0, 1).reshape(batch, count, inner) + self.qkv.bias[2 * inner :]
        mixed: Tensor = self.out(value)
        return mixed

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each ``[batch, heads, length, head_width]``."""
        query, key, value = self._split(self.qkv(x), 3)
        return query, key, value

    def _split(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        batch, length, _ = projected.shape
        return unpack(projected.view(batch, length, parts, self.heads, self.head_width))


class _Unpack(torch.autograd.Function):
    """Views of a packed tensor, whose gradients are taken as they lie where they are packed already."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor) -> tuple[Tensor, ...]:
        return packed.permute(2, 0, 3, 1, 4).unbind(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        first = gradients[0]
        batch, heads, length, width = first.shape
        step, row = heads * width, len(gradients) * heads * width
        start = first.storage_offset()
        lies_packed = all(
            gradient.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and gradient.storage_offset() == start + part * step
            and gradient.stride() == (length * row, width, row, 1)
            for part, gradient in enumerate(gradients)
        )
        if not lies_packed:
            return torch.stack(gradients).permute(1, 3, 0, 2, 4)
        shape, strides = (batch, length, len(gradients), heads, width), (length * row, row, step, width, 1)
        return first.as_strided(shape, strides, start)


def unpack(packed: Tensor) -> tuple[Tensor, ...]:
    """``[batch, length, parts, heads, head_width]`` → parts of ``[batch, heads, length, head_width]``.

    Values and gradients are those of ``permute`` and ``unbind``. Gradients that maskprior's kernels return
    interleaved are joined without a copy.
    """
    if torch.compiler.is_compiling() or not packed.requires_grad:
        return tuple(packed.permute(2, 0, 3, 1, 4).unbind(0))
    parts: tuple[Tensor, ...] = _Unpack.apply(packed)
    return parts


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """``nn.Linear`` with PyTorch's default law, U(−1/√inputs, 1/√inputs), drawn from a named generator."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device=generator.device)
    bound = 1 / math.sqrt(inputs)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer
