"""One split of a set of images, whose files are decoded when they are asked for."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

MODES = {1: "L", 3: "RGB"}
_DEEP = ("I", "F")
"""How the names of Pillow's modes of more than 8 bits a channel begin; it clips them when it converts."""


class DataError(ValueError):
    """Data that are not what they should be; the message names the file or row."""


class Files(Protocol):
    """Images by number; worker processes get a copy."""

    def open(self, index: int) -> Image.Image:
        """The image, which may be decoded later."""

    def where(self, index: int) -> str:
        """Its file or row, for messages."""


@dataclass(frozen=True)
class Source:
    """One split of a set of images, not decoded yet.

    Attributes:
        name: of the set and split, for messages.
        classes: their names.
        labels: class of each image, int64 ``[images]``.
        files: the images.
    """

    name: str
    classes: tuple[str, ...]
    labels: Tensor
    files: Files

    def __post_init__(self) -> None:
        """Check that there are images and that labels are in range (DataError)."""
        if not len(self.labels):
            raise DataError(f"{self.name}: expected images, got an empty split")
        wrong = ((self.labels < 0) | (self.labels >= len(self.classes))).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{self.files.where(row)}: expected a label from 0 to {len(self.classes) - 1}, got "
                f"{int(self.labels[row])}"
            )

    def read(self, index: int, channels: int, *, convert: bool = False) -> Tensor:
        """An image as uint8 ``[channels, height, width]``.

        Args:
            index: number of the image.
            channels: 1 or 3.
            convert: bring images of other modes (grey, palette, CMYK, with transparency) to the channels.

        Raises:
            DataError: the image is corrupt, or has other channels or more than 8 bits in each.
        """
        try:
            image = self.files.open(index)
            image.load()
        except (
            UnidentifiedImageError,
            Image.DecompressionBombError,
            OSError,
            SyntaxError,
            ValueError,
        ) as error:
            raise DataError(
                f"{self.files.where(index)}: expected an image, got a corrupt file ({error})"
            ) from error
        wanted = MODES[channels]
        if image.mode.startswith(_DEEP):
            raise DataError(
                f"{self.files.where(index)}: expected 8 bits a channel ({wanted}), got {image.mode}; "
                "convert it first"
            )
        if image.mode != wanted:
            if not convert:
                raise DataError(
                    f"{self.files.where(index)}: expected {channels} channel(s) ({wanted}), got "
                    f"{image.mode}; convert=True brings images of other modes to it"
                )
            image = image.convert(wanted)
        pixels = torch.from_numpy(np.array(image))
        return pixels[None] if channels == 1 else pixels.permute(2, 0, 1).contiguous()
