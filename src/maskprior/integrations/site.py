"""Where one attention module of a host model meets its prior, and the attention computed there."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from maskprior import functional
from maskprior.integrations.lengths import Lengths


@dataclass(eq=False)
class Relations:
    """The relation of every pair of tokens of the batch being computed, shared by the sites of a host.

    Attributes:
        index: integers ``[1 or batch, queries, keys]``; None outside of ``attachment.relations(index)``.
    """

    index: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Site:
    """One attention module with its prior.

    Not a module: the priors live once in the host's bank, so that a shared one is saved once.

    Attributes:
        name: of the attention module in the host.
        prior: gives the bias ``[*heads, N, N]``, or ``[1 or heads, relations]``.
        lengths: what to do at another length than N.
        total_heads: number of heads of the module.
        heads: the heads that the prior is for; None: all. The others have no bias.
        relations: where the prior is one of relations, those of the batch; None for one of positions.
    """

    name: str
    prior: nn.Module
    lengths: Lengths
    total_heads: int
    heads: tuple[int, ...] | None = None
    relations: Relations | None = None

    def bias(self, queries: int, keys: int) -> Tensor:
        """Bias of the last ``queries`` of ``keys`` tokens.

        Returns:
            ``[1 or heads, queries, keys]``; of relations, ``[1 or batch, 1 or heads, queries, keys]``.

        Raises:
            ValueError: the rule for lengths has no answer, or relations are missing or do not fit.
        """
        if self.relations is not None:
            return self._bias_of_relations(self.relations.index, queries, keys)
        try:
            fitted = self.lengths.fit(self.prior(), queries, keys)
        except ValueError as error:
            raise ValueError(f"attention module {self.name!r}: {error}") from None
        return self._spread(fitted)

    def bias_at(self, query: Tensor, key: Tensor) -> Tensor:
        """Bias ``[batch, 1 or heads, queries, keys]`` at token positions that differ by batch item.

        Args:
            query: positions ``[batch, queries, 1 or keys]``.
            key: positions ``[batch, 1 or queries, keys]``.

        Raises:
            ValueError: positions are not what the rule for lengths is about.
        """
        table = self._spread(self.prior())
        square = self.relations is None and table.shape[-1] == table.shape[-2]
        if not square or self.lengths.rule == "interpolate":
            raise ValueError(
                f"attention module {self.name!r}: expected a square structure and lengths='slice' or "
                "'relative' with left padding or a static cache, got "
                f"{list(table.shape[-2:])} and {self.lengths.rule!r}"
            )
        try:
            return self.lengths.at(table, query, key).transpose(0, 1)
        except ValueError as error:
            raise ValueError(f"attention module {self.name!r}: {error}") from None

    def _bias_of_relations(self, index: Tensor | None, queries: int, keys: int) -> Tensor:
        if index is None:
            raise ValueError(
                f"attention module {self.name!r}: expected the relations of this batch; call the model (and "
                "backward, with checkpointing) within `with attachment.relations(index):`"
            )
        if index.shape[1:] != (queries, keys):
            raise ValueError(
                f"attention module {self.name!r}: expected relations [1 or batch, {queries}, {keys}], got "
                f"{list(index.shape)}"
            )
        return self._spread(self.prior()[:, None])[:, 0, index].transpose(0, 1)

    def _spread(self, bias: Tensor) -> Tensor:
        """To all heads of the module: zeros for those without a prior."""
        if bias.dim() == 2:
            bias = bias[None]
        if self.heads is None:
            return bias
        chosen = torch.tensor(self.heads, device=bias.device)
        spread = bias.new_zeros(self.total_heads, *bias.shape[1:])
        return spread.index_copy(0, chosen, bias.expand(len(self.heads), -1, -1))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    *,
    allowed: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """softmax(scale · Q Kᵀ + bias) V where the bias may differ between batch items.

    Args:
        query: ``[B, Hq, Lq, d]``.
        key: ``[B, Hkv, Lk, d]``.
        value: ``[B, Hkv, Lk, dv]``.
        bias: ``[1 or Hq, Lq, Lk]`` or ``[1 or B, 1 or Hq, Lq, Lk]``, or None.
        allowed: bool, broadcastable to ``[B, Hq, Lq, Lk]``, True = may attend.
        is_causal: also restrict query i to keys j ≤ i + Lk − Lq.
        scale: factor of Q Kᵀ; None means 1/√d.
        dropout_p: probability of dropping a weight.
        need_weights: also return the weights.

    Returns:
        Output ``[B, Hq, Lq, dv]``, and the weights ``[B, Hq, Lq, Lk]`` or None.
    """
    batch, heads, queries, _ = query.shape
    per_item = bias is not None and bias.dim() == 4 and bias.shape[0] > 1
    if bias is not None and per_item:
        # A batch item is a group of heads: head b · H + h has its own bias, and grouped keys still fit.
        keys = key.shape[2]
        bias = bias.expand(batch, heads, queries, keys).reshape(-1, queries, keys)
        if allowed is not None:
            allowed = allowed.expand(batch, heads, queries, keys).reshape(1, -1, queries, keys)
        query, key, value = (tensor.flatten(0, 1)[None] for tensor in (query, key, value))
    # An exported graph has to consist of operators that others know.
    backend = "reference" if torch.compiler.is_exporting() else "auto"
    weights: Tensor | None = None
    if need_weights:
        output, weights = functional.attention(
            query,
            key,
            value,
            bias=bias,
            allowed=allowed,
            is_causal=is_causal,
            scale=scale,
            dropout_p=dropout_p,
            need_weights=True,
            backend=backend,
        )
    else:
        output = functional.attention(
            query,
            key,
            value,
            bias=bias,
            allowed=allowed,
            is_causal=is_causal,
            scale=scale,
            dropout_p=dropout_p,
            backend=backend,
        )
    if per_item:
        output = output.view(batch, heads, *output.shape[2:])
        weights = None if weights is None else weights.view(batch, heads, *weights.shape[2:])
    return output, weights


def with_constraint(
    bias: Tensor, allowed: Tensor | None, constraint: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Bias and ``allowed`` together with a host's constraint: bool (True = may attend) or additive.

    Args:
        bias: ``[1 or H, Lq, Lk]`` or ``[B, 1 or H, Lq, Lk]``.
        allowed: bool or None.
        constraint: broadcastable to ``[B, H, Lq, Lk]``, or None.
    """
    if constraint is None:
        return bias, allowed
    if constraint.dtype == torch.bool:
        return bias, constraint if allowed is None else allowed & constraint
    return bias + constraint, allowed


def join_heads(output: Tensor) -> Tensor:
    """``[batch, heads, length, width]`` → ``[batch, length, heads · width]``."""
    return output.transpose(1, 2).flatten(2)
