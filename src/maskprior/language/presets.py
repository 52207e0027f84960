"""Recipes of language modelling, the same for every prior: quick, cpu and gpu."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from maskprior.experiments.config import PriorConfig, RunConfig, TrainingConfig
from maskprior.language.gpt2 import Gpt2Config
from maskprior.language.model import DecoderConfig
from maskprior.language.sources import DOCSTRINGS, SourceConfig
from maskprior.language.task import LanguageTask
from maskprior.language.tokenizers import TokenizerConfig
from maskprior.priors import LANGUAGE_PRIORS
from maskprior.structures import geometric_half_lives

LanguageRun = RunConfig[LanguageTask, Any]
Positions = Literal["", "learned", "none"]

WITHOUT_POSITIONS = frozenset({"alibi", "toeplitz"})
"""Priors whose models have no position embeddings, so that nothing is bound to the trained length."""


@dataclass(frozen=True)
class LanguageRecipe:
    """Everything of a comparison but prior and seed.

    Attributes:
        task: text, structure, lengths.
        model: shape; priors that extend to any length get it without positions.
        training: optimiser, budget, schedule.
        preset: its name.
        priors: the priors with their options, in the order of tables.
    """

    task: LanguageTask
    model: DecoderConfig | Gpt2Config
    training: TrainingConfig
    preset: str
    priors: Mapping[str, PriorConfig] = field(
        default_factory=lambda: {name: PriorConfig(name) for name in LANGUAGE_PRIORS}
    )

    def __post_init__(self) -> None:
        """Check that task and model are of one size (ValueError)."""
        for name in ("vocab_size", "length"):
            task, model = getattr(self.task, name), getattr(self.model, name)
            if task != model:
                raise ValueError(f"expected one {name} of task and model, got {task} and {model}")
        outputs = getattr(self.model, "outputs", self.model.vocab_size)
        if outputs != self.model.vocab_size:
            raise ValueError(f"expected as many outputs as vocab_size={self.model.vocab_size}, got {outputs}")

    def run(self, prior: str, seed: int, *, variant: str = "", positions: Positions = "") -> LanguageRun:
        """One run; ``positions`` "learned" or "none" overrules what the prior's models have.

        Raises:
            ValueError: unknown prior; lists the choices.
        """
        if prior not in self.priors:
            raise ValueError(f"expected a prior among {', '.join(self.priors)}, got {prior!r}")
        model = replace(self.model, positions=positions or _positions(prior))
        return RunConfig(self.task, self.priors[prior], model, self.training, self.preset, seed, variant)

    def runs(self, seeds: Sequence[int], priors: Sequence[str] | None = None) -> list[LanguageRun]:
        """Every prior with every seed, seeds outermost, so that early results compare all priors."""
        chosen = list(self.priors) if priors is None else priors
        return [self.run(prior, seed) for seed in seeds for prior in chosen]

    def judged_by(self, judge: Literal["test", "validation"]) -> "LanguageRecipe":
        """The recipe judged by the "test" or the "validation" split."""
        return replace(self, task=replace(self.task, judge=judge))


def _positions(prior: str) -> Literal["learned", "none"]:
    return "none" if prior in WITHOUT_POSITIONS else "learned"


def docstrings() -> SourceConfig:
    """The standard library's docstrings: what every Python installation has."""
    return SourceConfig("docstrings", DOCSTRINGS)


def wikitext2(location: str = "") -> SourceConfig:
    """WikiText-2, tokenised (Merity et al. 2017), from the hub or from a folder of it."""
    return SourceConfig(
        "wikitext2", location or "Salesforce/wikitext", subset="wikitext-2-v1", documents="articles"
    )


def tinystories(location: str = "") -> SourceConfig:
    """TinyStories (Eldan and Li 2023), which has no test split: validation stories are test by turns."""
    return SourceConfig("tinystories", location or "roneneldan/TinyStories", test="")


def cpu_recipe(source: SourceConfig, vocab_size: int = 2048) -> LanguageRecipe:
    """A decoder of 1.3 million parameters and a million tokens: about two minutes a run on one core."""
    return _recipe(source, vocab_size, depth=4, width=128, heads=4, length=128, steps=500, preset="cpu")


def quick_recipe(source: SourceConfig, vocab_size: int = 512) -> LanguageRecipe:
    """Seconds a run: to see that it works."""
    return _recipe(source, vocab_size, depth=2, width=32, heads=4, length=32, steps=60, preset="quick")


def gpu_recipe(source: SourceConfig, vocab_size: int = 16_384) -> LanguageRecipe:
    """GPT-2's shape at context 512 in bfloat16, 25 million tokens: minutes on one data-centre GPU."""
    length, heads = 512, 12
    task = LanguageTask(
        name=source.name,
        source=source,
        tokenizer=TokenizerConfig(vocab_size),
        vocab_size=vocab_size,
        length=length,
        reaches=tuple(geometric_half_lives(heads, 2.0, 256.0)),
        probe_tokens=65_536,
        length_tokens=65_536,
    )
    training = TrainingConfig(
        steps=1500,
        learning_rate=6e-4,
        batch_size=32,
        mask_learning_rate_factor=30.0,
        optimizer="adamw",
        weight_decay=0.1,
        betas=(0.9, 0.95),
        warmup_steps=150,
        precision="bf16",
        probes=26,
        gradient_clip=1.0,
    )
    return LanguageRecipe(task, Gpt2Config(vocab_size, length), training, "gpu")


def _recipe(
    source: SourceConfig,
    vocab_size: int,
    *,
    depth: int,
    width: int,
    heads: int,
    length: int,
    steps: int,
    preset: str,
) -> LanguageRecipe:
    model = DecoderConfig(
        vocab_size=vocab_size,
        length=length,
        outputs=vocab_size,
        readout="tokens",
        causal=True,
        width=width,
        depth=depth,
        heads=heads,
        head_width=width // heads,
        mlp_width=4 * width,
        token_std=0.02,
        position_std=0.02,
    )
    task = LanguageTask(
        name=source.name,
        source=source,
        tokenizer=TokenizerConfig(vocab_size),
        vocab_size=vocab_size,
        length=length,
        reaches=tuple(geometric_half_lives(heads, 2.0, 64.0)),
    )
    training = TrainingConfig(
        steps=steps,
        learning_rate=3e-3,
        batch_size=16,
        mask_learning_rate_factor=10.0,
        optimizer="adamw",
        weight_decay=0.1,
        betas=(0.9, 0.99),
        warmup_steps=steps // 10,
        probes=21,
        gradient_clip=1.0,
    )
    return LanguageRecipe(task, model, training, preset)
