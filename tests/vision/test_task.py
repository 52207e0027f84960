"""Image classification as a task: balanced, paired, resumable at any step, the same for several processes."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import datasets
import pytest
import torch
from PIL import Image
from torch import Tensor

from maskprior.tasks.base import Reader, StreamedTask
from maskprior.vision.augment import Augment
from maskprior.vision.layout import Layout
from maskprior.vision.model import VitConfig
from maskprior.vision.presets import digits_recipe
from maskprior.vision.source import DataError
from maskprior.vision.sources import DataConfig
from maskprior.vision.task import VisionStream, VisionTask

CPU = Reader(torch.device("cpu"))


def task(**changes: object) -> VisionTask:
    augment = Augment(crop=1, mixup=0.8, erasing=0.3, group=5)
    made = replace(digits_recipe().task, augment=augment, train_per_class=7, validation_per_class=3)
    return replace(made, **changes)  # type: ignore[arg-type]


def pets(folder: Path, **changes: object) -> VisionTask:
    made = VisionTask(
        name="pets",
        data=DataConfig("pets", str(folder)),
        model=VitConfig(image_size=(8, 8), patch_size=2, classes=2, width=12, depth=1, heads=2),
        layout=Layout(("near 1", "free"), 1),
        augment=Augment(flip=True, group=2),
        validation_per_class=1,
        streaming=True,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def batches(stream: VisionStream, first: int, count: int) -> list[tuple[Tensor, Tensor]]:
    return list(islice(stream.batches(first), count))


def test_it_is_a_streamed_task_with_a_structure_that_fits_its_tokens() -> None:
    made = task()
    assert isinstance(made, StreamedTask)
    assert made.structure().shape == (4, 17, 17)
    names = made.token_names()
    assert names[:3] == ["[CLS]", "0,0", "0,1"]
    assert len(set(names)) == 17
    assert replace(made, model=replace(made.model, register_tokens=2)).token_names()[1:3] == [
        "[REG1]",
        "[REG2]",
    ]


def test_training_and_held_out_images_are_balanced_and_seeded() -> None:
    first, same, other = (task().open(seed, 20, CPU) for seed in (0, 0, 1))
    assert first.images.labels.bincount().tolist() == [7] * 10
    assert first.validation.labels.bincount().tolist() == [3] * 10
    assert first.images.fingerprint() == same.images.fingerprint() != other.images.fingerprint()


def test_held_out_images_are_not_trained_on() -> None:
    made = task(train_per_class=0, validation_per_class=11)
    stream = made.open(0, 20, CPU)
    assert len(stream.images.labels) + len(stream.validation.labels) == 1437
    trained = {tuple(image.flatten().tolist()) for part, _ in stream.images.all() for image in part}
    judged = [tuple(image.flatten().tolist()) for part, _ in stream.validation.all() for image in part]
    assert not trained & set(judged)


def test_batches_are_functions_of_seed_and_step() -> None:
    stream = task().open(0, 20, CPU)
    run, later, other = batches(stream, 0, 6), batches(stream, 4, 2), batches(task().open(1, 20, CPU), 0, 1)
    for (images, targets), (again, same) in zip(run[4:], later, strict=True):
        assert torch.equal(images, again)
        assert torch.equal(targets, same)
    assert not torch.equal(run[0][0], other[0][0])
    assert not torch.equal(run[0][0], run[3][0])


def test_an_epoch_sees_every_image_once() -> None:
    stream = task(augment=Augment(group=5)).open(0, 14, CPU)
    seen = torch.cat([images for images, _ in batches(stream, 0, 5)])
    own = torch.cat([stream.normalise(images) for images, _ in stream.images.all()])
    assert len(seen) == len(own) == 70
    assert {tuple(i.flatten().tolist()) for i in seen} == {tuple(i.flatten().tolist()) for i in own}


def test_two_processes_share_the_batch_of_one() -> None:
    whole = batches(task().open(0, 20, CPU), 3, 3)
    shares = [batches(task().open(0, 20, replace(CPU, index=index, count=2)), 3, 3) for index in (0, 1)]
    for (images, targets), (even, a), (odd, b) in zip(whole, *shares, strict=True):
        groups = images.split(5)
        assert torch.equal(even, torch.cat(groups[::2]))
        assert torch.equal(odd, torch.cat(groups[1::2]))
        assert torch.equal(torch.cat([a[:5], b[:5], a[5:], b[5:]]), targets)


def test_processes_that_cannot_share_are_told() -> None:
    with pytest.raises(ValueError, match="batches that 3 processes can share by groups of 5 images, got"):
        task().open(0, 20, replace(CPU, count=3))


def test_validation_never_opens_the_test_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("opened the test split")

    monkeypatch.setattr(VisionTask, "test_images", refuse)
    stream = task(judge="validation").open(0, 20, CPU)
    logits = torch.nn.functional.one_hot(torch.arange(30) % 10, 10).float()
    metrics = stream.metrics(lambda images: logits[: len(images)])
    assert metrics["images"] == 30
    assert metrics["data_judged"] == stream.validation.fingerprint()


def test_the_test_split_is_judged() -> None:
    stream = task().open(0, 20, CPU)
    metrics = stream.metrics(lambda images: torch.eye(10)[torch.zeros(len(images), dtype=torch.long)])
    assert metrics["images"] == 360
    assert metrics["top1"] == pytest.approx(0.1, abs=0.03)  # always "0"
    assert metrics["data_judged"] != metrics["data_train"]


def test_the_number_of_classes_has_to_fit() -> None:
    with pytest.raises(DataError, match="expected 7 classes, got 10"):
        task(model=replace(task().model, classes=7)).open(0, 20, CPU)


def test_images_have_to_be_left_to_train_on(folder: Path) -> None:
    with pytest.raises(
        DataError, match="expected images of class 'dog' to train on beside the 2 that are held"
    ):
        pets(folder, validation_per_class=2).open(0, 2, CPU)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_test_split_may_lack_a_class_but_have_no_other(tmp_path: Path, streaming: bool) -> None:
    image = Image.new("RGB", (8, 8))
    features = datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")})

    def made(labels: list[int]) -> VisionTask:
        place = str(tmp_path / "".join(map(str, labels)))
        datasets.DatasetDict(
            {
                split: datasets.Dataset.from_dict(
                    {"img": [image] * len(rows), "label": rows}, features=features
                )
                for split, rows in (("train", [0, 0, 1, 1]), ("test", labels))
            }
        ).save_to_disk(place)
        return pets(Path(place), data=DataConfig("pets", place, label="label"), streaming=streaming)

    assert made([0, 0]).test_images(CPU).labels.tolist() == [0, 0]
    with pytest.raises(DataError, match="split 'test': expected labels from 0 to 1, as in training, got 2"):
        made([0, 2]).test_images(CPU)


def test_images_are_streamed_from_folders(folder: Path) -> None:
    stream = pets(folder).open(0, 2, CPU)
    run, later = batches(stream, 0, 4), batches(stream, 2, 2)
    assert run[0][0].shape == (2, 3, 8, 8)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(run[2:], later, strict=True))
    assert stream.metrics(lambda images: torch.zeros(len(images), 2))["images"] == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"judge": "train"}, "judge 'test' or 'validation', got 'train'"),
        ({"validation_per_class": 0}, "validation_per_class ≥ 1"),
        ({"train_per_class": -1}, "train_per_class ≥ 0"),
        ({"workers": -1}, "workers ≥ 0, got -1"),
        (
            {"layout": Layout(("free",), 2)},
            "layout of the model's depth=3 and 1 or 4 heads, got depth=2 and 1",
        ),
        ({"layout": Layout(("free",) * 3, 3)}, "1 or 4 heads, got depth=3 and 3 heads"),
        ({"model": replace(digits_recipe().task.model, channels=2)}, r"images with \[1, 3\] channels, got 2"),
        ({"model": replace(digits_recipe().task.model, classes=1)}, "classes ≥ 2, got 1"),
    ],
)
def test_bad_values_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task(**change)
