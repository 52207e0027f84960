"""What the package shows: its names, its drawn examples, its float32 results, its few imports."""

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

import maskprior.structures as structures

MODULES = [
    structures,
    *(
        importlib.import_module(f"{structures.__name__}.{info.name}")
        for info in pkgutil.iter_modules(structures.__path__)
    ),
]

CONSTRUCTED: dict[str, Callable[[], Tensor]] = {
    "everything": lambda: structures.everything(5),
    "identity": lambda: structures.identity(5),
    "pairs": lambda: structures.pairs(5, [(0, 1)]),
    "groups": lambda: structures.groups(5, [(0, 1)]),
    "reads": lambda: structures.reads(5, [0], [1]),
    "causal": lambda: structures.causal(5),
    "window": lambda: structures.window(5, 1, 1),
    "cyclic_window": lambda: structures.cyclic_window(5, [1]),
    "relative_distance": lambda: structures.relative_distance(5, [1.0, 3.0]),
    "linear_distance": lambda: structures.linear_distance(5, 2.0),
    "grid_neighbourhood": lambda: structures.grid_neighbourhood(2, 3, 1),
    "grid_decay": lambda: structures.grid_decay(2, 3, 1.0),
    "grid_offset": lambda: structures.grid_offset(2, 3, 0, 1),
    "grid_offsets": lambda: structures.grid_offsets(2, 3, 3),
    "from_adjacency": lambda: structures.from_adjacency([[0, 1], [1, 0]]),
    "from_edge_index": lambda: structures.from_edge_index([[0], [1]], 2),
    "graph_distance": lambda: structures.graph_distance([[0, 1], [1, 0]], 1.0),
    "same_label": lambda: structures.same_label("abba"),
    "digit_alignment": lambda: structures.digit_alignment([0, None, 0]),
    "carry_neighbour": lambda: structures.carry_neighbour([1, 0], [0, 1]),
    "with_self": lambda: structures.with_self(torch.ones(2, 2, dtype=torch.bool)),
    "with_readout": lambda: structures.with_readout(torch.ones(2, 2, dtype=torch.bool)),
    "padded": lambda: structures.padded(torch.ones(2, 2, dtype=torch.bool), 3),
    "per_head": lambda: structures.per_head([torch.ones(2, 2, dtype=torch.bool)]),
    "per_layer": lambda: structures.per_layer([torch.ones(2, 2, dtype=torch.bool)]),
}


@pytest.mark.parametrize("build", CONSTRUCTED.values(), ids=CONSTRUCTED)
def test_constructors_return_float32_in_range_that_may_be_written(build: Callable[[], Tensor]) -> None:
    structure = build()
    assert structure.dtype == torch.float32
    assert structure.is_contiguous()
    assert 0 <= structure.min() <= structure.max() <= 1
    structure.zero_()  # memory of its own, not an expanded view
    assert build().max() == 1


def test_all_names_every_public_function() -> None:
    functions = {
        name
        for name, member in vars(structures).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }
    assert functions == set(structures.__all__)
    assert len(set(structures.__all__)) == len(structures.__all__)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_drawn_examples_are_true(module: ModuleType) -> None:
    names = {name: getattr(structures, name) for name in structures.__all__} | {"torch": torch}
    assert doctest.testmod(module, extraglobs=names).failed == 0


def test_every_constructor_has_a_drawn_example() -> None:
    undrawn = [name for name in structures.__all__ if ">>> " not in (getattr(structures, name).__doc__ or "")]
    assert undrawn == ["check_structure"]


def test_import_brings_no_graph_library() -> None:
    script = "import sys, maskprior.structures; print({'networkx', 'scipy', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
