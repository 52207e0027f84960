"""A family: a kind of attention module and how a prior is put into it."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from torch import nn

from maskprior.integrations.site import Site


class Family(Protocol):
    """One kind of attention module.

    ``install`` and ``uninstall`` act on one attention module, ``prepare`` and ``restore`` on the host around
    it; each undoes the other exactly, so that a detached model is the model that it was.
    """

    def owns(self, module: nn.Module) -> bool:
        """Whether this is the family of the module."""

    def reason_against(self, name: str, module: nn.Module) -> str:
        """Why a module of this family cannot have a prior; empty if it can."""

    def is_cross(self, name: str, module: nn.Module) -> bool:
        """Whether keys come from another sequence: such modules have to be named."""

    def heads(self, module: nn.Module) -> int:
        """Number of query heads."""

    def length(self, model: nn.Module, name: str) -> int | None:
        """Number of tokens that the module sees, where the host fixes it."""

    def install(self, module: nn.Module, site: Site) -> None:
        """Make the module use the prior."""

    def uninstall(self, module: nn.Module) -> None:
        """Undo :meth:`install`."""

    def prepare(self, model: nn.Module) -> None:
        """Change what the host itself needs changed."""

    def restore(self, model: nn.Module) -> None:
        """Undo :meth:`prepare`."""


class ForwardFamily:
    """A family whose modules have one class: their ``forward`` is replaced, instance by instance.

    The replacement is a ``functools.partial`` in the instance's ``__dict__``: copies and pickles follow, the
    class stays what it was, and removing it leaves no trace.

    Args:
        kind: the class.
        forward: ``(module, site, *arguments of the class's forward) -> its result``.
    """

    def __init__(self, kind: type[nn.Module], forward: Callable[..., object]) -> None:
        self.kind, self.forward = kind, forward

    def owns(self, module: nn.Module) -> bool:
        """An instance of the class that has not overridden its ``forward``."""
        return isinstance(module, self.kind) and type(module).forward is self.kind.forward

    def reason_against(self, name: str, module: nn.Module) -> str:
        """A ``forward`` that somebody else replaced would be lost."""
        return "its forward was replaced on the instance" if "forward" in vars(module) else ""

    def is_cross(self, name: str, module: nn.Module) -> bool:
        """Self-attention."""
        return False

    def heads(self, module: nn.Module) -> int:
        """``num_heads``, as most libraries call it."""
        return int(getattr(module, "num_heads"))  # noqa: B009 -- nn.Module types attributes as modules

    def length(self, model: nn.Module, name: str) -> int | None:
        """Not fixed."""
        return None

    def install(self, module: nn.Module, site: Site) -> None:
        """Replace ``forward`` of this instance."""
        vars(module)["forward"] = partial(self.forward, module, site)

    def uninstall(self, module: nn.Module) -> None:
        """Uncover the class's ``forward``."""
        del vars(module)["forward"]

    def prepare(self, model: nn.Module) -> None:
        """Nothing."""

    def restore(self, model: nn.Module) -> None:
        """Nothing."""
