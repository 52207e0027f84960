"""One of two processes: DDP, then FSDP2. Run by test_runtime.py, which reads what rank 0 prints.

python distributed_worker.py RANK FILE      (FILE: where the processes meet)
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from maskprior import structures
from maskprior.integrations import Attachment, attach

WORLD, BATCH, LENGTH, WIDTH, STEPS = 2, 6, 5, 8, 3


def build() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 7, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 3)
    attach(model, structures.window(LENGTH, 1, 1), layers=[0, 2], suppressed_logit=-3.0)
    return model


def batch(step: int) -> Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = (model(x) - x.flip(-1)).square().mean()
    return loss


def whole(tensor: Tensor | None) -> Tensor:
    """The tensor, gathered where it is sharded."""
    assert tensor is not None, "no gradient"
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def logits_and_gradients(
    model: nn.Module, train: nn.Module, shares: int
) -> tuple[list[Tensor], list[Tensor]]:
    """M after some steps of SGD and the gradients of every step, from each process's part of the batch."""
    optimizer = torch.optim.SGD(Attachment.of(model).param_groups(0.5))
    own = slice(dist.get_rank(), None, shares) if shares > 1 else slice(None)
    gradients = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(train, batch(step)[own]).backward()
        gradients += [whole(prior.mask_logits.grad) for prior in Attachment.of(model).priors]
        optimizer.step()
    return [whole(prior.mask_logits.detach()) for prior in Attachment.of(model).priors], gradients


def keeps_float32(prior: nn.Module, inputs: object, bias: Tensor) -> None:
    """Hook: M and its bias as the attention sees them."""
    assert prior.get_parameter("mask_logits").dtype == bias.dtype == torch.float32


def main(rank: int, meeting_point: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=WORLD)
    alone = build()
    expected, expected_gradients = logits_and_gradients(alone, alone, 1)

    parallel = build()
    wrapped = DistributedDataParallel(parallel)
    results = {"ddp": logits_and_gradients(parallel, wrapped, WORLD)}

    sharded = build()
    for layer in sharded.layers:
        fully_shard(layer)
    fully_shard(sharded)
    results["fsdp2"] = logits_and_gradients(sharded, sharded, WORLD)

    # The documented way to keep M in float32 where the rest of the model is gathered in bfloat16.
    mixed = build()
    halved = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    for prior in Attachment.of(mixed).priors:
        fully_shard(prior)
        prior.register_forward_hook(keeps_float32)
    for layer in mixed.layers:
        fully_shard(layer, mp_policy=halved)
    fully_shard(mixed, mp_policy=halved)
    _, gradients = logits_and_gradients(mixed, mixed, WORLD)
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - theirs).abs().max() <= 0.1 * theirs.abs().max()

    for name, (logits, gradients) in results.items():
        torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
        if rank == 0:
            print(name, len(gradients), "gradients agree")
    try:
        attach(wrapped, structures.everything(LENGTH))
    except ValueError as error:
        if rank == 0:
            print(error)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
