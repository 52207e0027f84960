"""Where images come from: scikit-learn's digits, ``datasets``, and folders of one folder a class."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from maskprior.vision.source import DataError, Source

DIGITS = "digits"
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
_NEVER_MEANT = frozenset({"thumbs.db", "desktop.ini"})


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

    def __post_init__(self) -> None:
        """Check that nothing that is needed is empty (ValueError)."""
        for field in ("name", "location", "train", "test"):
            if not getattr(self, field):
                raise ValueError(f"expected a {field} of the data, got an empty string")

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
        if cell is None:
            raise ValueError("no image in this row")
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
    if not folder.is_dir() and (folder.is_absolute() or folder.exists() or config.location.startswith(".")):
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

    What begins with a dot is not looked at.

    Raises:
        DataError: a class has no folder or no image in this split, or something else than images; names it.
    """
    splits = [each for each in _seen(folder) if each.is_dir()]
    classes = sorted({place.name for each in splits for place in _seen(each) if place.is_dir()})
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        place = folder / split / name
        if not place.is_dir():
            raise DataError(f"{place}: expected a folder of class {name!r} as in another split, got none")
        found = _class_images(place)
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


def _seen(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if not each.name.startswith("."))


def _class_images(place: Path) -> list[Path]:
    """The images of a class; a file that is left out in silence would be missed by nobody."""
    files = [each for each in _seen(place) if each.name.lower() not in _NEVER_MEANT]
    for file in files:
        if file.suffix.lower() not in SUFFIXES or file.is_dir():
            raise DataError(
                f"{file}: expected images alone in a class folder ({', '.join(sorted(SUFFIXES))}), got this; "
                "move it away"
            )
    return files


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
    data, name = loaded[split].with_format(None), f"{config.location}, split {split!r}"
    image = config.image or _only(data.features, datasets.Image, "image", name)
    label = config.label or _only(data.features, datasets.ClassLabel, "label", name)
    for column in (image, label):
        if column not in data.features:
            raise DataError(f"{name}: expected a column among {list(data.features)}, got {column!r}")
    labels = _label_numbers(data[label][:], f"{name}, column {label!r}")
    names = getattr(data.features[label], "names", None)
    return Source(
        name=name,
        classes=tuple(names or map(str, range(int(labels.max()) + 1 if len(labels) else 0))),
        labels=labels,
        files=_Rows(data.cast_column(image, datasets.Image(decode=False)), image, name),
    )


def _label_numbers(values: Sequence[Any], place: str) -> Tensor:
    for row, value in enumerate(values):
        if not isinstance(value, int):
            raise DataError(f"{place}, row {row}: expected the number of a class, got {value!r}")
    return torch.tensor(values, dtype=torch.long)


def _only(features: Any, kind: type, column: str, name: str) -> str:
    found = [key for key, feature in features.items() if isinstance(feature, kind)]
    if len(found) != 1:
        raise DataError(
            f"{name}: expected one {column} column, got {found or 'none'} among {list(features)}; name it"
        )
    return str(found[0])
