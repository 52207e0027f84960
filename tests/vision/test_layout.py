"""Structures of image patches: kinds of heads, prefix tokens, layers, rectangular grids."""

import math

import pytest
import torch

from maskprior.structures import check_structure, draw
from maskprior.vision.layout import Layout, head_structure, offsets, with_prefix

HEADS = ("free", "offset 0 1", "near 1", "decay 1.5")


def test_each_kind_on_a_rectangular_grid() -> None:
    for y in range(2):
        for x in range(3):
            row = 3 * y + x
            assert head_structure("offset 0 1", 2, 3)[row].argmax() == (row + 1 if x < 2 else row)
            for key in range(6):
                dy, dx = key // 3 - y, key % 3 - x
                near = head_structure("near 1", 2, 3)[row, key]
                assert near == float(max(abs(dy), abs(dx)) <= 1)
                decay = float(head_structure("decay 1.5", 2, 3)[row, key])
                assert decay == pytest.approx(math.exp(-(dy**2 + dx**2) / 4.5))
    assert bool((head_structure("free", 2, 3) == 1).all())


def test_prefix_tokens_read_all_and_are_read_by_all() -> None:
    structure = Layout(HEADS, depth=2).structure((2, 3), prefix_tokens=2)
    assert structure.shape == (4, 8, 8)
    assert bool((structure[:, :2] == 1).all())
    assert bool((structure[:, :, :2] == 1).all())
    for head, text in zip(structure, HEADS, strict=True):
        assert torch.equal(head[2:, 2:], head_structure(text, 2, 3))
    check_structure(structure)
    assert draw(with_prefix(head_structure("offset 0 1", 1, 2), 1)) == "■ ■ ■\n■ · ■\n■ · ■"


def test_only_the_first_layers_have_it() -> None:
    structure = Layout(HEADS, depth=3, layers=2).structure((2, 3), 1)
    assert structure.shape == (3, 4, 7, 7)
    whole = Layout(HEADS, depth=3).structure((2, 3), 1)
    assert torch.equal(structure[0], whole)
    assert torch.equal(structure[1], whole)
    assert bool((structure[2] == 1).all())
    assert torch.equal(Layout(HEADS, depth=3, layers=3).structure((2, 3), 1), whole)


def test_offsets_are_the_taps_of_a_filter() -> None:
    assert offsets(1) == ("offset 0 0",)
    taps = offsets(3)
    assert len(set(taps)) == 9
    assert taps[0] == "offset -1 -1"
    assert taps[4] == "offset 0 0"
    assert taps[5] == "offset 0 1"
    # Their union is the neighbourhood.
    union = torch.stack([head_structure(tap, 3, 5) for tap in taps]).amax(0)
    assert torch.equal(union, head_structure("near 1", 3, 5))


@pytest.mark.parametrize(
    "head", ["", "far 1", "near", "near x", "near -1", "decay 0", "offset 1", "offset 0.5 1", "free 1"]
)
def test_unknown_heads_are_refused(head: str) -> None:
    with pytest.raises(ValueError, match=r"head"):
        head_structure(head, 2, 3)


@pytest.mark.parametrize(
    ("heads", "layers", "message"),
    [((), None, "at least one head"), (HEADS, 0, "layers from 1 to depth=2, got 0"), (HEADS, 3, "got 3")],
)
def test_bad_layouts_are_refused(heads: tuple[str, ...], layers: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(heads, 2, layers)


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="odd kernel_size, got 2"):
        offsets(2)
