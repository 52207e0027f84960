"""Where the query and key weights of a model are, also inside fused projections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

QUERY_NAMES = ("q_proj.weight", "query.weight", "q_lin.weight", "q_proj_weight", "to_q.weight")
KEY_NAMES = ("k_proj.weight", "key.weight", "k_lin.weight", "k_proj_weight", "to_k.weight")
FUSED_NAMES = ("qkv.weight", "in_proj_weight", "c_attn.weight")


@dataclass(frozen=True, eq=False)
class Part:
    """A range of rows or columns of a parameter.

    Attributes:
        parameter: the whole.
        dim: 0 for rows, 1 for columns.
        start: first row or column.
        length: how many; the whole parameter by default.
    """

    parameter: nn.Parameter
    dim: int = 0
    start: int = 0
    length: int | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """The part of a tensor of the parameter's shape: of the parameter, its gradient, a copy."""
        length = tensor.shape[self.dim] if self.length is None else self.length
        return tensor.narrow(self.dim, self.start, length)


class QueryKeyWeights(NamedTuple):
    """W_Q and W_K, layer by layer."""

    query: Sequence[Part]
    key: Sequence[Part]


def find_query_key(model: nn.Module) -> QueryKeyWeights:
    """W_Q and W_K by the names that libraries give them; empty where a model uses none of these names.

    Apart: ``q_proj``, ``query``, ``q_lin``, ``to_q`` and the same with k; fused in thirds: ``qkv``,
    ``in_proj_weight``, and ``c_attn`` (by columns unless it is an ``nn.Linear``, as in GPT-2).
    """
    query: list[Part] = []
    key: list[Part] = []
    for name, parameter in model.named_parameters():
        if _named(name, QUERY_NAMES):
            query.append(Part(parameter))
        elif _named(name, KEY_NAMES):
            key.append(Part(parameter))
        elif _named(name, FUSED_NAMES):
            dim = _output_dim(model, name)
            third = parameter.shape[dim] // 3
            query.append(Part(parameter, dim, 0, third))
            key.append(Part(parameter, dim, third, third))
    return QueryKeyWeights(query, key)


def _named(name: str, endings: Sequence[str]) -> bool:
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)


def _output_dim(model: nn.Module, name: str) -> int:
    owner, _, kind = name.rpartition(".")
    rows = kind == "in_proj_weight" or isinstance(model.get_submodule(owner), nn.Linear)
    return 0 if rows else 1
