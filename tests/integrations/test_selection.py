"""Which attention modules of a host are meant, and whether the structure fits them."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import maskprior
from maskprior import structures
from maskprior.integrations import Attachment, attach

LENGTH, WIDTH, HEADS, DEPTH = 5, 12, 4, 3
STRUCTURE = structures.window(LENGTH, 1, 1)


def encoder(depth: int = DEPTH, heads: int = HEADS) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, heads, 7, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, depth)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    return model.eval()


def vit(**options: Any) -> nn.Module:
    sizes: dict[str, Any] = {"img_size": 12, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3}
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", num_classes=5, **sizes, **options)
    return model


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def test_the_package_exports_attach() -> None:
    assert maskprior.attach is attach


# Which modules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (None, ["layers.0.self_attn", "layers.1.self_attn", "layers.2.self_attn"]),
        ([2, 0], ["layers.0.self_attn", "layers.2.self_attn"]),
        ([-1], ["layers.2.self_attn"]),
        (["layers.1.*"], ["layers.1.self_attn"]),
        ("layers.[12].self_attn", ["layers.1.self_attn", "layers.2.self_attn"]),
        (["layers.1.self_attn", 1], ["layers.1.self_attn"]),
    ],
)
def test_layers_by_number_name_and_pattern(layers: Any, expected: list[str]) -> None:
    attachment = attach(encoder(), STRUCTURE, layers=layers)
    assert list(attachment.layers) == expected
    assert len(attachment.priors) == len(expected)
    assert attachment.prior_of(expected[-1]) is attachment.priors[-1]


def test_layers_that_are_not_chosen_stay_as_they_were(x: Tensor) -> None:
    model, plain = encoder(), encoder()
    attach(model, STRUCTURE, layers=[1])
    first = model.get_submodule("layers.0")(x)
    assert torch.equal(first, plain.get_submodule("layers.0")(x))
    assert not torch.allclose(
        model.get_submodule("layers.1")(x), plain.get_submodule("layers.1")(x), atol=1e-3
    )


def test_cross_attention_is_attached_where_it_is_named() -> None:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 7, batch_first=True)
    model = nn.TransformerDecoder(layer, 2)
    assert all(name.endswith("self_attn") for name in attach(model, STRUCTURE).layers)
    Attachment.of(model).detach()
    chosen = attach(model, torch.eye(3, LENGTH), layers="*.multihead_attn")
    assert chosen.layers == ("layers.0.multihead_attn", "layers.1.multihead_attn")
    assert model(torch.randn(2, 3, WIDTH), torch.randn(2, LENGTH, WIDTH)).shape == (2, 3, WIDTH)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            [0, 3],
            "expected every entry of layers to match, 3 does not; attention modules seen: 'layers.0.self_at",
        ),
        (
            ["blocks.*"],
            r"'blocks.\*' does not; attention modules seen: .*'layers.2.self_attn' \(MultiheadAttention",
        ),
        ([], "expected a model with attention that can have a prior; attention modules seen"),
    ],
)
def test_partial_matches_are_errors_that_name_what_was_seen(layers: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attach(encoder(), STRUCTURE, layers=layers)


def test_layers_of_other_types_are_errors() -> None:
    with pytest.raises(TypeError, match="expected layers as numbers and names, got float"):
        attach(encoder(), STRUCTURE, layers=[1.0])  # type: ignore[list-item]


def test_nothing_matched_names_the_modules_seen() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.GRU(3, 5)

    with pytest.raises(ValueError, match="no attention among the modules seen: Model, GRU"):
        attach(Model(), STRUCTURE)


def test_unknown_attention_is_named_and_the_known_families_too() -> None:
    class MyAttention(nn.MultiheadAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixer = MyAttention(WIDTH, HEADS)

    with pytest.raises(ValueError, match=r"look like it: 'mixer' \(MyAttention\). Known are torch.nn, timm"):
        attach(Model(), STRUCTURE)


# What fits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("structure", "options", "message"),
    [
        (
            torch.ones(3, 5, 5),
            {},
            r"'layers.0.self_attn' \(MultiheadAttention\), 'layers.1.self_attn' .*: 4 heads for the",
        ),
        (torch.ones(3, 5, 5), {"heads": [0, 1]}, "2 heads for the prior, the structure has 3"),
        (
            torch.ones(5, 5),
            {"heads": [0, 4]},
            r": 4 heads, expected distinct numbers from 0 to 3, got \[0, 4\]",
        ),
        (torch.ones(5, 5), {"heads": [1, 1]}, "expected distinct numbers"),
        (torch.ones(5, 5), {"heads": []}, "expected distinct numbers"),
        (torch.ones(2, 1, 5, 5), {}, r"with layers=3 for .*'layers.2.self_attn'\], got \[2, 1, 5, 5\]"),
        (torch.ones(3, 1, 5, 5), {"share": True}, "not with share=True"),
        (2 * torch.ones(5, 5), {}, r"expected structure values in \[0, 1\]"),
        (torch.ones(5, 5), {"allowed_logit": -20.0}, "expected finite allowed_logit > suppressed_logit"),
        (torch.ones(5, 5), {"lengths": "stretch"}, "expected a length rule in .*'relative'"),
    ],
)
def test_what_does_not_fit_is_an_error(structure: Tensor, options: Any, message: str) -> None:
    model = encoder()
    with pytest.raises(ValueError, match=message):
        attach(model, structure, **options)
    assert not hasattr(model, "bias_priors")


def test_a_wrong_number_of_tokens_is_known_where_the_host_fixes_it() -> None:
    with pytest.raises(
        ValueError, match=r"'blocks.0.attn' \(Attention\).*: 10 tokens, expected 9 .*with_readout"
    ):
        attach(vit(), structures.grid_neighbourhood(3, 3, 1))
    attach(vit(dynamic_img_size=True), structures.grid_neighbourhood(3, 3, 1))


def test_a_wrong_number_of_tokens_is_named_in_the_call(x: Tensor) -> None:
    model = encoder()
    attach(model, structures.window(LENGTH + 1, 1, 1))
    with pytest.raises(
        ValueError, match=r"attention module 'layers.0.self_attn': expected 6 queries and 6 keys"
    ):
        model(x)


def test_patch_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a model without patch dropout, got VisionTransformer"):
        attach(vit(patch_drop_rate=0.5), torch.ones(10, 10))


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_attention_with_keys_of_its_own_is_refused(option: str) -> None:
    attention = nn.MultiheadAttention(WIDTH, HEADS, **{option: True})
    with pytest.raises(ValueError, match=f"cannot have a prior: '': {option}=True adds a key"):
        attach(attention, STRUCTURE)
