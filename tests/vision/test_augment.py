"""Augmentation: what it does to each image, exactly, and that it is a function of the generator."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from maskprior.vision.augment import Augment, Normalise, augment, erase, shift

PLAIN = Normalise((0.0, 0.0, 0.0), (1 / 255,) * 3)
EVERYTHING = Augment(
    crop=2, flip=True, operations=2, mixup=0.8, cutmix=1.0, erasing=0.5, smoothing=0.1, group=7
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    pixels = torch.randint(1, 256, (11, 3, 5, 7), dtype=torch.uint8, generator=seeded(0))
    return pixels, torch.arange(11) % 5


def apply(batch: tuple[Tensor, Tensor], config: Augment, seed: int = 1) -> tuple[Tensor, Tensor]:
    return augment(*batch, config, 5, PLAIN, seeded(seed))


def test_nothing_is_the_identity(batch: tuple[Tensor, Tensor]) -> None:
    images, targets = apply(batch, Augment())
    torch.testing.assert_close(images, batch[0].float())
    assert torch.equal(targets.argmax(-1), batch[1])
    assert bool((targets.sum(-1) == 1).all())


def test_everything_is_a_function_of_the_generator(batch: tuple[Tensor, Tensor]) -> None:
    before = torch.get_rng_state()
    (images, targets), (same, _), (other, _) = (apply(batch, EVERYTHING, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(images, same)
    assert not torch.equal(images, other)
    torch.testing.assert_close(targets.sum(-1), torch.ones(11))
    assert images.shape == batch[0].shape


def test_each_image_is_shifted_on_its_own(batch: tuple[Tensor, Tensor]) -> None:
    images = batch[0]
    moved = shift(images, 2, seeded(3))
    found = set()
    for image, result in zip(images, moved, strict=True):
        padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
        places = [
            (y, x) for y in range(5) for x in range(5) if torch.equal(padded[:, y : y + 5, x : x + 7], result)
        ]
        assert len(places) == 1
        found.add(places[0])
    assert len(found) > 3


def test_about_half_are_mirrored(batch: tuple[Tensor, Tensor]) -> None:
    images, _ = apply(batch, Augment(flip=True))
    mirrored = [
        torch.allclose(image, own.float().flip(-1)) for image, own in zip(images, batch[0], strict=True)
    ]
    kept = [torch.allclose(image, own.float()) for image, own in zip(images, batch[0], strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 1 < sum(mirrored) < 10


def test_smoothing_shares_the_target() -> None:
    batch = torch.zeros(2, 3, 5, 7, dtype=torch.uint8), torch.tensor([0, 3])
    _, targets = apply(batch, Augment(smoothing=0.2))
    torch.testing.assert_close(targets[1], torch.tensor([0.04, 0.04, 0.04, 0.84, 0.04]))


def test_mixup_mixes_images_and_targets_alike() -> None:
    pixels = torch.zeros(2, 3, 5, 7, dtype=torch.uint8)
    pixels[1] = 200
    images, targets = apply((pixels, torch.tensor([0, 1])), Augment(mixup=1.0))
    share = float(targets[0, 0])
    assert 0 < share < 1
    torch.testing.assert_close(images[0], torch.full((3, 5, 7), 200 * (1 - share)), rtol=1e-4, atol=1e-3)


def test_cutmix_targets_are_the_share_of_pixels() -> None:
    pixels = torch.zeros(2, 3, 5, 7, dtype=torch.uint8)
    pixels[1] = 200
    images, targets = apply((pixels, torch.tensor([0, 1])), Augment(cutmix=1.0), seed=4)
    images = images.round()
    foreign = float((images[0] == 200).float().mean())
    assert set(images.unique().tolist()) == {0.0, 200.0}
    assert foreign == pytest.approx(float(targets[0, 1]), abs=1e-6)


def test_erasing_makes_rectangles_of_the_stated_share() -> None:
    images = torch.ones(500, 2, 31, 37)
    erased = erase(images, 0.5, seeded(5)) == 0
    hit = erased.flatten(1).any(1)
    assert 0.4 < float(hit.float().mean()) < 0.6
    for mask in erased[hit][:, 0]:
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns)  # a full rectangle, of consecutive rows and columns
        for line in (rows, columns):
            places = line.nonzero()[:, 0]
            assert int(places[-1] - places[0]) + 1 == len(places)
    share = erased[hit][:, 0].float().mean((1, 2))
    assert float(share.min()) > 0.01
    assert float(share.max()) < 0.36


def test_normalising_gives_mean_zero_and_variance_one(batch: tuple[Tensor, Tensor]) -> None:
    normalised = Normalise.of(batch[0])(batch[0])
    pixels = normalised.transpose(0, 1).flatten(1)
    torch.testing.assert_close(pixels.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(pixels.std(1, correction=0), torch.ones(3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"erasing": 1.5}, r"erasing in \[0, 1\], got 1.5"),
        ({"magnitude": 31}, r"magnitude in \[0, 30\]"),
        ({"mixup": -1.0}, "mixup ≥ 0"),
        ({"group": 0}, "group ≥ 1"),
    ],
)
def test_bad_values_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Augment(), **change)  # type: ignore[arg-type]
