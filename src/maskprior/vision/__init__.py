"""Image classification with timm's Vision Transformer: data, structures of patches, task, presets."""

OFFLINE_TASKS = ("digits",)
"""Tasks of the command line, whose data come with the packages (see ``maskprior.vision.presets``)."""
