"""Finished runs of language tasks: the tokenizer beside the records, and the model from its record."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from maskprior.experiments.config import AnyRunConfig, PriorConfig
from maskprior.experiments.files import RecordError, read_tensors, write_atomically
from maskprior.experiments.record import RunRecord, read_record, weights_path
from maskprior.experiments.restore import find_run
from maskprior.experiments.seeding import named_generator
from maskprior.language.gpt2 import Gpt2Config
from maskprior.language.model import DecoderConfig, LanguageModel
from maskprior.language.task import LanguageTask, distance_structure
from maskprior.language.tokenizers import load_tokenizer
from maskprior.language.tokens import tokenise

if TYPE_CHECKING:
    from maskprior.language.gpt2 import Gpt2Model


@dataclass(frozen=True)
class Loaded:
    """A finished run.

    Attributes:
        record: its record.
        model: as trained, in evaluation mode.
        tokenizer: of its text.
    """

    record: RunRecord
    model: "LanguageModel | Gpt2Model"
    tokenizer: Tokenizer

    @property
    def longest(self) -> int | None:
        """Most tokens that the model knows positions for; None: any number."""
        config = self.model.config
        return config.length if config.positions == "learned" else None


def tokenizer_path(folder: Path, digest: str) -> Path:
    """``tokenizers/DIGEST.json`` in the folder of the records; the digest is their metric ``corpus``."""
    return folder / "tokenizers" / f"{digest}.json"


def keep_tokenizers(configs: Iterable[AnyRunConfig], folder: Path) -> None:
    """Write the tokenizer of each corpus beside the records, so that its runs can write text."""
    tasks = dict.fromkeys(config.task for config in configs if isinstance(config.task, LanguageTask))
    for task in tasks:
        corpus = tokenise(task.source, task.tokenizer)
        write_atomically(tokenizer_path(folder, corpus.digest), corpus.tokenizer.to_str().encode())


def load_run(path: Path) -> Loaded:
    """The model and tokenizer of a record, or of the only record in a folder.

    Raises:
        RecordError: not of a language task, or its weights or tokenizer are not beside it, broken or of
            another run.
        ValueError: no such file, or a folder with no such record or several.
    """
    path = find_run(path)
    record = read_record(path)
    if "corpus" not in record.metrics:
        raise RecordError(f"{path}: expected the record of a language task, got one of {record.task!r}")
    for needed in (weights_path(path), tokenizer_path(path.parent, record.metrics["corpus"])):
        if not needed.exists():
            raise RecordError(
                f"{path}: expected {needed.relative_to(path.parent)} beside it, got no such file; "
                "published records come without it: run the recipe in a folder of your own"
            )
    try:
        model = build(record.config)
    except (TypeError, KeyError) as error:
        raise RecordError(
            f"{path}: expected the record of a language model, got another ({error})"
        ) from error
    try:
        model.load_state_dict(read_tensors(weights_path(path)))
    except RuntimeError as error:
        raise RecordError(
            f"{weights_path(path)}: expected the weights of {path.name}, got others: {error}"
        ) from error
    model.eval()
    tokenizer = load_tokenizer(str(tokenizer_path(path.parent, record.metrics["corpus"])))
    return Loaded(record, model, tokenizer)


def build(config: dict[str, Any]) -> "LanguageModel | Gpt2Model":
    """The initial model of a record's ``config`` with its prior; seed 0."""
    task = config["task"]
    values: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in config["model"].items()
    }
    kind = Gpt2Config if values.get("family") == "gpt2" else DecoderConfig
    model = kind(**values).build(named_generator(0, "init"))
    options = {name: value for name, value in config["prior"].items() if name != "name"}
    prior = PriorConfig(config["prior"]["name"], options).function()
    structure = distance_structure(task["length"], task["reaches"], task["decay"])
    prior(model, structure, named_generator(0, "prior"))
    return model
