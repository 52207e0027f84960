"""Transformers whose attention takes an optional prior."""

from maskprior.models.transformer import Transformer, TransformerConfig

__all__ = ["Transformer", "TransformerConfig"]
