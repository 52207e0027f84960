"""Where a run's numbers come from: versions, commit and hardware."""

import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

import torch

PACKAGES = ("torch", "numpy", "accelerate", "maskprior")
UNKNOWN_COMMIT = "unknown"


class Provenance(TypedDict):
    """The fields of a :class:`~maskprior.experiments.record.RunRecord` that don't depend on the run."""

    versions: dict[str, str]
    commit: str
    dirty: bool
    hardware: dict[str, Any]


def provenance(device: torch.device | str = "cpu") -> Provenance:
    """Versions of Python and the packages, commit of the source, hardware.

    The commit is asked once per process, as the code that runs was imported once. ``dirty`` means that
    tracked files differ from it; those under the repository's ``results/`` don't count, or publishing records
    would make the next run dirty. A package that is not in git has the commit "unknown" and is not dirty: its
    version says all.

    Args:
        device: where the model was trained.
    """
    commit, dirty = source_state(Path(__file__).resolve())
    versions = {"python": platform.python_version()}
    versions |= {package: metadata.version(package) for package in PACKAGES}
    return Provenance(
        versions=versions, commit=commit, dirty=dirty, hardware=describe_hardware(torch.device(device))
    )


@functools.cache
def source_state(file: Path) -> tuple[str, bool]:
    """Commit of the repository that tracks a file ("unknown" if none does), and whether the tree is dirty."""
    # An installed copy inside somebody's repository is not tracked there.
    commit = _git(file.parent, "rev-parse", "--verify", "HEAD")
    if commit is None or _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return UNKNOWN_COMMIT, False
    changes = _git(
        file.parent, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results"
    )
    return commit, changes != ""


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command in the folder; None where it fails or git is missing."""
    # Inside a hook, git's own variables would point at another repository.
    hidden = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    # Without the lock, workers that ask at the same time don't disturb each other or the user.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def describe_hardware(device: torch.device) -> dict[str, Any]:
    """Processor, cores, threads in use, memory (GiB), and the accelerator if the device is one."""
    accelerator, accelerator_memory = _accelerator(device)
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(),
        "accelerator": accelerator,
        "accelerator_memory_gib": accelerator_memory,
    }


def _processor() -> str:
    """Name of the processor with, where known, its family and model, as clouds give many the same name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    fields = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))
    }
    name = fields.get("model name", platform.processor() or platform.machine())
    kind = " ".join(f"{key.split()[-1]} {fields[key]}" for key in ("cpu family", "model") if key in fields)
    return f"{name} ({kind})" if kind else name


def _memory_gib() -> float | None:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def _accelerator(device: torch.device) -> tuple[str | None, float | None]:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return properties.name, round(properties.total_memory / 2**30, 1)
    return (None if device.type == "cpu" else device.type), None
