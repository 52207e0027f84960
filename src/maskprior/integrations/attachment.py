"""The handle on the priors in a host model: switch them off, take them out, save them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from maskprior.integrations.bank import BANK_NAME, ConstantBias, PriorBank
from maskprior.integrations.decay import watch_for_decay
from maskprior.integrations.fitting import check_fit, check_heads, checked_relations
from maskprior.integrations.hosts import bank_of, check_host, install, uninstall
from maskprior.integrations.saving import read_attachment, write_attachment
from maskprior.integrations.selection import select
from maskprior.mask_prior import MaskPrior
from maskprior.parameter_groups import parameter_groups


class Attachment:
    """The priors in a host model and what can be done with them.

    Made by ``attach``, ``attach_relations`` and :meth:`load`; :meth:`of` gives that of a copy of the host.
    The priors are modules of the host under the name ``bias_priors``: they move, train and are saved with it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        bank_of(model)

    @classmethod
    def of(cls, model: nn.Module) -> "Attachment":
        """The attachment of a model that has priors already, such as a deepcopy or an EMA copy.

        Raises:
            ValueError: the model has none.
        """
        return cls(model)

    @property
    def priors(self) -> tuple[MaskPrior, ...]:
        """The priors, each once (one for all layers if shared); none after :meth:`bake`."""
        return tuple(prior for prior in bank_of(self._model) if isinstance(prior, MaskPrior))

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the attention modules that have a prior."""
        return bank_of(self._model).plan.layers

    def prior_of(self, layer: str) -> MaskPrior:
        """The prior of an attention module.

        Raises:
            ValueError: the module has none, or it was baked.
        """
        plan = bank_of(self._model).plan
        if layer not in plan.layers or not self.priors:
            raise ValueError(f"expected one of {list(plan.layers) if self.priors else []}, got {layer!r}")
        return self.priors[plan.prior_of_layer[plan.layers.index(layer)]]

    def detach(self) -> None:
        """Take the priors out. The model is then the one it was, bit by bit; the attachment is over."""
        uninstall(self._model)
        delattr(self._model, BANK_NAME)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Within the context, the model is the one it was without priors (which stay in its state)."""
        was_installed = bank_of(self._model).installed
        uninstall(self._model)
        try:
            yield
        finally:
            if was_installed and hasattr(self._model, BANK_NAME):
                install(self._model)

    @contextmanager
    def relations(self, index: Tensor) -> Iterator[None]:
        """Within the context, the tokens of the batch have these relations (see ``attach_relations``).

        With gradient checkpointing, the backward belongs into the context too.

        Args:
            index: integers ``[queries, keys]`` for all items, or ``[batch, queries, keys]``.

        Raises:
            ValueError: the attachment is not one of relations, or a relation is out of range.
            TypeError: not integers.
        """
        bank = bank_of(self._model)
        holder = bank.relations
        if holder is None:
            raise ValueError("expected an attachment made by attach_relations, got one of positions")
        count = next(iter(bank.state_dict().values())).shape[-1]
        before, holder.index = holder.index, checked_relations(index, count)
        try:
            yield
        finally:
            holder.index = before

    def freeze(self) -> None:
        """Stop learning M."""
        for prior in self.priors:
            prior.requires_grad_(False)

    def unfreeze(self) -> None:
        """Learn M (again), also where another tool has frozen it with the rest of the model."""
        for prior in self.priors:
            prior.requires_grad_(True)

    def bake(self) -> None:
        """Turn log σ(M) into a constant bias: nothing to learn and nothing to compute. Not to be undone."""
        uninstall(self._model)
        bank = bank_of(self._model)
        for index, prior in enumerate(bank):
            if isinstance(prior, MaskPrior):
                bank[index] = ConstantBias(prior())
        install(self._model)

    def param_groups(
        self, lr: float, weight_decay: float = 0.0, *, mask_lr_factor: float = 1.0
    ) -> list[dict[str, Any]]:
        """Parameter groups of the whole model for any torch optimiser, M undecayed.

        Args:
            lr: learning rate of the model.
            weight_decay: of its matrices; vectors and M have none.
            mask_lr_factor: learning rate of M over ``lr``.
        """
        return parameter_groups(
            self._model,
            learning_rate=lr,
            weight_decay=weight_decay,
            mask_learning_rate_factor=mask_lr_factor,
        )

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Write the priors and where they go, not the model: safetensors and JSON, as an adapter.

        Raises:
            ValueError: the priors were baked (the host's ``state_dict`` holds the constant bias).
        """
        write_attachment(bank_of(self._model), directory)

    @classmethod
    def load(cls, model: nn.Module, directory: str | PathLike[str]) -> "Attachment":
        """Attach what :meth:`save_pretrained` has written to a model with the same attention modules.

        Raises:
            FileNotFoundError: one of the two files is not there.
            ValueError: the files are not what :meth:`save_pretrained` writes (truncated, a pickle, other
                names, types or shapes, NaN), or they do not fit the model.
        """
        check_host(model)
        bank = read_attachment(directory)
        found = select(model, bank.plan.layers)
        names = tuple(each.name for each in found)
        if names != bank.plan.layers:
            raise ValueError(f"expected attention modules in the order {bank.plan.layers}, found {names}")
        tables = [bank.get_parameter(f"{index}.mask_logits").detach() for index in bank.plan.prior_of_layer]
        if bank.plan.by_relation:
            check_heads(found, [table[:, None] for table in tables], bank.plan.heads)
        else:
            check_fit(model, found, tables, bank.plan.heads, bank.plan.lengths)
        return put_in(model, bank)

    def __repr__(self) -> str:
        """Where the priors are."""
        return f"Attachment({len(self.priors)} prior(s) in {', '.join(self.layers)})"


def put_in(model: nn.Module, bank: PriorBank) -> Attachment:
    """Give the model its bank and let it be used; the last step of attaching, after all checks."""
    model.add_module(BANK_NAME, bank.to(_device_of(model)))
    install(model)
    watch_for_decay(model)
    return Attachment(model)


def _device_of(model: nn.Module) -> torch.device:
    tensors: Iterable[Tensor] = (*model.parameters(), *model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
