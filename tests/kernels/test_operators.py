"""The kernels as operators: registration, torch.compile without breaks, few graphs, memory layout."""

from collections.abc import Callable

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from maskprior.functional import attention
from maskprior.kernels import aten, native
from maskprior.kernels.problem import make_problem

LENGTHS = (5, 16, 17, 43, 64, 65, 77, 192, 197, 300)


@pytest.fixture(params=["native", "aten"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and native.LIBRARY.functions is None:
        pytest.skip(native.LIBRARY.reason)
    return str(request.param)


def leaves(length: int, seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = [(2, 4, length, 8), (2, 2, length, 8), (2, 2, length, 8), (4, length, length)]
    return [torch.randn(shape, generator=rng).requires_grad_() for shape in shapes]


def compiled(
    function: Callable[..., Tensor], *, dynamic: bool | None = None
) -> tuple[Callable[..., Tensor], CompileCounterWithBackend]:
    """The function compiled with no graph break allowed, and the counter of its graphs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, dynamic=dynamic, backend=counter), counter


def test_ten_lengths_take_at_most_two_graphs(backend: str) -> None:
    def call(query: Tensor, key: Tensor, value: Tensor, logits: Tensor) -> Tensor:
        return attention(query, key, value, logits, backend=backend)

    function, counter = compiled(call, dynamic=True)
    for length in LENGTHS:
        tensors = leaves(length)
        outputs = [run(*tensors) for run in (function, call)]
        torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-6)
        grads = [torch.autograd.grad(output.square().sum(), tensors) for output in outputs]
        torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=2e-5)
    assert counter.frame_count <= 2


def test_new_values_take_no_new_graph(backend: str) -> None:
    function, counter = compiled(lambda q, k, v, m: attention(q, k, v, m, backend=backend))
    for seed in range(3):
        tensors = leaves(17, seed)
        expected = attention(*tensors, backend="reference")
        torch.testing.assert_close(function(*tensors), expected, rtol=0, atol=1e-6)
    assert counter.frame_count == 1


def test_every_option_compiles(backend: str) -> None:
    def call(query: Tensor, key: Tensor, value: Tensor, logits: Tensor, allowed: Tensor) -> Tensor:
        plain = attention(query, key, value, logits, allowed=allowed, is_causal=True, backend=backend)
        dropped = attention(query, key, value, logits, dropout_p=0.3, backend=backend)
        return plain + 0 * dropped

    function, counter = compiled(call)
    arguments = [*leaves(17), torch.arange(17) < 11]
    torch.testing.assert_close(function(*arguments), call(*arguments), rtol=0, atol=1e-6)
    function(*arguments).sum().backward()
    assert counter.frame_count == 1


def test_autocast_compiles(backend: str) -> None:
    function, _ = compiled(lambda q, k, v, m: attention(q, k, v, m, backend=backend))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert function(*leaves(17)).dtype == torch.bfloat16


# The check itself reads the gradients of copies.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("constraint", ["none", "bias", "allowed", "all"])
def test_operators_are_registered_rightly(constraint: str, backend: str) -> None:
    query, key, value, bias = leaves(5)
    problem = make_problem(
        query,
        key,
        value,
        bias=bias if constraint in ("bias", "all") else None,
        allowed=torch.ones(5, 5, dtype=torch.bool) if constraint in ("allowed", "all") else None,
        is_causal=constraint == "all",
    )
    # What the backward keeps may differ in nothing between the real and the fake operator; autograd, tracing
    # with static and with dynamic shapes agree with the eager operator.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(getattr(torch.ops.maskprior, backend).default, tuple(problem), test_utils=tests)


def test_the_operator_and_the_eager_shortcut_agree(backend: str) -> None:
    tensors = leaves(17)
    problem = make_problem(tensors[0], tensors[1], tensors[2], bias=tensors[3])
    eager = {"native": native, "aten": aten}[backend].attention(problem)
    operator = getattr(torch.ops.maskprior, backend)(*problem)[0]
    assert torch.equal(eager, operator)
    for left, right in zip(
        torch.autograd.grad(eager.sum(), tensors), torch.autograd.grad(operator.sum(), tensors), strict=True
    ):
        assert torch.equal(left, right)


def test_fake_tensors_take_the_operator(backend: str) -> None:
    with torch._subclasses.FakeTensorMode():
        query = torch.empty(2, 3, 5, 8)
        assert attention(query, query, query, torch.empty(5, 5), backend=backend).shape == query.shape


def test_joining_the_heads_of_the_output_copies_nothing(backend: str) -> None:
    query, key, value, logits = leaves(17)
    output = attention(query, key, value, logits, backend=backend)
    assert output.transpose(1, 2).is_contiguous()


def test_gradients_of_a_fused_projection_lie_as_its_output(backend: str) -> None:
    packed = torch.randn(2, 17, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    query, key, value = (part.detach().requires_grad_() for part in packed.permute(2, 0, 3, 1, 4))
    output = attention(query, key, value, backend=backend)
    grads = torch.autograd.grad(output.square().sum(), (query, key, value))
    assert [grad.stride() for grad in grads] == [query.stride()] * 3
    assert grads[1].data_ptr() - grads[0].data_ptr() == 4 * 4 * 8


def test_no_gradient_is_computed_that_nobody_needs(backend: str) -> None:
    query, key, value, logits = leaves(17)
    output = attention(query, key, value.detach(), logits.detach(), backend=backend)
    (grad,) = torch.autograd.grad(output.sum(), query)
    expected = attention(query, key, value.detach(), logits.detach(), backend="reference")
    torch.testing.assert_close(grad, *torch.autograd.grad(expected.sum(), query), rtol=0, atol=1e-5)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(output.sum(), value.detach())
