"""log σ of large M in the native library, against float64 and torch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from maskprior.kernels import native
from maskprior.kernels.log_sigmoid import WORTHWHILE, log_sigmoid

needs_library = pytest.mark.skipif(native.LIBRARY.functions is None, reason=native.LIBRARY.reason)


def logits(count: int = WORTHWHILE + 3) -> Tensor:
    return 30 * torch.randn(count, generator=torch.Generator().manual_seed(0))


@needs_library
def test_relative_precision_at_both_ends() -> None:
    values = torch.cat([torch.linspace(-1e4, 84, 20_011), torch.linspace(-3, 3, 5_003)])
    exact = F.logsigmoid(values.double())
    torch.testing.assert_close(log_sigmoid(values).double(), exact, rtol=2e-6, atol=0)


@needs_library
def test_extremes() -> None:
    values = torch.zeros(WORTHWHILE)
    values[:5] = torch.tensor([float("inf"), float("-inf"), float("nan"), 200.0, -1e30])
    result = log_sigmoid(values)
    assert result[:2].tolist() == [0.0, float("-inf")]
    assert bool(result[2].isnan())
    assert result[3:5].tolist() == [0.0, pytest.approx(-1e30, rel=1e-6)]


@needs_library
def test_gradient() -> None:
    leaf = logits().requires_grad_()
    upstream = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(1))
    (grad,) = torch.autograd.grad(log_sigmoid(leaf), leaf, upstream)
    exact = upstream.double() * torch.sigmoid(-leaf.detach().double())
    torch.testing.assert_close(grad.double(), exact, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("transposed", [False, True])
def test_second_derivative(transposed: bool) -> None:
    leaf = logits(100 * 120).view(100, 120)
    leaf = (leaf.T if transposed else leaf).requires_grad_()
    (grad,) = torch.autograd.grad(log_sigmoid(leaf).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), leaf)
    probability = torch.sigmoid(leaf.detach())
    torch.testing.assert_close(second, -probability * (1 - probability), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("make", [lambda x: x.T, lambda x: x[:, ::2], lambda x: x[:1].expand(100, -1)])
def test_any_layout(make: Callable[[Tensor], Tensor]) -> None:
    leaf = logits(100 * 120).view(100, 120).requires_grad_()
    view = make(leaf)
    result = log_sigmoid(view)
    torch.testing.assert_close(result, F.logsigmoid(view), rtol=2e-6, atol=1e-30)
    upstream = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    (mine,) = torch.autograd.grad(result, leaf, upstream)
    (theirs,) = torch.autograd.grad(F.logsigmoid(make(leaf)), leaf, upstream)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [1, WORTHWHILE])
def test_what_is_small_or_of_other_type_is_torchs_own(count: int, dtype: torch.dtype) -> None:
    values = logits(count).to(dtype)
    rtol, atol = (2e-6, 1e-36) if dtype == torch.float32 else (0.0, 0.0)
    torch.testing.assert_close(log_sigmoid(values), F.logsigmoid(values), rtol=rtol, atol=atol)


@needs_library
@pytest.mark.parametrize("threads", [3], indirect=True)
def test_threads_change_nothing(threads: int) -> None:
    values = logits(1 << 16)
    several = log_sigmoid(values)
    torch.set_num_threads(1)
    assert torch.equal(log_sigmoid(values), several)
