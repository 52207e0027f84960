"""Priors for the models that people already have: torch.nn, timm, Hugging Face."""

from maskprior.integrations.attaching import attach, attach_relations
from maskprior.integrations.attachment import Attachment
from maskprior.integrations.decay import DecayWarning
from maskprior.integrations.lengths import Lengths

__all__ = ["Attachment", "DecayWarning", "Lengths", "attach", "attach_relations"]
