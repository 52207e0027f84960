"""Structures from graphs: adjacency matrices, edge lists, networkx, hop distance."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from maskprior.structures.arguments import check_choice, square_structure, whole_number
from maskprior.structures.sequence import halving
from maskprior.structures.validation import first_index

if TYPE_CHECKING:
    import networkx as nx

Reader = Literal["source", "target"]


@runtime_checkable
class SparseMatrix(Protocol):
    """What scipy's sparse matrices and arrays have in common."""

    def toarray(self) -> Any:
        """The same matrix as a dense numpy array."""


def from_adjacency(matrix: Tensor | ArrayLike | SparseMatrix) -> Tensor:
    """The structure that a matrix spells out: s_ij = matrix_ij, so query i reads its neighbours j.

    Transpose it to let the readers be the columns. Rows may be empty.

    Args:
        matrix: ``[*heads, n, n]`` of bool, 0/1 or weights in [0, 1]: a tensor (dense or sparse), a numpy
            array, nested lists, or a scipy sparse matrix.

    Returns:
        A new float32 tensor ``[*heads, n, n]``, on the device of a given tensor, else on the CPU.

    Raises:
        TypeError: not a matrix of real numbers.
        ValueError: ragged, not square, non-finite or out of [0, 1].

    Example:
        >>> print(draw(from_adjacency([[0, 1, 0.5], [1, 0, 0], [0, 1, 0]])))
        · ■ 5
        ■ · ·
        · ■ ·
    """
    if isinstance(matrix, Tensor):
        values = matrix.detach()
        values = values if values.layout == torch.strided else values.to_dense()
    else:
        values = torch.from_numpy(_array(matrix))
    if values.is_complex():
        raise TypeError(f"expected a matrix of real numbers, got {values.dtype}")
    return square_structure(values.to(torch.float32, copy=True))


def from_edge_index(edge_index: Tensor | ArrayLike, n: int, *, reader: Reader = "source") -> Tensor:
    """The ends of each edge interact: with ``reader="source"`` s_uv = 1 for every edge u → v.

    PyTorch Geometric sends messages from source to target: there it is the target that reads. Undirected
    graphs list each edge in both directions, or use ``torch.maximum(structure, structure.T)``. Rows may be
    empty.

    Args:
        edge_index: integers ``[2, edges]``, sources above targets; repeated edges count once.
        n: number of tokens (nodes).
        reader: which end of an edge is the query, "source" or "target".

    Returns:
        float32 ``[n, n]`` of 0 and 1.

    Raises:
        TypeError: the indices or ``n`` are not integers.
        ValueError: ``n`` < 1, a wrong shape, an index out of 0..n−1, or an unknown reader.

    Example:
        >>> print(draw(from_edge_index([[0, 0], [1, 2]], n=3)))
        · ■ ■
        · · ·
        · · ·
    """
    check_choice("reader", reader, get_args(Reader))
    n = whole_number("n", n, minimum=1)
    edges = edge_index if isinstance(edge_index, Tensor) else torch.from_numpy(_array(edge_index))
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise ValueError(f"expected edge_index [2, edges], got shape {tuple(edges.shape)}")
    if edges.numel() and (edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool):
        raise TypeError(f"expected edge_index of integers, got {edges.dtype}")
    edges = edges.long()
    outside = (edges < 0) | (edges >= n)
    if bool(outside.any()):
        index = first_index(outside)
        raise ValueError(f"expected node indices in 0..{n - 1}, got {int(edges[tuple(index)])} at {index}")
    structure = torch.zeros(n, n, device=edges.device)
    structure[edges[0], edges[1]] = 1.0
    return structure if reader == "source" else structure.T.contiguous()


def from_networkx(
    graph: "nx.Graph",
    nodelist: Sequence[Hashable] | None = None,
    *,
    weight: str | None = None,
    reader: Reader = "source",
) -> Tensor:
    """Neighbours in a networkx graph interact.

    Undirected edges are read from both ends. A directed edge u → v makes u read v; with ``reader="target"``
    v reads u. Parallel edges count once, with the greatest weight. Rows may be empty.

    Args:
        graph: any networkx graph.
        nodelist: which nodes, in which order, are the tokens; None takes the graph's own order.
        weight: name of the edge attribute that holds weights in [0, 1] (1 where it is missing); None: all 1.
        reader: which end of a directed edge is the query, "source" or "target".

    Returns:
        float32 ``[n, n]``.

    Raises:
        TypeError: not a networkx graph.
        ValueError: no nodes, repeated or unknown nodes, weights out of [0, 1], or an unknown reader.

    Example:
        >>> import networkx
        >>> print(draw(from_networkx(networkx.path_graph(4))))
        · ■ · ·
        ■ · ■ ·
        · ■ · ■
        · · ■ ·
    """
    import networkx as nx

    check_choice("reader", reader, get_args(Reader))
    if not isinstance(graph, nx.Graph):
        raise TypeError(
            f"expected a networkx graph, got {type(graph).__name__}; from_adjacency takes matrices"
        )
    nodes = list(graph) if nodelist is None else list(nodelist)
    unknown = [node for node in nodes if node not in graph]
    if not nodes or unknown or len(set(nodes)) != len(nodes):
        raise ValueError(
            f"expected at least one node, each a node of the graph and named once, got {len(nodes)} node(s), "
            f"{len(nodes) - len(set(nodes))} repeated, unknown: {unknown}"
        )
    structure = from_adjacency(nx.to_numpy_array(graph, nodes, weight=weight, multigraph_weight=max))
    return structure if reader == "source" else structure.T.contiguous()


def graph_distance(
    adjacency: Tensor | ArrayLike | SparseMatrix,
    half_life: float | Sequence[float],
    *,
    max_distance: int | None = None,
) -> Tensor:
    """Interaction that halves with the number of hops d: s_ij = 2^(−d_ij / half_life).

    0 where j cannot be reached from i. Every adjacency > 0 is one hop, in its direction. Compose it:
    ``graph_distance(from_networkx(graph), half_life=1.0)``.

    Args:
        adjacency: ``[n, n]``, whatever :func:`from_adjacency` takes.
        half_life: hops after which the interaction has halved; a sequence gives one a head.
        max_distance: 0 beyond so many hops; None sets no limit.

    Returns:
        float32 ``[n, n]``, or ``[heads, n, n]`` for a sequence; 1 on the diagonal.

    Raises:
        TypeError: not a matrix of real numbers.
        ValueError: not square, non-finite, out of [0, 1], a half-life that is not finite and > 0, or
            ``max_distance`` < 0.

    Example:
        >>> print(draw(graph_distance(cyclic_window(5, [1, -1]), half_life=1.0)))
        ■ 5 2 2 5
        5 ■ 5 2 2
        2 5 ■ 5 2
        2 2 5 ■ 5
        5 2 2 5 ■
    """
    structure = _one_adjacency(adjacency)
    limit = None if max_distance is None else whole_number("max_distance", max_distance, minimum=0)
    return halving(_hops(structure, limit), half_life)


def hop_relations(
    adjacencies: Iterable[Tensor | ArrayLike | SparseMatrix], farthest: int, *, n: int | None = None
) -> Tensor:
    """Hops between the nodes of each graph of a batch: relations for ``attach_relations``, not a structure.

    0 is a node and itself, 1 its neighbours, and so on; ``farthest + 1`` is everything else: further, not to
    be reached, or padding. So there are ``farthest + 2`` relations.

    Args:
        adjacencies: one a graph, ``[nodes, nodes]``, whatever :func:`from_adjacency` takes.
        farthest: the greatest number of hops that is a relation of its own, ≥ 0.
        n: nodes to pad to; None takes those of the largest graph.

    Returns:
        int64 ``[graphs, n, n]``.

    Raises:
        TypeError: not matrices of real numbers.
        ValueError: no graphs, a graph of more than ``n`` nodes, ``farthest`` < 0, or as
            :func:`from_adjacency`.

    Source: Ying et al. 2021, "Do Transformers Really Perform Badly for Graph Representation?", section 3.1.2.

    Example:
        >>> hop_relations([cyclic_window(4, [1, -1]), pairs(2, [(0, 1)])], farthest=1).tolist()[1]
        [[0, 1, 2, 2], [1, 0, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2]]
    """
    farthest = whole_number("farthest", farthest, minimum=0)
    graphs = [_one_adjacency(adjacency) for adjacency in adjacencies]
    largest = max((len(graph) for graph in graphs), default=0)
    size = largest if n is None else whole_number("n", n, minimum=1)
    if not graphs or largest > size:
        raise ValueError(f"expected graphs of at most n={n} nodes, got {[len(graph) for graph in graphs]}")
    relations = torch.full((len(graphs), size, size), farthest + 1, device=graphs[0].device)
    for each, graph in zip(relations, graphs, strict=True):
        nodes = len(graph)
        each[:nodes, :nodes] = _hops(graph, farthest).clamp(max=farthest + 1)
    return relations


def _one_adjacency(adjacency: Tensor | ArrayLike | SparseMatrix) -> Tensor:
    structure = from_adjacency(adjacency)
    if structure.dim() != 2:
        raise ValueError(f"expected an adjacency [n, n], got shape {tuple(structure.shape)}")
    return structure


def _hops(adjacency: Tensor, limit: int | None) -> Tensor:
    """Breadth-first search from all nodes at once: hops from row to column, ∞ where there is no way."""
    n = adjacency.shape[0]
    incoming = (adjacency > 0).float().T.to_sparse()  # [node, neighbour it is reached from]
    seen = frontier = torch.eye(n, dtype=torch.bool, device=adjacency.device)  # [node, start]
    hops = torch.zeros(n, n, device=adjacency.device)
    for _ in range(n if limit is None else limit):
        hops += ~seen
        frontier = (torch.sparse.mm(incoming, frontier.float()) > 0) & ~seen
        seen = seen | frontier
        if not bool(frontier.any()):
            break
    return hops.masked_fill(~seen, float("inf")).T.contiguous()


def _array(matrix: object) -> np.ndarray[Any, Any]:
    """A numeric array of what numpy understands or of what has ``toarray``."""
    if hasattr(matrix, "nodes"):  # numpy would read a graph as the list of its nodes
        raise TypeError(f"expected a matrix, got the graph {type(matrix).__name__}; use from_networkx")
    dense = matrix.toarray() if isinstance(matrix, SparseMatrix) else matrix
    try:
        array = np.array(dense)
    except ValueError as error:
        raise ValueError(f"expected a rectangular matrix, got {type(matrix).__name__}: {error}") from None
    if array.dtype.kind not in "biufc":
        raise TypeError(f"expected a matrix of numbers, got {type(matrix).__name__} of {array.dtype}")
    # torch knows neither all unsigned nor the extended types
    return array.astype({"u": np.int64, "f": np.float64}.get(array.dtype.kind, array.dtype))
