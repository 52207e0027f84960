"""Images that are ready to be put into batches: in memory, or read from their files as they are needed."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from maskprior.vision.source import DataError, Source
from maskprior.vision.sources import DataConfig, open_source

EVALUATION_BATCH = 256
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
CROP_SHARE = 0.875
"""Side of the central part that is judged over the shorter side of the image."""


class Images(Protocol):
    """Images of one size with their labels."""

    @property
    def labels(self) -> Tensor:
        """Class of each image, int64 ``[images]``."""

    def fetch(self, batches: Iterable[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, Tensor]]:
        """(uint8 images, labels) of each batch (row numbers, seed of random crops), on the device."""

    def all(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All images in order, in batches, as they are judged."""

    def fingerprint(self) -> str:
        """Digest of the data."""


@dataclass(frozen=True)
class MemoryImages:
    """Images in memory.

    Attributes:
        pixels: uint8 ``[images, channels, height, width]``.
        labels: int64 ``[images]``.
    """

    pixels: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "MemoryImages":
        """The images on a device."""
        return MemoryImages(self.pixels.to(device), self.labels.to(device))

    def fetch(self, batches: Iterable[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, Tensor]]:
        """(uint8 images, labels) of each batch of row numbers; no random crops."""
        for rows, _ in batches:
            at = rows.to(self.pixels.device)
            yield self.pixels[at], self.labels[at]

    def all(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All images in order, in batches."""
        yield from zip(self.pixels.split(EVALUATION_BATCH), self.labels.split(EVALUATION_BATCH), strict=True)

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of SHA-256 over pixels and labels."""
        digest = hashlib.sha256(self.pixels.cpu().numpy().tobytes())
        digest.update(self.labels.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]


def read_images(
    source: Source, rows: Tensor, channels: int, size: tuple[int, int], *, convert: bool = False
) -> MemoryImages:
    """Decode some rows of a source.

    Raises:
        DataError: an image is corrupt or has other channels or another size; names the file.
    """
    pixels = torch.empty(len(rows), channels, *size, dtype=torch.uint8)
    for place, row in enumerate(rows.tolist()):
        image = source.read(row, channels, convert=convert)
        if tuple(image.shape[1:]) != size:
            raise DataError(
                f"{source.files.where(row)}: expected {size[0]} × {size[1]} pixels, got {image.shape[1]} × "
                f"{image.shape[2]}; images of many sizes are read with streaming=True"
            )
        pixels[place] = image
    return MemoryImages(pixels, source.labels[rows])


@lru_cache(maxsize=2)
def read_test(config: DataConfig, channels: int, size: tuple[int, int]) -> MemoryImages:
    """The whole test split, decoded once for all runs of a process."""
    source = open_source(config, "test")
    return read_images(source, torch.arange(len(source.labels)), channels, size, convert=config.convert)


class StreamedImages:
    """Images that worker processes read from their files while the model trains.

    In training each image is a random part, resized: area from 8 % to all of it, ratio of the sides from 3/4
    to 4/3. Judged is the central part, after resizing.

    Args:
        source: the files.
        rows: which of them.
        channels: 1 or 3.
        size: height and width in pixels that all images are brought to.
        convert: bring images of other modes to the channels.
        workers: processes that read; 0 reads in this one.
        device: where batches go.
    """

    def __init__(
        self,
        source: Source,
        rows: Tensor,
        channels: int,
        size: tuple[int, int],
        device: torch.device,
        *,
        convert: bool = False,
        workers: int = 0,
    ) -> None:
        self.source, self.rows, self.labels = source, rows, source.labels[rows]
        self.channels, self.size, self.device = channels, size, device
        self.convert, self.workers = convert, workers

    def fetch(self, batches: Iterable[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, Tensor]]:
        """(uint8 images, labels) of each batch (row numbers, seed of random crops), on the device."""
        keyed = ([(row, seed + place) for place, row in enumerate(rows.tolist())] for rows, seed in batches)
        yield from self._load(keyed)

    def all(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All images in order, their central parts."""
        for rows in torch.arange(len(self.rows)).split(EVALUATION_BATCH):
            yield from self._load(iter([[(row, -1) for row in rows.tolist()]]))

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of SHA-256 over the labels: reading all pixels would take too long."""
        return hashlib.sha256(self.labels.numpy().tobytes()).hexdigest()[:16]

    def _load(self, batches: Iterator[list[tuple[int, int]]]) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            _Cropped(self),
            batch_sampler=_Once(batches),
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
        )
        for images, labels in loader:
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


class _Once:
    """Batches of keys that exist already, as the sampler of a loader."""

    def __init__(self, batches: Iterator[list[tuple[int, int]]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self.batches


class _Cropped(Dataset[tuple[Tensor, int]]):
    """Image and label by (row, seed); a negative seed means the central part."""

    def __init__(self, images: StreamedImages) -> None:
        self.images = images

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        images, (place, seed) = self.images, key
        row = int(images.rows[place])
        image = images.source.read(row, images.channels, convert=images.convert)
        part = central_part(image, images.size) if seed < 0 else random_part(image, images.size, seed)
        return part, int(images.labels[place])


def random_part(image: Tensor, size: tuple[int, int], seed: int) -> Tensor:
    """A random part of a uint8 image ``[channels, height, width]``, resized; a function of the seed."""
    # torchvision draws from the global generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        part: Tensor = v2.RandomResizedCrop(size, SCALE, RATIO, antialias=True)(image)
    return part


def central_part(image: Tensor, size: tuple[int, int]) -> Tensor:
    """The image resized so that ``size`` is 7/8 of it, and its central part."""
    sides = [round(side / CROP_SHARE) for side in size]
    height, width = image.shape[-2:]
    scale = max(sides[0] / height, sides[1] / width)
    resized = v2.functional.resize(
        image, [max(size[0], round(height * scale)), max(size[1], round(width * scale))], antialias=True
    )
    part: Tensor = v2.functional.center_crop(resized, list(size))
    return part
