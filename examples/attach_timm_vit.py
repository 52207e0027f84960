"""A mask prior in a timm ViT: fine-tune a model that exists, with and without a neighbourhood prior.

    python examples/attach_timm_vit.py         (about a minute, CPU, offline)

The images are scikit-learn's 8 × 8 digits. A small ViT first learns the digits 0 to 4; then it gets a new
head, and in one of two copies a prior, and learns all ten digits from 200 images.
"""

import copy

import timm
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import maskprior
from maskprior import structures
from maskprior.integrations import Attachment

SIDE = 4  # patches of 2 × 2 pixels


def digits() -> tuple[Tensor, Tensor]:
    """Shuffled images ``[1797, 1, 8, 8]`` in [0, 1] and labels."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    return images[order], torch.from_numpy(data.target)[order]


def structure() -> Tensor:
    """Patches read their neighbours and the class token; the class token reads all."""
    grid = structures.grid_neighbourhood(SIDE, SIDE, radius=1)
    return structures.with_readout(grid, reads="all", read_by="all", self_read=True)


def train(model: nn.Module, groups: object, images: Tensor, labels: Tensor, steps: int) -> None:
    """Cross-entropy on batches of 64."""
    optimizer = torch.optim.AdamW(groups)  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(1)
    model.train()
    for _ in range(steps):
        batch = torch.randint(len(labels), (64,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of images that the model names."""
    return float((model.eval()(images).argmax(-1) == labels).float().mean())


def pretrained(images: Tensor, labels: Tensor, steps: int) -> nn.Module:
    """A ViT that knows the digits 0 to 4, with a new head for ten."""
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=8,
        patch_size=2,
        in_chans=1,
        embed_dim=48,
        depth=3,
        num_heads=3,
        num_classes=5,
    )
    known = labels < 5
    train(model, [{"params": list(model.parameters()), "lr": 1e-3}], images[known], labels[known], steps)
    model.reset_classifier(10)  # type: ignore[operator]
    return model


def main(steps: int = 300) -> dict[str, float]:
    """Print and return the accuracy on the images that were never trained on."""
    images, labels = digits()
    few, test = slice(1000, 1200), slice(1200, None)
    start = pretrained(images[:1000], labels[:1000], steps)
    results = {}
    for name in ("no prior", "neighbourhood"):
        model = copy.deepcopy(start)
        if name == "neighbourhood":
            attachment: Attachment = maskprior.attach(model, structure())
            groups = attachment.param_groups(lr=1e-3, weight_decay=0.05)  # M is never decayed
        else:
            groups = [{"params": list(model.parameters()), "lr": 1e-3, "weight_decay": 0.05}]
        train(model, groups, images[few], labels[few], steps)
        results[name] = accuracy(model, images[test], labels[test])
        print(f"{name:>14}: {results[name]:.1%} of {len(labels[test])} test images")
    return results


if __name__ == "__main__":
    main()
