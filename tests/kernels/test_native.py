"""The native library: every instruction set, threads, tile borders, and its absence."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from maskprior.kernels import native, reference
from maskprior.kernels.operators import Gradients, Needs
from maskprior.kernels.problem import AttentionProblem, make_problem

pytestmark = pytest.mark.skipif(native.LIBRARY.functions is None, reason=native.LIBRARY.reason)

LEVELS = [pytest.param(level, id=native.LEVELS[level]) for level in range(native.LIBRARY.level + 1)]


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    width: int,
    bias_heads: int,
    **options: bool,
) -> tuple[AttentionProblem, Tensor]:
    """A problem and the gradient of its output."""
    query, key = draw(batch, heads, queries, width, seed=0), draw(batch, kv_heads, keys, width, seed=1)
    value, bias = draw(batch, kv_heads, keys, width, seed=2), 3 * draw(bias_heads, queries, keys, seed=3)
    problem = make_problem(query, key, value, bias=bias, is_causal=options.get("is_causal", False))
    return problem, draw(batch, heads, queries, width, seed=4)


def expected(problem: AttentionProblem, upstream: Tensor) -> tuple[Tensor, Gradients]:
    """Output and gradients of the equation in float64."""
    wide = [t.double().requires_grad_() for t in problem[:4] if t is not None]
    exact = problem._replace(query=wide[0], key=wide[1], value=wide[2], bias=wide[3])
    output, _ = reference.attention_with_weights(exact)
    grads = torch.autograd.grad(output, wide, upstream.double())
    return output.detach(), Gradients._make(grads)


def computed(
    problem: AttentionProblem,
    upstream: Tensor,
    level: int,
    needs: Needs = Needs(True, True),  # noqa: B008
) -> tuple[Tensor, Gradients]:
    output, logsumexp = native.forward(problem, level)
    return output, native.backward(problem, output, logsumexp, upstream, needs, level)


def assert_close(got: tuple[Tensor, Gradients], right: tuple[Tensor, Gradients]) -> None:
    for mine, exact in zip((got[0], *got[1]), (right[0], *right[1]), strict=True):
        torch.testing.assert_close(
            mine.double(), exact, rtol=0, atol=5e-6 * max(1.0, exact.abs().max().item())
        )


# Either side of every border: a vector, a strip, the short problem, the tiles of queries and of keys.
BORDERS = [1, 3, 15, 16, 17, 63, 64, 65, 80, 81, 127, 128, 129, 161, 256, 257, 320, 321]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("length", BORDERS)
def test_every_border_of_the_tiles(length: int, level: int) -> None:
    for queries, keys, width in ((length, length, 16), (7, length, 19), (length, 5, 3)):
        problem, upstream = make(2, 2, 2, queries, keys, width, 2)
        assert_close(computed(problem, upstream, level), expected(problem, upstream))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "shape", [(5, 6, 2, 19, 67, 32, 6), (5, 6, 3, 130, 140, 24, 1), (3, 4, 4, 300, 33, 8, 4)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_every_instruction_set(
    shape: tuple[int, int, int, int, int, int, int], is_causal: bool, level: int
) -> None:
    problem, upstream = make(*shape, is_causal=is_causal)
    assert_close(computed(problem, upstream, level), expected(problem, upstream))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("keys", [7, 200])
def test_bfloat16_rounds_to_the_nearest(keys: int, level: int) -> None:
    problem, upstream = make(2, 2, 2, 5, keys, 19, 2)
    half = [tensor.bfloat16() for tensor in problem[:3]]
    halved = problem._replace(query=half[0], key=half[1], value=half[2])
    widened = problem._replace(query=half[0].float(), key=half[1].float(), value=half[2].float())
    got = computed(halved, upstream.bfloat16(), level)
    right = computed(widened, upstream.bfloat16().float(), level)
    for mine, exact in zip((got[0], *got[1][:3]), (right[0], *right[1][:3]), strict=True):
        # The same number in float32, rounded: one unit apart at most, where float32's last bit decides.
        torch.testing.assert_close(mine, exact.bfloat16(), rtol=2**-7, atol=1e-6)
        assert (mine == exact.bfloat16()).float().mean() > 0.99
    torch.testing.assert_close(got[1].bias, right[1].bias, rtol=0, atol=1e-5)


@pytest.mark.parametrize("needs", [Needs(True, False), Needs(False, True)])
@pytest.mark.parametrize("length", [17, 150])
def test_what_is_not_needed_changes_nothing_else(length: int, needs: Needs) -> None:
    problem, upstream = make(3, 2, 2, length, length, 16, 2)
    _, whole = computed(problem, upstream, native.LIBRARY.level)
    _, part = computed(problem, upstream, native.LIBRARY.level, needs)
    for mine, full, wanted in zip(part, whole, (*[needs.operands] * 3, needs.bias), strict=True):
        assert torch.equal(mine, full) if wanted else mine.numel() == 0


# Small bias: items first; large bias: heads first. Shared, per-head and grouped biases; few pairs.
DIVISIONS = [
    (7, 3, 3, 11, 13, 8, 3),
    (7, 4, 2, 11, 13, 8, 1),
    (2, 3, 3, 11, 13, 8, 3),
    (1, 1, 1, 11, 13, 8, 1),
    (5, 3, 3, 260, 180, 8, 3),
    (5, 6, 3, 160, 140, 8, 6),
    (3, 2, 1, 370, 360, 8, 1),
]


@pytest.mark.parametrize("threads", [2, 3, 5], indirect=True)
@pytest.mark.parametrize("shape", DIVISIONS)
def test_threads_divide_the_work_rightly(
    shape: tuple[int, int, int, int, int, int, int], threads: int
) -> None:
    problem, upstream = make(*shape)
    first, second = (computed(problem, upstream, native.LIBRARY.level) for _ in range(2))
    assert_close(first, expected(problem, upstream))
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


@pytest.mark.parametrize("threads", [3], indirect=True)
def test_threads_change_no_output(threads: int) -> None:
    problem, _ = make(7, 3, 3, 11, 13, 8, 3)
    several, _ = native.forward(problem)
    torch.set_num_threads(1)
    assert torch.equal(several, native.forward(problem)[0])


@pytest.mark.parametrize("level", LEVELS)
def test_the_norm_of_the_softmax(level: int) -> None:
    problem, _ = make(2, 3, 3, 19, 67, 16, 3)
    scores = problem.query.double() @ problem.key.double().mT / 4
    assert problem.bias is not None
    exact = (scores + problem.bias.double()).logsumexp(-1)
    peak, log_total = native.forward(problem, level)[1].double()
    torch.testing.assert_close(peak + log_total, exact, rtol=0, atol=3e-6)
    torch.testing.assert_close(peak, (scores + problem.bias.double()).amax(-1), rtol=0, atol=3e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_the_exponential_is_exact_and_never_denormal(level: int) -> None:
    # One query with scores 0 and x: the weight of x is e^x / (1 + e^x).
    x = torch.cat([torch.linspace(-120, 0, 4001), torch.linspace(0, 60, 999)])
    bias = torch.stack([torch.zeros_like(x), x], dim=-1)[None]
    query, key = torch.zeros(1, 1, len(x), 1), torch.zeros(1, 1, 2, 1)
    value = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1)
    output, _ = native.forward(make_problem(query, key, value, bias=bias), level)
    weight, exact = output.flatten(), torch.sigmoid(x.double())
    normal = x > -85
    torch.testing.assert_close(weight[normal].double(), exact[normal], rtol=4e-7 + 85 * 2**-24, atol=0)
    torch.testing.assert_close(weight[x > -1].double(), exact[x > -1], rtol=4e-7, atol=0)
    assert (weight[~normal] == 0).all()


def test_a_missing_or_foreign_library_is_explained(tmp_path: Path) -> None:
    functions, level, reason = native.load_library(tmp_path / "_native.so")
    assert (functions, level) == (None, 0)
    assert reason.startswith("was not built, there is no ")
    (tmp_path / "text.so").write_text("no library")
    assert native.load_library(tmp_path / "text.so").reason.startswith("could not be loaded: ")
