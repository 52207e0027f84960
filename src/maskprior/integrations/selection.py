"""Which attention modules of a host model: all, by number or by name."""

import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from torch import nn

from maskprior.integrations.family import Family
from maskprior.integrations.own import OwnFamily
from maskprior.integrations.torch_nn import MultiheadAttentionFamily

Layers = Iterable[int | str]


class Found(NamedTuple):
    """An attention module that a family knows."""

    name: str
    module: nn.Module
    family: Family


def find(model: nn.Module) -> list[Found]:
    """Every attention module of a known family, in the order of the model."""
    families = known_families("timm" in sys.modules, "transformers" in sys.modules)
    return [
        Found(name, module, family)
        for name, module in model.named_modules()
        for family in families
        if family.owns(module)
    ]


@cache
def known_families(with_timm: bool, with_transformers: bool) -> tuple[Family, ...]:
    """The table of families; those of libraries that nobody has imported cannot be in a model."""
    families: list[Family] = [MultiheadAttentionFamily(), OwnFamily()]
    if with_timm:
        from maskprior.integrations.timm import timm_families

        families += timm_families()
    if with_transformers:
        from maskprior.integrations.huggingface import HuggingFaceFamily

        families.append(HuggingFaceFamily())
    return tuple(families)


def select(model: nn.Module, layers: Layers | None) -> list[Found]:
    """The chosen attention modules, each once, in the order of the model.

    Args:
        model: the host.
        layers: None takes every self-attention. Else numbers (counting self-attention from 0, negative ones
            from the end) and names, which may be patterns such as ``"blocks.*.attn"``; a name that matches
            no self-attention may mean cross-attention.

    Raises:
        ValueError: nothing matched, an entry of ``layers`` matched nothing, or a module cannot have a prior.
        TypeError: an entry that is neither a number nor a name.
    """
    found = find(model)
    own = [each for each in found if not each.family.is_cross(each.name, each.module)]
    if layers is None:
        chosen = own
    else:
        entries = [layers] if isinstance(layers, str) else list(layers)
        wanted = {each.name for entry in entries for each in _matches(model, found, own, entry)}
        chosen = [each for each in found if each.name in wanted]
    if not chosen:
        raise ValueError(f"expected a model with attention that can have a prior; {seen(model)}")
    refused = [f"{each.name!r}: {reason}" for each in chosen if (reason := _reason_against(each))]
    if refused:
        raise ValueError(f"these attention modules cannot have a prior: {'; '.join(refused)}")
    return chosen


def _matches(
    model: nn.Module, found: Sequence[Found], own: Sequence[Found], entry: int | str
) -> Sequence[Found]:
    if isinstance(entry, bool) or not isinstance(entry, int | str):
        raise TypeError(f"expected layers as numbers and names, got {type(entry).__name__}")
    if isinstance(entry, int):
        matched = [own[entry]] if -len(own) <= entry < len(own) else []
    else:
        every = [each for each in found if fnmatchcase(each.name, entry)]
        matched = [each for each in own if fnmatchcase(each.name, entry)] or every
    if not matched:
        raise ValueError(f"expected every entry of layers to match, {entry!r} does not; {seen(model)}")
    return matched


def _reason_against(found: Found) -> str:
    return found.family.reason_against(found.name, found.module)


def seen(model: nn.Module) -> str:
    """What was seen, for error messages: attention modules, else what looks like it, else all classes."""
    known = [f"{each.name!r} ({type(each.module).__name__})" for each in find(model)]
    if known:
        return f"attention modules seen: {', '.join(known)}"
    alike = [
        f"{name!r} ({type(module).__name__})"
        for name, module in model.named_modules()
        if "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()
    ]
    if alike:
        return (
            f"no known attention, but modules that look like it: {', '.join(alike)}. Known are torch.nn, "
            "timm (ViT, DeiT, EVA, BEiT, Swin), Hugging Face models on its attention interface, and "
            "maskprior.models.Transformer; modules that override `forward` are left alone"
        )
    classes = dict.fromkeys(type(module).__name__ for module in model.modules())
    return f"no attention among the modules seen: {', '.join(classes)}"
