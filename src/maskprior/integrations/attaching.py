"""Attach a prior to a model that exists."""

from collections.abc import Sequence

from torch import Tensor, nn

from maskprior.functional import ALLOWED_LOGIT, SUPPRESSED_LOGIT
from maskprior.integrations.attachment import Attachment, put_in
from maskprior.integrations.bank import Plan, PriorBank
from maskprior.integrations.fitting import check_fit, check_heads, structures_of_layers
from maskprior.integrations.hosts import check_host
from maskprior.integrations.lengths import Lengths, Rule, as_lengths
from maskprior.integrations.selection import Found, Layers, select
from maskprior.mask_prior import MaskPrior


def attach(
    model: nn.Module,
    structure: Tensor,
    *,
    layers: Layers | None = None,
    heads: Sequence[int] | None = None,
    learnable: bool = True,
    allowed_logit: float = ALLOWED_LOGIT,
    suppressed_logit: float = SUPPRESSED_LOGIT,
    share: bool = False,
    lengths: Lengths | Rule = "error",
) -> Attachment:
    """Put a prior into the attention of a model, in place:

        softmax(Q Kᵀ / √d + own bias of the host + log σ(M)) V over the keys that the host allows.

    Causal and padding masks of the host stay in force; tokens count from 0 without left padding.

    Args:
        model: a module with attention of torch.nn, timm, Hugging Face or this package.
        structure: ``[N, N]``, ``[heads, N, N]``, or one a layer ``[layers, 1 or heads, N, N]``, in [0, 1].
        layers: None: every self-attention; else numbers, names or patterns of names.
        heads: numbers of the heads that have the prior (``heads`` of the structure are these); None: all.
        learnable: False freezes M.
        allowed_logit: M where the structure is 1.
        suppressed_logit: M where the structure is 0.
        share: one M for all layers, rather than one a layer.
        lengths: what to do at other lengths than N; see :class:`Lengths`.

    Returns:
        The attachment.

    Raises:
        TypeError: the structure is not a tensor of a fitting type.
        ValueError: nothing in the model matched, an entry of ``layers`` matched nothing, the structure does
            not fit, or the model is in a state in which nothing can be attached.

    Source: Ma et al. 2026, section 3.
    """
    check_host(model)
    found = select(model, layers)
    rule = as_lengths(lengths)
    chosen = None if heads is None else tuple(heads)
    structures = structures_of_layers(structure, found, share=share)
    for each in structures:
        rule.check(each)
    check_fit(model, found, structures, chosen, rule)
    priors = [
        MaskPrior.from_structure(
            each, allowed_logit=allowed_logit, suppressed_logit=suppressed_logit, learnable=learnable
        )
        for each in (structures[:1] if share else structures)
    ]
    return put_in(model, PriorBank(priors, _plan(found, chosen, rule, share=share)))


def attach_relations(
    model: nn.Module,
    values: Tensor,
    *,
    layers: Layers | None = None,
    heads: Sequence[int] | None = None,
    learnable: bool = True,
    allowed_logit: float = ALLOWED_LOGIT,
    suppressed_logit: float = SUPPRESSED_LOGIT,
    share: bool = False,
) -> Attachment:
    """Put a prior into the attention of a model whose tokens are related differently in each batch item:

        softmax(Q Kᵀ / √d + log σ(m[relation(query, key)])) V, one logit m a relation (and head)

    For batches of graphs (relation = number of hops), tables of different columns, expressions of different
    lengths. Calls go within ``with attachment.relations(index):``. Padding is the host's, or a relation with
    value 0.

    Args:
        model: as for :func:`attach`.
        values: how much tokens of a relation interact, ``[relations]`` or ``[heads, relations]`` in [0, 1].
        layers: as for :func:`attach`.
        heads: as for :func:`attach`.
        learnable: False freezes m.
        allowed_logit: m where the value is 1.
        suppressed_logit: m where the value is 0.
        share: one m for all layers, rather than one a layer.

    Returns:
        The attachment.

    Raises:
        TypeError: the values are not a tensor of a fitting type.
        ValueError: as for :func:`attach`.

    Source: Ma et al. 2026, section 3; Ying et al. 2021, "Do Transformers Really Perform Badly for Graph
    Representation?", section 3.1.2, for a bias by the distance in a graph.
    """
    check_host(model)
    table = values[None] if values.dim() == 1 else values
    if table.dim() != 2:
        raise ValueError(f"expected values [relations] or [heads, relations], got {list(values.shape)}")
    found = select(model, layers)
    chosen = None if heads is None else tuple(heads)
    check_heads(found, [table[:, None]] * len(found), chosen)
    priors = [
        MaskPrior.from_structure(
            table, allowed_logit=allowed_logit, suppressed_logit=suppressed_logit, learnable=learnable
        )
        for _ in (found[:1] if share else found)
    ]
    plan = _plan(found, chosen, Lengths(), share=share, by_relation=True)
    return put_in(model, PriorBank(priors, plan))


def _plan(
    found: list[Found],
    heads: tuple[int, ...] | None,
    lengths: Lengths,
    *,
    share: bool,
    by_relation: bool = False,
) -> Plan:
    names = tuple(each.name for each in found)
    index = tuple(0 if share else number for number in range(len(found)))
    return Plan(names, index, heads, lengths, by_relation)
