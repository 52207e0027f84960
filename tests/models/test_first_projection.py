"""The first layer's projection by table look-up: the same function and gradients as without it."""

from dataclasses import replace

import pytest
import torch

from maskprior import MaskPrior
from maskprior.models import Transformer, TransformerConfig

ENCODER = TransformerConfig(3, 5, 2, width=12, depth=2, heads=2, head_width=7, mlp_width=11, position_std=1.0)
DECODER = replace(ENCODER, readout="tokens", causal=True)


def outputs_and_gradients(model: Transformer, tokens: torch.Tensor) -> list[torch.Tensor]:
    outputs = model(tokens)
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    return [outputs, *torch.autograd.grad((outputs * weights).sum(), list(model.parameters()))]


@pytest.mark.parametrize("config", [ENCODER, DECODER], ids=["encoder", "decoder"])
@pytest.mark.parametrize("length", [5, 3])
def test_a_large_batch_agrees_with_its_rows_one_by_one(config: TransformerConfig, length: int) -> None:
    model = Transformer(config, torch.Generator().manual_seed(1)).double()
    logits = torch.randn(config.attended_length, config.attended_length, dtype=torch.float64)
    model.set_priors([MaskPrior(logits), None])
    tokens = torch.randint(3, (17, length))
    assert model._look_up(tokens)[1] is not None
    assert model._look_up(tokens[:1])[1] is None
    alone = torch.cat([model(row) for row in tokens.split(1)])
    torch.testing.assert_close(model(tokens), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("config", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_gradients_agree_with_the_plain_path(
    config: TransformerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Transformer(config, torch.Generator().manual_seed(1)).double()
    tokens = torch.randint(3, (17, 5))
    found = outputs_and_gradients(model, tokens)
    monkeypatch.setattr(Transformer, "_look_up", lambda self, tokens: (self.embed(tokens), None))
    for value, expected in zip(found, outputs_and_gradients(model, tokens), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


def test_a_single_layer_that_reads_one_token_keeps_the_plain_path() -> None:
    model = Transformer(replace(ENCODER, depth=1))
    assert model._look_up(torch.randint(3, (50, 5)))[1] is None
    assert model(torch.randint(3, (50, 5))).shape == (50, 2)


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("bad", [-1, 3])
def test_tokens_out_of_the_vocabulary_are_refused(batch: int, bad: int) -> None:
    with pytest.raises(ValueError, match="expected tokens from 0 to 2, got values from"):
        Transformer(ENCODER)(torch.full((batch, 5), bad))


@pytest.mark.parametrize("config", [ENCODER, DECODER, replace(ENCODER, depth=1)])
def test_an_empty_batch_has_empty_outputs(config: TransformerConfig) -> None:
    outputs = Transformer(config)(torch.zeros(0, 5, dtype=torch.long))
    assert outputs.shape[0] == 0
