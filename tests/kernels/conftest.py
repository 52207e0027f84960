"""Threads of torch for one test."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number given by an indirect parameter; that of before comes back."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield int(request.param)
    torch.set_num_threads(before)
