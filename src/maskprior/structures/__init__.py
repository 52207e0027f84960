"""Structures: who should interact with whom, as plain tensors ``[*heads, query, key]`` in [0, 1].

1 = interact, 0 = suppress, between = graded. Constructors are pure functions, the length first, that return
float32; ``torch.maximum`` is their union, ``torch.minimum`` their intersection, ``.T`` swaps readers and
read. Rows may stay empty while composing; ``check_structure`` refuses them at the end. ``draw`` shows them:

    >>> print(draw(with_readout(torch.maximum(pairs(4, [(0, 1)]), pairs(4, [(2, 3)])), reads=[0, 1])))
    · ■ ■ · ·
    · · ■ · ·
    · ■ · · ·
    · · · · ■
    · · · ■ ·
"""

from maskprior.structures.basic import everything, groups, identity, pairs, reads
from maskprior.structures.compose import (
    padded,
    per_head,
    per_layer,
    with_fallback,
    with_fallback_self,
    with_self,
    without_self,
)
from maskprior.structures.drawing import draw
from maskprior.structures.graph import (
    from_adjacency,
    from_edge_index,
    from_networkx,
    graph_distance,
    hop_relations,
)
from maskprior.structures.grid import grid_decay, grid_neighbourhood, grid_offset, grid_offsets
from maskprior.structures.labels import carry_neighbour, digit_alignment, digit_columns, same_label
from maskprior.structures.readout import with_readout
from maskprior.structures.sequence import (
    causal,
    cyclic_window,
    geometric_half_lives,
    linear_distance,
    relative_distance,
    window,
)
from maskprior.structures.validation import check_structure

__all__ = [
    "check_structure",
    "draw",
    # named tokens
    "everything",
    "identity",
    "pairs",
    "groups",
    "reads",
    # positions on a line or a ring
    "causal",
    "window",
    "cyclic_window",
    "relative_distance",
    "linear_distance",
    "geometric_half_lives",
    # cells on a grid
    "grid_neighbourhood",
    "grid_decay",
    "grid_offset",
    "grid_offsets",
    # graphs
    "from_adjacency",
    "from_edge_index",
    "from_networkx",
    "graph_distance",
    "hop_relations",
    # labels and digits
    "same_label",
    "digit_columns",
    "digit_alignment",
    "carry_neighbour",
    # structures from structures
    "with_self",
    "without_self",
    "with_fallback",
    "with_fallback_self",
    "with_readout",
    "padded",
    "per_head",
    "per_layer",
]
