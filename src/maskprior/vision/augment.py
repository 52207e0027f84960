"""Augmentation of whole batches of uint8 images, on their device."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import v2

RATIO = (0.3, 3.3)
AREA = (0.02, 1 / 3)


@dataclass(frozen=True)
class Augment:
    """What is done to training images.

    Attributes:
        crop: shift by up to so many pixels, what moves in is black.
        flip: mirror half of the images.
        operations: operations of RandAugment; a group of images shares them. 0: none.
        magnitude: of RandAugment, 0 to 30.
        mixup: α of mixup; 0: none. Where both are used, a group gets one of the two at random.
        cutmix: α of CutMix; 0: none.
        erasing: probability that a random rectangle of an image becomes grey (its mean).
        smoothing: share of the target that goes to all classes evenly.
        group: images that are augmented together; processes share a batch by groups.
    """

    crop: int = 0
    flip: bool = False
    operations: int = 0
    magnitude: int = 9
    mixup: float = 0.0
    cutmix: float = 0.0
    erasing: float = 0.0
    smoothing: float = 0.0
    group: int = 32

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        for name, most in (("erasing", 1.0), ("smoothing", 1.0), ("magnitude", 30)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"expected {name} in [0, {most:g}], got {getattr(self, name)}")
        for name in ("crop", "operations", "mixup", "cutmix"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"expected a finite {name} ≥ 0, got {getattr(self, name)}")
        if self.group < 1:
            raise ValueError(f"expected group ≥ 1, got {self.group}")


@dataclass(frozen=True)
class Normalise:
    """(pixel / 255 − mean) / std, channel by channel.

    Attributes:
        mean: of each channel, in [0, 1].
        std: of each channel, > 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, images: Tensor) -> "Normalise":
        """Mean and standard deviation over the pixels of uint8 images ``[n, channels, height, width]``."""
        pixels = images.transpose(0, 1).flatten(1).double() / 255
        std = pixels.std(dim=1, correction=0).clamp(min=1 / 255)
        return cls(tuple(pixels.mean(dim=1).tolist()), tuple(std.tolist()))

    def __call__(self, images: Tensor) -> Tensor:
        """float32 images of uint8 ones."""
        mean, std = (
            torch.tensor(each, device=images.device)[:, None, None] for each in (self.mean, self.std)
        )
        return (images.float() / 255 - mean) / std


def augment(
    images: Tensor,
    labels: Tensor,
    config: Augment,
    classes: int,
    normalise: Normalise,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """One group of images with its targets; all randomness from the generator, the same on every device.

    Args:
        images: uint8 ``[n, channels, height, width]``.
        labels: int64 ``[n]``.
        config: what is done.
        classes: number of classes.
        normalise: the last step.
        generator: on the CPU.

    Returns:
        float32 images, and targets: probabilities ``[n, classes]``.
    """
    if config.crop:
        images = shift(images, config.crop, generator)
    if config.flip:
        mirrored = torch.rand(len(images), generator=generator) < 0.5
        images = torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(-1), images)
    targets = F.one_hot(labels, classes).float()
    targets = targets * (1 - config.smoothing) + config.smoothing / classes
    # torchvision draws from the global generator, on the CPU.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        if config.operations:
            images = v2.RandAugment(config.operations, config.magnitude)(images)
        pixels = normalise(images)
        pixels, targets = _mix(pixels, targets, config)
    if config.erasing:
        pixels = erase(pixels, config.erasing, generator)
    return pixels, targets


def _mix(images: Tensor, targets: Tensor, config: Augment) -> tuple[Tensor, Tensor]:
    """Mixup or CutMix, of targets that are probabilities already."""
    kinds = [("mixup", config.mixup), ("cutmix", config.cutmix)]
    kinds = [(kind, alpha) for kind, alpha in kinds if alpha]
    if not kinds:
        return images, targets
    kind, alpha = kinds[int(torch.randint(len(kinds), ()))]
    mixed: tuple[Tensor, Tensor] = (v2.MixUp if kind == "mixup" else v2.CutMix)(
        alpha=alpha, num_classes=targets.shape[1]
    )(images, targets)
    return mixed


def shift(images: Tensor, reach: int, generator: torch.Generator) -> Tensor:
    """Each image moved by its own whole number of pixels in [−reach, reach] both ways; black moves in."""
    count, channels, height, width = images.shape
    padded = F.pad(images, (reach, reach, reach, reach))
    drawn = torch.randint(2 * reach + 1, (2, count, 1), generator=generator)
    rows = (drawn[0] + torch.arange(height)).to(images.device)
    columns = (drawn[1] + torch.arange(width)).to(images.device)
    image = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def erase(images: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Random rectangles of normalised images become 0, the mean colour.

    Area from 2 % to a third of the image, evenly; ratio of the sides from 0.3 to 3.3, its logarithm evenly.

    Source: Zhong et al. 2017, arXiv 1708.04896.
    """
    count, _, height, width = images.shape
    chosen, area, ratio, top, left = torch.rand(5, count, generator=generator)
    pixels = height * width * (AREA[0] + area * (AREA[1] - AREA[0]))
    low, high = (torch.tensor(end).log() for end in RATIO)
    slope = (low + ratio * (high - low)).exp()
    tall = (pixels * slope).sqrt().round().clamp(1, height)
    wide = (pixels / slope).sqrt().round().clamp(1, width)
    first_row = (top * (height - tall + 1)).floor()[:, None]
    first_column = (left * (width - wide + 1)).floor()[:, None]
    y, x = torch.arange(height), torch.arange(width)
    rows = (y >= first_row) & (y < first_row + tall[:, None])
    columns = (x >= first_column) & (x < first_column + wide[:, None])
    erased = rows[:, :, None] & columns[:, None, :] & (chosen < probability)[:, None, None]
    return images.masked_fill(erased[:, None].to(images.device), 0.0)
