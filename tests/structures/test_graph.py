"""Structures from graphs against networkx's own answers."""

import re
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior.structures import (
    from_adjacency,
    from_edge_index,
    from_networkx,
    graph_distance,
    hop_relations,
    identity,
)

N = 7
WEIGHTS = [[0.0, 0.25, 1.0], [0.5, 0.0, 0.0], [0.0, 0.75, 0.125]]
BITS = [[0, 1, 1], [1, 0, 0], [0, 1, 0]]
edge_lists = st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), max_size=15)


def equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def digraph(edges: list[tuple[int, int]]) -> "nx.DiGraph[int]":
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(N))
    graph.add_edges_from(edges)
    return graph


@pytest.mark.parametrize(
    "matrix",
    [
        WEIGHTS,
        [tuple(row) for row in WEIGHTS],
        np.array(WEIGHTS),
        np.array(WEIGHTS, dtype=np.float16),
        np.array(WEIGHTS, dtype=np.longdouble),
        np.asfortranarray(WEIGHTS),
        torch.tensor(WEIGHTS, dtype=torch.float64),
        torch.tensor(WEIGHTS, dtype=torch.bfloat16, requires_grad=True),
        torch.tensor(WEIGHTS).to_sparse(),
        scipy.sparse.csr_matrix(WEIGHTS),
        scipy.sparse.coo_array(WEIGHTS),
    ],
)
def test_from_adjacency_keeps_weights(matrix: Any) -> None:
    structure = from_adjacency(matrix)
    equal(structure, torch.tensor(WEIGHTS))
    assert not structure.requires_grad


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.uint16, np.int64, np.uint64, np.float32])
def test_from_adjacency_takes_bits_of_any_type(dtype: type) -> None:
    equal(from_adjacency(np.array(BITS, dtype=dtype)), torch.tensor(BITS, dtype=torch.float32))
    equal(from_adjacency(scipy.sparse.csr_array(np.array(BITS, dtype=dtype))), from_adjacency(BITS))


def test_from_adjacency_copies_and_keeps_heads() -> None:
    source = torch.tensor(BITS, dtype=torch.float32).repeat(2, 1, 1)
    array = source.numpy().copy()
    for structure in (from_adjacency(source), from_adjacency(array)):
        assert structure.shape == (2, 3, 3)
        structure.zero_()
    assert source.sum() == array.sum() == 8


@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        ([[1, 2], [3]], ValueError, "expected a rectangular matrix, got list"),
        (np.ones((2, 3)), ValueError, "expected as many keys as queries, got a structure of shape (2, 3)"),
        (
            [1, 0],
            ValueError,
            "expected a structure [*heads, query, key] with no dimension of size 0, got shape (2,)",
        ),
        ([[0, 2], [1, 0]], ValueError, "expected structure values in [0, 1], got values from 0 to 2"),
        (np.full((2, 2), np.nan), ValueError, "expected a finite structure, got nan at index [0, 0]"),
        ([["a"]], TypeError, "expected a matrix of numbers, got list of <U1"),
        (
            np.ones((2, 2), dtype=complex),
            TypeError,
            "expected a matrix of real numbers, got torch.complex128",
        ),
        (None, TypeError, "expected a matrix of numbers, got NoneType of object"),
        (nx.grid_2d_graph(1, 2), TypeError, "expected a matrix, got the graph Graph; use from_networkx"),
    ],
)
def test_from_adjacency_refusals(matrix: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        from_adjacency(matrix)


@given(edge_lists)
def test_from_edge_index(edges: list[tuple[int, int]]) -> None:
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    expected = torch.tensor([[float((i, j) in edges) for j in range(N)] for i in range(N)])
    equal(from_edge_index(edge_index, N), expected)
    equal(from_edge_index(edge_index.numpy(), N, reader="target"), expected.T)


def test_from_edge_index_takes_lists_and_no_edges() -> None:
    equal(from_edge_index([[], []], 2), torch.zeros(2, 2))
    equal(from_edge_index([[0], [1]], 2), torch.tensor([[0.0, 1.0], [0.0, 0.0]]))


@pytest.mark.parametrize(
    ("edge_index", "error", "message"),
    [
        ([[0, 1, 2]], ValueError, "expected edge_index [2, edges], got shape (1, 3)"),
        ([[0, 1], [1, N]], ValueError, "expected node indices in 0..6, got 7 at [1, 1]"),
        ([[0, -1], [1, 0]], ValueError, "expected node indices in 0..6, got -1 at [0, 1]"),
        ([[0.0], [1.0]], TypeError, "expected edge_index of integers, got torch.float64"),
    ],
)
def test_from_edge_index_refusals(edge_index: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        from_edge_index(edge_index, N)


@given(edge_lists, st.permutations(range(N)), st.integers(1, N))
def test_from_networkx_directed(edges: list[tuple[int, int]], order: list[int], kept: int) -> None:
    graph = digraph(edges)
    nodes = order[:kept]
    expected = torch.tensor([[float(graph.has_edge(u, v)) for v in nodes] for u in nodes])
    equal(from_networkx(graph, nodes), expected)
    equal(from_networkx(graph, nodes, reader="target"), expected.T)


@given(edge_lists)
def test_from_networkx_undirected_is_symmetric(edges: list[tuple[int, int]]) -> None:
    structure = from_networkx(digraph(edges).to_undirected())
    equal(structure, structure.T)
    directed = from_edge_index(torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T, N)
    equal(structure, torch.maximum(directed, directed.T))


def test_from_networkx_weights_and_parallel_edges() -> None:
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_edge("a", "b", strength=0.25)
    graph.add_edge("a", "b", strength=0.75)
    graph.add_edge("b", "a")
    equal(from_networkx(graph), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    equal(from_networkx(graph, weight="strength"), torch.tensor([[0.0, 0.75], [1.0, 0.0]]))


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: from_networkx(np.ones((2, 2))), TypeError, "expected a networkx graph, got ndarray"),
        (lambda: from_networkx(nx.Graph()), ValueError, "got 0 node(s), 0 repeated, unknown: []"),
        (
            lambda: from_networkx(nx.path_graph(3), [0, 5]),
            ValueError,
            "got 2 node(s), 0 repeated, unknown: [5]",
        ),
        (
            lambda: from_networkx(nx.path_graph(3), [0, 0, 1]),
            ValueError,
            "got 3 node(s), 1 repeated, unknown: []",
        ),
        (
            lambda: from_networkx(nx.path_graph(3), reader="both"),  # type: ignore[arg-type]
            ValueError,
            "expected reader to be one of 'source', 'target', got 'both'",
        ),
    ],
)
def test_from_networkx_refusals(build: Callable[[], Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        build()


@given(edge_lists, st.floats(0.2, 5.0), st.none() | st.integers(0, N))
def test_graph_distance(edges: list[tuple[int, int]], half_life: float, max_distance: int | None) -> None:
    graph = digraph(edges)
    hops = dict(nx.all_pairs_shortest_path_length(graph, cutoff=max_distance))
    expected = torch.zeros(N, N)
    for i in range(N):
        for j, distance in hops[i].items():
            expected[i, j] = 0.5 ** (distance / half_life)
    actual = graph_distance(from_networkx(graph), half_life, max_distance=max_distance)
    torch.testing.assert_close(actual, expected, rtol=2e-7, atol=0)


def test_graph_distance_counts_hops_not_weights_and_takes_heads() -> None:
    chain = np.diag([0.1] * (N - 1), k=1)
    heads = graph_distance(scipy.sparse.csr_array(chain), [1.0, 2.0])
    assert heads.shape == (2, N, N)
    assert heads[0, 0].tolist() == [0.5**hops for hops in range(N)]
    assert heads[1, 0, 4] == 0.25
    equal(heads, heads.triu())
    equal(graph_distance(chain, 1.0, max_distance=0), identity(N))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: graph_distance(torch.ones(2, 3, 3), 1.0),
            "expected an adjacency [n, n], got shape (2, 3, 3)",
        ),
        (lambda: graph_distance(torch.ones(3, 3), -1.0), "expected half_life finite and > 0, got -1.0"),
        (lambda: graph_distance(torch.ones(3, 3), 1.0, max_distance=-1), "expected max_distance ≥ 0, got -1"),
    ],
)
def test_graph_distance_refusals(build: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


@given(st.lists(edge_lists, min_size=1, max_size=3), st.integers(0, 3), st.integers(N, N + 2))
def test_hop_relations_are_those_of_networkx_and_padding(
    batch: list[list[tuple[int, int]]], farthest: int, n: int
) -> None:
    graphs = [digraph(edges) for edges in batch]
    expected = torch.full((len(graphs), n, n), farthest + 1)
    for number, graph in enumerate(graphs):
        for start, lengths in nx.all_pairs_shortest_path_length(graph):
            for end, hops in lengths.items():
                expected[number, start, end] = min(hops, farthest + 1)
    equal(hop_relations(map(from_networkx, graphs), farthest, n=n), expected)


def test_hop_relations_take_the_largest_graph() -> None:
    relations = hop_relations([np.ones((2, 2)), BITS], farthest=2)
    assert relations.shape == (2, 3, 3)
    assert relations.dtype == torch.int64
    assert relations[1, 2].tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hop_relations([], farthest=1), "expected graphs of at most n=None nodes, got []"),
        (lambda: hop_relations([BITS, [[1]]], 1, n=2), "expected graphs of at most n=2 nodes, got [3, 1]"),
        (lambda: hop_relations([BITS], farthest=-1), "farthest"),
        (
            lambda: hop_relations([torch.ones(2, 3, 3)], 1),
            "expected an adjacency [n, n], got shape (2, 3, 3)",
        ),
    ],
)
def test_hop_relations_refusals(build: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()
