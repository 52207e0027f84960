"""One root seed, many named generators: changing the prior changes neither the data nor the batches."""

import hashlib

import torch


def named_seed(seed: int, name: str) -> int:
    """The first 63 bits of SHA-256("seed/name"): the same on every platform and version.

    Raises:
        ValueError: the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"expected a seed ≥ 0, got {seed}")
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def named_generator(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Generator for one purpose ("data", "init", "prior", "batches", …), independent of the other names.

    Its state is :func:`named_seed`.

    Raises:
        ValueError: the seed is negative.
    """
    return torch.Generator(device).manual_seed(named_seed(seed, name))
