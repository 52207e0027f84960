"""CUDA backend in Triton: forward, two backward kernels, and a bias gradient without atomics.

The bias gradient is summed over the batch in the kernel that owns its tile (in float32, in a fixed order), so
it is deterministic and its memory does not grow with the batch. Imported only where Triton is wanted; the
tests run it in Triton's interpreter on the CPU (TRITON_INTERPRET=1).
"""

from typing import Any

import torch
import triton
from torch import Tensor

from maskprior.kernels import triton_kernels
from maskprior.kernels.operators import Gradients, Needs, define_operator, empty_gradients, empty_output
from maskprior.kernels.problem import AttentionProblem

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_WIDTH = 256
PROGRAMS = 256  # programs of the bias gradient, at least, where the batch can be split to make them
IS_INTERPRETED = bool(triton.knobs.runtime.interpret)


def lacks(problem: AttentionProblem) -> str:
    """What keeps this backend from the problem; empty if nothing."""
    if problem.query.device.type != "cuda" and not IS_INTERPRETED:
        return f"runs on CUDA, got {problem.query.device.type}"
    if problem.query.dtype not in DTYPES:
        return f"computes float32, bfloat16 and float16, got {problem.query.dtype}"
    width = max(problem.query.shape[3], problem.value.shape[3])
    if width > MAX_WIDTH:
        return f"computes head widths up to {MAX_WIDTH}, got {width}"
    return "has no dropout" if problem.dropout_p > 0 else ""


def forward(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Output, and each query's highest score and logarithm of the total, base 2, ``[B, Hq, Lq, 2]``."""
    problem, output, norm = _whole_rows(problem), empty_output(problem), empty_residual(problem)
    batch, heads, queries, _ = problem.query.shape
    block = _blocks(problem)
    if output.numel() > 0:
        triton_kernels.forward_kernel[triton.cdiv(queries, block["BLOCK_Q"]), batch * heads](
            *_inputs(problem),
            output,
            norm,
            *_strides(problem.query, problem.key, problem.value, output),
            *_constants(problem),
            **block,
        )
    return output, norm


def backward(
    problem: AttentionProblem, output: Tensor, residual: Tensor, gradient: Tensor, needs: Needs
) -> Gradients:
    """Gradients by up to three kernels."""
    problem, grads, gradient = _whole_rows(problem), empty_gradients(problem, needs), _whole(gradient)
    if output.numel() == 0:
        return Gradients._make(grad.zero_() for grad in grads)
    strides = _strides(problem.query, problem.key, problem.value, gradient)
    delta = _delta(problem, output, residual, gradient, strides)
    saved = (*_inputs(problem), gradient, residual, delta)
    if needs.operands:
        _grad_operands(problem, saved, strides, grads)
    if needs.bias and problem.bias is not None:
        _grad_bias(problem, problem.bias, saved, strides, grads.bias)
    return grads


def empty_residual(problem: AttentionProblem) -> Tensor:
    """Room for two numbers of each query."""
    return problem.query.new_empty(*problem.query.shape[:3], 2, dtype=torch.float32)


attention = define_operator("triton", forward, backward, empty_residual, "CUDA")


def _delta(
    problem: AttentionProblem, output: Tensor, norm: Tensor, gradient: Tensor, strides: tuple[int, ...]
) -> Tensor:
    """δ = rowsum(G ∘ O) = rowsum(P ∘ G Vᵀ) of every query."""
    if problem.query.dtype == torch.float32:
        return (gradient * output).sum(-1)
    delta, block = norm.new_empty(norm.shape[:3]), _blocks(problem)
    batch, heads, queries = delta.shape
    triton_kernels.delta_kernel[triton.cdiv(queries, block["BLOCK_Q"]), batch * heads](
        *_inputs(problem), gradient, norm, delta, *strides, *_constants(problem), **block
    )
    return delta


def _grad_operands(
    problem: AttentionProblem, saved: tuple[Any, ...], strides: tuple[int, ...], grads: Gradients
) -> None:
    block = _blocks(problem)
    batch, heads, queries, _ = problem.query.shape
    kv_heads, keys = problem.key.shape[1:3]
    triton_kernels.grad_query_kernel[triton.cdiv(queries, block["BLOCK_Q"]), batch * heads](
        *saved, grads.query, *strides, *_strides(grads.query), *_constants(problem), **block
    )
    triton_kernels.grad_key_value_kernel[triton.cdiv(keys, block["BLOCK_K"]), batch * kv_heads](
        *saved, *grads[1:3], *strides, *_strides(*grads[1:3]), *_constants(problem), **block
    )


def _grad_bias(
    problem: AttentionProblem, bias: Tensor, saved: tuple[Any, ...], strides: tuple[int, ...], grad: Tensor
) -> None:
    """Tiles of the bias, each summed over the batch; over parts of the batch where there are few tiles."""
    block = _blocks(problem)
    batch = problem.query.shape[0]
    planes, queries, keys = bias.shape
    grid = triton.cdiv(queries, block["BLOCK_Q"]), triton.cdiv(keys, block["BLOCK_K"])
    splits = min(batch, triton.cdiv(PROGRAMS, grid[0] * grid[1] * planes))
    parts = grad if splits == 1 else grad.new_empty(splits, *grad.shape)
    triton_kernels.grad_bias_kernel[(*grid, planes * splits)](
        *saved, parts, *strides, *_constants(problem), batch, planes, splits, **block
    )
    if splits > 1:
        torch.sum(parts, 0, out=grad)


def _whole(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _whole_rows(problem: AttentionProblem) -> AttentionProblem:
    query, key, value, bias = problem[:4]
    bias = None if bias is None else _whole(bias)
    return problem._replace(query=_whole(query), key=_whole(key), value=_whole(value), bias=bias)


def _inputs(problem: AttentionProblem) -> tuple[Any, ...]:
    allowed = problem.allowed
    return (*problem[:4], None if allowed is None else allowed.view(torch.uint8))


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Strides of item, head and row of each."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


def _constants(problem: AttentionProblem) -> tuple[float, ...]:
    """Strides of bias and `allowed` (0 where they are broadcast), sizes and scale."""
    bias, allowed = problem.bias, problem.allowed
    bias_head = 0 if bias is None or bias.shape[0] == 1 else bias.stride(0)
    bias_row = 0 if bias is None else bias.stride(1)
    broadcast: tuple[int, ...] = (0, 0, 0, 0)
    if allowed is not None:
        sizes_and_strides = zip(allowed.shape, allowed.stride(), strict=True)
        broadcast = tuple(stride if size > 1 else 0 for size, stride in sizes_and_strides)
    heads, queries, width = problem.query.shape[1:]
    kv_heads, keys, value_width = problem.value.shape[1:]
    sizes = heads, heads // kv_heads, queries, keys, width, value_width
    return (bias_head, bias_row, *broadcast, *sizes, problem.scale)


def _blocks(problem: AttentionProblem) -> dict[str, Any]:
    """Compile-time constants: tile sizes are powers of two from 16 on, as the matrix units want."""
    width, value_width = (max(16, triton.next_power_of_2(t.shape[3])) for t in (problem.query, problem.value))
    longest = 64 if max(width, value_width) <= 128 else 32
    rows, columns = (
        min(longest, max(16, triton.next_power_of_2(t.shape[2]))) for t in (problem.query, problem.key)
    )
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "IS_CAUSAL": problem.is_causal,
        "PRECISION": "ieee" if exact or problem.query.dtype != torch.float32 else "tf32",
        "BLOCK_Q": rows,
        "BLOCK_K": columns,
        "WIDTH": width,
        "VALUE_WIDTH": value_width,
    }
