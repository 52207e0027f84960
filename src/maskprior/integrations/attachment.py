"""Attach a prior to a model that exists: put it in, switch it off, take it out."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from maskprior.functional import ALLOWED_LOGIT, SUPPRESSED_LOGIT
from maskprior.integrations.bank import BANK_NAME, ConstantBias, Plan, PriorBank
from maskprior.integrations.decay import watch_for_decay
from maskprior.integrations.fitting import check_fit, structures_of_layers
from maskprior.integrations.hosts import bank_of, check_host, install, uninstall
from maskprior.integrations.lengths import Lengths, Rule, as_lengths
from maskprior.integrations.saving import read_attachment, write_attachment
from maskprior.integrations.selection import Layers, select
from maskprior.mask_prior import MaskPrior
from maskprior.parameter_groups import parameter_groups


class Attachment:
    """The priors in a host model and what can be done with them.

    Made by :func:`attach` and :meth:`load`; :meth:`of` gives the attachment of a copy of the host. The priors
    are modules of the host under the name ``bias_priors``: they move, train and are saved with it.
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
        shapes = [bank.get_parameter(f"{index}.mask_logits").detach() for index in bank.plan.prior_of_layer]
        check_fit(model, found, shapes, bank.plan.heads, bank.plan.lengths)
        return _put(model, bank.to(_device_of(model)))

    def __repr__(self) -> str:
        """Where the priors are."""
        return f"Attachment({len(self.priors)} prior(s) in {', '.join(self.layers)})"


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
    plan = Plan(
        layers=tuple(each.name for each in found),
        prior_of_layer=tuple(0 if share else index for index in range(len(found))),
        heads=chosen,
        lengths=rule,
    )
    return _put(model, PriorBank(priors, plan).to(_device_of(model)))


def _put(model: nn.Module, bank: PriorBank) -> Attachment:
    model.add_module(BANK_NAME, bank)
    install(model)
    watch_for_decay(model)
    return Attachment(model)


def _device_of(model: nn.Module) -> torch.device:
    tensors: Iterable[Tensor] = (*model.parameters(), *model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
