"""Why a prior is lost: because W_Q and W_K move, or because what they read moves?

    python -m recipes.persistence_causes --folder results/persistence

Needs the weights that lie beside the records of the main persistence part. For each run three models are
looked at on the same inputs, and the structure that their attention keeps is written down, as a share of what
it was at the start:

    all       the trained model
    weights   the initial model with the trained W_Q and W_K (and their biases)
    features  the trained model with the initial W_Q and W_K: only what they read has moved

Writes causes.csv to the folder with "-causes" appended, one row a run.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from maskprior.analysis.observation import evaluating
from maskprior.analysis.persistence import Target
from maskprior.experiments.config import RunConfig
from maskprior.experiments.files import read_tensors, write_atomically
from maskprior.experiments.record import weights_path
from maskprior.experiments.run import build_model, record_path
from maskprior.experiments.seeding import named_generator
from maskprior.models import Transformer
from recipes.persistence import main_table

INPUTS = 256
CAUSES = ("all", "weights", "features")


@dataclass(frozen=True)
class Causes:
    """Tell apart the causes in every run of the main part whose weights are there.

    Attributes:
        folder: of the records and weights.
    """

    folder: Path = Path("results/persistence")


def advantage(model: Transformer, config: RunConfig) -> float:
    """Advantage over uniform attention, mean over layers, on the same random inputs for every model."""
    inputs = model.sample_inputs(INPUTS, named_generator(config.seed, "causes"))
    target = Target.of_structure(config.task.structure(), allowed=model.allowed(model.config.attended_length))
    with evaluating(model):
        patterns = model.attention_patterns(inputs)
    return statistics.fmean(target.measure(pattern)["advantage"] for pattern in patterns)


@torch.no_grad()
def with_query_key_of(model: Transformer, donor: Transformer) -> Transformer:
    """The model, in place, with the donor's query and key weights and biases in every layer."""
    own, given = model.state_dict(), donor.state_dict()
    for name in own:
        if ".qkv." in name:
            two_thirds = 2 * len(own[name]) // 3
            own[name][:two_thirds] = given[name][:two_thirds]
    return model


def kept(config: RunConfig, trained: dict[str, torch.Tensor]) -> dict[str, float]:
    """Share of the initial advantage that is left, by cause."""

    def initial() -> Transformer:
        return build_model(config)

    def final() -> Transformer:
        model = build_model(config)
        model.load_state_dict(trained)
        return model

    start = advantage(initial(), config)
    models = {
        "all": final(),
        "weights": with_query_key_of(initial(), final()),
        "features": with_query_key_of(final(), initial()),
    }
    return {cause: advantage(models[cause], config) / start for cause in CAUSES}


def tell_causes(command: Causes) -> Path:
    """Write the table and return its path.

    Raises:
        ValueError: no run of the main part has its weights in the folder.
    """
    lines = ["task,variant,seed," + ",".join(CAUSES)]
    for config in main_table():
        path = weights_path(record_path(command.folder, config))
        if path.exists():
            shares = kept(config, read_tensors(path))
            values = ",".join(f"{shares[cause]:.4f}" for cause in CAUSES)
            lines.append(f"{config.task.name},{config.label},{config.seed},{values}")
    if len(lines) == 1:
        raise ValueError(f"expected weights beside the records in {command.folder}, got none")
    target = command.folder.with_name(f"{command.folder.name}-causes") / "causes.csv"
    write_atomically(target, ("\n".join(lines) + "\n").encode())
    return target


if __name__ == "__main__":
    print(tell_causes(tyro.cli(Causes, description=__doc__)))
