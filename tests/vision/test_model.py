"""timm's Vision Transformer with priors: seeded, unchanged without them, exact with them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from maskprior.mask_prior import MaskPrior
from maskprior.priors.mimetic import set_value_output
from maskprior.priors.positions import sinusoidal_positions
from maskprior.vision.model import VitAttention, VitConfig, VitModel


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prior(*heads: int, seed: int = 3) -> MaskPrior:
    return MaskPrior(torch.randn(*heads, 7, 7, generator=seeded(seed)))


def test_shapes(small: VitConfig, images: Tensor) -> None:
    model = small.build(seeded(0))
    assert small.grid == (2, 3)
    assert small.attended_length == 7
    assert model(images).shape == (5, 5)
    assert replace(small, register_tokens=2, class_token=False).attended_length == 8
    assert replace(small, register_tokens=2).build(seeded(0))(images).shape == (5, 5)


def test_weights_are_a_function_of_the_generator(small: VitConfig) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, same, other = (VitModel(small, seeded(seed)).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, same[name]) for name, value in first.items())
    assert not torch.equal(first["vit.head.weight"], other["vit.head.weight"])


def test_options_change_positions_or_values_alone(small: VitConfig) -> None:
    plain = VitModel(small, seeded(0)).state_dict()
    moved = VitModel(replace(small, positions="sinusoidal"), seeded(0)).state_dict()
    mimetic = VitModel(replace(small, value_output="mimetic"), seeded(0)).state_dict()
    assert {name for name in plain if not torch.equal(plain[name], moved[name])} == {"vit.pos_embed"}
    torch.testing.assert_close(moved["vit.pos_embed"][0, 1:], sinusoidal_positions(2, 3, 12))
    changed = {name for name in plain if not torch.equal(plain[name], mimetic[name])}
    assert changed == {
        f"vit.blocks.{layer}.attn.{part}.weight" for layer in (0, 1) for part in ("qkv", "proj")
    }
    for name in changed:
        if "qkv" in name:
            assert torch.equal(plain[name][:24], mimetic[name][:24])


def test_without_positions_all_else_is_the_same_and_patches_can_be_reordered(small: VitConfig) -> None:
    config = replace(small, value_output="mimetic")
    plain = VitModel(config, seeded(0)).state_dict()
    model = VitModel(replace(config, positions="none"), seeded(0)).eval()
    state = model.state_dict()
    assert set(plain) - set(state) == {"vit.pos_embed"}
    assert all(torch.equal(plain[name], value) for name, value in state.items())
    images = model.sample_inputs(3, seeded(1))
    swapped = torch.cat(images.split(config.patch_size, dim=-1)[::-1], dim=-1)
    assert not torch.allclose(VitModel(config, seeded(0)).eval()(images), model(images))
    torch.testing.assert_close(model(swapped), model(images), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="expected a model with position embeddings"):
        model.position_embedding()


@pytest.mark.parametrize("heads", [(), (1,), (3,)])
def test_attention_is_softmax_of_scores_plus_log_sigmoid(
    small: VitConfig, images: Tensor, heads: tuple[int, ...]
) -> None:
    model = small.build(seeded(0)).double()
    model.set_priors([prior(*heads), prior(*heads, seed=4)])
    x = images.double()
    seen: list[Tensor] = []
    block: Any = model.vit.blocks[0]
    block.attn.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    outputs: list[Tensor] = []
    block.attn.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    model.eval()
    model(x)
    # Independently, from the formula, with the packed weights cut by hand.
    weight, bias = block.attn.qkv.weight, block.attn.qkv.bias
    query, key, value = (
        (seen[0] @ weight[12 * part : 12 * part + 12].T + bias[12 * part : 12 * part + 12]).view(5, 7, 3, 4)
        for part in range(3)
    )
    m = prior(*heads).mask_logits.double()
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 2 - torch.log1p(torch.exp(-m))
    weights = torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True)
    mixed = torch.einsum("bhqk,bkhd->bqhd", weights, value).reshape(5, 7, 12)
    expected = mixed @ block.attn.proj.weight.T + block.attn.proj.bias
    torch.testing.assert_close(outputs[0], expected, rtol=1e-6, atol=1e-7)  # M is in float32
    torch.testing.assert_close(model.attention_maps(x)[:, 0], weights, rtol=1e-6, atol=1e-7)


def test_patterns_are_the_mean_of_the_maps_and_rows_sum_to_one(small: VitConfig, images: Tensor) -> None:
    model = small.build(seeded(0))
    maps = model.attention_maps(images)
    assert maps.shape == (5, 2, 3, 7, 7)
    assert model.training
    torch.testing.assert_close(maps.sum(-1), torch.ones(5, 2, 3, 7))
    torch.testing.assert_close(model.attention_patterns(images), maps.mean(0))


def test_priors_are_set_replaced_shared_and_taken_out(small: VitConfig, images: Tensor) -> None:
    model = small.build(seeded(0)).eval()
    plain = model(images)
    shared = prior(3)
    model.set_priors([shared, shared])
    assert model.priors() == [shared, shared]
    assert sum("mask_logits" in name for name, _ in model.named_parameters()) == 1
    logits = model.mask_logits()
    assert logits is not None
    assert logits.shape == (2, 3, 7, 7)
    assert not torch.allclose(model(images), plain)
    model.set_priors([None, prior()])
    assert model.priors()[0] is None
    assert model.mask_logits() is None
    model.set_priors([None, None])
    assert torch.equal(model(images), plain)


def test_a_prior_that_does_not_fit_is_refused(small: VitConfig) -> None:
    model = small.build(seeded(0))
    with pytest.raises(ValueError, match="expected 2 priors, one a layer, got 1"):
        model.set_priors([prior()])
    with pytest.raises(ValueError, match="7 tokens, expected 5 queries"):
        model.set_priors([MaskPrior(torch.zeros(5, 5))] * 2)
    with pytest.raises(ValueError, match="3 heads for the prior, the structure has 2"):
        model.set_priors([MaskPrior(torch.zeros(2, 7, 7))] * 2)


def test_projections_are_views(small: VitConfig) -> None:
    model = small.build(seeded(0))
    attention, _ = next(model.layer_positions())
    with torch.no_grad():
        for value, view in enumerate(
            (
                attention.query_weight(),
                attention.key_weight(),
                attention.value_weight(),
                attention.output_weight(),
            )
        ):
            view.fill_(value)
    module: Any = model.vit.blocks[0].attn
    weight: Tensor = module.qkv.weight
    assert weight.view(3, -1).unique(dim=1)[:, 0].tolist() == [0.0, 1.0, 2.0]
    assert float(module.proj.weight.detach().mean()) == 3


def test_layer_inputs_are_lazy(small: VitConfig, images: Tensor) -> None:
    model = small.build(seeded(0)).eval()
    inputs = model.layer_inputs(images)
    attention, first = next(inputs)
    set_value_output(attention, 1.0, 0.0, seeded(5))
    _, second = next(inputs)
    fresh = [x for _, x in model.layer_inputs(images)]
    assert torch.equal(first, fresh[0])
    assert torch.equal(second, fresh[1])


def test_scores_are_scaled_products(small: VitConfig, images: Tensor) -> None:
    model = small.build(seeded(0)).double()
    attention, x = next(model.layer_inputs(images.double()))
    assert isinstance(attention, VitAttention)
    bias: Tensor = attention.module.qkv.bias
    query = x @ attention.query_weight()[2].T + bias[8:12]
    key = x @ attention.key_weight()[2].T + bias[20:24]
    torch.testing.assert_close(attention.scores(x)[:, 2], query @ key.transpose(1, 2) / 2)


@pytest.mark.parametrize("shape", [(1, 3, 6, 4), (1, 1, 4, 6), (3, 4, 6)])
def test_images_of_another_shape_are_refused(small: VitConfig, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected images \[batch, 3, 4, 6\], got \["):
        small.build(seeded(0))(torch.zeros(shape))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, "heads that divide width=12, got 5"),
        ({"patch_size": 4}, "multiples of patch_size=4"),
        ({"depth": 0}, "depth ≥ 1, got 0"),
        ({"drop_path": 1.0}, "drop_path in"),
        ({"register_tokens": -1}, "register_tokens ≥ 0"),
        ({"image_size": 4}, r"image_size \(height, width\) in whole pixels, got 4"),
        ({"image_size": (4, 6, 3)}, r"image_size \(height, width\) in whole pixels"),
        ({"image_size": (4.0, 6.0)}, r"image_size \(height, width\) in whole pixels"),
        ({"mlp_ratio": 0.0}, "an mlp_ratio of one hidden unit or more, got 0"),
        ({"mlp_ratio": float("nan")}, "an mlp_ratio of one hidden unit or more, got nan"),
        ({"positions": "rotary"}, "positions in .*, got 'rotary'"),
        ({"value_output": "x"}, "value_output in .*, got 'x'"),
    ],
)
def test_bad_configurations_are_refused(small: VitConfig, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(small, **change)  # type: ignore[arg-type]
