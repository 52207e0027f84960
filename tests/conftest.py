"""One thread and one seed for every test."""

import os
import random

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
torch.set_num_threads(1)

# Shared cores make deadlines flaky; `--hypothesis-profile default` searches with new examples each time.
settings.register_profile("maskprior", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("maskprior")


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Same global generators in every test, whatever ran before it in this worker."""
    random.seed(0)
    torch.manual_seed(0)
