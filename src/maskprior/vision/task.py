"""Image classification as a task: data, structure of the patches, loss, top-1 accuracy."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from maskprior.experiments.seeding import named_generator, named_seed
from maskprior.tasks.base import Predict, Reader
from maskprior.vision.augment import Augment, Normalise, augment
from maskprior.vision.choosing import choose_rows
from maskprior.vision.images import Images, MemoryImages, StreamedImages, read_images, read_test
from maskprior.vision.layout import Layout
from maskprior.vision.metrics import classify, soft_cross_entropy, top1_metrics
from maskprior.vision.model import VitConfig
from maskprior.vision.source import MODES, DataError, Source
from maskprior.vision.sources import DataConfig, open_source

IMAGENET = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
EXAMPLES = 64


@dataclass(frozen=True)
class VisionTask:
    """Images of some classes, cut into patches behind a class token:

        [CLS]  patch 0,0  patch 0,1  …  patch 7,7   →   "frog"

    Attributes:
        name: as on the command line.
        data: the images.
        model: gives the size of images and patches and the number of classes.
        layout: who interacts with whom.
        augment: what is done to training images.
        train_per_class: training images of each class, drawn by the seed; 0: all that are not held out.
        validation_per_class: training images of each class that are held out, for curves and for choices.
        judge: what the final metrics are of: the "test" split, or "validation", the held-out training images.
            With the latter the test split is not even opened.
        streaming: read images of any size from their files as they are needed.
        workers: processes that read, with ``streaming``; not part of a run's identity.
    """

    name: str
    data: DataConfig
    model: VitConfig
    layout: Layout
    augment: Augment = field(default_factory=Augment)
    train_per_class: int = 0
    validation_per_class: int = 50
    judge: Literal["test", "validation"] = "test"
    streaming: bool = False
    workers: int = 0

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        if self.train_per_class < 0 or self.validation_per_class < 1:
            raise ValueError(
                "expected train_per_class ≥ 0 and validation_per_class ≥ 1, got "
                f"{self.train_per_class} and {self.validation_per_class}"
            )
        if self.judge not in ("test", "validation"):
            raise ValueError(f"expected judge 'test' or 'validation', got {self.judge!r}")
        if self.workers < 0:
            raise ValueError(f"expected workers ≥ 0, got {self.workers}")
        self._check_model()

    def _check_model(self) -> None:
        model, layout = self.model, self.layout
        if model.channels not in MODES:
            raise ValueError(f"expected a model of images with {list(MODES)} channels, got {model.channels}")
        if model.classes < 2:
            raise ValueError(f"expected classes ≥ 2, got {model.classes}: there is nothing to tell apart")
        if layout.depth != model.depth or len(layout.heads) not in (1, model.heads):
            raise ValueError(
                f"expected a layout of the model's depth={model.depth} and 1 or {model.heads} heads, got "
                f"depth={layout.depth} and {len(layout.heads)} heads"
            )

    def describe(self) -> dict[str, Any]:
        """Everything that defines the task, as JSON values."""
        return {
            "name": self.name,
            "data": self.data.describe(),
            "heads": list(self.layout.heads),
            "layers": self.layout.layers or self.layout.depth,
            "augment": asdict(self.augment),
            "train_per_class": self.train_per_class,
            "validation_per_class": self.validation_per_class,
            "judge": self.judge,
            "streaming": self.streaming,
            "tokens": self.token_names(),
        }

    def structure(self) -> Tensor:
        """Who should interact: ``[heads, N, N]`` or ``[layers, heads, N, N]``."""
        return self.layout.structure(self.model.grid, self.model.prefix_tokens)

    def token_names(self) -> list[str]:
        """[CLS], [REG1], …, then row,column of each patch."""
        rows, columns = self.model.grid
        prefix = ["[CLS]"] * self.model.class_token
        prefix += [f"[REG{i + 1}]" for i in range(self.model.register_tokens)]
        return prefix + [f"{row},{column}" for row in range(rows) for column in range(columns)]

    def open(self, seed: int, batch_size: int, reader: Reader) -> "VisionStream":
        """Read the data; the choice of images, batches and augmentation depend on the seed alone.

        Raises:
            DataError: the data are not what they should be.
            ValueError: the processes cannot share a batch evenly.
        """
        source = open_source(self.data, "train")
        self._check_classes(source)
        train, held = self._choose(source, named_generator(seed, "data"))
        size, group = min(batch_size, len(train)), self.augment.group
        if reader.count > 1 and size % (group * reader.count):
            raise ValueError(
                f"expected batches that {reader.count} processes can share by groups of {group} images, got "
                f"batches of {size}"
            )
        if self.streaming:
            streamed, judged = (self._stream(source, rows, reader) for rows in (train, held))
            return VisionStream(self, seed, batch_size, reader, streamed, judged, IMAGENET)
        images, validation = (self._read(source, rows, reader) for rows in (train, held))
        normalise = Normalise.of(images.pixels)
        return VisionStream(self, seed, batch_size, reader, images, validation, normalise)

    def _check_classes(self, source: Source) -> None:
        if len(source.classes) != self.model.classes:
            raise DataError(
                f"{source.name}: expected {self.model.classes} classes, got {len(source.classes)}"
            )

    def _choose(self, source: Source, generator: torch.Generator) -> list[Tensor]:
        if self.train_per_class:
            counts = [self.train_per_class, self.validation_per_class]
            return choose_rows(source.labels, self.model.classes, counts, generator)
        (held,) = choose_rows(source.labels, self.model.classes, [self.validation_per_class], generator)
        rest = torch.ones(len(source.labels), dtype=torch.bool)
        rest[held] = False
        left = source.labels[rest].bincount(minlength=self.model.classes)
        if not left.all():
            raise DataError(
                f"{source.name}: expected images of class {source.classes[int(left.argmin())]!r} to train on "
                f"beside the {self.validation_per_class} that are held out, got none"
            )
        return [rest.nonzero()[:, 0], held]

    def _read(self, source: Source, rows: Tensor, reader: Reader) -> MemoryImages:
        images = read_images(
            source, rows, self.model.channels, self.model.image_size, convert=self.data.convert
        )
        return images.to(reader.device)

    def _stream(self, source: Source, rows: Tensor, reader: Reader) -> StreamedImages:
        return StreamedImages(
            source,
            rows,
            self.model.channels,
            self.model.image_size,
            reader.device,
            convert=self.data.convert,
            workers=self.workers,
        )

    def test_images(self, reader: Reader) -> Images:
        """The test split; it need not have images of every class.

        Raises:
            DataError: the data are not what they should be, or of more classes than the model has.
        """
        images: Images
        if self.streaming:
            source = open_source(self.data, "test")
            images = self._stream(source, torch.arange(len(source.labels)), reader)
        else:
            images = read_test(self.data, self.model.channels, self.model.image_size).to(reader.device)
        most = int(images.labels.max())
        if most >= self.model.classes:
            raise DataError(
                f"{self.data.location}, split {self.data.test!r}: expected labels from 0 to "
                f"{self.model.classes - 1}, as in training, got {most}"
            )
        return images


@dataclass(frozen=True)
class VisionStream:
    """The images of a run, opened. Batches are functions of seed and step.

    Attributes:
        task: what they are for.
        seed: root of all named generators.
        batch_size: images a batch, over all processes.
        reader: this process.
        images: training images.
        validation: held-out training images.
        normalise: what is done to pixels last.
    """

    task: VisionTask
    seed: int
    batch_size: int
    reader: Reader
    images: Images
    validation: Images
    normalise: Normalise

    def batches(self, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The process's share of the batches from step ``first`` on: images and target probabilities.

        A batch is cut into groups that are augmented apart; a process takes every ``count``-th group, so the
        batch does not depend on the number of processes.
        """
        for step, fetched in enumerate(self.images.fetch(self._keys(first)), start=first):
            images, labels = fetched
            parts = [
                augment(part, wanted, self.task.augment, self.task.model.classes, self.normalise, generator)
                for part, wanted, generator in self._groups(images, labels, step)
            ]
            yield torch.cat([part for part, _ in parts]), torch.cat([targets for _, targets in parts])

    def _groups(
        self, images: Tensor, labels: Tensor, step: int
    ) -> Iterator[tuple[Tensor, Tensor, torch.Generator]]:
        size = self.task.augment.group
        for place, (part, wanted) in enumerate(zip(images.split(size), labels.split(size), strict=True)):
            group = self.reader.index + place * self.reader.count
            yield part, wanted, named_generator(self.seed, f"augment/{step}/{group}")

    def _keys(self, first: int) -> Iterator[tuple[Tensor, int]]:
        """Row numbers of this process's share and the seed of their crops, step by step."""
        step, epoch, order = first, -1, torch.empty(0, dtype=torch.long)
        total = len(self.images.labels)
        size = min(self.batch_size, total)
        while True:
            turn, place = divmod(step, total // size)
            if turn != epoch:
                epoch = turn
                order = torch.randperm(total, generator=named_generator(self.seed, f"order/{epoch}"))
            groups = order[place * size : (place + 1) * size].split(self.task.augment.group)
            share = torch.cat(groups[self.reader.index :: self.reader.count])
            yield share, named_seed(self.seed, f"crop/{step}/{self.reader.index}") >> 1
            step += 1

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy with target probabilities, a mean over images."""
        return soft_cross_entropy(outputs, targets)

    def probe(self, predict: Predict) -> dict[str, float]:
        """Accuracy and loss on the held-out training images."""
        correct, total, loss = classify(predict, self._normalised(self.validation))
        return {"loss_validation": loss, "top1_validation": correct / total}

    def metrics(self, predict: Predict) -> dict[str, Any]:
        """Top-1 accuracy with its interval on what is judged, and digests of the images."""
        judged = self.validation if self.task.judge == "validation" else self.task.test_images(self.reader)
        return {
            **top1_metrics(predict, self._normalised(judged)),
            "data_train": self.images.fingerprint(),
            "data_judged": judged.fingerprint(),
        }

    def examples(self) -> Tensor:
        """The first held-out images, normalised."""
        images, _ = next(iter(self.validation.all()))
        return self.normalise(images[:EXAMPLES])

    def _normalised(self, images: Images) -> Iterator[tuple[Tensor, Tensor]]:
        for pixels, labels in images.all():
            yield self.normalise(pixels), labels
