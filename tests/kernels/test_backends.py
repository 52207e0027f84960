"""One contract for every backend of the CPU: a float64 oracle, gradients, constraints, layouts, types."""

import math
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from maskprior.functional import attention

# In Triton's interpreter (see test_triton.py) the contract is run for that backend alone.
BACKENDS = ["triton"] if "TRITON_INTERPRET" in os.environ else ["reference", "aten", "native", "sdpa"]
# What a backend refuses (covered by test_dispatch.py), or what Triton's interpreter cannot do.
MISSING = {
    "native": {"float64", "float16"},
    "sdpa": {"empty", "float32 bias", "extreme suppression"},
    "triton": {"float64", "bfloat16", "dropout"},
}
Grads = tuple[Tensor, ...]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def need(backend: str, feature: str) -> None:
    if feature in MISSING.get(backend, ()):
        pytest.skip(f"{backend}: no {feature}")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def problem(
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    width: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value, M and the upstream gradient."""
    return (
        normal(batch, heads, queries, width, seed=0, dtype=dtype),
        normal(batch, kv_heads, keys, width, seed=1, dtype=dtype),
        normal(batch, kv_heads, keys, width, seed=2, dtype=dtype),
        4 * normal(heads, queries, keys, seed=3),
        normal(batch, heads, queries, width, seed=4, dtype=dtype),
    )


def oracle(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    logits: Tensor | None,
    upstream: Tensor,
    allowed: Tensor | None = None,
    factor: Tensor | None = None,
) -> tuple[Tensor, Grads]:
    """Output and gradients in float64, every gradient written out from the formula.

    P = e^s σ(m) / Σ e^s σ(m);  δ = ⟨g, o⟩;  dS = P (⟨g, v⟩ − δ);  dM = σ(−m) Σ_b dS.
    """
    q, k, v, g = (tensor.double() for tensor in (query, key, value, upstream))
    group = q.shape[1] // k.shape[1]
    kk, vv = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = torch.einsum("bhid,bhjd->bhij", q, kk) * scale
    if logits is not None:
        scores = scores + torch.nn.functional.logsigmoid(logits.double())
    open_ = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.expand_as(scores)
    top = scores.masked_fill(~open_, -1e300).amax(-1, keepdim=True)
    mass = torch.where(open_, (scores - top).exp(), 0.0)
    total = mass.sum(-1, keepdim=True)
    weights = torch.where(total > 0, mass / total.clamp(min=1e-300), 0.0)
    kept = weights if factor is None else weights * factor
    output = torch.einsum("bhij,bhjd->bhid", kept, vv)
    read = torch.einsum("bhid,bhjd->bhij", g, vv)
    read = read if factor is None else read * factor
    slope = weights * (read - (weights * read).sum(-1, keepdim=True))
    folded = (k.shape[1], group)
    dk = torch.einsum("bhij,bhid->bhjd", slope, q).mul(scale).unflatten(1, folded).sum(2)
    dv = torch.einsum("bhij,bhid->bhjd", kept, g).unflatten(1, folded).sum(2)
    dq = torch.einsum("bhij,bhjd->bhid", slope, kk) * scale
    if logits is None:
        return output, (dq, dk, dv)
    dm = torch.sigmoid(-logits.double()) * slope
    return output, (dq, dk, dv, dm.sum_to_size(logits.shape))


def run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    logits: Tensor | None,
    upstream: Tensor,
    backend: str,
    allowed: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Grads]:
    """Output and gradients of the backend."""
    leaves = [t.detach().requires_grad_() for t in (query, key, value, logits) if t is not None]
    output = attention(*leaves[:3], *leaves[3:], allowed=allowed, is_causal=is_causal, backend=backend)
    return output.detach(), torch.autograd.grad(output, leaves, upstream)


def assert_matches(
    got: tuple[Tensor, Grads], expected: tuple[Tensor, Grads], tolerance: float = 5e-6
) -> None:
    """Every tensor within ``tolerance`` times its largest expected element (and 1)."""
    for index, (mine, right) in enumerate(zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True)):
        assert mine.shape == right.shape
        error = (mine.double() - right).abs().max().item() if right.numel() else 0.0
        limit = tolerance * max(1.0, right.abs().max().item() if right.numel() else 0.0)
        assert error <= limit, (
            f"tensor {index} (output, query, key, value, M): error {error:.3g} > {limit:.3g}"
        )


SHAPES = [
    # batch, query heads, key heads, queries, keys, width
    (2, 3, 3, 5, 7, 11),
    (7, 3, 3, 1, 43, 16),
    (7, 2, 2, 16, 16, 64),
    (1, 1, 1, 1, 1, 1),
    (2, 8, 2, 5, 64, 32),
    (3, 8, 2, 43, 16, 8),
    (1, 5, 1, 65, 65, 64),
    (2, 3, 3, 77, 43, 24),
    (1, 2, 2, 192, 197, 64),
    (1, 2, 1, 197, 5, 80),
    (2, 1, 1, 300, 301, 17),
    (0, 3, 3, 5, 7, 11),
    (2, 3, 3, 0, 7, 11),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_matches_the_oracle(shape: tuple[int, int, int, int, int, int], backend: str) -> None:
    if 0 in shape:
        need(backend, "empty")
    arguments = problem(*shape)
    assert_matches(run(*arguments, backend), oracle(*arguments))


@pytest.mark.parametrize("shape", [(3, 8, 2, 43, 16, 8), (1, 2, 2, 192, 197, 64)])
def test_matches_the_oracle_without_a_prior(shape: tuple[int, int, int, int, int, int], backend: str) -> None:
    query, key, value, _, upstream = problem(*shape)
    arguments = (query, key, value, None, upstream)
    assert_matches(run(*arguments, backend), oracle(*arguments))


@pytest.mark.parametrize("lead", [(), (1,), (1, 1), (6,), (1, 6)])
def test_every_shape_of_the_logits(lead: tuple[int, ...], backend: str) -> None:
    query, key, value, _, upstream = problem(5, 6, 3, 7, 11, 13)
    logits = 3 * normal(*lead, 7, 11, seed=5)
    arguments = (query, key, value, logits, upstream)
    assert_matches(run(*arguments, backend), oracle(*arguments))


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (7, 43), (43, 7), (67, 131), (1, 17)])
def test_causal_is_the_bottom_right_constraint(queries: int, keys: int, backend: str) -> None:
    arguments = problem(2, 4, 2, queries, keys, 16)
    allowed = torch.arange(keys) <= torch.arange(queries)[:, None] + keys - queries
    got = run(*arguments, backend, is_causal=True)
    assert_matches(got, oracle(*arguments, allowed=allowed[None, None]))


@pytest.mark.parametrize("shape", [(7,), (5, 7), (5, 1), (3, 1, 7), (2, 1, 1, 7), (2, 3, 5, 7), (1, 3, 5, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_every_shape_of_allowed(shape: tuple[int, ...], is_causal: bool, backend: str) -> None:
    arguments = problem(2, 3, 3, 5, 7, 11)
    allowed = torch.rand(shape, generator=generator(0)) < 0.6
    causal = torch.arange(7) <= torch.arange(5)[:, None] + 2
    expected = oracle(*arguments, allowed=allowed & causal if is_causal else allowed)
    assert_matches(run(*arguments, backend, allowed=allowed, is_causal=is_causal), expected)


def test_long_rows_with_every_constraint(backend: str) -> None:
    arguments = problem(2, 4, 2, 131, 293, 16)
    padding = torch.arange(293) < torch.tensor([293, 101])[:, None]
    rows = torch.rand(4, 131, 1, generator=generator(1)) < 0.9
    allowed = padding[:, None, None] & rows
    assert_matches(run(*arguments, backend, allowed=allowed), oracle(*arguments, allowed=allowed))


def test_a_padded_item_stays_zero_through_two_layers(backend: str) -> None:
    query, key, value, logits, upstream = problem(3, 2, 2, 17, 17, 16)
    allowed = torch.ones(3, 1, 1, 17, dtype=torch.bool)
    allowed[1] = False
    leaves = [t.requires_grad_() for t in (query, key, value, logits)]
    hidden = attention(query, key, value, logits, allowed=allowed, backend=backend)
    output = attention(hidden, hidden, hidden, logits, allowed=allowed, backend=backend)
    assert output[1].abs().max() == 0
    grads = torch.autograd.grad(output, leaves, upstream)
    assert all(bool(grad.isfinite().all()) for grad in grads)
    assert all(grad[1].abs().max() == 0 for grad in grads[:3])


def layouts() -> Iterator[tuple[str, Tensor]]:
    base = normal(3, 2, 7, 16, seed=8)
    yield "heads inside", base.transpose(1, 2).contiguous().transpose(1, 2)
    yield "transposed matrix", base.mT.contiguous().mT
    yield "sliced", torch.stack([base, base], dim=-1).flatten(-2)[..., ::2]
    yield "one of a packed tensor", torch.stack([base, base, base], dim=2)[:, :, 1]
    yield "stride 0 over the batch", base[:1].expand(3, 2, 7, 16)
    yield "stride 0 over the width", base[..., :1].expand(3, 2, 7, 16)


@pytest.mark.parametrize(("name", "tensor"), list(layouts()))
def test_every_memory_layout(name: str, tensor: Tensor, backend: str) -> None:
    logits = normal(7, 2, 7, seed=3).movedim(1, 0)
    arguments = (tensor, tensor, tensor, logits, tensor)
    dense = tuple(t.contiguous() for t in arguments)
    query, key, value, m, upstream = arguments
    mine = [query.detach(), key.detach(), value.detach(), m.detach()]
    for leaf in mine:
        leaf.requires_grad_()
    output = attention(mine[0], mine[1], mine[2], mine[3], backend=backend)
    got = output.detach(), torch.autograd.grad(output, mine, upstream)
    assert_matches(got, oracle(*dense), 1e-5)  # query = key: the scores are large


def test_an_expanded_upstream_gradient(backend: str) -> None:
    query, key, value, logits, _ = problem(2, 3, 3, 5, 7, 11)
    upstream = torch.ones(1).expand(2, 3, 5, 11)
    arguments = (query, key, value, logits, upstream)
    assert_matches(run(*arguments, backend), oracle(*arguments))


# Half precision rounds the operands and the result; the bias gradient is accumulated in float32.
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)]
)
def test_other_types(dtype: torch.dtype, tolerance: float, backend: str) -> None:
    need(backend, str(dtype).removeprefix("torch."))
    query, key, value, logits, upstream = problem(3, 4, 2, 13, 29, 16, dtype)
    arguments = (query, key, value, logits.to(torch.promote_types(dtype, torch.float32)), upstream)
    output, grads = run(*arguments, backend)
    assert output.dtype == dtype
    assert [grad.dtype for grad in grads[:3]] == [dtype] * 3
    assert_matches((output, grads), oracle(*arguments), tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keys", [37, 211])
def test_bias_gradient_in_half_precision_is_as_exact_as_the_equation(
    keys: int, dtype: torch.dtype, backend: str
) -> None:
    need(backend, "float32 bias")
    need(backend, str(dtype).removeprefix("torch."))
    query, key, value, logits, upstream = problem(29, 2, 2, 31, keys, 16, dtype)
    _, exact = oracle(query, key, value, logits, upstream)
    wide = [tensor.float() for tensor in (query, key, value)]
    _, equation = run(wide[0], wide[1], wide[2], logits, upstream.float(), "reference")
    _, mine = run(query, key, value, logits, upstream, backend)
    limit = 2 * (equation[3] - exact[3]).abs().max() + 1e-6
    assert (mine[3] - exact[3]).abs().max() <= limit


def test_autocast_casts_the_operands_and_keeps_the_bias(backend: str) -> None:
    need(backend, "bfloat16")
    query, key, value, logits, upstream = problem(3, 2, 2, 13, 29, 16)
    leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value, logits)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = attention(leaves[0], leaves[1], leaves[2], leaves[3], backend=backend)
    grads = torch.autograd.grad(output, leaves, upstream.bfloat16())
    rounded = [tensor.bfloat16() for tensor in (query, key, value)]
    expected = run(rounded[0], rounded[1], rounded[2], logits, upstream.bfloat16(), backend)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected[0], rtol=0, atol=0)
    torch.testing.assert_close(grads[3], expected[1][3], rtol=0, atol=0)
    assert grads[0].dtype == torch.float32


@pytest.mark.parametrize("learns", ["only M", "all but M", "only the value"])
def test_only_what_requires_a_gradient_gets_one(learns: str, backend: str) -> None:
    query, key, value, logits, upstream = problem(2, 4, 2, 13, 29, 16)
    _, expected = oracle(query, key, value, logits, upstream)
    leaves = {"only M": [3], "all but M": [0, 1, 2], "only the value": [2]}[learns]
    tensors = [query, key, value, logits]
    for index in leaves:
        tensors[index].requires_grad_()
    output = attention(tensors[0], tensors[1], tensors[2], tensors[3], backend=backend)
    grads = torch.autograd.grad(output, [tensors[index] for index in leaves], upstream)
    for index, grad in zip(leaves, grads, strict=True):
        torch.testing.assert_close(grad.double(), expected[index], rtol=0, atol=2e-5)


def tolerance_at(bias: float) -> float:
    """Scores around the bias keep an absolute precision of |bias| · 2⁻²⁴; twice that, in both passes."""
    return 5e-6 + abs(bias) * 2**-22


@pytest.mark.parametrize("value_of_m", [1e4, -1e4, 300.0, -300.0, float("inf")])
def test_a_uniform_prior_of_any_strength_changes_nothing(value_of_m: float, backend: str) -> None:
    query, key, value, logits, upstream = problem(2, 3, 3, 13, 29, 16)
    got = run(query, key, value, torch.full_like(logits, value_of_m), upstream, backend)
    output, (dq, dk, dv) = oracle(query, key, value, None, upstream)
    assert_matches((got[0], got[1][:3]), (output, (dq, dk, dv)), tolerance_at(min(0.0, value_of_m)))
    assert bool(got[1][3].isfinite().all())


@pytest.mark.parametrize("suppressed", [-10.0, -90.0, -100.0, -300.0, -1e4, float("-inf")])
def test_suppressed_keys_of_any_strength(suppressed: float, backend: str) -> None:
    query, key, value, logits, upstream = problem(2, 3, 3, 13, 29, 16)
    closed = torch.rand(3, 13, 29, generator=generator(0)) < 0.7
    closed[..., 5] = False
    closed[0, 3] = True  # a row with nothing but suppressed keys
    logits = torch.where(closed, suppressed, logits)
    expected = oracle(query, key, value, logits, upstream)
    if suppressed == float("-inf"):
        finite = torch.where(closed, 0.0, logits)
        output, (*operands, dm) = oracle(query, key, value, finite, upstream, allowed=~closed)
        expected = output, (*operands, torch.where(closed, 0.0, dm))
    got = run(query, key, value, logits, upstream, backend)
    assert_matches(got, expected, tolerance_at(max(suppressed, -1e4)))


@pytest.mark.parametrize("suppressed", [-1e7, -1e8, -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize(("queries", "keys"), [(13, 29), (5, 300)])
def test_weights_of_a_row_of_extreme_suppression_sum_to_one(
    queries: int, keys: int, suppressed: float, backend: str
) -> None:
    need(backend, "extreme suppression")
    query, key, value, logits, upstream = problem(2, 3, 3, queries, keys, 16)
    logits[:, 3] = suppressed
    only = torch.zeros_like(upstream)
    only[:, :, 3] = 1.0
    _, (_, _, grad_value, grad_logits) = run(query, key, value, logits, only, backend)
    torch.testing.assert_close(grad_value.sum(2), torch.ones(2, 3, 16), rtol=1e-5, atol=0)
    assert grad_logits.sum(-1).abs().max() < 1e-4


def test_uses_the_bias(backend: str) -> None:
    query, key, value, logits, _ = problem(2, 3, 3, 13, 29, 16)
    plain = attention(query, key, value, backend=backend)
    assert (attention(query, key, value, logits, backend=backend) - plain).abs().max() > 0.1


def test_scale_is_used(backend: str) -> None:
    query, key, value, logits, upstream = problem(2, 3, 3, 5, 7, 16)
    output = attention(query, key, value, logits, scale=0.5, backend=backend)
    expected, _ = oracle(2 * query, key, value, logits, upstream)  # 1/√16 · 2
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-6)


def test_nan_is_not_hidden(backend: str) -> None:
    query, key, value, logits, _ = problem(2, 3, 3, 5, 7, 16)
    query[1, 2, 3, 4] = float("nan")
    spoilt = attention(query, key, value, logits, backend=backend).isnan().any(-1)
    assert spoilt.nonzero().tolist() == [[1, 2, 3]]


def test_gradients_are_bit_equal_over_runs_and_shapes_vary(backend: str) -> None:
    rng = generator(7)
    for _ in range(3 if backend == "triton" else 100):
        batch, group, kv, queries, keys, width = (
            int(torch.randint(1, n, (), generator=rng)) for n in (5, 4, 4, 40, 40, 40)
        )
        arguments = problem(batch, group * kv, kv, queries, keys, width)
        first, second = (run(*arguments, backend) for _ in range(2))
        assert_matches(first, oracle(*arguments), 4e-6)
        assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_training_and_evaluation_agree(backend: str) -> None:
    query, key, value, logits, _ = problem(2, 3, 3, 13, 29, 16)
    with torch.no_grad():
        evaluated = attention(query, key, value, logits, backend=backend)
    trained = attention(query.requires_grad_(), key, value, logits.requires_grad_(), backend=backend)
    torch.testing.assert_close(evaluated, trained, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant: bool, dropout_p: float, backend: str) -> None:
    if dropout_p > 0:
        need(backend, "dropout")
    query, key, value, logits, upstream = problem(2, 3, 3, 13, 29, 16)
    leaves = [tensor.requires_grad_() for tensor in (query, key, value, logits)]

    def layer(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return attention(q, k, v, m, dropout_p=dropout_p, backend=backend)

    torch.manual_seed(5)
    plain = torch.autograd.grad(layer(query, key, value, logits), leaves, upstream)
    torch.manual_seed(5)
    output = checkpoint(layer, *leaves, use_reentrant=use_reentrant)
    for leaf in leaves:
        leaf.grad = None
    output.backward(upstream)
    for leaf, expected in zip(leaves, plain, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, expected, rtol=0, atol=0)


def dropout_factor(query: Tensor, key: Tensor, logits: Tensor, probability: float, backend: str) -> Tensor:
    """The factor of each weight, read out by values that are unit vectors."""
    batch, heads, keys = key.shape[:3]
    units = torch.eye(keys).expand(batch, heads, keys, keys)
    plain = attention(query, key, units, logits, backend=backend)
    return attention(query, key, units, logits, dropout_p=probability, backend=backend) / plain


def test_dropout_drops_the_stated_share_and_keeps_the_mean(backend: str) -> None:
    need(backend, "dropout")
    query, key, _, logits, _ = problem(11, 3, 3, 61, 67, 16)
    torch.manual_seed(0)
    factor = dropout_factor(query, key, logits / 4, 0.3, backend)
    kept = factor > 0.5
    torch.testing.assert_close(factor[kept], torch.full_like(factor[kept], 1 / 0.7), rtol=0, atol=1e-5)
    # Standard error of the share over 134,871 weights: 0.00125.
    assert kept.double().mean().item() == pytest.approx(0.7, abs=0.005)
    # No structure: the shares of items, heads, queries and keys each agree with 0.7 within five errors.
    for axis, size in enumerate(factor.shape):
        others = [a for a in range(4) if a != axis]
        error = math.sqrt(0.21 * size / factor.numel())
        assert (kept.double().mean(others) - 0.7).abs().max().item() < 5 * error


def test_dropout_differs_between_calls_and_repeats_with_the_seed(backend: str) -> None:
    need(backend, "dropout")
    query, key, value, logits, _ = problem(2, 3, 3, 13, 29, 16)

    def call() -> Tensor:
        return attention(query, key, value, logits, dropout_p=0.3, backend=backend)

    torch.manual_seed(0)
    first, second = call(), call()
    torch.manual_seed(0)
    assert torch.equal(call(), first)
    assert not torch.equal(first, second)


def test_gradients_use_the_dropout_of_the_forward(backend: str) -> None:
    need(backend, "dropout")
    query, key, _, logits, _ = problem(2, 3, 3, 23, 29, 16)
    units = torch.eye(29).expand(2, 3, 29, 29)
    upstream = normal(2, 3, 23, 29, seed=9)
    torch.manual_seed(0)
    factor = dropout_factor(query, key, logits / 4, 0.3, backend)
    leaves = [
        query.requires_grad_(),
        key.requires_grad_(),
        units.clone().requires_grad_(),
        logits.requires_grad_(),
    ]
    torch.manual_seed(0)
    output = attention(leaves[0], leaves[1], leaves[2], leaves[3] / 4, dropout_p=0.3, backend=backend)
    grads = torch.autograd.grad(output, leaves, upstream)
    expected, (dq, dk, dv, dm) = oracle(
        query.detach(), key.detach(), units, logits.detach() / 4, upstream, factor=factor
    )
    assert_matches((output.detach(), grads), (expected, (dq, dk, dv, dm / 4)), 1e-5)
