"""The contract: every host goes through the same list. The table of the results is in docs/attach.md."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor, nn

from maskprior.functional import logits_to_bias, structure_to_logits
from maskprior.integrations import Attachment, attach

SUPPRESSED = -3.0


class Host(Protocol):
    """What the contract uses of a host (see conftest.py)."""

    name: str
    structure: Tensor
    block: str
    without: dict[str, str]

    def build(self) -> nn.Module: ...
    def run(self, model: nn.Module) -> Tensor: ...
    def expected(self, model: nn.Module, bias: Tensor) -> Tensor: ...
    def checkpointed(self, model: nn.Module) -> object: ...
    def padded(self, model: nn.Module) -> tuple[Tensor, Tensor]: ...


def attached(host: Host, **options: Any) -> tuple[nn.Module, Attachment]:
    model = host.build()
    return model, attach(model, host.structure, suppressed_logit=SUPPRESSED, **options)


def close(actual: Tensor, expected: Tensor, tolerance: float = 2e-6) -> bool:
    """Equal up to the tolerance times the size of the outputs."""
    return bool((actual - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1.0))


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Models and inputs in float64, so that rounding does not blur an equality."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_precision")
def test_attach_uniform_changes_nothing(host: Host) -> None:
    model = host.build()
    before = host.run(model)
    attachment = attach(model, torch.ones_like(host.structure))
    assert len(attachment.priors) == len(attachment.layers) >= 1
    assert host.run(model).dtype == torch.float64
    assert (host.run(model) - before).abs().max() <= 1e-6


def test_effect_in_training_and_in_evaluation(host: Host) -> None:
    model, _ = attached(host)
    plain = host.build()
    assert (host.run(model) - host.run(plain)).abs().max() > 0.05
    with torch.no_grad():
        assert torch.equal(host.run(model), host.run(model))
        assert (host.run(model) - host.run(plain)).abs().max() > 0.05
    assert (host.run(model.train()) - host.run(plain.train())).abs().max() > 0.05


def test_equation_is_the_hosts_own_with_the_bias_added(host: Host) -> None:
    model, _ = attached(host)
    bias = logits_to_bias(structure_to_logits(host.structure, suppressed_logit=SUPPRESSED))
    expected = host.expected(host.build(), bias)
    assert close(host.run(model), expected)
    with torch.no_grad():
        assert close(host.run(model), expected)


def test_disable_gives_the_plain_model(host: Host) -> None:
    model, attachment = attached(host)
    with torch.no_grad():
        plain, changed = host.run(host.build()), host.run(model)
        with attachment.disabled():
            assert torch.equal(host.run(model), plain)
        assert torch.equal(host.run(model), changed)


def test_detach_leaves_no_trace(host: Host) -> None:
    model, attachment = attached(host)
    attachment.detach()
    plain = host.build()
    with torch.no_grad():
        assert torch.equal(host.run(model), host.run(plain))
    assert list(model.state_dict()) == list(plain.state_dict())
    for one, other in zip(model.modules(), plain.modules(), strict=True):
        assert vars(one).keys() == vars(other).keys()
        assert type(one) is type(other)


def test_copy_is_independent(host: Host) -> None:
    model, attachment = attached(host)
    twin = copy.deepcopy(model)
    before = host.run(twin)
    with torch.no_grad():
        attachment.priors[0].mask_logits.zero_()
    assert torch.equal(host.run(twin), before)
    assert not torch.equal(host.run(model), before)
    Attachment.of(twin).detach()
    assert close(host.run(twin), host.run(host.build()))


def test_save_puts_each_prior_into_the_state_once(host: Host) -> None:
    model, attachment = attached(host, share=True)
    keys = [key for key in model.state_dict() if key not in host.build().state_dict()]
    assert keys == ["bias_priors.0.mask_logits"]
    other, _ = attached(host, share=True)
    with torch.no_grad():
        attachment.priors[0].mask_logits.normal_()
    other.load_state_dict(model.state_dict())
    assert torch.equal(host.run(other), host.run(model))


def test_load_restores_an_attachment_from_its_directory(host: Host, tmp_path: Path) -> None:
    model, attachment = attached(host)
    with torch.no_grad():
        attachment.priors[-1].mask_logits.normal_()
    attachment.save_pretrained(tmp_path)
    other = host.build()
    loaded = Attachment.load(other, tmp_path)
    assert loaded.layers == attachment.layers
    assert torch.equal(host.run(other), host.run(model))


def inputs_of(model: nn.Module, block: nn.Module, host: Host) -> tuple[Any, Any]:
    """What the block is called with in the model."""
    seen: list[tuple[Any, Any]] = []

    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append((args, kwargs))

    handle = block.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        host.run(model)
    handle.remove()
    return seen[0]


def first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def test_compile_takes_the_block_as_one_graph(host: Host) -> None:
    model, attachment = attached(host, share=True)
    block = model.get_submodule(host.block)
    args, kwargs = inputs_of(model, block, host)
    expected = first(block(*args, **kwargs))
    # Tracing is what differs between hosts; test_runtime.py compiles the traced graph.
    compiled = torch.compile(block, fullgraph=True, backend="eager")
    output = first(compiled(*args, **kwargs))
    assert close(output, expected)
    (gradient,) = torch.autograd.grad(output.square().sum(), [attachment.priors[0].mask_logits])
    assert gradient.abs().max() > 0


def test_bf16_keeps_m_in_float32(host: Host) -> None:
    model, attachment = attached(host)
    reference = host.run(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = host.run(model)
    automatic.float().square().sum().backward()
    assert all(prior.mask_logits.grad is not None for prior in attachment.priors)
    assert close(automatic.float(), reference, tolerance=0.15)
    model.bfloat16()
    assert all(prior.mask_logits.dtype == torch.float32 for prior in attachment.priors)


def gradients(host: Host, checkpointing: bool) -> tuple[list[Tensor], int]:
    """Gradients of every M, and how often the first attention module ran."""
    model, attachment = attached(host)
    runs: list[object] = []
    model.get_submodule(attachment.layers[0]).register_forward_hook(lambda *call: runs.append(None))
    if checkpointing:
        host.checkpointed(model)
    host.run(model.train()).square().sum().backward()
    found = [prior.mask_logits.grad for prior in attachment.priors]
    return [gradient for gradient in found if gradient is not None], len(runs)


def test_checkpointing_gives_the_same_gradients(deep_host: Host) -> None:
    (plain, once), (checkpointed, twice) = gradients(deep_host, False), gradients(deep_host, True)
    assert (once, twice) == (1, 2)
    assert len(plain) == len(checkpointed) >= 1
    for one, other in zip(plain, checkpointed, strict=True):
        assert one.abs().max() > 0
        assert close(other, one, tolerance=1e-5)


def test_padding_leaves_real_tokens_alone(padded_host: Host) -> None:
    model, _ = attached(padded_host, lengths="slice")
    padded, short = padded_host.padded(model)
    assert close(padded, short)
    plain, _ = padded_host.padded(padded_host.build())
    assert not close(padded, plain, tolerance=0.01)
