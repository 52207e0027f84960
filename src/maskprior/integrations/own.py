"""The attention of :class:`maskprior.models.Transformer`, which takes a bias by itself."""

from torch import Tensor, nn

from maskprior.integrations.family import ForwardFamily
from maskprior.integrations.site import Site
from maskprior.models.attention import Attention


def own_attention(
    module: Attention,
    site: Site,
    x: Tensor,
    bias: Tensor | None,
    allowed: Tensor | None = None,
    *,
    rows: slice | None = None,
    projected: Tensor | None = None,
) -> Tensor:
    """``Attention.forward`` with the site's bias added to the model's own.

    Raises:
        ValueError: a bias for each batch item, which this class does not take.
    """
    added = site.bias(x.shape[1], x.shape[1])
    if added.dim() == 4:
        raise ValueError(
            f"attention module {site.name!r}: maskprior.models.Transformer has one structure for all items"
        )
    total = added if bias is None else bias + added
    return Attention.forward(module, x, total, allowed, rows=rows, projected=projected)


class OwnFamily(ForwardFamily):
    """Attention of the package's own Transformer."""

    def __init__(self) -> None:
        super().__init__(Attention, own_attention)

    def heads(self, module: nn.Module) -> int:
        """``heads``."""
        return module.heads if isinstance(module, Attention) else super().heads(module)

    def length(self, model: nn.Module, name: str) -> int | None:
        """The read-out token and the rest, where the model is a whole Transformer."""
        position = getattr(model, "position", None)
        return len(position) if isinstance(position, Tensor) else None
