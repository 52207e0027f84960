"""Query and key weights are found in the layouts that libraries use, and are the right halves."""

import pytest
import torch
from torch import nn

from maskprior.analysis.query_key import find_query_key
from maskprior.models import Transformer, TransformerConfig

WIDTH = 6


class Separate(nn.Module):
    """As Hugging Face's decoders name them."""

    def __init__(self, query: str, key: str) -> None:
        super().__init__()
        self.add_module(query, nn.Linear(WIDTH, 5))
        self.add_module(key, nn.Linear(WIDTH, 3))


class Columns(nn.Module):
    """As GPT-2's Conv1D: the weight is [inputs, outputs]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 3 * 5))


@pytest.mark.parametrize(
    "names", [("q_proj", "k_proj"), ("query", "key"), ("q_lin", "k_lin"), ("to_q", "to_k")]
)
def test_separate_projections(names: tuple[str, str]) -> None:
    model = nn.ModuleDict({"0": Separate(*names), "1": Separate(*names)})
    found = find_query_key(model)
    weights = dict(model.named_parameters())
    assert [part.parameter for part in found.query] == [weights[f"{i}.{names[0]}.weight"] for i in "01"]
    assert [part.parameter for part in found.key] == [weights[f"{i}.{names[1]}.weight"] for i in "01"]
    assert found.key[0].of(found.key[0].parameter).shape == (3, WIDTH)


def test_this_package_and_timm_fuse_by_rows() -> None:
    config = TransformerConfig(2, 3, 1, width=WIDTH, depth=2, heads=2, head_width=1, mlp_width=3)
    model = Transformer(config)
    found = find_query_key(model)
    assert len(found.query) == len(found.key) == 2
    for (attention, _), query, key in zip(
        model.layer_inputs(torch.zeros(1, 3, dtype=torch.long)), found.query, found.key, strict=True
    ):
        assert torch.equal(query.of(query.parameter), attention.query_weight().flatten(0, 1))
        assert torch.equal(key.of(key.parameter), attention.key_weight().flatten(0, 1))


def test_torch_fuses_by_rows_or_not_at_all() -> None:
    fused = nn.MultiheadAttention(WIDTH, 2)
    found = find_query_key(fused)
    assert torch.equal(found.key[0].of(fused.in_proj_weight), fused.in_proj_weight[WIDTH : 2 * WIDTH])
    apart = nn.MultiheadAttention(WIDTH, 2, kdim=5, vdim=7)
    found = find_query_key(apart)
    assert found.query[0].parameter is apart.q_proj_weight
    assert found.key[0].parameter is apart.k_proj_weight


def test_gpt2_fuses_by_columns_and_its_copies_with_linear_layers_by_rows() -> None:
    columns = nn.ModuleDict({"c_attn": Columns()})
    weight = next(columns.parameters())
    assert torch.equal(find_query_key(columns).query[0].of(weight), weight[:, :5])
    rows = nn.ModuleDict({"c_attn": nn.Linear(WIDTH, 15)})
    weight = next(rows.parameters())
    assert torch.equal(find_query_key(rows).key[0].of(weight), weight[5:10])


def test_a_model_that_names_them_otherwise_has_none() -> None:
    found = find_query_key(nn.Sequential(nn.Linear(3, 9), nn.LayerNorm(9)))
    assert found.query == found.key == []
