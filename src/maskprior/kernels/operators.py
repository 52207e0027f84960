"""Custom operators: a forward and a backward function become `torch.ops.maskprior.<name>` with autograd.

Under torch.compile a kernel is one opaque node whose shapes its fake version tells. The backward is an
operator of its own, so that its graph can be traced as well; it has no derivative.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskprior.kernels.problem import AttentionProblem


class Gradients(NamedTuple):
    """Gradients of an attention problem; what is not needed is an empty tensor."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor


class Needs(NamedTuple):
    """Which gradients are needed: those of query, key and value together, and that of the bias."""

    operands: bool
    bias: bool


# forward(problem) → output, residual (whatever the backward needs to keep)
Forward = Callable[[AttentionProblem], tuple[Tensor, Tensor]]
# backward(problem, output, residual, gradient of the output, needs)
Backward = Callable[[AttentionProblem, Tensor, Tensor, Tensor, Needs], Gradients]

_PROBLEM = (
    "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? allowed, "
    "bool is_causal, float scale, float dropout_p, Tensor? seed"
)
_FIELDS = len(AttentionProblem._fields)
_LIBRARY = torch.library.Library("maskprior", "DEF")


def define_operator(
    name: str,
    forward: Forward,
    backward: Backward,
    empty_residual: Callable[[AttentionProblem], Tensor],
    device: str,
) -> Callable[[AttentionProblem], Tensor]:
    """Register the operators ``<name>`` and ``<name>_backward`` and return the differentiable function.

    Args:
        name: of the backend.
        forward: output and residual of a problem.
        backward: gradients of a problem.
        empty_residual: an uninitialised residual of the right shape.
        device: dispatch key of the implementation, "CPU" or "CUDA".
    """
    _LIBRARY.define(f"{name}({_PROBLEM}) -> (Tensor output, Tensor residual)")
    _LIBRARY.define(
        f"{name}_backward({_PROBLEM}, Tensor output, Tensor residual, Tensor gradient, "
        "bool needs_operands, bool needs_bias) -> (Tensor, Tensor, Tensor, Tensor)"
    )
    _LIBRARY.impl(name, lambda *problem: forward(AttentionProblem(*problem)), device)
    _LIBRARY.impl(f"{name}_backward", lambda *arguments: _call_backward(backward, *arguments), device)

    def fake(*arguments: Any) -> tuple[Tensor, Tensor]:
        problem = AttentionProblem(*arguments)
        return empty_output(problem), empty_residual(problem)

    def fake_backward(*arguments: Any) -> Gradients:
        return empty_gradients(AttentionProblem(*arguments[:_FIELDS]), Needs(*arguments[-2:]))

    torch.library.register_fake(f"maskprior::{name}", fake, lib=_LIBRARY)
    torch.library.register_fake(f"maskprior::{name}_backward", fake_backward, lib=_LIBRARY)
    _register_autograd(name)
    operator = getattr(torch.ops.maskprior, name).default

    def differentiable(problem: AttentionProblem) -> Tensor:
        output: Tensor = operator(*problem)[0]
        return output

    return differentiable


def empty_output(problem: AttentionProblem) -> Tensor:
    """Uninitialised ``[B, Hq, Lq, dv]``, stored as [B, Lq, Hq, dv]: joining the heads then copies nothing."""
    batch, heads, queries, _ = problem.query.shape
    return problem.query.new_empty(batch, queries, heads, problem.value.shape[3]).transpose(1, 2)


def empty_gradients(problem: AttentionProblem, needs: Needs) -> Gradients:
    """Uninitialised gradients, stored as the output is; what is not needed is empty."""
    query, key, value, bias = problem[:4]
    nothing = query.new_empty(0)
    return Gradients(
        _heads_inside(query) if needs.operands else nothing,
        _heads_inside(key) if needs.operands else nothing,
        _heads_inside(value) if needs.operands else nothing,
        bias.new_empty(bias.shape) if bias is not None and needs.bias else nothing,
    )


def _heads_inside(tensor: Tensor) -> Tensor:
    batch, heads, length, width = tensor.shape
    return tensor.new_empty(batch, length, heads, width).transpose(1, 2)


def _call_backward(backward: Backward, *arguments: Any) -> Gradients:
    output, residual, gradient, needs_operands, needs_bias = arguments[_FIELDS:]
    problem = AttentionProblem(*arguments[:_FIELDS])
    return backward(problem, output, residual, gradient, Needs(needs_operands, needs_bias))


def _register_autograd(name: str) -> None:
    backward_operator = getattr(torch.ops.maskprior, f"{name}_backward").default

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        problem = AttentionProblem(*inputs)
        ctx.constants = problem.is_causal, problem.scale, problem.dropout_p
        ctx.save_for_backward(*problem[:5], problem.seed, *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return (None,) * _FIELDS
        *tensors, seed, output, residual = ctx.saved_tensors
        operands, bias = any(ctx.needs_input_grad[:3]), ctx.needs_input_grad[3]
        grads = backward_operator(*tensors, *ctx.constants, seed, output, residual, gradient, operands, bias)
        needed = zip(ctx.needs_input_grad, grads, strict=False)
        return (*(grad if needs else None for needs, grad in needed), *(None,) * (_FIELDS - 4))

    def refuse_second_derivative(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(f"the {name} backend has no second derivative; use backend='reference', which has")

    register = torch.library.register_autograd
    register(f"maskprior::{name}", backward, setup_context=setup_context, lib=_LIBRARY)
    register(f"maskprior::{name}_backward", refuse_second_derivative, lib=_LIBRARY)
