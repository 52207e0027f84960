"""The host model: whether it can take priors, and putting the hooks in and out."""

from torch import nn

from maskprior.integrations.bank import BANK_NAME, PriorBank
from maskprior.integrations.family import Family
from maskprior.integrations.selection import Found, find
from maskprior.integrations.site import Site


def bank_of(model: nn.Module) -> PriorBank:
    """The bank of a host.

    Raises:
        ValueError: the model has none: nothing was attached, or it was detached.
    """
    bank = getattr(model, BANK_NAME, None)
    if not isinstance(bank, PriorBank):
        raise ValueError(
            f"expected a model with attached priors, {type(model).__name__} has none: nothing was attached, "
            "it was detached, or the priors are on another module (the one given to attach)"
        )
    return bank


def check_host(model: nn.Module) -> None:
    """Raise ValueError, with the reason, where nothing can be attached in the model's state."""
    name = type(model).__name__
    if hasattr(model, "_orig_mod") or any(_compiled(module) for module in model.modules()):
        raise ValueError(f"{name} is compiled: attach first, compile afterwards")
    if isinstance(model, nn.parallel.DistributedDataParallel) or _sharded(model):
        raise ValueError(
            f"{name} is distributed already, and would not know of new parameters: attach first, then wrap"
        )
    if any(isinstance(module, PriorBank) for module in model.modules()):
        raise ValueError(
            f"{name} has attached priors already: detach() them first; one structure a layer is one "
            "attachment, see structures.per_layer"
        )
    if isinstance(model, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        raise ValueError(
            f"expected a model with a forward of its own, got {name}, which would take the priors for one of "
            "its members: attach to the module around it"
        )


def install(model: nn.Module) -> None:
    """Put the hooks in: every module of the plan uses its prior."""
    bank, found = bank_of(model), _planned(model)
    plan = bank.plan
    for family in _families(found):
        family.prepare(model)
    for each, index in zip(found, plan.prior_of_layer, strict=True):
        heads = each.family.heads(each.module)
        site = Site(each.name, bank[index], plan.lengths, heads, plan.heads, bank.relations)
        each.family.install(each.module, site)
    bank.installed = True


def uninstall(model: nn.Module) -> None:
    """Take the hooks out, if they are in; the bank stays."""
    bank, found = bank_of(model), _planned(model)
    if not bank.installed:
        return
    bank.installed = False
    for each in found:
        each.family.uninstall(each.module)
    for family in _families(found):
        family.restore(model)


def _planned(model: nn.Module) -> list[Found]:
    by_name = {each.name: each for each in find(model)}
    return [by_name[name] for name in bank_of(model).plan.layers]


def _families(found: list[Found]) -> list[Family]:
    return list({id(each.family): each.family for each in found}.values())


def _compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None


def _sharded(model: nn.Module) -> bool:
    """Whether FSDP manages any module, by the name of its classes: importing them costs much."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    return any(kind.__module__.startswith("torch.distributed.fsdp") for kind in kinds)
