"""Images in memory and images that are read as they are needed."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from maskprior.vision.images import MemoryImages, StreamedImages, central_part, random_part, read_images
from maskprior.vision.source import DataError
from maskprior.vision.sources import DataConfig, class_folders, open_source

CPU = torch.device("cpu")


def memory() -> MemoryImages:
    pixels = torch.randint(256, (7, 3, 4, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return MemoryImages(pixels, torch.arange(7) % 2)


def test_memory_gives_the_rows_that_are_asked_for() -> None:
    images = memory()
    rows = [torch.tensor([3, 1]), torch.tensor([6])]
    batches = list(images.fetch([(each, 0) for each in rows]))
    for (pixels, labels), wanted in zip(batches, rows, strict=True):
        assert torch.equal(pixels, images.pixels[wanted])
        assert torch.equal(labels, images.labels[wanted])
    assert sum(len(labels) for _, labels in images.all()) == 7


def test_fingerprints_tell_data_apart() -> None:
    images = memory()
    assert images.fingerprint() == memory().fingerprint()
    changed = images.pixels.clone()
    changed[6, 2, 3, 5] ^= 1
    assert MemoryImages(changed, images.labels).fingerprint() != images.fingerprint()
    assert MemoryImages(images.pixels, 1 - images.labels).fingerprint() != images.fingerprint()


def test_images_of_another_size_are_named(folder: Path) -> None:
    Image.new("RGB", (5, 4)).save(folder / "train" / "dog" / "1.png")
    source = class_folders(folder, "train")
    with pytest.raises(DataError, match=r"dog/1\.png: expected 4 × 6 pixels, got 4 × 5; .*streaming=True"):
        read_images(source, torch.arange(5), 3, (4, 6))


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_images_are_functions_of_row_and_seed(folder: Path, workers: int) -> None:
    source = open_source(DataConfig("pets", str(folder)), "train")
    rows = torch.tensor([4, 0, 2])
    images = StreamedImages(source, rows, 3, (8, 10), CPU, workers=workers)
    (pixels, labels), (again, _) = images.fetch([(torch.tensor([2, 0]), 5), (torch.tensor([2, 1]), 5)])
    assert pixels.shape == (2, 3, 8, 10)
    assert pixels.dtype == torch.uint8
    assert labels.tolist() == [0, 1]
    assert torch.equal(pixels[0], random_part(source.read(2, 3), (8, 10), 5))
    assert torch.equal(pixels[1], random_part(source.read(4, 3), (8, 10), 6))
    assert torch.equal(again[0], pixels[0])


def test_streamed_images_are_judged_by_their_central_part(folder: Path) -> None:
    source = open_source(DataConfig("pets", str(folder)), "train")
    images = StreamedImages(source, torch.arange(5), 3, (7, 7), CPU)
    ((pixels, labels),) = images.all()
    assert labels.tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(pixels[3], central_part(source.read(3, 3), (7, 7)))


def test_the_central_part_is_seven_eighths_of_the_shorter_side() -> None:
    image = torch.zeros(1, 80, 160, dtype=torch.uint8)
    image[:, 5:75, 45:115] = 200  # 70 of 80 rows, centred
    part = central_part(image, (35, 35))
    assert part.shape == (1, 35, 35)
    assert int(part[:, 1:-1, 1:-1].min()) == 200


def test_random_parts_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    image = torch.randint(256, (3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    first, same, other = (random_part(image, (8, 8), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
