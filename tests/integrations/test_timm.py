"""timm's attention classes beside what the contract covers: masks of the caller, gates, norms, windows."""

from typing import Any

import pytest
import timm
import torch
from timm.layers.attention import Attention, AttentionRope
from timm.models.beit import Attention as BeitAttention
from timm.models.eva import EvaAttention
from timm.models.swin_transformer import SwinTransformer, WindowAttention
from torch import Tensor, nn

from maskprior import structures
from maskprior.functional import logits_to_bias, structure_to_logits
from maskprior.integrations import attach

BATCH, TOKENS, WIDTH, HEADS = 2, 7, 12, 3
STRUCTURE = 0.7 * structures.window(7, 2, 1) + 0.3 * torch.rand(
    7, 7, generator=torch.Generator().manual_seed(0)
)
BIAS = logits_to_bias(structure_to_logits(STRUCTURE))


def seeded(kind: Any, **options: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module: nn.Module = kind(WIDTH, num_heads=HEADS, **options).eval()
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
    return module


def tokens() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


NORMS: dict[str, Any] = {"qk_norm": True, "scale_norm": True, "norm_layer": nn.LayerNorm}
PLAIN: list[Any] = [
    (Attention, {}),
    (Attention, {"qkv_bias": True, "gated": True, **NORMS}),
    (Attention, {"attn_head_dim": 5}),
    (AttentionRope, {}),
    (AttentionRope, {"qkv_fused": False, "num_kv_heads": 1, "gated": True, **NORMS}),
    (EvaAttention, {"scale_norm": False}),
    (EvaAttention, {"qkv_fused": False, **NORMS}),
    (EvaAttention, {"scale_norm": False, "qkv_bias_separate": True}),
]


@pytest.mark.parametrize(("kind", "options"), PLAIN)
def test_every_option_of_the_class_gives_its_own_result_with_the_bias(kind: Any, options: Any) -> None:
    attached, plain = seeded(kind, **options), seeded(kind, **options)
    attach(attached, STRUCTURE)
    torch.testing.assert_close(attached(tokens()), plain(tokens(), attn_mask=BIAS))


@pytest.mark.parametrize("kind", [AttentionRope, EvaAttention])
@pytest.mark.parametrize("rotate_half", [False, True])
def test_rotary_positions_skip_the_prefix(kind: Any, rotate_half: bool) -> None:
    options: dict[str, Any] = {"num_prefix_tokens": 2, "rotate_half": rotate_half, "scale_norm": False}
    attached, plain = seeded(kind, **options), seeded(kind, **options)
    attach(attached, STRUCTURE)
    rope = torch.randn(TOKENS - 2, 2 * WIDTH // HEADS, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(attached(tokens(), rope=rope), plain(tokens(), rope=rope, attn_mask=BIAS))


def test_a_mask_and_causality_of_the_caller_are_both_kept() -> None:
    attached, plain = seeded(Attention), seeded(Attention)
    attach(attached, STRUCTURE)
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    allowed = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    allowed[:, 2] = False
    both = (causal & allowed).index_fill(1, torch.tensor([0]), True)
    allowed[:, 0] = True
    expected = plain(tokens(), attn_mask=BIAS.masked_fill(~both, float("-inf")))
    torch.testing.assert_close(attached(tokens(), attn_mask=allowed, is_causal=True), expected)
    additive = torch.randn(TOKENS, TOKENS)
    torch.testing.assert_close(
        attached(tokens(), attn_mask=additive), plain(tokens(), attn_mask=BIAS + additive)
    )


@pytest.mark.parametrize("options", [{}, {"qkv_bias": True}, {"qkv_bias": True, "qkv_bias_separate": True}])
@pytest.mark.parametrize("window_size", [None, (2, 3)])
def test_beit_adds_its_own_and_the_shared_relative_bias(options: Any, window_size: Any) -> None:
    shared = torch.randn(HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(2))
    attached = seeded(BeitAttention, window_size=window_size, **options)
    plain = seeded(BeitAttention, window_size=window_size, **options)
    attach(attached, STRUCTURE)
    expected = plain(tokens(), shared_rel_pos_bias=shared + BIAS)
    torch.testing.assert_close(attached(tokens(), shared_rel_pos_bias=shared), expected)
    torch.testing.assert_close(attached(tokens()), plain(tokens(), shared_rel_pos_bias=BIAS[None]))


def test_swin_keeps_shifted_windows_apart() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SwinTransformer(
            img_size=24, patch_size=4, num_classes=3, embed_dim=12, depths=(2,), num_heads=(3,), window_size=3
        ).eval()
    block: Any = model.layers[0].blocks[1]  # type: ignore[index]
    assert any(block.shift_size)
    attach(model, structures.everything(9), suppressed_logit=-1.0)
    weights_of: list[Tensor] = []

    def spread(x: Tensor) -> Tensor:
        """Gradient of the first token's output in the last window: nonzero where it reads."""
        x = x.clone().requires_grad_()
        attended = block.attn(x, mask=block.attn_mask)
        (gradient,) = torch.autograd.grad(attended[3, 0].square().sum(), x)
        weights_of.append(gradient)
        return gradient[3].abs().sum(-1)

    read = spread(torch.randn(4, 9, 12)) > 1e-12
    assert torch.equal(read, block.attn_mask[3, 0] == 0)
    assert not read.all()


def test_windows_of_different_heads_take_a_structure_for_all() -> None:
    model = timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=24,
        patch_size=2,
        embed_dim=8,
        depths=(1, 1),
        num_heads=(1, 2),
        window_size=3,
        num_classes=3,
    )
    attach(model, structures.grid_neighbourhood(3, 3, 1))
    assert model(torch.randn(1, 3, 24, 24)).shape == (1, 3)


def test_a_structure_that_fits_no_window_names_the_windows() -> None:
    module = WindowAttention(12, num_heads=3, window_size=3)
    with pytest.raises(ValueError, match=r"'' \(WindowAttention\): 9 tokens, expected 16 queries"):
        attach(module, structures.everything(16))


def test_dropout_of_attention_and_projection() -> None:
    module = seeded(Attention, attn_drop=0.5)
    attach(module, STRUCTURE)
    assert torch.equal(module(tokens()), module(tokens()))
    module.train()
    assert not torch.equal(module(tokens()), module(tokens()))
