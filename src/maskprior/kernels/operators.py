"""Custom operators: a forward and a backward function become `torch.ops.maskprior.<name>` with autograd.

Under torch.compile a kernel is one opaque node whose shapes its fake version tells. The backward is an
operator of its own, so that its graph can be traced as well; it has no derivative. Eager calls on plain
tensors skip the operator (its dispatch costs more than a small problem) and are one autograd function.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

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
_NO_GRADIENTS = (None,) * _FIELDS
_PLAIN = (Tensor, nn.Parameter)
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

    def fake(*arguments: Any) -> tuple[Tensor, Tensor]:
        problem = AttentionProblem(*arguments)
        return empty_output(problem), empty_residual(problem)

    def fake_backward(*arguments: Any) -> Gradients:
        return empty_gradients(AttentionProblem(*arguments[:_FIELDS]), Needs(*arguments[-2:]))

    def call_backward(*arguments: Any) -> Gradients:
        problem = AttentionProblem(*arguments[:_FIELDS])
        output, residual, gradient, operands, bias = arguments[_FIELDS:]
        return backward(problem, output, residual, gradient, Needs(operands, bias))

    outputs, more = "(Tensor output, Tensor residual)", "Tensor output, Tensor residual, Tensor gradient"
    operator = _register(
        f"{name}({_PROBLEM}) -> {outputs}", lambda *problem: forward(AttentionProblem(*problem)), fake, device
    )
    backward_operator = _register(
        f"{name}_backward({_PROBLEM}, {more}, bool needs_operands, bool needs_bias) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        call_backward,
        fake_backward,
        device,
    )

    def refuse_second_derivative(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(f"the {name} backend has no second derivative; backend='reference' has")

    def traced_backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, gradient, backward_operator)

    register = torch.library.register_autograd
    register(f"maskprior::{name}", traced_backward, setup_context=_save, lib=_LIBRARY)
    register(f"maskprior::{name}_backward", refuse_second_derivative, lib=_LIBRARY)

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
            outputs = forward(AttentionProblem(*arguments))
            _save(ctx, arguments, outputs)
            return outputs

        @staticmethod
        def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
            # Where the backward is recorded the operator is called, as it refuses to be differentiated.
            run = backward_operator if torch.is_grad_enabled() else call_backward
            return _differentiate(ctx, gradient, run)

    def differentiable(problem: AttentionProblem) -> Tensor:
        output: Tensor
        if torch.compiler.is_compiling() or not is_plain(problem):
            output = operator(*problem)[0]
        else:
            output = Eager.apply(*problem)[0]
        return output

    return differentiable


def transform_on(*tensors: Tensor | None) -> str:
    """What of torch needs derivatives or batches that an operator does not define; empty if nothing does."""
    if torch.compiler.is_compiling():
        return ""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "the transforms of torch.func"
    is_dual = forward_ad._current_level >= 0 and any(
        tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
    )
    return "forward-mode derivatives" if is_dual else ""


def empty_output(problem: AttentionProblem) -> Tensor:
    """Uninitialised ``[B, Hq, Lq, dv]``, stored as [B, Lq, Hq, dv]: joining the heads then copies nothing."""
    batch, heads, queries, _ = problem.query.shape
    return _heads_inside(problem.query, (batch, heads, queries, problem.value.shape[3]))


def empty_gradients(problem: AttentionProblem, needs: Needs) -> Gradients:
    """Uninitialised gradients; what is not needed is empty.

    Those of contiguous operands are contiguous, as the leaves that they may be want them. Others are stored
    as the output is, and in self-attention interleaved, [B, L, 3, H, d], as the operands of a fused
    projection are: the gradient of its output is then that storage as it stands (see ``unpack`` in
    ``maskprior.models``).
    """
    query, key, value, bias = problem[:4]
    nothing = query.new_empty(0)
    bias_gradient = bias.new_empty(bias.shape) if bias is not None and needs.bias else nothing
    if not needs.operands:
        return Gradients(nothing, nothing, nothing, bias_gradient)
    if query.is_contiguous() and key.is_contiguous() and value.is_contiguous():
        like = torch.contiguous_format
        query, key, value = (torch.empty_like(part, memory_format=like) for part in (query, key, value))
        return Gradients(query, key, value, bias_gradient)
    if query.shape == key.shape == value.shape:
        batch, heads, length, width = query.shape
        packed = query.new_empty(batch, length, 3, heads, width).permute(2, 0, 3, 1, 4)
        return Gradients(packed[0], packed[1], packed[2], bias_gradient)
    stored = (
        _heads_inside(query, query.shape),
        _heads_inside(key, key.shape),
        _heads_inside(value, value.shape),
    )
    return Gradients(*stored, bias_gradient)


def _heads_inside(like: Tensor, shape: Sequence[int]) -> Tensor:
    _, heads, length, width = shape
    return like.new_empty_strided(shape, (length * heads * width, width, heads * width, 1))


def _register(
    schema: str, implementation: Callable[..., Any], fake: Callable[..., Any], device: str
) -> Callable[..., Any]:
    name = schema[: schema.index("(")]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, implementation, device)
    torch.library.register_fake(f"maskprior::{name}", fake, lib=_LIBRARY)
    overload: Callable[..., Any] = getattr(torch.ops.maskprior, name).default
    return overload


def is_plain(problem: AttentionProblem) -> bool:
    """Whether nothing (fake tensors, subclasses, tracing modes) must see the operator, or hides values."""
    tensors = (problem.query, problem.key, problem.value)
    plain = all(type(tensor) in _PLAIN for tensor in tensors)
    return plain and torch._C._len_torch_dispatch_stack() == 0


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, is_causal, scale, dropout_p, seed = inputs
    ctx.constants = is_causal, scale, dropout_p
    ctx.save_for_backward(*tensors, seed, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, gradient: Tensor | None, backward: Callable[..., Gradients]
) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return _NO_GRADIENTS
    *tensors, seed, output, residual = ctx.saved_tensors
    needed = ctx.needs_input_grad[:4]
    grads = backward(*tensors, *ctx.constants, seed, output, residual, gradient, any(needed[:3]), needed[3])
    return (*(grad if needs else None for needs, grad in zip(needed, grads, strict=True)), *_NO_GRADIENTS[4:])
