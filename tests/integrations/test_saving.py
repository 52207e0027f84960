"""An attachment in a directory: what comes back, and which files are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from maskprior import structures
from maskprior.integrations import Attachment, Lengths, attach

N = 5
TENSORS, CONFIG = "bias_priors.safetensors", "bias_priors.json"


def encoder(depth: int = 3) -> nn.TransformerEncoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 5, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, depth).eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    attachment = attach(encoder(), structures.window(N, 1, 1), layers=[0, 2])
    attachment.save_pretrained(tmp_path)
    return tmp_path


def test_two_files_of_tensors_and_json_are_written(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == [CONFIG, TENSORS]
    assert set(load_file(saved / TENSORS)) == {"0.mask_logits", "1.mask_logits"}
    config = json.loads((saved / CONFIG).read_text())
    assert config["layers"] == ["layers.0.self_attn", "layers.2.self_attn"]
    assert config["format"] == "maskprior.attachment/1"


@pytest.mark.parametrize(
    ("structure", "options"),
    [
        (structures.window(N, 1, 1), {"share": True}),
        (structures.window(N, 1, 1), {"heads": [1], "learnable": False}),
        (structures.window(N, 2, 1), {"lengths": "relative", "layers": [1]}),
        (structures.everything(N), {"lengths": Lengths("interpolate", grid=(1, 3), prefix=2)}),
        (structures.per_head([structures.identity(N), structures.causal(N)]), {}),
    ],
)
def test_what_was_written_comes_back(structure: torch.Tensor, options: Any, tmp_path: Path) -> None:
    model, other = encoder(), encoder()
    attachment = attach(model, structure, **options)
    with torch.no_grad():
        for prior in attachment.priors:
            prior.mask_logits.add_(torch.randn(prior.mask_logits.shape))
    attachment.save_pretrained(tmp_path / "new" / "folder")
    loaded = Attachment.load(other, tmp_path / "new" / "folder")
    assert loaded.layers == attachment.layers
    for mine, theirs in zip(loaded.priors, attachment.priors, strict=True):
        assert torch.equal(mine.mask_logits, theirs.mask_logits)
        assert mine.mask_logits.requires_grad == theirs.mask_logits.requires_grad
    assert other.get_submodule("bias_priors").plan == model.get_submodule("bias_priors").plan
    x = torch.randn(2, N, 8)
    assert torch.equal(other(x), model(x))


def rewrite_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))


def rewrite_tensors(folder: Path, **changes: torch.Tensor) -> None:
    tensors = load_file(folder / TENSORS)
    save_file({**tensors, **changes}, folder / TENSORS)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def pickle_instead(folder: Path) -> None:
    torch.save({"0.mask_logits": torch.ones(N, N)}, folder / TENSORS)


ONE = "0.mask_logits"
Spoil = Callable[[Path], object]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: truncate(folder / TENSORS),
            "expected a complete safetensors file .*pickles are never",
        ),
        (pickle_instead, "expected a complete safetensors file .*pickles are never read"),
        (lambda folder: rewrite_tensors(folder, other=torch.ones(N, N)), "expected tensors .*got .*'other'"),
        (
            lambda folder: rewrite_tensors(folder, **{ONE: torch.ones(N, N).half()}),
            "expected float32 .*float16",
        ),
        (
            lambda folder: rewrite_tensors(folder, **{ONE: torch.ones(N, N).long()}),
            "expected float32 .*int64",
        ),
        (
            lambda folder: rewrite_tensors(folder, **{ONE: torch.full((N, N), torch.nan)}),
            "finite mask_logits",
        ),
        (
            lambda folder: rewrite_tensors(folder, **{ONE: torch.ones(N)}),
            r"expected mask_logits \[query, key\]",
        ),
        (lambda folder: rewrite_tensors(folder, **{ONE: torch.ones(3, N, N)}), "2 heads .*structure has 3"),
        (lambda folder: truncate(folder / CONFIG), "expected JSON in .*bias_priors.json"),
        (lambda folder: (folder / CONFIG).write_bytes(b"\xff\xfe\x00"), "expected JSON in"),
        (
            lambda folder: (folder / CONFIG).write_text("[]"),
            "with format 'maskprior.attachment/1' .*got list",
        ),
        (lambda folder: rewrite_config(folder, format="other"), "with format 'maskprior.attachment/1'"),
        (lambda folder: rewrite_config(folder, extra=1), "with format 'maskprior.attachment/1' and keys"),
        (lambda folder: rewrite_config(folder, layers=[1]), "expected a list of str, got"),
        (lambda folder: rewrite_config(folder, layers=["a"]), "1 layers with priors"),
        (lambda folder: rewrite_config(folder, prior_of_layer=[0, 0]), "2 layers with priors"),
        (lambda folder: rewrite_config(folder, heads="all"), "expected a list of int, got 'all'"),
        (lambda folder: rewrite_config(folder, learnable=[1, 1]), "expected a list of bool"),
        (
            lambda folder: rewrite_config(folder, lengths={"rule": "slice"}),
            "expected the fields of an attachment",
        ),
        (
            lambda folder: rewrite_config(folder, lengths={"rule": "x", "grid": None, "prefix": 0}),
            "expected a length rule",
        ),
        (
            lambda folder: rewrite_config(folder, layers=["layers.0.self_attn", "layers.7.self_attn"]),
            "'layers.7.self_attn' does not; attention modules seen",
        ),
    ],
)
def test_spoilt_files_are_refused(saved: Path, spoil: Spoil, message: str) -> None:
    spoil(saved)
    model = encoder()
    with pytest.raises(ValueError, match=message):
        Attachment.load(model, saved)
    assert not hasattr(model, "bias_priors")


@pytest.mark.parametrize("name", [TENSORS, CONFIG])
def test_missing_files_are_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        Attachment.load(encoder(), saved)


def test_another_model_is_refused_with_what_was_seen(saved: Path) -> None:
    with pytest.raises(
        ValueError, match=r"'layers.2.self_attn' does not; attention modules seen: .*'layers.1.self"
    ):
        Attachment.load(encoder(depth=2), saved)


def test_baked_priors_cannot_be_saved_as_an_attachment(tmp_path: Path) -> None:
    attachment = attach(encoder(), structures.everything(N))
    attachment.bake()
    with pytest.raises(
        ValueError, match="expected priors with mask logits, got baked ones; the host's state_dict"
    ):
        attachment.save_pretrained(tmp_path)
