"""Image classification with timm's Vision Transformer: data, structures of patches, task, presets."""
