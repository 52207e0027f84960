"""What a configuration refuses, and the initial weights and random inputs that it describes."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from maskprior.models import Transformer, TransformerConfig
from maskprior.models.transformer import embedding

VOCAB, LENGTH = 3, 6

CLS = TransformerConfig(vocab_size=VOCAB, length=LENGTH, outputs=13, width=17, depth=2, heads=5, head_width=7)
ENCODER = replace(CLS, readout="tokens")
DECODER = replace(ENCODER, causal=True)
CONFIGS = {"cls": CLS, "encoder": ENCODER, "decoder": DECODER}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_model(kind: str = "cls") -> Transformer:
    return Transformer(CONFIGS[kind], seeded(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "expected width ≥ 1, got 0"),
        ({"depth": -1}, "expected depth ≥ 1, got -1"),
        ({"position_std": -0.1}, "expected a finite position_std ≥ 0, got -0.1"),
        ({"token_std": math.nan}, "expected a finite token_std ≥ 0, got nan"),
        ({"token_std": math.inf}, "expected a finite token_std ≥ 0, got inf"),
        ({"query_key_gain": math.nan}, "expected a finite query_key_gain ≥ 0, got nan"),
        ({"query_key_gain": -1.0}, "expected a finite query_key_gain ≥ 0, got -1.0"),
        ({"dropout": 1.0}, "expected dropout in [0, 1), got 1.0"),
        ({"readout": "mean"}, "expected readout 'cls' or 'tokens', got 'mean'"),
        ({"causal": True}, "expected readout='tokens' with causal=True: a first token sees no other"),
    ],
)
def test_refuses_a_wrong_configuration(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(CLS, **change)


def test_attended_length_counts_the_readout_token() -> None:
    assert (CLS.attended_length, ENCODER.attended_length, DECODER.attended_length) == (7, 6, 6)
    assert [len(make_model(kind).get_parameter("position")) for kind in CONFIGS] == [7, 6, 6]


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_only_the_generator_decides_the_initial_weights(kind: str) -> None:
    state = torch.get_rng_state()
    first, again = make_model(kind), make_model(kind)
    other = Transformer(CONFIGS[kind], seeded(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in first.state_dict().items())
    assert not torch.equal(first(first.sample_inputs(4, seeded(2))), other(first.sample_inputs(4, seeded(2))))
    default = Transformer(CONFIGS[kind])
    assert torch.equal(default(first.sample_inputs(4, seeded(2))), first(first.sample_inputs(4, seeded(2))))


def test_embeddings_have_their_standard_deviation() -> None:
    for std in (0.0, 0.02, 1.0):
        table = embedding(101, 97, std, seeded(0))
        assert table.shape == (101, 97)
        assert float(table.detach().std()) == pytest.approx(std, rel=5 / math.sqrt(2 * table.numel()))


def test_random_inputs_are_uniform_over_the_vocabulary() -> None:
    model = make_model()
    tokens = model.sample_inputs(997, seeded(1))
    assert tokens.shape == (997, LENGTH)
    counts = tokens.flatten().bincount(minlength=VOCAB).double()
    expected = tokens.numel() / VOCAB
    assert len(counts) == VOCAB
    # χ² with 2 degrees of freedom exceeds 14 in one case of a thousand.
    assert float(((counts - expected).square() / expected).sum()) < 14
    assert torch.equal(model.sample_inputs(997, seeded(1)), tokens)
