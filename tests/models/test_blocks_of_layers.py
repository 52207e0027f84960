"""Blocks that serve several layers, and models without positions."""

import pytest
import torch

from maskprior.mask_prior import MaskPrior
from maskprior.models import Transformer, TransformerConfig
from maskprior.models.decoding import decode

CONFIG = TransformerConfig(
    vocab_size=5,
    length=7,
    outputs=3,
    readout="tokens",
    width=11,
    depth=4,
    heads=2,
    head_width=3,
    mlp_width=13,
)


def build(**changes: object) -> Transformer:
    return Transformer(TransformerConfig(**{**CONFIG.__dict__, **changes}), torch.Generator().manual_seed(3))


def tokens(batch: int = 2) -> torch.Tensor:
    return torch.randint(5, (batch, 7), generator=torch.Generator().manual_seed(5))


def priors(count: int) -> list[MaskPrior]:
    rng = torch.Generator().manual_seed(7)
    return [MaskPrior(torch.randn(7, 7, generator=rng)) for _ in range(count)]


def test_a_shared_block_computes_what_equal_blocks_do() -> None:
    shared, plain = build(block_of_layer=(0, 1, 1, 1)), build()
    for layer, block in enumerate(plain.blocks):
        block.load_state_dict(shared.blocks[min(layer, 1)].state_dict())
    rest = {name: value for name, value in shared.state_dict().items() if not name.startswith("blocks")}
    plain.load_state_dict(rest, strict=False)
    for model in (shared, plain):
        model.set_priors(priors(4))
    torch.testing.assert_close(shared(tokens()), plain(tokens()))
    torch.testing.assert_close(shared.attention_patterns(tokens()), plain.attention_patterns(tokens()))


def test_a_shared_block_is_saved_once_and_gets_the_gradients_of_all_its_layers() -> None:
    model = build(block_of_layer=(0, 1, 1, 1))
    assert len(model.blocks) == 2
    assert len(model.layer_blocks) == 4
    assert model.layer_blocks[1] is model.layer_blocks[3]
    assert not any(name.startswith("blocks.2") for name in model.state_dict())
    model(tokens()).sum().backward()
    assert all(p.grad is not None for p in model.blocks.parameters())


def test_without_positions_tokens_can_change_places() -> None:
    model, order = build(positions="none"), torch.randperm(7, generator=torch.Generator().manual_seed(2))
    assert model.position is None
    torch.testing.assert_close(model(tokens()[:, order]), model(tokens())[:, order])
    learned = build(position_std=1.0)
    assert not torch.allclose(learned(tokens()[:, order]), learned(tokens())[:, order])


def test_without_positions_a_prior_moves_with_the_tokens() -> None:
    model, order = build(positions="none"), torch.randperm(7, generator=torch.Generator().manual_seed(2))
    own = priors(4)
    model.set_priors(own)
    straight = model(tokens())
    model.set_priors([MaskPrior(p.mask_logits.detach()[order][:, order]) for p in own])
    torch.testing.assert_close(model(tokens()[:, order]), straight[:, order])


def test_other_weights_do_not_depend_on_whether_there_are_positions() -> None:
    learned, none = build().state_dict(), build(positions="none").state_dict()
    assert all(torch.equal(value, learned[name]) for name, value in none.items())


@pytest.mark.parametrize("changes", [{"positions": "none"}, {"block_of_layer": (0, 1, 0, 1)}])
def test_decoding_with_a_cache_is_one_forward_pass(changes: dict[str, object]) -> None:
    model = build(causal=True, outputs=5, **changes).eval()
    model.set_priors(priors(4))
    prompt = tokens()[:, :3]
    written = decode(model, prompt, 4).tokens
    whole = model(torch.cat([prompt, written[:, :-1]], dim=1)).argmax(-1)
    assert torch.equal(written, whole[:, 2:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "sine"}, "positions 'learned' or 'none', got 'sine'"),
        ({"block_of_layer": (0, 1)}, r"block_of_layer for 4 layers, got \(0, 1\)"),
        ({"block_of_layer": (0, 2, 1, 1)}, "numbered 0, 1, … as they come"),
        ({"block_of_layer": (1, 1, 1, 1)}, "numbered 0, 1, … as they come"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changes)
