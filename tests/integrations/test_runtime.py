"""Compilers, precisions, processes, exporters and adapters around an attached model."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import peft
import pytest
import timm
import torch
import transformers
from torch import Tensor, nn

from maskprior import structures
from maskprior.integrations import Attachment, attach

LENGTH = 7
LINE = structures.linear_distance(LENGTH, reach=5.0)
GRID = structures.with_readout(structures.grid_neighbourhood(3, 3, 1), read_by="all", self_read=True)


def vit(depth: int = 2) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = timm.create_model(
            "vit_tiny_patch16_224",
            img_size=12,
            patch_size=4,
            embed_dim=24,
            depth=depth,
            num_heads=3,
            num_classes=5,
        )
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=1.4 / parameter[0].numel() ** 0.5)
    return model.eval()


def gpt2(depth: int = 2) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            vocab_size=31,
            n_embd=24,
            n_layer=depth,
            n_head=3,
            n_positions=16,
            initializer_range=0.3,
            use_cache=False,
        )
        return transformers.GPT2LMHeadModel(config).train(False)


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def tokens(batch: int = 2) -> Tensor:
    return torch.randint(3, 31, (batch, LENGTH), generator=torch.Generator().manual_seed(1))


def small_gap(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((actual.float() - expected).abs().max() <= tolerance * expected.abs().max())


# Compiling ------------------------------------------------------------------------------------------------


def test_a_compiled_block_has_the_same_outputs_and_gradients_of_m() -> None:
    model = vit(depth=1)
    (prior,) = attach(model, GRID).priors
    block = model.get_submodule("blocks.0")
    x = torch.randn(2, 10, 24, generator=torch.Generator().manual_seed(1))
    expected = block(x)
    (gradient,) = torch.autograd.grad(expected.square().sum(), [prior.mask_logits])
    compiled = torch.compile(block, fullgraph=True)
    output = compiled(x)
    assert small_gap(output, expected, 1e-5)
    (compiled_gradient,) = torch.autograd.grad(output.square().sum(), [prior.mask_logits])
    assert small_gap(compiled_gradient, gradient, 1e-4)
    with torch.no_grad():
        prior.mask_logits.mul_(0.5)  # M is an input of the graph, not a constant in it
    assert small_gap(compiled(x), block(x), 1e-5)
    assert not small_gap(compiled(x), expected, 1e-3)


# Precision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_of_the_host_leaves_m_alone(dtype: torch.dtype) -> None:
    model = vit()
    attachment = attach(model, GRID)
    logits = [prior.mask_logits.detach().clone() for prior in attachment.priors]
    expected = model(images())
    with torch.autocast("cpu", dtype=dtype):
        assert small_gap(model(images()), expected, 0.05)
    model.to(dtype)
    output = model(images().to(dtype))
    assert output.dtype == dtype
    assert small_gap(output, expected, 0.05)
    output.float().square().sum().backward()
    for prior, before in zip(attachment.priors, logits, strict=True):
        assert prior.mask_logits.dtype == torch.float32
        assert torch.equal(prior.mask_logits, before)
        assert prior.mask_logits.grad is not None
        assert bool(prior.mask_logits.grad.isfinite().all())
    model.float()
    assert all(
        torch.equal(p.mask_logits, before) for p, before in zip(attachment.priors, logits, strict=True)
    )


# Processes ------------------------------------------------------------------------------------------------


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("distributed_worker.py")
    commands = [[sys.executable, str(worker), str(rank), str(tmp_path / "meeting")] for rank in range(2)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    outputs = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    lines = outputs[0][0].splitlines()
    assert lines[:2] == ["ddp 6 gradients agree", "fsdp2 6 gradients agree"]
    assert "DistributedDataParallel is distributed already" in lines[2]


# Export ---------------------------------------------------------------------------------------------------


class Logits(nn.Module):
    """A language model as a function from tokens to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(ids).logits
        return logits


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_onnx_runtime_agrees_at_every_batch_size(kind: str, tmp_path: Path) -> None:
    host = vit(depth=1) if kind == "vit" else gpt2(depth=1)
    attach(host, GRID if kind == "vit" else LINE)
    model, inputs = (host, images) if kind == "vit" else (Logits(host), tokens)
    program = torch.onnx.export(
        model,
        (inputs(2),),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        optimize=False,
        verbose=False,
    )
    assert program is not None
    program.save(str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for batch in (1, 5):
        (output,) = session.run(None, {session.get_inputs()[0].name: inputs(batch).numpy()})
        assert (torch.from_numpy(output) - model(inputs(batch))).abs().max() <= 1e-4


# Adapters -------------------------------------------------------------------------------------------------

# PEFT still calls what transformers has renamed.
RENAMED = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def lora(targets: list[str]) -> peft.LoraConfig:
    return peft.LoraConfig(r=2, target_modules=targets, fan_in_fan_out=targets == ["c_attn"])


def trained(model: nn.Module, attachment: Attachment, x: Tensor) -> set[str]:
    """Names of the parameters that one step of an optimiser changes."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(attachment.param_groups(0.1, 0.1))
    output = model(x)
    (output.logits if hasattr(output, "logits") else output).square().sum().backward()
    optimizer.step()
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


@RENAMED
def test_lora_after_attaching_freezes_m_until_it_is_unfrozen() -> None:
    model = gpt2()
    attachment = attach(model, LINE)
    changed = model(tokens()).logits
    adapted = peft.get_peft_model(model, lora(["c_attn"]))
    assert not any(prior.mask_logits.requires_grad for prior in attachment.priors)
    assert torch.equal(adapted(tokens()).logits, changed)
    attachment.unfreeze()
    learned = trained(adapted, attachment, tokens())
    assert sum("bias_priors" in name for name in learned) == 2
    assert all("lora_" in name or "bias_priors" in name for name in learned)


@RENAMED
def test_attaching_after_lora_and_saving_both(tmp_path: Path) -> None:
    adapted = peft.get_peft_model(gpt2(), lora(["c_attn"]))
    attachment = attach(adapted, LINE)
    learned = trained(adapted, attachment, tokens())
    assert any("lora_" in name for name in learned)
    assert sum("bias_priors" in name for name in learned) == 2
    adapted.save_pretrained(str(tmp_path / "lora"))
    attachment.save_pretrained(tmp_path / "prior")
    again = peft.PeftModel.from_pretrained(gpt2(), str(tmp_path / "lora"))
    Attachment.load(again, tmp_path / "prior")
    adapted.eval()
    assert torch.equal(again.eval()(tokens()).logits, adapted(tokens()).logits)


def test_lora_on_a_fused_projection_of_timm() -> None:
    adapted = peft.get_peft_model(vit(), lora(["qkv"]))
    attachment = attach(adapted, GRID)
    learned = trained(adapted, attachment, images())
    assert any("qkv.lora_B" in name for name in learned)
    assert sum("bias_priors" in name for name in learned) == 2
