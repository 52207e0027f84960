"""Small vision models, structures and folders of images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from maskprior.vision.model import VitConfig, VitModel

SMALL = VitConfig(
    image_size=(4, 6), patch_size=2, classes=5, channels=3, width=12, depth=2, heads=3, mlp_ratio=2.0
)
"""A grid of 2 × 3 patches behind a class token: 7 tokens."""

MakeModel = Callable[..., VitModel]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def small() -> VitConfig:
    return SMALL


@pytest.fixture
def images() -> Tensor:
    return torch.randn(5, 3, 4, 6, generator=seeded(7))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``train`` and ``test`` with classes "cat" and "dog" of 3 and 2 RGB images of 4 × 6 pixels."""
    pixels = np.random.default_rng(0)
    for split in ("train", "test"):
        for label, count in (("cat", 3), ("dog", 2)):
            place = tmp_path / "images" / split / label
            place.mkdir(parents=True)
            for number in range(count):
                image = Image.fromarray(pixels.integers(256, size=(4, 6, 3), dtype=np.uint8))
                image.save(place / f"{number}.png")
    return tmp_path / "images"
