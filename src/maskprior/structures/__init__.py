"""Structures: who should interact with whom, as plain tensors ``[*heads, query, key]`` in [0, 1]."""

from maskprior.structures.validation import check_structure

__all__ = ["check_structure"]
