"""Which backend computes what, and what is said when one cannot."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from maskprior.functional import attention
from maskprior.kernels import BACKENDS, BackendChoice, dispatch, native, select_backend


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.randn(3, 2, 3, 5, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    return query, key, value


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", native.Library(None, 0, "was not built"))


def need_library(backend: str) -> None:
    if backend == "native" and native.LIBRARY.functions is None:
        pytest.skip(native.LIBRARY.reason)


@pytest.fixture
def with_native() -> None:
    need_library("native")


@pytest.mark.usefixtures("with_native")
def test_the_cpu_takes_the_native_library() -> None:
    assert select_backend(*operands()) == BackendChoice("native", "C++ tiles that stay in the cache")
    assert select_backend(*operands(torch.bfloat16)).name == "native"


@pytest.mark.usefixtures("with_native")
def test_other_types_fall_to_torchs_products_and_say_why() -> None:
    name, reason = select_backend(*operands(torch.float64))
    assert name == "aten"
    assert reason == (
        "torch's own products over blocks; native computes float32 and bfloat16, got torch.float64"
    )


@pytest.mark.usefixtures("without_native")
def test_without_the_library_everything_works() -> None:
    name, reason = select_backend(*operands())
    assert (name, reason) == ("aten", "torch's own products over blocks; native was not built")
    expected = attention(*operands(), backend="reference")
    torch.testing.assert_close(attention(*operands()), expected, rtol=0, atol=1e-6)


def test_weights_come_from_the_reference() -> None:
    name, reason = select_backend(*operands(), need_weights=True)
    assert name == "reference"
    assert reason.endswith("native does not return weights; aten does not return weights")


def test_what_is_asked_for_is_taken() -> None:
    for backend in ("reference", "aten", "sdpa", "flex"):
        assert select_backend(*operands(), backend=backend) == BackendChoice(backend, "it was asked for")


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"expected backend in \('auto', 'native', .*'reference'\), got 'cuda'"
    ):
        select_backend(*operands(), backend="cuda")


@pytest.mark.parametrize(
    ("backend", "dtype", "options", "message"),
    [
        ("native", torch.float16, {}, r"native backend computes float32 and bfloat16, got torch.float16"),
        ("aten", torch.float32, {"need_weights": True}, "aten backend does not return weights"),
        ("sdpa", torch.float32, {"need_weights": True}, "sdpa backend does not return weights"),
        ("flex", torch.float64, {}, "flex backend computes float32, bfloat16 and float16, got torch.float64"),
        ("flex", torch.float32, {"dropout_p": 0.5}, "flex backend has no dropout"),
        ("triton", torch.float32, {}, "triton backend (runs on CUDA, got cpu|needs the package triton)"),
    ],
)
@pytest.mark.usefixtures("with_native")
def test_a_backend_that_cannot_names_one_that_can(
    backend: str, dtype: torch.dtype, options: dict[str, bool], message: str
) -> None:
    query, key, value = operands(dtype)
    with pytest.raises(
        ValueError, match=message + r"; backend='(native|aten|reference)' can do what is asked"
    ):
        select_backend(query, key, value, backend=backend, **options)  # type: ignore[arg-type]


def test_flex_refuses_gradients_on_the_cpu() -> None:
    query, key, value = operands()
    bias = torch.zeros(5, 5, requires_grad=True)
    with pytest.raises(ValueError, match="the flex backend has no backward on the CPU; backend="):
        attention(query, key, value, bias=bias, backend="flex")
    with torch.no_grad():
        assert select_backend(query, key, value, bias=bias, backend="flex").name == "flex"


# Where it is not compiled FlexAttention says so.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("bias_heads", [1, 4])
@pytest.mark.parametrize("allowed_shape", [None, (3, 1, 1, 7), (1, 4, 5, 7)])
def test_flex_computes_the_equation(
    allowed_shape: tuple[int, ...] | None, bias_heads: int, is_causal: bool
) -> None:
    rng = torch.Generator().manual_seed(0)
    query, key = torch.randn(3, 4, 5, 16, generator=rng), torch.randn(3, 2, 7, 16, generator=rng)
    bias = torch.randn(bias_heads, 5, 7, generator=rng)
    allowed = None if allowed_shape is None else torch.rand(allowed_shape, generator=rng) < 0.7

    def call(backend: str) -> Tensor:
        return attention(
            query, key, key, bias=bias, allowed=allowed, is_causal=is_causal, scale=0.3, backend=backend
        )

    torch.testing.assert_close(call("flex"), call("reference"), rtol=0, atol=2e-6)


def test_the_choice_can_be_asked_for_a_call_that_is_not_valid() -> None:
    query, key, value = operands()
    with pytest.raises(TypeError, match=r"expected the bias as a floating tensor, got torch\.bool"):
        select_backend(query, key, value, bias=torch.ones(5, 5, dtype=torch.bool))


@pytest.mark.parametrize("backend", ["native", "aten", "reference", "sdpa", "flex"])
def test_a_bias_of_plus_infinity_is_refused(backend: str) -> None:
    need_library(backend)
    bias = torch.zeros(5, 5)
    bias[2, 3] = float("inf")
    with pytest.raises(ValueError, match=r"expected a bias below \+∞"):
        attention(*operands(), bias=bias, backend=backend)


@pytest.mark.parametrize("backend", ["native", "aten"])
def test_second_derivatives_are_refused_with_the_way_out(backend: str) -> None:
    need_library(backend)
    query, key, value = operands()
    query.requires_grad_()
    output = attention(query, key, value, backend=backend)
    (grad,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with pytest.raises(
        RuntimeError, match=f"{backend} backend has no second derivative; backend='reference' has"
    ):
        grad.sum().backward()


def test_every_backend_is_named_once() -> None:
    assert len(set(BACKENDS)) == len(BACKENDS)
    assert {*dispatch.ON_CPU, *dispatch.ON_CUDA, *dispatch.ELSEWHERE, "flex", "auto"} == set(BACKENDS)


def test_the_fall_to_sdpa_on_cuda_is_said_once(recwarn: pytest.WarningsRecorder) -> None:
    dispatch._warn_of_sdpa.cache_clear()
    for _ in range(2):
        dispatch._warn_of_sdpa("has no dropout")
    (warning,) = recwarn
    assert "falls to torch's SDPA" in str(warning.message)
    assert "because the triton backend has no dropout" in str(warning.message)


def test_the_logits_may_be_given_in_place_of_the_bias() -> None:
    query, key, value = operands(torch.float64)
    logits = torch.zeros(3, 5, 5)
    assert select_backend(query, key, value, logits) == select_backend(query, key, value, bias=logits)
    with pytest.raises(ValueError, match="expected mask_logits or bias, got both"):
        select_backend(query, key, value, logits, bias=logits)
    with pytest.raises(ValueError, match=r"got \[4, 5, 5\]; of a larger M take the part \[..., :Lq, :Lk\]"):
        select_backend(query, key, value, torch.zeros(4, 5, 5))


LOGITS = torch.randn(3, 70, 70, generator=torch.Generator().manual_seed(1))  # large enough for the fast log σ


def of_value(value: Tensor, backend: str = "auto") -> Tensor:
    query = torch.linspace(-1, 1, 2 * 3 * 70 * 8).view(2, 3, 70, 8)
    return attention(query, query.flip(0), value, LOGITS, backend=backend)


def test_functional_transforms_take_the_equation() -> None:
    value = torch.randn(2, 3, 70, 8, generator=torch.Generator().manual_seed(2))
    leaf = value.clone().requires_grad_()
    of_value(leaf, "reference").pow(2).sum().backward()
    found = torch.func.grad(lambda v: of_value(v).pow(2).sum())(value)
    torch.testing.assert_close(found, leaf.grad)
    tangent = torch.func.jvp(of_value, (value,), (value,))[1]
    torch.testing.assert_close(tangent, of_value(value))  # linear in the value
    torch.testing.assert_close(torch.vmap(of_value)(value[None])[0], of_value(value))
    gradient = torch.func.grad(lambda m: attention(value, value, value, m).pow(2).sum())(LOGITS)
    assert gradient.abs().max() > 0


def test_forward_mode_takes_the_equation() -> None:
    value = torch.randn(2, 3, 70, 8, generator=torch.Generator().manual_seed(2))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(of_value(forward_ad.make_dual(value, value)))
        logits = forward_ad.make_dual(LOGITS, torch.ones_like(LOGITS))
        of_logits = forward_ad.unpack_dual(attention(value, value, value, logits))
    torch.testing.assert_close(found.tangent, found.primal)
    assert of_logits.tangent.abs().max() > 0


@pytest.mark.parametrize("backend", ["native", "aten"])
def test_an_operator_under_a_transform_names_the_equation(backend: str) -> None:
    need_library(backend)
    value = torch.ones(2, 3, 70, 8)
    message = "does not take the transforms of torch.func; backend='reference' can"
    with pytest.raises(ValueError, match=message):
        torch.func.grad(lambda v: of_value(v, backend).sum())(value)
    with forward_ad.dual_level(), pytest.raises(ValueError, match="does not take forward-mode derivatives"):
        of_value(forward_ad.make_dual(value, value), backend)


@pytest.mark.parametrize("backend", ["auto", "native", "aten", "reference", "sdpa"])
def test_tensors_of_another_device_are_refused(backend: str) -> None:
    need_library(backend)
    query, key, value = operands()
    logits, allowed = torch.zeros(5, 5), torch.ones(5, 5, dtype=torch.bool)
    right = {"query": query, "key": key, "value": value, "mask_logits": logits, "allowed": allowed}
    for name in ("key", "value", "mask_logits", "allowed"):
        wrong = {**right, name: right[name].to("meta")}
        with pytest.raises(ValueError, match=f"expected .*{name}.* on the query's device cpu, got meta"):
            attention(**wrong, backend=backend)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": [1.0]}, "expected query as a tensor, got list"),
        ({"value": None}, "expected value as a tensor, got NoneType"),
        ({"allowed": [True]}, "expected `allowed` as a tensor, got list"),
        ({"mask_logits": LOGITS.numpy()}, "expected mask_logits as a floating tensor, got ndarray"),
        ({"scale": torch.tensor(0.3)}, "expected scale as a number, got Tensor"),
        ({"scale": "0.3"}, "expected scale as a number, got str"),
        ({"dropout_p": "0.1"}, "expected dropout_p as a number, got str"),
        (
            {"is_causal": torch.ones(5, 5)},
            "expected is_causal as True or False, got Tensor; a pattern belongs",
        ),
    ],
)
def test_arguments_of_the_wrong_type_are_named(change: dict[str, object], message: str) -> None:
    query, key, value = operands()
    with pytest.raises(TypeError, match=message):
        attention(**{"query": query, "key": key, "value": value, **change})  # type: ignore[call-overload]


def test_numbers_of_other_libraries_are_numbers() -> None:
    query, key, value = operands()
    scale: Any = np.float32(0.3)
    torch.testing.assert_close(
        attention(query, key, value, scale=scale), attention(query, key, value, scale=float(scale))
    )


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_the_scale_is_finite(scale: float) -> None:
    with pytest.raises(ValueError, match="expected a finite scale, got"):
        attention(*operands(), scale=scale)


def test_meta_tensors_tell_the_shape() -> None:
    query = torch.empty(2, 3, 5, 16, device="meta", requires_grad=True)
    output = attention(query, query, query, torch.empty(3, 5, 5, device="meta"))
    assert output.shape == query.shape
    output.sum().backward()
    assert query.grad is not None
