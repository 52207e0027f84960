"""The moving average, against its recurrence."""

import pytest
import torch
from torch import nn

from maskprior.experiments.ema import Ema


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))


def test_it_follows_the_recurrence_with_its_warm_up() -> None:
    model = make_model()
    ema = Ema(model, 0.6)
    weight = model[0].weight  # type: ignore[index]
    expected = weight.detach().clone()
    for step in range(1, 8):
        with torch.no_grad():
            weight.add_(0.1 * step)
        ema.update(model, step)
        decay = min(0.6, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight.detach()
    torch.testing.assert_close(ema.tensors["0.weight"], expected)


def test_whole_numbers_are_copied() -> None:
    model = make_model()
    ema = Ema(model, 0.5)
    model(torch.randn(7, 3, generator=torch.Generator().manual_seed(0)))
    ema.update(model, 1)
    assert int(ema.tensors["1.num_batches_tracked"]) == 1


def test_applied_swaps_and_gives_back() -> None:
    model = make_model()
    ema = Ema(model, 0.5)
    with torch.no_grad():
        model[0].weight.zero_()  # type: ignore[index]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with ema.applied(model):
        assert torch.equal(model.state_dict()["0.weight"], ema.tensors["0.weight"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1])
def test_a_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=r"decay in \(0, 1\)"):
        Ema(make_model(), decay)
