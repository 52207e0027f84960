"""Cached decoding against whole forward passes in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior import MaskPrior
from maskprior.models import Transformer, TransformerConfig
from maskprior.models.decoding import CachedDecoder, decode

LENGTH, VOCAB, HEADS, BATCH = 11, 5, 3, 7
DECODER = TransformerConfig(
    vocab_size=VOCAB,
    length=LENGTH,
    outputs=VOCAB,
    readout="tokens",
    causal=True,
    width=13,
    depth=2,
    heads=HEADS,
    head_width=2,
    mlp_width=17,
    position_std=0.5,
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_model(with_priors: bool = True) -> Transformer:
    model = Transformer(DECODER, seeded(0)).double().eval()
    if with_priors:
        shapes = [(LENGTH, LENGTH), (HEADS, LENGTH, LENGTH)]
        model.set_priors([MaskPrior(3 * torch.randn(shape, generator=seeded(1))) for shape in shapes])
    return model


def draw(length: int = LENGTH, batch: int = BATCH) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=seeded(2))


@given(st.lists(st.integers(1, LENGTH), min_size=1, max_size=LENGTH), st.booleans())
def test_pieces_give_the_outputs_of_one_pass(pieces: list[int], with_priors: bool) -> None:
    model, tokens = make_model(with_priors), draw()
    decoder, outputs = CachedDecoder(model), []
    for piece in pieces:
        if decoder.seen + piece > LENGTH:
            break
        outputs.append(decoder.feed(tokens[:, decoder.seen : decoder.seen + piece]))
    assert decoder.seen == sum(output.shape[1] for output in outputs)
    whole = model(tokens[:, : decoder.seen])
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=0, atol=1e-12)


def test_what_is_decoded_is_the_best_next_token_of_a_whole_pass() -> None:
    model, prompts, steps = make_model(), draw(length=4), 6
    decoded = decode(model, prompts, steps)
    everything = torch.cat([prompts, decoded.tokens], dim=1)
    probabilities = model(everything)[:, 3:-1].softmax(-1)
    assert torch.equal(decoded.tokens, probabilities.argmax(-1))
    torch.testing.assert_close(decoded.probabilities, probabilities.amax(-1), rtol=0, atol=1e-12)


def test_the_prior_is_read_at_the_right_positions() -> None:
    model, tokens = make_model(with_priors=False), draw()
    logits = torch.zeros(LENGTH, LENGTH, dtype=torch.float64)
    logits[-1, :-1] = -40.0
    model.set_priors([MaskPrior(logits)] * DECODER.depth)
    decoder = CachedDecoder(model)
    decoder.feed(tokens[:, :-1])
    changed = tokens.clone()
    changed[:, :-1] = (tokens[:, :-1] + 1) % VOCAB
    other = CachedDecoder(model)
    other.feed(changed[:, :-1])
    # The last token reads itself alone, so the past makes no difference.
    torch.testing.assert_close(decoder.feed(tokens[:, -1:]), other.feed(tokens[:, -1:]), rtol=0, atol=1e-12)


def test_each_row_of_a_batch_is_decoded_as_if_alone() -> None:
    model, prompts = make_model(), draw(length=3)
    together = decode(model, prompts, 5)
    alone = [decode(model, prompt.unsqueeze(0), 5).tokens for prompt in prompts]
    assert torch.equal(together.tokens, torch.cat(alone))


def test_decoding_keeps_no_graph() -> None:
    assert not decode(make_model(), draw(length=2), 2).probabilities.requires_grad


def test_what_cannot_be_decoded_is_refused() -> None:
    model = make_model()
    with pytest.raises(ValueError, match=f"expected at most {LENGTH} tokens in all, got {LENGTH + 1}"):
        decode(model, draw(length=5), LENGTH - 5 + 2)
    with pytest.raises(ValueError, match="expected steps ≥ 1, got 0"):
        decode(model, draw(length=5), 0)
    encoder = Transformer(TransformerConfig(VOCAB, LENGTH, VOCAB, readout="tokens"), seeded(0))
    with pytest.raises(ValueError, match="expected a causal model"):
        CachedDecoder(encoder)
