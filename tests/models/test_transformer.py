"""The Transformer against its equations in float64, and the promises that priors and tasks build on."""

import copy
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskprior import MaskPrior
from maskprior.models import Transformer, TransformerConfig

VOCAB, LENGTH, OUTPUTS, WIDTH, DEPTH, HEADS, HEAD_WIDTH, MLP = 3, 6, 13, 17, 2, 5, 7, 11
BATCH = 4

CLS = TransformerConfig(
    vocab_size=VOCAB,
    length=LENGTH,
    outputs=OUTPUTS,
    width=WIDTH,
    depth=DEPTH,
    heads=HEADS,
    head_width=HEAD_WIDTH,
    mlp_width=MLP,
    position_std=0.5,
)
ENCODER = replace(CLS, readout="tokens")
DECODER = replace(ENCODER, causal=True)
CONFIGS = {"cls": CLS, "encoder": ENCODER, "decoder": DECODER}
every_kind = pytest.mark.parametrize("kind", list(CONFIGS))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_model(kind: str = "cls", **changes: Any) -> Transformer:
    return Transformer(replace(CONFIGS[kind], **changes), seeded(0))


def make_priors(side: int, count: int = DEPTH, heads: int | None = HEADS) -> list[MaskPrior]:
    shape = (side, side) if heads is None else (heads, side, side)
    return [MaskPrior(3 * torch.randn(shape, generator=seeded(10 + index))) for index in range(count)]


def draw(model: Transformer, length: int = LENGTH) -> Tensor:
    return model.sample_inputs(BATCH, seeded(1))[:, :length]


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def by_hand(model: Transformer, tokens: Tensor, biases: list[Tensor | None]) -> Tensor:
    """The equations for every position, nothing skipped."""
    x = model.token[tokens]
    if model.readout is not None:
        x = torch.cat([model.readout[None].expand(len(x), 1, WIDTH), x], dim=1)
    size = x.shape[1]
    x = x + model.get_parameter("position")[:size]
    for block, bias in zip(model.blocks, biases, strict=True):
        y = layer_norm(x, block.get_submodule("attention_norm"))  # type: ignore[arg-type]
        attention = block.get_submodule("attention")
        packed = y @ attention.get_parameter("qkv.weight").T + attention.get_parameter("qkv.bias")
        q, k, v = packed.reshape(len(x), size, 3, HEADS, HEAD_WIDTH).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(HEAD_WIDTH)
        scores = scores if bias is None else scores + bias
        if model.config.causal:
            scores = scores + torch.full((size, size), -torch.inf, dtype=scores.dtype).triu(1)
        mixed = torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v).reshape(len(x), size, -1)
        x = x + mixed @ attention.get_parameter("out.weight").T + attention.get_parameter("out.bias")
        y = layer_norm(x, block.get_submodule("mlp_norm"))  # type: ignore[arg-type]
        y = y @ block.get_parameter("mlp.0.weight").T + block.get_parameter("mlp.0.bias")
        y = y * 0.5 * (1 + torch.erf(y / math.sqrt(2)))
        x = x + y @ block.get_parameter("mlp.2.weight").T + block.get_parameter("mlp.2.bias")
    x = layer_norm(x, model.norm)
    outputs = x @ model.head.weight.T + model.head.bias
    return outputs[:, 0] if model.readout is not None else outputs


@every_kind
@pytest.mark.parametrize("prior", ["none", "shared by heads", "per head", "first layer only"])
def test_is_the_equations(kind: str, prior: str) -> None:
    model = make_model(kind).double()
    side = model.config.attended_length
    biases: list[Tensor | None] = [None] * DEPTH
    if prior != "none":
        priors = make_priors(side, heads=None if prior == "shared by heads" else HEADS)
        kept = priors if prior != "first layer only" else priors[:1]
        model.set_priors([*kept, *[None] * (DEPTH - len(kept))])
        model.double()
        logits = [given.mask_logits for given in kept]
        biases = [-(1 + (-m).exp()).log() for m in logits] + [None] * (DEPTH - len(kept))
    tokens = draw(model)
    expected = by_hand(model, tokens, biases)
    assert expected.shape == ((BATCH, OUTPUTS) if kind == "cls" else (BATCH, LENGTH, OUTPUTS))
    torch.testing.assert_close(model(tokens), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [1, 4])
@every_kind
def test_shorter_sequences_use_the_first_positions(kind: str, length: int) -> None:
    model = make_model(kind).double()
    priors = make_priors(model.config.attended_length)
    model.set_priors(priors)
    tokens = draw(model, length)
    size = length + (kind == "cls")
    biases: list[Tensor | None] = [
        nn.functional.logsigmoid(prior.mask_logits)[:, :size, :size] for prior in priors
    ]
    torch.testing.assert_close(model(tokens), by_hand(model, tokens, biases), rtol=1e-6, atol=1e-6)


def test_a_decoder_does_not_see_the_future() -> None:
    model = make_model("decoder")
    model.set_priors(make_priors(LENGTH))
    tokens = draw(model)
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % VOCAB
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :4], before[:, :4], rtol=1e-6, atol=1e-6)
    assert bool((before[:, 4:] != after[:, 4:]).any(-1).all())


def test_without_positions_and_prior_tokens_are_interchangeable() -> None:
    model = make_model("cls", position_std=0.0)
    tokens = draw(model)
    permuted = tokens[:, torch.randperm(LENGTH, generator=seeded(2))]
    assert not torch.equal(tokens, permuted)
    torch.testing.assert_close(model(tokens), model(permuted), rtol=1e-5, atol=1e-6)
    model.set_priors(make_priors(LENGTH + 1))
    assert float((model(tokens) - model(permuted)).detach().abs().max()) > 1e-3


def test_a_suppressed_key_has_no_influence() -> None:
    """The sign of the bias, end to end: what M suppresses does not reach the output."""
    model = make_model("encoder")
    logits = torch.full((LENGTH, LENGTH), 4.0)
    logits[:, 2] = -90.0
    logits[2, 2] = 4.0
    model.set_priors([MaskPrior(logits)] * DEPTH)
    tokens = draw(model)
    changed = tokens.clone()
    changed[:, 2] = (changed[:, 2] + 1) % VOCAB
    others = [0, 1, 3, 4, 5]
    difference = (model(tokens) - model(changed)).detach()
    torch.testing.assert_close(difference[:, others], torch.zeros(BATCH, 5, OUTPUTS), rtol=0, atol=1e-6)
    assert float(difference[:, 2].abs().max()) > 1e-2


@every_kind
def test_layer_inputs_are_what_the_attentions_get(kind: str) -> None:
    model = make_model(kind)
    model.set_priors(make_priors(model.config.attended_length))
    tokens, seen = draw(model), list[Tensor]()
    inputs = list(model.layer_inputs(tokens))
    hooks = [
        attention.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        for attention, _ in inputs
    ]
    model(tokens)
    for hook in hooks:
        hook.remove()
    assert len(inputs) == len(seen) == DEPTH
    for (_, x), expected in zip(inputs, seen, strict=True):
        torch.testing.assert_close(x, expected)


def test_layer_inputs_are_lazy() -> None:
    tokens = draw(make_model())
    expected = [x for _, x in make_model().layer_inputs(tokens)]
    model = make_model()
    layers = model.layer_inputs(tokens)
    attention, first = next(layers)
    assert torch.equal(first, expected[0])
    with torch.no_grad():
        attention.out.bias.add_(1)
        model.blocks[0].get_parameter("mlp.0.bias").add_(1)
    _, second = next(layers)
    assert float((second - expected[1]).detach().abs().max()) > 1e-2


@every_kind
def test_attention_patterns_are_the_mean_weights(kind: str) -> None:
    model = make_model(kind, query_key_gain=3.0).double()
    side = model.config.attended_length
    model.set_priors(make_priors(side))
    tokens = draw(model)
    patterns = model.attention_patterns(tokens)
    assert patterns.shape == (DEPTH, HEADS, side, side)
    assert not patterns.requires_grad
    for layer, (attention, x) in enumerate(model.layer_inputs(tokens)):
        total = torch.zeros(HEADS, side, side, dtype=torch.float64)
        bias = nn.functional.logsigmoid(model.priors[layer].get_parameter("mask_logits").double())
        for sequence in x:
            query, key = sequence @ attention.query_weight().mT, sequence @ attention.key_weight().mT
            weights = (query @ key.mT / math.sqrt(HEAD_WIDTH) + bias).exp()
            weights = weights.tril() if kind == "decoder" else weights
            total += weights / weights.sum(-1, keepdim=True)
        torch.testing.assert_close(patterns[layer], total.detach() / BATCH, rtol=1e-6, atol=1e-9)


@every_kind
def test_attention_patterns_of_shorter_sequences(kind: str) -> None:
    model = make_model(kind)
    model.set_priors(make_priors(model.config.attended_length))
    side = 4 + (kind == "cls")
    patterns = model.attention_patterns(draw(model, 4))
    assert patterns.shape == (DEPTH, HEADS, side, side)
    torch.testing.assert_close(patterns.sum(-1), torch.ones(DEPTH, HEADS, side))


def test_one_prior_named_twice_is_shared() -> None:
    model = make_model()
    (prior,) = make_priors(LENGTH + 1, count=1)
    calls = list[int]()
    prior.register_forward_hook(lambda *_: calls.append(1))
    model.set_priors([prior] * DEPTH)
    model(draw(model)).sum().backward()
    assert len(calls) == 1
    assert [key for key in model.state_dict() if "mask_logits" in key] == ["priors.0.mask_logits"]
    assert prior.mask_logits.grad is not None
    twin = copy.deepcopy(model)
    assert twin.prior_of_layer == (0, 0)
    assert torch.equal(twin(draw(model)), model(draw(model)))


def test_priors_can_be_taken_away() -> None:
    model = make_model()
    expected = model(draw(model))
    model.set_priors(make_priors(LENGTH + 1))
    assert not torch.equal(model(draw(model)), expected)
    model.set_priors([None] * DEPTH)
    assert torch.equal(model(draw(model)), expected)
    assert not any("priors" in key for key in model.state_dict())


def test_refuses_priors_that_do_not_fit() -> None:
    model = make_model()
    with pytest.raises(ValueError, match=r"expected 2 priors, one a layer, got 3"):
        model.set_priors(make_priors(LENGTH + 1, count=3))
    for side, heads in ((LENGTH, HEADS), (LENGTH + 1, HEADS + 1)):
        message = (
            f"expected mask_logits of shape (7, 7) or (1, 7, 7) or (5, 7, 7), got ({heads}, {side}, {side})"
        )
        with pytest.raises(ValueError) as raised:
            model.set_priors(make_priors(side, heads=heads))
        shapes = set(re.findall(r"\(\d[\d, ]+\)", str(raised.value)))
        assert shapes == set(re.findall(r"\(\d[\d, ]+\)", message))
    assert len(model.priors) == 0


@every_kind
def test_refuses_what_are_no_tokens(kind: str) -> None:
    model = make_model(kind)
    for tokens in (
        torch.zeros(BATCH, LENGTH + 1, dtype=torch.long),
        torch.zeros(BATCH, 0, dtype=torch.long),
        torch.zeros(LENGTH, dtype=torch.long),
        torch.zeros(BATCH, LENGTH),
    ):
        message = f"expected integer tokens [batch, length ≤ 6], got {tokens.dtype} {tuple(tokens.shape)}"
        with pytest.raises(ValueError, match=re.escape(message)):
            model(tokens)
        with pytest.raises(ValueError, match=re.escape(message)):
            next(model.layer_inputs(tokens))


def test_dropout_acts_in_training_only() -> None:
    model, plain = make_model(dropout=0.5), make_model()
    tokens = draw(model)
    assert not torch.equal(model(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), plain(tokens))


@every_kind
def test_every_parameter_gets_a_gradient(kind: str) -> None:
    model = make_model(kind)
    model.set_priors(make_priors(model.config.attended_length))
    model(draw(model)).square().sum().backward()
    for name, value in model.named_parameters():
        assert value.grad is not None, name
        # A key bias moves whole rows of scores: its gradient is zero but for rounding.
        if not name.endswith("qkv.bias"):
            assert float(value.grad.abs().max()) > 0, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_close_and_keeps_the_prior_in_float32(dtype: torch.dtype) -> None:
    model = make_model()
    model.set_priors(make_priors(LENGTH + 1))
    expected = model(draw(model))
    model.to(dtype)
    assert all(prior.get_parameter("mask_logits").dtype == torch.float32 for prior in model.priors)
    got = model(draw(model))
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), expected, rtol=0.05, atol=0.05)
