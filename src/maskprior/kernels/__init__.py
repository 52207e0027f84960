"""How attention with a learnable bias is computed: one equation, several backends, one dispatcher."""

from maskprior.kernels.dispatch import BACKENDS, BackendChoice, compute_attention, select_backend

__all__ = ["BACKENDS", "BackendChoice", "compute_attention", "select_backend"]
