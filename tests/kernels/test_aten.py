"""The division into blocks: any block size and number of threads gives the equation, and the same dropout."""

import random

import pytest
import torch
from torch import Tensor

from maskprior.functional import attention
from maskprior.kernels import aten

# Elements of a block and weights that are kept: from one row a block to all in one, recomputed and kept.
SIZES = [(2, 0), (1 << 9, 0), (1 << 12, 0), (1 << 9, 1 << 16), (1 << 12, 1 << 16), (1 << 19, 1 << 16)]


@pytest.fixture(params=SIZES)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    block, kept = request.param
    monkeypatch.setattr(aten, "BLOCK_ELEMENTS", block)
    monkeypatch.setattr(aten, "KEPT_ELEMENTS", kept)
    return block, kept


def leaves(seed: int, dtype: torch.dtype) -> tuple[list[Tensor], dict[str, object]]:
    """Operands and M of a random shape, and the constraints."""
    draw, rng = random.Random(seed), torch.Generator().manual_seed(seed)
    batch, kv_heads, group = draw.choice([1, 2, 5]), draw.choice([1, 2, 3]), draw.choice([1, 1, 2])
    queries, keys, width = draw.choice([1, 7, 19]), draw.choice([1, 3, 11, 33]), draw.choice([4, 16])
    heads = kv_heads * group
    shapes = (
        (batch, heads, queries, width),
        (batch, kv_heads, keys, width),
        (batch, kv_heads, keys, width),
        (draw.choice([1, heads]), queries, keys),
    )
    operands = [torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for shape in shapes]
    if draw.random() < 0.4:
        operands[:3] = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in operands[:3]]
    allowed = torch.rand(batch, 1, draw.choice([1, queries]), keys, generator=rng) < 0.7
    options: dict[str, object] = {"is_causal": draw.random() < 0.3}
    if draw.random() < 0.5:
        options["allowed"] = allowed
    return [part.requires_grad_() for part in operands], options


def computed(operands: list[Tensor], options: dict[str, object], backend: str) -> tuple[Tensor, ...]:
    output: Tensor = attention(*operands, backend=backend, **options)  # type: ignore[call-overload]
    upstream = torch.randn(
        output.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )  # contiguous, as the output need not be
    return output, *torch.autograd.grad(output, operands, upstream.to(output.dtype))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@pytest.mark.usefixtures("sizes", "threads")
def test_blocks_give_the_equation(seed: int) -> None:
    operands, options = leaves(seed, torch.float64)
    exact = computed(operands, options, "reference")
    for mine, right in zip(computed(operands, options, "aten"), exact, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@pytest.mark.usefixtures("sizes", "threads")
def test_blocks_of_other_types(seed: int) -> None:
    operands, options = leaves(seed, torch.bfloat16)
    exact = computed([part.detach().double().requires_grad_() for part in operands], options, "reference")
    for mine, right in zip(computed(operands, options, "aten"), exact, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=2e-2, atol=4e-2)


@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@pytest.mark.usefixtures("sizes", "threads")
def test_the_bias_gradient_is_bit_equal_over_runs() -> None:
    operands, options = leaves(1, torch.float32)
    first, second = (computed(operands, options, "aten") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize(("threads", "backward_threads"), [(1, 3), (3, 1)], indirect=["threads"])
def test_dropout_is_the_same_whatever_the_threads(threads: int, backward_threads: int) -> None:
    rng = torch.Generator().manual_seed(3)
    operands = [
        torch.randn(5, 3, 33, 8, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(3)
    ]
    upstream = torch.randn(5, 3, 33, 8, generator=rng, dtype=torch.float64)
    found = []
    for ahead, behind in ((1, 1), (threads, backward_threads)):
        torch.manual_seed(11)
        torch.set_num_threads(ahead)
        output = attention(*operands, backend="aten", dropout_p=0.4)
        torch.set_num_threads(behind)
        found.append((output, *torch.autograd.grad(output, operands, upstream)))
    for several, one in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(several, one, rtol=1e-9, atol=1e-11)


def test_scratch_is_on_the_cpu_whatever_the_default_device() -> None:
    operands = [torch.randn(1, 2, 9, 8, dtype=torch.float64) for _ in range(3)]
    right = attention(*operands, backend="reference")
    with torch.device("meta"):
        mine = attention(*operands, backend="aten")
    torch.testing.assert_close(mine, right)
