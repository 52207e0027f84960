"""Where images come from, and what is said where they are wrong."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from maskprior.vision.choosing import choose_rows
from maskprior.vision.source import DataError, Source
from maskprior.vision.sources import DIGITS, DataConfig, class_folders, open_source


@dataclass(frozen=True)
class Images:
    image: Image.Image

    def open(self, index: int) -> Image.Image:
        return self.image

    def where(self, index: int) -> str:
        return f"place {index}"


def source(labels: list[int], mode: str = "RGB") -> Source:
    return Source("here", ("cat", "dog"), torch.tensor(labels), Images(Image.new(mode, (6, 4))))


def table(counts: dict[int, int]) -> datasets.Dataset:
    pixels = np.random.default_rng(0)
    rows = [label for label, count in counts.items() for _ in range(count)]
    images = [Image.fromarray(pixels.integers(256, size=(4, 6, 3), dtype=np.uint8)) for _ in rows]
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    return datasets.Dataset.from_dict({"img": images, "label": rows}, features=features)


def test_digits_are_offline_and_split() -> None:
    config = DataConfig("digits", DIGITS)
    train, test = (open_source(config, part) for part in ("train", "test"))
    assert len(train.labels) + len(test.labels) == 1797
    assert len(test.labels) == 360
    image = train.read(0, 1)
    assert image.shape == (1, 8, 8)
    assert image.dtype == torch.uint8
    assert int(image.max()) == 255


def test_class_folders(folder: Path) -> None:
    train = open_source(DataConfig("pets", str(folder)), "train")
    assert train.classes == ("cat", "dog")
    assert train.labels.tolist() == [0, 0, 0, 1, 1]
    expected = np.asarray(Image.open(folder / "train" / "dog" / "1.png"))
    assert np.array_equal(train.read(4, 3).permute(1, 2, 0).numpy(), expected)


def test_saved_and_parquet_folders(tmp_path: Path) -> None:
    data = table({0: 3, 1: 2})
    datasets.DatasetDict({"train": data, "test": data.select([1])}).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "parquet").mkdir()
    data.to_parquet(tmp_path / "parquet" / "train-00000-of-00001.parquet")
    for place in ("saved", "parquet"):
        found = open_source(DataConfig("pets", str(tmp_path / place)), "train")
        assert found.classes == ("cat", "dog")
        assert found.labels.tolist() == [0, 0, 0, 1, 1]
        expected = np.asarray(data[3]["img"])
        assert np.array_equal(found.read(3, 3).permute(1, 2, 0).numpy(), expected)
    assert len(open_source(DataConfig("pets", str(tmp_path / "saved")), "test").labels) == 1


def test_a_missing_class_folder_is_named(folder: Path) -> None:
    for file in (folder / "test" / "dog").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"test/dog: expected images of class 'dog', got none"):
        class_folders(folder, "test")
    (folder / "test" / "dog").rmdir()
    with pytest.raises(DataError, match=r"test/dog: expected a folder of class 'dog'"):
        class_folders(folder, "test")


def test_a_corrupt_image_is_named(folder: Path) -> None:
    file = folder / "train" / "cat" / "1.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(DataError, match=r"cat/1\.png: expected an image, got a corrupt file"):
        class_folders(folder, "train").read(1, 3)
    file.write_text("not an image")
    with pytest.raises(DataError, match=r"cat/1\.png: expected an image, got a corrupt file"):
        class_folders(folder, "train").read(1, 3)


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "P"])
def test_wrong_channels_are_named_or_converted(mode: str) -> None:
    with pytest.raises(DataError, match=rf"place 1: expected 3 channel\(s\) \(RGB\), got {mode}"):
        source([0, 1], mode).read(1, 3)
    assert source([0, 1], mode).read(1, 3, convert=True).shape == (3, 4, 6)


@pytest.mark.parametrize(("labels", "row"), [([0, 2], 1), ([-1, 0], 0)])
def test_a_label_out_of_range_is_named(labels: list[int], row: int) -> None:
    with pytest.raises(DataError, match=rf"place {row}: expected a label from 0 to 1, got {labels[row]}"):
        source(labels)


def test_an_empty_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="here: expected images, got an empty split"):
        source([])
    for split, rows in (("train", 3), ("test", 0)):
        table({0: 3}).select(range(rows)).to_parquet(tmp_path / f"{split}-00000-of-00001.parquet")
    with pytest.raises(DataError, match=r"expected a data set with rows in every split, got .*test"):
        open_source(DataConfig("pets", str(tmp_path)), "test")


def test_unknown_splits_columns_and_places_are_named(tmp_path: Path) -> None:
    place = str(tmp_path / "saved")
    datasets.DatasetDict({"train": table({0: 2, 1: 2})}).save_to_disk(place)
    config = DataConfig("pets", place)
    with pytest.raises(DataError, match=r"split among \['train'\], got 'test'"):
        open_source(config, "test")
    with pytest.raises(DataError, match=r"column among \['img', 'label'\], got 'photo'"):
        open_source(replace(config, image="photo"), "train")
    with pytest.raises(FileNotFoundError, match="got no folder /nowhere"):
        open_source(DataConfig("pets", "/nowhere"), "train")


def test_two_label_columns_have_to_be_told_apart(tmp_path: Path) -> None:
    data = table({0: 2, 1: 2})
    both = data.add_column("coarse", [0, 0, 1, 1]).cast_column("coarse", data.features["label"])
    place = str(tmp_path / "saved")
    datasets.DatasetDict({"train": both}).save_to_disk(place)
    with pytest.raises(DataError, match=r"one label column, got \['label', 'coarse'\]"):
        open_source(DataConfig("pets", place), "train")
    assert open_source(DataConfig("pets", place, label="coarse"), "train").labels.tolist() == [0, 0, 1, 1]


def test_groups_are_balanced_disjoint_and_seeded() -> None:
    labels = torch.arange(35) % 5
    drawn = [choose_rows(labels, 5, [2, 3], torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    first, second = drawn[0]
    assert labels[first].bincount().tolist() == [2] * 5
    assert labels[second].bincount().tolist() == [3] * 5
    assert not set(first.tolist()) & set(second.tolist())
    assert torch.equal(first, drawn[1][0])
    assert not torch.equal(first, drawn[2][0])
    with pytest.raises(DataError, match=r"expected 4 \+ 4 images of class 0, got 7"):
        choose_rows(labels, 5, [4, 4], torch.Generator())


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
@pytest.mark.parametrize("convert", [False, True])
def test_more_than_eight_bits_are_refused(mode: str, convert: bool) -> None:
    with pytest.raises(DataError, match=f"place 0: expected 8 bits a channel \\(RGB\\), got {mode}; convert"):
        source([0, 1], mode).read(0, 3, convert=convert)


def test_an_image_that_is_too_large_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    with pytest.raises(DataError, match=r"cat/0\.png: expected an image, .* exceeds limit of 10 pixels"):
        class_folders(folder, "train").read(0, 3)


@pytest.mark.parametrize("name", ["3.gif", "notes.txt", "more/4.png"])
def test_nothing_in_a_class_folder_is_left_out_in_silence(folder: Path, name: str) -> None:
    file = folder / "train" / "cat" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes((folder / "train" / "cat" / "0.png").read_bytes())
    first = folder / "train" / "cat" / name.split("/", maxsplit=1)[0]
    with pytest.raises(DataError, match=f"{first}: expected images alone in a class folder .*move it away"):
        class_folders(folder, "train")


def test_what_file_managers_leave_is_not_looked_at(folder: Path) -> None:
    for hidden in (".git/hooks", "train/.ipynb_checkpoints", "train/cat/.cache"):
        (folder / hidden).mkdir(parents=True)
    for hidden in ("train/cat/.DS_Store", "train/dog/Thumbs.db"):
        (folder / hidden).write_bytes(b"x")
    assert class_folders(folder, "train").labels.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("labels", [["cat", "dog"], [0.0, 1.5], [0, None]])
def test_labels_that_are_no_numbers_are_named(tmp_path: Path, labels: list[object]) -> None:
    data = table({0: 2}).remove_columns("label").add_column("kind", labels)
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "saved"))
    message = r"column 'kind', row [01]: expected the number of a class, got ('cat'|0\.0|None)"
    with pytest.raises(DataError, match=message):
        open_source(DataConfig("pets", str(tmp_path / "saved"), label="kind"), "train")


def test_a_row_without_an_image_is_named(tmp_path: Path) -> None:
    features = table({0: 1}).features
    data = datasets.Dataset.from_dict({"img": [None], "label": [0]}, features=features)
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "saved"))
    found = open_source(DataConfig("pets", str(tmp_path / "saved")), "train")
    with pytest.raises(DataError, match=r"row 0: expected an image, .*no image in this row"):
        found.read(0, 3)


def test_a_file_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("images.zip").touch()
    with pytest.raises(FileNotFoundError, match=r"got no folder images\.zip"):
        open_source(DataConfig("pets", "images.zip"), "train")


def test_empty_names_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a location of the data, got an empty string"):
        DataConfig("pets", "")


@pytest.mark.skipif(
    not os.environ.get("MASKPRIOR_DATA"), reason="MASKPRIOR_DATA names no folder of data sets"
)
def test_the_real_cifar100_sample(tmp_path: Path) -> None:
    script = Path(os.environ["MASKPRIOR_DATA"]) / "prepare.py"
    subprocess.run([sys.executable, str(script), str(tmp_path), "cifar100"], check=True, capture_output=True)
    config = DataConfig("cifar100", str(tmp_path / "cifar100"), image="img", label="fine_label")
    train, test = (open_source(config, part) for part in ("train", "test"))
    assert len(train.classes) == 100
    assert (len(train.labels), len(test.labels)) == (4800, 1200)
    assert train.read(0, 3).shape == (3, 32, 32)
