"""Structures as text."""

import re

import pytest
import torch

from maskprior.structures import causal, draw, identity, per_head


def test_heads_stand_side_by_side() -> None:
    lines = draw(per_head([identity(2), causal(2), identity(2)])).splitlines()
    assert lines == ["■ ·   ■ ·   ■ ·", "· ■   ■ ■   · ■"]


def test_graded_values_are_tenths_never_shown_as_the_ends() -> None:
    assert draw(torch.tensor([[0.0, 1e-6, 0.26, 0.74, 0.999, 1.0]])) == "· 1 3 7 9 ■"


def test_bools_draw_as_their_floats() -> None:
    assert draw(causal(5).bool()) == draw(causal(5))


def test_refuses_more_than_heads() -> None:
    with pytest.raises(
        ValueError, match=re.escape("[query, key] or [heads, query, key], got shape (1, 2, 3, 3)")
    ):
        draw(torch.ones(1, 2, 3, 3))
