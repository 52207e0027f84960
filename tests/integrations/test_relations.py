"""Priors by relation: batches in which the tokens of each item are related in their own way."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskprior import models, structures
from maskprior.functional import logits_to_bias, structure_to_logits
from maskprior.integrations import Attachment, attach, attach_relations

BATCH, TOKENS, WIDTH, HEADS, KINDS = 3, 5, 8, 2, 4
VALUES = torch.tensor([[1.0, 0.5, 0.25, 0.0], [0.3, 1.0, 0.0, 0.6]])


def encoder() -> nn.TransformerEncoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 7, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 2).eval()


def hops(edges: list[tuple[int, int]], nodes: int) -> Tensor:
    """Number of hops between the nodes of a padded graph; the last relation is "further, or padding"."""
    adjacency = structures.pairs(nodes, edges)
    decay = structures.graph_distance(adjacency, half_life=1.0)
    distance = torch.where(decay > 0, -decay.clamp(min=1e-9).log2(), KINDS - 1.0).round().long()
    padded = torch.full((TOKENS, TOKENS), KINDS - 1)
    padded[:nodes, :nodes] = distance.clamp(max=KINDS - 1)
    return padded


GRAPHS = torch.stack(
    [hops([(0, 1), (1, 2)], 3), hops([(0, 1), (1, 2), (2, 3), (3, 4)], 5), hops([(0, 3), (1, 3), (2, 3)], 4)]
)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


def test_each_item_has_the_bias_of_its_relations(x: Tensor) -> None:
    model, plain = encoder(), encoder()
    attachment = attach_relations(model, VALUES)
    bias = logits_to_bias(structure_to_logits(VALUES))
    mask = torch.stack([bias[:, relation] for relation in GRAPHS]).flatten(0, 1)
    with attachment.relations(GRAPHS):
        torch.testing.assert_close(model(x), plain(x, mask=mask))


def test_graphs_of_different_size_are_those_of_their_own(x: Tensor) -> None:
    model = encoder()
    attachment = attach_relations(model, VALUES[0])
    sizes = [3, 5, 4]
    padding = torch.arange(TOKENS) >= torch.tensor(sizes)[:, None]
    with attachment.relations(GRAPHS):
        batched = model(x, src_key_padding_mask=padding)
    for item, size in enumerate(sizes):
        with attachment.relations(GRAPHS[item, :size, :size]):
            alone = model(x[item : item + 1, :size])
        torch.testing.assert_close(batched[item, :size], alone[0])


def test_one_logit_a_relation_learns_from_every_pair(x: Tensor) -> None:
    model = encoder()
    attachment = attach_relations(model, VALUES, share=True, suppressed_logit=-3.0)
    with attachment.relations(GRAPHS):
        model(x).square().sum().backward()
    (prior,) = attachment.priors
    assert prior.mask_logits.shape == (HEADS, KINDS)
    assert prior.mask_logits.grad is not None
    assert bool((prior.mask_logits.grad != 0).all())


def test_relations_for_all_items_are_a_structure_of_positions(x: Tensor) -> None:
    model, positions = encoder(), encoder()
    attachment = attach_relations(model, VALUES[0], heads=[1])
    attach(positions, VALUES[0][GRAPHS[1]], heads=[1])
    with attachment.relations(GRAPHS[1]):
        torch.testing.assert_close(model(x), positions(x))


def test_saved_and_loaded(x: Tensor, tmp_path: Path) -> None:
    model, other = encoder(), encoder()
    attachment = attach_relations(model, VALUES)
    attachment.save_pretrained(tmp_path)
    loaded = Attachment.load(other, tmp_path)
    with attachment.relations(GRAPHS), loaded.relations(GRAPHS):
        assert torch.equal(model(x), other(x))


def test_calls_outside_of_the_context_are_errors(x: Tensor) -> None:
    model = encoder()
    attachment = attach_relations(model, VALUES)
    message = "attention module 'layers.0.self_attn': expected the relations of this batch; call the model"
    with pytest.raises(ValueError, match=message):
        model(x)
    with attachment.relations(GRAPHS):
        model(x)
    with pytest.raises(ValueError, match=message):
        model(x)
    with (
        attachment.relations(GRAPHS[:, :4, :4]),
        pytest.raises(ValueError, match=r"\[1 or batch, 5, 5\], got \[3, 4"),
    ):
        model(x)


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        (GRAPHS.float(), TypeError, "expected relations as integers, got torch.float32"),
        (GRAPHS > 0, TypeError, "expected relations as integers, got torch.bool"),
        (
            GRAPHS[0, 0],
            ValueError,
            r"expected relations \[queries, keys\] or \[batch, queries, keys\], got \[5\]",
        ),
        (GRAPHS + 1, ValueError, "expected relations from 0 to 3, got values from 1 to 4"),
        (GRAPHS - 1, ValueError, "expected relations from 0 to 3, got values from -1 to 2"),
    ],
)
def test_wrong_relations_are_errors(index: Tensor, kind: type[Exception], message: str) -> None:
    attachment = attach_relations(encoder(), VALUES)
    with pytest.raises(kind, match=message), attachment.relations(index):
        pass


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (torch.ones(2, 2, 2), {}, r"expected values \[relations\] or \[heads, relations\], got \[2, 2, 2\]"),
        (torch.ones(3, KINDS), {}, "2 heads for the prior, the structure has 3"),
        (torch.ones(KINDS), {"heads": [2]}, "expected distinct numbers from 0 to 1"),
        (2 * torch.ones(KINDS), {}, r"expected structure values in \[0, 1\]"),
    ],
)
def test_wrong_values_are_errors(values: Tensor, options: Any, message: str) -> None:
    model = encoder()
    with pytest.raises(ValueError, match=message):
        attach_relations(model, values, **options)
    assert not hasattr(model, "bias_priors")


def test_an_attachment_of_positions_has_no_relations() -> None:
    attachment = attach(encoder(), structures.everything(TOKENS))
    with (
        pytest.raises(ValueError, match="made by attach_relations, got one of positions"),
        attachment.relations(GRAPHS),
    ):
        pass


def test_the_own_transformer_has_one_structure_for_all_items() -> None:
    config = models.TransformerConfig(11, TOKENS - 1, 1, width=6, depth=1, heads=2, head_width=3, mlp_width=5)
    model = models.Transformer(config)
    attachment = attach_relations(model, VALUES)
    with (
        attachment.relations(GRAPHS),
        pytest.raises(
            ValueError, match=r"'blocks.0.attention': maskprior.models.Transformer has one structure"
        ),
    ):
        model(torch.zeros(BATCH, TOKENS - 1, dtype=torch.long))
