"""The package as a whole: light to import, imports that go one way, and the names it promises."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import maskprior

ROOT = Path(__file__).parents[1] / "src"

# The heavy and the optional: none may be paid for by `import maskprior`.
NOT_IMPORTED = [
    *("accelerate", "datasets", "matplotlib", "networkx", "onnx", "pandas", "peft", "rich", "scipy"),
    *("sklearn", "timm", "tokenizers", "torchvision", "transformers", "tyro"),
]

CORE = ("functional", "mask_prior", "parameter_groups", "structures", "kernels")

# Layer -> the layers or modules it may import besides itself; a layer missing here fails.
MAY_IMPORT = {
    "kernels": (),
    "functional": CORE,
    "mask_prior": CORE,
    "parameter_groups": CORE,
    "structures": CORE,
    "doctor": CORE,
    "__init__": (*CORE, "integrations"),
    "models": CORE,
    "priors": (*CORE, "models"),
    "tasks": (*CORE, "analysis"),
    # presets: a report names the command that repeats its runs.
    "analysis": (*CORE, "experiments.record", "experiments.files", "experiments.presets"),
    "integrations": (*CORE, "models", "analysis"),
    "experiments": (*CORE, "models", "priors", "tasks", "analysis", "__init__"),
    "vision": (*CORE, "models", "priors", "tasks", "analysis", "experiments", "integrations"),
    "language": (*CORE, "models", "priors", "tasks", "analysis", "experiments", "integrations"),
    "cli": (
        *(*CORE, "models", "priors", "tasks", "analysis", "experiments", "vision", "language", "doctor"),
        "__init__",
    ),
    "__main__": ("cli",),
}


def module_name(path: Path) -> str:
    """`src/maskprior/tasks/__init__.py` -> `maskprior.tasks`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(path): ast.parse(path.read_text()) for path in ROOT.glob("maskprior/**/*.py")}


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Modules of this package that a module imports anywhere, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in TREES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the direction"
            members = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in TREES else str(node.module) for name in members)


def within_package(module: str) -> str:
    """`maskprior.tasks.base` -> `tasks.base`; the package itself -> `__init__`."""
    return module.partition(".")[2] or "__init__"


IMPORTS = {
    module: {name for name in imported_modules(tree) if name.split(".")[0] == "maskprior"}
    for module, tree in TREES.items()
}


@pytest.mark.parametrize("module", sorted(IMPORTS))
def test_imports_go_one_way(module: str) -> None:
    layer = within_package(module).split(".")[0]
    allowed = (layer, *MAY_IMPORT[layer])
    wrong = [
        name
        for name in sorted(IMPORTS[module])
        if not any(f"{within_package(name)}.".startswith(f"{prefix}.") for prefix in allowed)
    ]
    assert wrong == []


def test_no_import_cycle() -> None:
    order = list(TopologicalSorter(IMPORTS).static_order())  # CycleError names the cycle
    assert order.index("maskprior.functional") < order.index("maskprior.mask_prior")


@pytest.mark.parametrize("module", sorted(TREES))
def test_has_a_docstring_and_runs_no_text_as_code(module: str) -> None:
    assert ast.get_docstring(TREES[module])
    names = {node.id for node in ast.walk(TREES[module]) if isinstance(node, ast.Name)}
    assert not names & {"exec", "eval", "__import__"}


def test_import_pays_for_nothing_optional() -> None:
    code = "import sys, maskprior; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "maskprior" in loaded
    assert loaded.isdisjoint(NOT_IMPORTED)


def test_public_names_are_those_of_all() -> None:
    public = {
        name
        for name, value in vars(maskprior).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    promised = {name for name in maskprior.__all__ if not isinstance(getattr(maskprior, name), ModuleType)}
    assert promised - {"__version__"} == public
    assert len(set(maskprior.__all__)) == len(maskprior.__all__)


def test_version_is_the_installed_one() -> None:
    assert maskprior.__version__ == version("maskprior")
