"""nn.MultiheadAttention in all its calling conventions, against torch's own with the bias as a float mask."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskprior import structures
from maskprior.functional import logits_to_bias, structure_to_logits
from maskprior.integrations import Attachment, Lengths, attach

BATCH, QUERIES, KEYS, WIDTH, HEADS = 3, 5, 7, 8, 2
STRUCTURE = 0.7 * structures.causal(QUERIES) + 0.3 * torch.rand(
    5, 5, generator=torch.Generator().manual_seed(0)
)
BIAS = logits_to_bias(structure_to_logits(STRUCTURE))


def attention(**options: Any) -> nn.MultiheadAttention:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.MultiheadAttention(WIDTH, HEADS, **options).eval()
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
    return module


def both(options: dict[str, Any], *inputs: Tensor, **arguments: Any) -> tuple[Any, Any]:
    """(Attached module's result, torch's own result with the bias in ``attn_mask``)."""
    attached, plain = attention(**options), attention(**options)
    attach(attached, STRUCTURE)
    mask = arguments.pop("attn_mask", None)
    merged = BIAS
    if mask is not None and mask.dtype == torch.bool:
        merged = BIAS.masked_fill(mask, float("-inf"))
    elif mask is not None:
        merged = BIAS + mask
    padding = arguments.get("key_padding_mask")
    if padding is not None and padding.dtype == torch.bool:  # torch wants both masks of one type
        padding = torch.zeros(padding.shape).masked_fill(padding, float("-inf"))
    theirs = {**arguments, "attn_mask": merged, "key_padding_mask": padding}
    return attached(*inputs, attn_mask=mask, **arguments), plain(*inputs, **theirs)


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("average_attn_weights", [True, False])
def test_outputs_and_weights(batch_first: bool, bias: bool, average_attn_weights: bool) -> None:
    x = tokens(BATCH, QUERIES, WIDTH) if batch_first else tokens(QUERIES, BATCH, WIDTH)
    options = {"batch_first": batch_first, "bias": bias}
    mine, theirs = both(options, x, x, x, average_attn_weights=average_attn_weights)
    torch.testing.assert_close(mine, theirs)


def test_without_weights_there_are_none() -> None:
    x = tokens(QUERIES, BATCH, WIDTH)
    mine, theirs = both({}, x, x, x, need_weights=False)
    torch.testing.assert_close(mine[0], theirs[0])
    assert mine[1] is None


def test_unbatched_inputs() -> None:
    x = tokens(QUERIES, WIDTH)
    padding = torch.tensor([False, False, True, False, False])
    mine, theirs = both({"batch_first": True}, x, x, x, key_padding_mask=padding)
    torch.testing.assert_close(mine, theirs)


def test_different_queries_keys_and_values() -> None:
    query, key, value = tokens(3, BATCH, QUERIES, WIDTH)
    mine, theirs = both({"batch_first": True}, query, key, value)
    torch.testing.assert_close(mine, theirs)


def test_keys_and_values_of_other_widths() -> None:
    query, key, value = tokens(BATCH, 5, 8), tokens(BATCH, 5, 11), tokens(BATCH, 5, 13)
    mine, theirs = both({"batch_first": True, "kdim": 11, "vdim": 13}, query, key, value)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
@pytest.mark.parametrize("per_item", [False, True])
def test_masks_stay_in_force(kind: torch.dtype, per_item: bool) -> None:
    x = tokens(BATCH, QUERIES, WIDTH)
    shape = (BATCH * HEADS, QUERIES, QUERIES) if per_item else (QUERIES, QUERIES)
    draw = torch.Generator().manual_seed(2)
    mask = torch.rand(shape, generator=draw)
    mask = (mask > 0.7) & ~torch.eye(QUERIES, dtype=torch.bool) if kind == torch.bool else mask
    padding = torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 3 + [True] * 2])
    padding = padding if kind == torch.bool else -9.0 * padding
    mask[..., :, 0] = 0
    mine, theirs = both({"batch_first": True}, x, x, x, attn_mask=mask, key_padding_mask=padding)
    torch.testing.assert_close(mine, theirs)


def test_a_causal_hint_needs_its_mask() -> None:
    x = tokens(QUERIES, BATCH, WIDTH)
    module = attention()
    attach(module, STRUCTURE)
    with pytest.raises(
        ValueError, match="attention module '': expected attn_mask together with is_causal=True"
    ):
        module(x, x, x, is_causal=True)
    banned = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert torch.equal(
        module(x, x, x, attn_mask=banned, is_causal=True)[0], module(x, x, x, attn_mask=banned)[0]
    )


def test_between_sequences_the_structure_fits_exactly() -> None:
    module, plain = attention(batch_first=True), attention(batch_first=True)
    structure = torch.rand(QUERIES, KEYS)
    attach(module, structure)
    query, memory = tokens(BATCH, QUERIES, WIDTH), tokens(BATCH, KEYS, WIDTH)
    bias = logits_to_bias(structure_to_logits(structure))
    expected = plain(query, memory, memory, attn_mask=bias)
    torch.testing.assert_close(module(query, memory, memory), expected)


def test_queries_of_another_number_than_keys_are_not_taken_for_the_last_ones() -> None:
    module = attention(batch_first=True)
    attach(module, structures.causal(KEYS), lengths=Lengths("slice"))
    query, memory = tokens(BATCH, QUERIES, WIDTH), tokens(BATCH, KEYS, WIDTH)
    with pytest.raises(
        ValueError, match=r"expected \[7, 7\] queries and keys, got \[5, 7\]; between sequences"
    ):
        module(query, memory, memory)


def test_dropout_is_that_of_the_module() -> None:
    module = attention(batch_first=True, dropout=0.5)
    attach(module, STRUCTURE)
    x = tokens(BATCH, QUERIES, WIDTH)
    assert torch.equal(module(x, x, x)[0], module(x, x, x)[0])
    module.train()
    assert not torch.equal(module(x, x, x)[0], module(x, x, x)[0])
    mean = torch.stack([module(x, x, x, need_weights=False)[0] for _ in range(200)]).mean(0)
    kept = module.eval()(x, x, x)[0]
    assert (mean - kept).abs().mean() < 0.1 * kept.abs().mean()


# The fused paths of evaluation ----------------------------------------------------------------------------


def encoder(**options: Any) -> nn.TransformerEncoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 11, dropout=0.0, batch_first=True, **options)
        return nn.TransformerEncoder(layer, 2).eval()


def test_the_fused_path_is_closed_and_opens_again() -> None:
    model, x = encoder(), tokens(BATCH, QUERIES, WIDTH)
    fused = torch.ops.aten._transformer_encoder_layer_fwd.default

    def operators(*, attached: bool) -> set[Any]:
        attachment = attach(model, STRUCTURE) if attached else None
        with torch.no_grad(), torch.profiler.profile() as profile:
            model(x)
        if attachment is not None:
            attachment.detach()
        return {event.key for event in profile.key_averages()}

    name = str(fused).removesuffix(".default").replace(".", "::")
    assert name in operators(attached=False)
    assert name not in operators(attached=True)
    assert name in operators(attached=False)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_padded_batches_are_not_packed_while_attached() -> None:
    model, plain = encoder(), encoder()
    x = tokens(BATCH, QUERIES, WIDTH)
    padding = torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 3 + [True] * 2])
    attachment = attach(model, STRUCTURE)
    with torch.no_grad():
        evaluated = model(x, src_key_padding_mask=padding)
    torch.testing.assert_close(evaluated, model(x, src_key_padding_mask=padding))
    attachment.detach()
    with torch.no_grad():  # packed again: padding gives zeros
        expected = plain(x, src_key_padding_mask=padding)
        assert torch.equal(model(x, src_key_padding_mask=padding), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_of_an_encoder_outside_are_refused() -> None:
    model = encoder()
    attach(model.layers[0], STRUCTURE)
    padding = torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 3 + [True] * 2])
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="expected padded tensors, got nested ones; attach to th"),
    ):
        model(tokens(BATCH, QUERIES, WIDTH), src_key_padding_mask=padding)


def test_a_twin_of_an_attached_encoder_can_be_detached() -> None:
    import copy

    model = encoder()
    attach(model, STRUCTURE)
    twin = copy.deepcopy(model)
    Attachment.of(twin).detach()
    assert twin.use_nested_tensor
    assert not model.use_nested_tensor
