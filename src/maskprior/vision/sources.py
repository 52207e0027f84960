"""Where images come from: scikit-learn's digits, ``datasets``, and folders of one folder a class."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

DIGITS = "digits"
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
MODES = {1: "L", 3: "RGB"}


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
            DataError: the image is corrupt or has other channels; names the file.
        """
        try:
            image = self.files.open(index)
            image.load()
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            raise DataError(
                f"{self.files.where(index)}: expected an image, got a corrupt file ({error})"
            ) from error
        wanted = MODES[channels]
        if image.mode != wanted:
            if not convert:
                raise DataError(
                    f"{self.files.where(index)}: expected {channels} channel(s) ({wanted}), got "
                    f"{image.mode}; convert=True brings images of other modes to it"
                )
            image = image.convert(wanted)
        pixels = torch.from_numpy(np.array(image))
        return pixels[None] if channels == 1 else pixels.permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class DataConfig:
    """A set of labelled images.

    Attributes:
        name: in records; it says what the data are, where ``location`` says where this machine has them.
        location: "digits", a folder (of class folders, of parquet files, or made by ``save_to_disk``), or an
            id on the Hugging Face hub.
        train, test: names of the splits; for class folders, of the folders of class folders.
        image, label: columns; "" takes the only column of that kind.
        convert: bring images of other modes to the channels of the model.
    """

    name: str
    location: str
    train: str = "train"
    test: str = "test"
    image: str = ""
    label: str = ""
    convert: bool = False

    def describe(self) -> dict[str, Any]:
        """What the data are, as JSON values."""
        return {"name": self.name, "train": self.train, "test": self.test, "label": self.label}


@dataclass(frozen=True)
class _Arrays:
    pixels: "np.ndarray[Any, np.dtype[np.uint8]]"

    def open(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def where(self, index: int) -> str:
        return f"digits, image {index}"


@dataclass(frozen=True)
class _Paths:
    paths: tuple[Path, ...]

    def open(self, index: int) -> Image.Image:
        return Image.open(BytesIO(self.paths[index].read_bytes()))

    def where(self, index: int) -> str:
        return str(self.paths[index])


@dataclass(frozen=True)
class _Rows:
    data: Any  # a datasets.Dataset whose images are not decoded
    column: str
    name: str

    def open(self, index: int) -> Image.Image:
        cell = self.data[index][self.column]
        data = Path(cell["path"]).read_bytes() if cell["bytes"] is None else cell["bytes"]
        return Image.open(BytesIO(data))

    def where(self, index: int) -> str:
        return f"{self.name}, row {index}"


def open_source(config: DataConfig, part: Literal["train", "test"]) -> Source:
    """The training or the test split.

    Raises:
        DataError: the data are not what they should be.
        FileNotFoundError: there is no such folder.
    """
    split = config.train if part == "train" else config.test
    if config.location == DIGITS:
        return digits(part)
    folder = Path(config.location)
    if folder.is_dir() and _has_class_folders(folder / split):
        return class_folders(folder, split)
    if not folder.is_dir() and (folder.is_absolute() or config.location.startswith(".")):
        raise FileNotFoundError(f"expected a folder of images or of a data set, got no folder {folder}")
    return hub(config, split)


def digits(part: Literal["train", "test"]) -> Source:
    """The 1,797 grey 8 × 8 digits that come with scikit-learn; every fifth image is for testing."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    rows = np.arange(len(loaded.target))
    rows = rows[rows % 5 == 0] if part == "test" else rows[rows % 5 != 0]
    pixels = (loaded.images[rows] * (255 / 16)).round().astype(np.uint8)
    return Source(
        name=f"digits {part}",
        classes=tuple(map(str, range(10))),
        labels=torch.from_numpy(loaded.target[rows]).long(),
        files=_Arrays(pixels),
    )


def _has_class_folders(folder: Path) -> bool:
    return folder.is_dir() and any(
        file.suffix.lower() in SUFFIXES
        for each in folder.iterdir()
        if each.is_dir()
        for file in each.iterdir()
    )


def class_folders(folder: Path, split: str) -> Source:
    """A tree as of torchvision's ImageFolder: ``folder/split/CLASS/image``; classes are those of all splits.

    Raises:
        DataError: a class has no folder or no image in this split; names the folder.
    """
    splits = [each for each in folder.iterdir() if each.is_dir()]
    classes = sorted({place.name for each in splits for place in each.iterdir() if place.is_dir()})
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        place = folder / split / name
        if not place.is_dir():
            raise DataError(f"{place}: expected a folder of class {name!r} as in another split, got none")
        found = sorted(file for file in place.iterdir() if file.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(f"{place}: expected images of class {name!r}, got none")
        files += found
        labels += [label] * len(found)
    return Source(
        name=f"{folder}, split {split!r}",
        classes=tuple(classes),
        labels=torch.tensor(labels),
        files=_Paths(tuple(files)),
    )


def hub(config: DataConfig, split: str) -> Source:
    """A split of a data set of ``datasets``: from the hub, of parquet files, or made by ``save_to_disk``.

    Raises:
        DataError: no such split, or columns that are missing or cannot be told.
    """
    import datasets

    place = Path(config.location)
    saved = any((place / name).exists() for name in ("dataset_dict.json", "state.json"))
    try:
        loaded = datasets.load_from_disk(config.location) if saved else datasets.load_dataset(config.location)
    except (ValueError, IndexError) as error:  # IndexError: a saved split without rows
        raise DataError(
            f"{config.location}: expected a data set with rows in every split, got one that datasets cannot "
            f"load ({error})"
        ) from error
    if not isinstance(loaded, datasets.DatasetDict):
        loaded = {"train": loaded}
    if split not in loaded:
        raise DataError(f"{config.location}: expected a split among {sorted(loaded)}, got {split!r}")
    data, name = loaded[split], f"{config.location}, split {split!r}"
    image = config.image or _only(data.features, datasets.Image, "image", name)
    label = config.label or _only(data.features, datasets.ClassLabel, "label", name)
    for column in (image, label):
        if column not in data.features:
            raise DataError(f"{name}: expected a column among {list(data.features)}, got {column!r}")
    labels = torch.tensor(data[label][:], dtype=torch.long)
    names = getattr(data.features[label], "names", None)
    return Source(
        name=name,
        classes=tuple(names or map(str, range(int(labels.max()) + 1 if len(labels) else 0))),
        labels=labels,
        files=_Rows(data.cast_column(image, datasets.Image(decode=False)), image, name),
    )


def _only(features: Any, kind: type, column: str, name: str) -> str:
    found = [key for key, feature in features.items() if isinstance(feature, kind)]
    if len(found) != 1:
        raise DataError(
            f"{name}: expected one {column} column, got {found or 'none'} among {list(features)}; name it"
        )
    return str(found[0])


def choose_rows(
    labels: Tensor, classes: int, per_class: Sequence[int], generator: torch.Generator
) -> list[Tensor]:
    """Disjoint balanced groups of rows, drawn at random: ``per_class[g]`` rows of each class in group g.

    Returns:
        Row numbers of each group, sorted.

    Raises:
        DataError: a class has too few images.
    """
    groups: list[list[Tensor]] = [[] for _ in per_class]
    for label in range(classes):
        rows = (labels == label).nonzero()[:, 0]
        if len(rows) < sum(per_class):
            raise DataError(
                f"expected {' + '.join(map(str, per_class))} images of class {label}, got {len(rows)}"
            )
        rows = rows[torch.randperm(len(rows), generator=generator)]
        for group, part in zip(groups, rows[: sum(per_class)].split(list(per_class)), strict=True):
            group.append(part)
    return [torch.cat(group).sort().values for group in groups]
