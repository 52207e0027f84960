"""Recipes of image classification, the same for every prior: digits, cpu, gpu32 and paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from maskprior.experiments.config import PriorConfig, RunConfig, TrainingConfig
from maskprior.vision.augment import Augment
from maskprior.vision.layout import Layout
from maskprior.vision.model import VitConfig
from maskprior.vision.sources import DIGITS, DataConfig
from maskprior.vision.task import VisionTask

VisionRun = RunConfig[VisionTask, VitConfig]

# Position embeddings, W_V and W_O are the model's, the same for all priors, so that what is compared is how
# the structure is put in: not at all, into W_Q and W_K, or into M.
QUERY_KEY_PRIORS: dict[str, PriorConfig] = {
    "vanilla": PriorConfig("vanilla"),
    "mimetic": PriorConfig("mimetic", {"sinusoidal": False, "value_output": False}),
    "impulse": PriorConfig("impulse", {"sinusoidal": False}),
    "mask": PriorConfig("mask"),
}

NEIGHBOURS = ("offset 0 1", "offset 0 -1", "offset 1 0", "offset -1 0")
"""One of the four nearest patches a head."""


@dataclass(frozen=True)
class VisionRecipe:
    """Everything of a comparison but prior and seed.

    Attributes:
        task: data, structure, augmentation.
        training: optimiser, budget, schedule.
        preset: its name.
        priors: the priors with their options, in the order of tables.
    """

    task: VisionTask
    training: TrainingConfig
    preset: str
    priors: Mapping[str, PriorConfig] = field(default_factory=lambda: dict(QUERY_KEY_PRIORS))

    def run(self, prior: str, seed: int, *, variant: str = "") -> VisionRun:
        """One run.

        Raises:
            ValueError: unknown prior; lists the choices.
        """
        if prior not in self.priors:
            raise ValueError(f"expected a prior among {', '.join(self.priors)}, got {prior!r}")
        return RunConfig(
            self.task, self.priors[prior], self.task.model, self.training, self.preset, seed, variant
        )

    def runs(self, seeds: Sequence[int], priors: Sequence[str] | None = None) -> list[VisionRun]:
        """Every prior with every seed, seeds outermost, so that early results compare all priors."""
        chosen = list(self.priors) if priors is None else priors
        return [self.run(prior, seed) for seed in seeds for prior in chosen]

    def judged_by(self, judge: Literal["test", "validation"]) -> "VisionRecipe":
        """The recipe judged by "test" or "validation" images."""
        return replace(self, task=replace(self.task, judge=judge))


def cifar(classes: int, location: str = "") -> DataConfig:
    """CIFAR-10 or CIFAR-100, from the hub or from a folder of it."""
    label = {10: "label", 100: "fine_label"}[classes]
    return DataConfig(f"cifar{classes}", location or f"uoft-cs/cifar{classes}", image="img", label=label)


def digits_recipe() -> VisionRecipe:
    """scikit-learn's 8 × 8 digits, 200 for training: seconds a run.

    Structure and strength of the mask are those that held-out training images chose (LOG.md).
    """
    model = VitConfig(
        image_size=(8, 8),
        patch_size=2,
        channels=1,
        classes=10,
        width=32,
        depth=3,
        heads=4,
        mlp_ratio=2.0,
        positions="sinusoidal",
        value_output="mimetic",
    )
    task = VisionTask(
        name="digits",
        data=DataConfig("digits", DIGITS),
        model=model,
        layout=Layout(NEIGHBOURS, model.depth),
        augment=Augment(crop=1),
        train_per_class=20,
        validation_per_class=20,
    )
    training = TrainingConfig(
        steps=300,
        learning_rate=2e-3,
        batch_size=64,
        optimizer="adamw",
        weight_decay=0.05,
        warmup_steps=30,
        probes=6,
    )
    priors = {**QUERY_KEY_PRIORS, "mask": PriorConfig("mask", {"suppressed_logit": -6.0})}
    return VisionRecipe(task, training, "quick", priors)


def cpu_recipe(classes: int = 10, location: str = "", per_class: int = 100) -> VisionRecipe:
    """A narrow ViT on a balanced part of CIFAR: a minute or two a run on one core.

    Structure and strength of the mask are those that held-out training images chose (docs/vision.md).
    """
    model = VitConfig(
        image_size=(32, 32),
        classes=classes,
        width=64,
        depth=4,
        heads=4,
        mlp_ratio=2.0,
        class_token=False,
        positions="sinusoidal",
        value_output="mimetic",
    )
    task = VisionTask(
        name=f"cifar{classes}",
        data=cifar(classes, location),
        model=model,
        layout=Layout(("near 1",) * model.heads, model.depth),
        augment=Augment(crop=4, flip=True),
        train_per_class=per_class,
        validation_per_class=100 if classes == 10 else 8,
    )
    training = TrainingConfig(
        steps=1000,
        learning_rate=1e-3,
        batch_size=64,
        optimizer="adamw",
        weight_decay=0.05,
        warmup_steps=100,
        probes=6,
    )
    priors = {**QUERY_KEY_PRIORS, "mask": PriorConfig("mask", {"suppressed_logit": -3.0})}
    return VisionRecipe(task, training, f"cpu-{classes * per_class}-images", priors)


def gpu32_recipe(classes: int = 10, location: str = "") -> VisionRecipe:
    """ViT-Tiny on all of CIFAR in bfloat16, 100 epochs: minutes on one data-centre GPU."""
    model = VitConfig(
        image_size=(32, 32),
        classes=classes,
        width=192,
        depth=12,
        heads=3,
        drop_path=0.1,
        positions="sinusoidal",
        value_output="mimetic",
    )
    held = 5000 // classes
    epoch = (50_000 - held * classes) // 512
    task = VisionTask(
        name=f"cifar{classes}",
        data=cifar(classes, location),
        model=model,
        layout=Layout(("decay 0.7", "decay 1.5", "free"), model.depth),
        augment=Augment(
            crop=4, flip=True, operations=2, magnitude=9, mixup=0.8, cutmix=1.0, erasing=0.25, smoothing=0.1
        ),
        validation_per_class=held,
    )
    training = TrainingConfig(
        steps=100 * epoch,
        learning_rate=1e-3,
        batch_size=512,
        optimizer="adamw",
        weight_decay=0.05,
        warmup_steps=10 * epoch,
        precision="bf16",
        probes=21,
        ema_decay=0.9995,
        gradient_clip=1.0,
    )
    return VisionRecipe(task, training, "gpu32")


def paper_recipe(location: str, classes: int = 100, images: int = 126_689, workers: int = 8) -> VisionRecipe:
    """ViT-Tiny/16 at 224 pixels on ImageNet-100 (class folders), 300 epochs.

    AdamW 2e-3, 50 epochs of warm-up, weight decay 0.05, RandAugment, mixup 0.8, cutmix 1.0, erasing 0.25 and
    EMA, as Zheng et al. 2025 state.

    Args:
        location: folder with ``train/CLASS/image`` and ``val/CLASS/image``.
        classes: how many.
        images: number of training images, which makes an epoch.
        workers: processes that read images.
    """
    model = VitConfig(
        image_size=(224, 224),
        patch_size=16,
        classes=classes,
        drop_path=0.1,
        positions="sinusoidal",
        value_output="mimetic",
    )
    held = 10
    epoch = (images - held * classes) // 1024
    task = VisionTask(
        name="imagenet100" if classes == 100 else f"imagenet{classes}",
        data=DataConfig("imagenet", location, test="val", convert=True),
        model=model,
        layout=Layout(("decay 0.7", "decay 1.5", "free"), model.depth),
        augment=Augment(
            flip=True, operations=2, magnitude=9, mixup=0.8, cutmix=1.0, erasing=0.25, smoothing=0.1
        ),
        validation_per_class=held,
        streaming=True,
        workers=workers,
    )
    training = TrainingConfig(
        steps=300 * epoch,
        learning_rate=2e-3,
        batch_size=1024,
        optimizer="adamw",
        weight_decay=0.05,
        warmup_steps=50 * epoch,
        precision="bf16",
        probes=31,
        ema_decay=0.9999,
        gradient_clip=1.0,
    )
    return VisionRecipe(task, training, "paper")
