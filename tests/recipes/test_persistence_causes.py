"""The causes add up where they must: nothing moved, only weights moved, only features moved."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from maskprior.experiments.files import write_tensors
from maskprior.experiments.record import weights_path
from maskprior.experiments.run import build_model, record_path
from recipes.persistence import main_table
from recipes.persistence_causes import Causes, kept, tell_causes, with_query_key_of

CONFIG = next(
    replace(config, model=replace(config.model, depth=2))
    for config in main_table(1)
    if (config.task.name, config.label) == ("2parity", "qk_svd")
)


def test_an_untrained_model_has_kept_everything() -> None:
    assert kept(CONFIG, build_model(CONFIG).state_dict()) == {"all": 1, "weights": 1, "features": 1}


def test_moved_weights_are_told_from_moved_features() -> None:
    trained = build_model(CONFIG).state_dict()
    rows = 2 * len(trained["blocks.0.attention.qkv.weight"]) // 3
    for name in trained:
        if ".qkv.weight" in name:
            trained[name][:rows] = 0  # uniform attention
    found = kept(CONFIG, trained)
    assert found["all"] == pytest.approx(0, abs=1e-6)
    assert found["weights"] == pytest.approx(0, abs=1e-6)
    assert found["features"] == pytest.approx(1, abs=1e-6)

    trained = build_model(CONFIG).state_dict()
    trained["position"][:] = 0  # positions can no longer be told apart
    found = kept(CONFIG, trained)
    assert found["weights"] == pytest.approx(1, abs=1e-6)
    assert found["features"] == pytest.approx(found["all"])
    assert found["all"] < 0.9


def test_only_queries_and_keys_are_exchanged() -> None:
    model, donor = build_model(CONFIG), build_model(replace(CONFIG, seed=1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with_query_key_of(model, donor)
    for name, tensor in model.state_dict().items():
        rows = 2 * len(tensor) // 3 if ".qkv." in name else 0
        assert torch.equal(tensor[rows:], before[name][rows:])
        assert torch.equal(tensor[:rows], donor.state_dict()[name][:rows])


def test_the_table_has_a_row_for_each_run_with_weights(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected weights beside the records"):
        tell_causes(Causes(tmp_path / "p"))
    config = main_table(1)[0]
    path = weights_path(record_path(tmp_path / "p", config))
    write_tensors(path, build_model(config).state_dict())
    lines = tell_causes(Causes(tmp_path / "p")).read_text().splitlines()
    assert lines == ["task,variant,seed,all,weights,features", "2parity,qk_svd,0,1.0000,1.0000,1.0000"]
