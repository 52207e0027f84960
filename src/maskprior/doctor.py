"""What this installation can do and which attention it uses, for `maskprior doctor` and for bug reports."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import IO

import torch

from maskprior.functional import attention
from maskprior.kernels import native, select_backend

OPTIONAL = ("matplotlib", "pandas", "networkx", "timm", "torchvision", "transformers", "datasets", "triton")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Fact:
    """One line of the report.

    Attributes:
        subject: what it is about.
        is_well: False where something is missing or wrong.
        text: what was found.
    """

    subject: str
    is_well: bool
    text: str


def examine() -> list[Fact]:
    """Versions, the native library, the backend for each type, the optional packages."""
    return [*_versions(), _native_library(), *_backends(), *_optional_packages()]


def print_report(facts: list[Fact], stream: IO[str]) -> None:
    """One line for each fact: ok or --, the subject, what was found."""
    width = max(len(fact.subject) for fact in facts)
    for fact in facts:
        stream.write(f"{'ok' if fact.is_well else '--'}  {fact.subject:<{width}}  {fact.text}\n")


def _versions() -> Iterator[Fact]:
    yield Fact("maskprior", True, version("maskprior"))
    yield Fact("python", True, f"{platform.python_version()} on {platform.platform()}")
    cpu = f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    yield Fact("torch", True, f"{torch.__version__}, CPU {cpu}")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    yield Fact("cuda", bool(names), ", ".join(names) if names else "no device")


def _native_library() -> Fact:
    library = native.LIBRARY
    if library.functions is None:
        return Fact("native attention", False, f"{library.reason}; the aten backend is used instead")
    shared = "torch's own" if library.functions.maskprior_shares_threads() else "its own"
    return Fact("native attention", True, f"{library.reason} on {shared} threads")


def _backends() -> Iterator[Fact]:
    """The backend for each device and type, tried on a small problem against the equation in float64."""
    cuda = [("cuda", dtype) for dtype in (torch.float32, torch.bfloat16) if torch.cuda.is_available()]
    for device, dtype in [("cpu", dtype) for dtype in TOLERANCE] + cuda:
        rng = torch.Generator().manual_seed(0)
        query, key, value = torch.randn(3, 2, 3, 17, 16, generator=rng, dtype=torch.float64)
        bias = torch.randn(3, 17, 17, generator=rng, dtype=torch.float64)
        exact = attention(query, key, value, bias=bias, backend="reference")
        tensors = [tensor.to(device, dtype) for tensor in (query, key, value)]
        bias = bias.to(device, torch.promote_types(dtype, torch.float32))
        choice = select_backend(*tensors, bias=bias)
        output = attention(tensors[0], tensors[1], tensors[2], bias=bias)
        error = (output.double().cpu() - exact).abs().max().item()
        subject = f"{device} {str(dtype).removeprefix('torch.')}"
        yield Fact(subject, error < TOLERANCE[dtype], f"{choice.name} (error {error:.0e}): {choice.reason}")


def _optional_packages() -> Iterator[Fact]:
    for name in OPTIONAL:
        found = _version(name)
        yield Fact(name, found is not None, found or "not installed (optional)")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
