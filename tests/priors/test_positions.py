"""Sinusoidal position embeddings, against their formula."""

import math

import pytest
import torch

from maskprior.priors.positions import sinusoidal_positions


def test_each_value_is_the_formulas() -> None:
    table = sinusoidal_positions(3, 5, 8, temperature=100.0)
    assert table.shape == (15, 8)
    for y in range(3):
        for x in range(5):
            row = table[5 * y + x].tolist()
            for k, rate in enumerate((1.0, 100.0**-0.5)):
                expected = math.sin(x * rate), math.cos(x * rate), math.sin(y * rate), math.cos(y * rate)
                assert row[k::2] == pytest.approx(expected, abs=1e-6)


def test_all_have_one_norm_and_products_depend_on_the_offset_alone() -> None:
    table = sinusoidal_positions(5, 7, 12).double()
    torch.testing.assert_close(table.square().sum(1), torch.full((35,), 6.0, dtype=torch.float64))
    products = (table @ table.T).view(5, 7, 5, 7)
    torch.testing.assert_close(products[1, 2, 3, 5], products[0, 1, 2, 4])


def test_channels_have_to_be_a_multiple_of_four() -> None:
    with pytest.raises(ValueError, match="multiple of 4, got 6"):
        sinusoidal_positions(2, 3, 6)
