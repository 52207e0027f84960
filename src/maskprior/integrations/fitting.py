"""Whether a structure fits the attention modules it is for, said before anything is changed."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from maskprior.integrations.lengths import Lengths
from maskprior.integrations.selection import Found
from maskprior.structures import check_structure


def structures_of_layers(structure: Tensor, found: Sequence[Found], *, share: bool) -> list[Tensor]:
    """The structure of each module, ``[N, N]`` or ``[heads, N, N]``.

    Raises:
        TypeError: not a tensor of a fitting type.
        ValueError: not a structure, or one a layer where the layers are others.
    """
    check_structure(structure)
    if structure.dim() < 4:
        return [structure] * len(found)
    if share or structure.dim() > 4 or len(structure) != len(found):
        raise ValueError(
            "expected a structure [N, N], [heads, N, N], or (not with share=True) [layers, 1 or heads, N, N] "
            f"with layers={len(found)} for {[each.name for each in found]}, got {list(structure.shape)}"
        )
    return list(structure)


def check_fit(
    model: nn.Module,
    found: Sequence[Found],
    tables: Sequence[Tensor],
    heads: tuple[int, ...] | None,
    lengths: Lengths,
) -> None:
    """Raise ValueError, naming the modules, where heads or lengths cannot fit.

    Args:
        model: the host.
        found: the attention modules.
        tables: for each of them its structure or M, ``[N, N]`` or ``[heads, N, N]``.
        heads: the heads that have a prior; None: all.
        lengths: what to do at another length.
    """
    check_heads(found, tables, heads)
    _refuse(
        found, [_wrong_length(model, each, table, lengths) for each, table in zip(found, tables, strict=True)]
    )


def check_heads(found: Sequence[Found], tables: Sequence[Tensor], heads: tuple[int, ...] | None) -> None:
    """Raise ValueError, naming the modules, where the heads cannot fit (tables ``[1 or heads, …, …]``)."""
    _refuse(found, [_wrong_heads(each, table, heads) for each, table in zip(found, tables, strict=True)])


def _refuse(found: Sequence[Found], problems: Sequence[str]) -> None:
    """Raise ValueError where there is a problem; modules with the same one are named together."""
    modules: dict[str, list[str]] = {}
    for each, problem in zip(found, problems, strict=True):
        if problem:
            modules.setdefault(problem, []).append(f"{each.name!r} ({type(each.module).__name__})")
    if modules:
        wrong = (f"{', '.join(names)}: {problem}" for problem, names in modules.items())
        raise ValueError(f"the structure does not fit: {'; '.join(wrong)}")


def _wrong_heads(found: Found, table: Tensor, heads: tuple[int, ...] | None) -> str:
    total = found.family.heads(found.module)
    if heads is not None and (
        not heads or len(set(heads)) != len(heads) or not all(0 <= head < total for head in heads)
    ):
        return f"{total} heads, expected distinct numbers from 0 to {total - 1}, got {list(heads)}"
    expected = total if heads is None else len(heads)
    if table.dim() == 3 and table.shape[0] not in (1, expected):
        return f"{expected} heads for the prior, the structure has {table.shape[0]}"
    return ""


def checked_relations(index: Tensor, count: int) -> Tensor:
    """Relations as int64 ``[1 or batch, queries, keys]``.

    Raises:
        TypeError: not integers.
        ValueError: of another shape, or not all in 0..count − 1.
    """
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise TypeError(f"expected relations as integers, got {index.dtype}")
    if index.dim() not in (2, 3):
        raise ValueError(
            f"expected relations [queries, keys] or [batch, queries, keys], got {list(index.shape)}"
        )
    low, high = (int(extreme) for extreme in index.aminmax())
    if low < 0 or high >= count:
        raise ValueError(f"expected relations from 0 to {count - 1}, got values from {low} to {high}")
    return (index[None] if index.dim() == 2 else index).long()


def _wrong_length(model: nn.Module, found: Found, table: Tensor, lengths: Lengths) -> str:
    tokens = found.family.length(model, found.name)
    if tokens is None:
        return ""
    try:
        lengths.fit(torch.empty(table.shape[-2:]), tokens, tokens)
    except ValueError as error:
        hint = "; class and register tokens need rows of their own (structures.with_readout)"
        return f"{tokens} tokens, {error}{hint if tokens > table.shape[-1] else ''}"
    return ""
