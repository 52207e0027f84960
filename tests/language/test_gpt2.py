"""GPT-2 from its configuration: priors by attach, patterns, cached decoding, and a run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from maskprior import structures
from maskprior.experiments.progress import SilentReporter
from maskprior.experiments.sweep import Device, sweep
from maskprior.language.gpt2 import Gpt2Config, Gpt2Model
from maskprior.language.presets import gpu_recipe
from maskprior.language.runs import keep_tokenizers, load_run
from maskprior.language.sources import SourceConfig
from maskprior.language.tokenizers import TokenizerConfig
from maskprior.language.writing import Sampling, continue_tokens
from maskprior.priors import LANGUAGE_PRIORS, ToeplitzPrior

HEADS, LENGTH, VOCAB, DEPTH = 3, 7, 29, 2
CONFIG = Gpt2Config(VOCAB, LENGTH, width=12, depth=DEPTH, heads=HEADS)


def make(name: str, **changes: object) -> Gpt2Model:
    model = replace(CONFIG, **changes).build(torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    decay = structures.relative_distance(LENGTH, [1.0, 2.0, 5.0], causal=True)
    LANGUAGE_PRIORS[name](model, decay, torch.Generator())  # type: ignore[arg-type]
    return model.eval()


def tokens(count: int, length: int) -> Tensor:
    return torch.randint(VOCAB, (count, length), generator=torch.Generator().manual_seed(3))


def test_the_seed_decides_the_weights_and_nothing_else() -> None:
    torch.manual_seed(5)
    first = make("vanilla").state_dict()
    torch.manual_seed(6)
    before = torch.get_rng_state()
    second = make("vanilla").state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", list(LANGUAGE_PRIORS))
def test_patterns_are_those_of_its_attention(name: str) -> None:
    """The mean value of the last layer's heads, weighted by the patterns, is what the layer mixes."""
    model, text = make(name), tokens(1, LENGTH)
    patterns = model.attention_patterns(text)
    assert patterns.shape == (DEPTH, HEADS, LENGTH, LENGTH)
    torch.testing.assert_close(patterns.sum(-1), torch.ones(DEPTH, HEADS, LENGTH))
    seen: dict[str, Tensor] = {}
    attention = model._body().h[-1].attn
    attention.c_attn.register_forward_hook(lambda module, args, output: seen.update(packed=output))
    attention.c_proj.register_forward_pre_hook(lambda module, args: seen.update(mixed=args[0]))
    with torch.no_grad():
        model(text)
    value = seen["packed"].split(12, dim=-1)[2].unflatten(-1, (HEADS, -1)).transpose(1, 2)
    wanted = (patterns[-1] @ value[0]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(seen["mixed"][0], wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", list(LANGUAGE_PRIORS))
def test_any_length_is_causal(name: str) -> None:
    model, long = make(name, positions="none" if name in ("alibi", "toeplitz") else "learned"), tokens(2, 19)
    with torch.no_grad():
        whole = model(long)
        for length in (1, LENGTH, LENGTH + 1, 13):
            torch.testing.assert_close(model(long[:, :length]), whole[:, :length], atol=1e-5, rtol=1e-4)


def test_without_positions_the_table_is_zero_and_stays() -> None:
    model = make("toeplitz", positions="none")
    table = model._body().wpe.weight
    assert not table.any()
    assert not table.requires_grad


def test_mask_logits_and_new_priors() -> None:
    model = make("mask")
    logits = model.mask_logits()
    assert logits is not None
    assert logits.shape == (DEPTH, HEADS, LENGTH, LENGTH)
    model.set_priors([None] * DEPTH)
    assert model.mask_logits() is None
    model.set_priors([ToeplitzPrior(torch.zeros(1, LENGTH)), None])
    assert model.mask_logits() is None
    with pytest.raises(ValueError, match="expected 2 priors, one a layer, got 1"):
        model.set_priors([None])


@pytest.mark.parametrize("name", list(LANGUAGE_PRIORS))
def test_cached_decoding_is_full_recomputation(name: str) -> None:
    model, steps = make(name), 6
    with torch.no_grad():
        for seed in range(8):
            prompt = torch.randint(
                VOCAB, (1 + seed % 3,), generator=torch.Generator().manual_seed(seed)
            ).tolist()
            found = list(
                continue_tokens(model.decoder(0), prompt, steps, VOCAB, Sampling(), torch.Generator())
            )
            whole = list(prompt)
            for _ in range(steps):
                whole.append(int(model(torch.tensor([whole]))[0, -1].argmax()))
            assert found == whole[len(prompt) :]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "expected heads that divide width=12, got 5"),
        ({"depth": 0}, "expected depth ≥ 1, got 0"),
        ({"dropout": 1.0}, r"expected dropout in \[0, 1\), got 1.0"),
        ({"positions": "rotary"}, "expected positions 'learned' or 'none', got 'rotary'"),
    ],
)
def test_other_values_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)  # type: ignore[arg-type]


def test_the_gpu_recipe_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny, on the CPU, in bfloat16."""
    monkeypatch.setenv("MASKPRIOR_CACHE", str(tmp_path / "cache"))
    texts = [f"{i} and {i + 1} make {2 * i + 1}" for i in range(300)]
    (tmp_path / "sums.txt").write_text("\n\n".join(texts))
    recipe = gpu_recipe(SourceConfig("sums", str(tmp_path / "sums.txt")), vocab_size=280)
    task = replace(
        recipe.task,
        tokenizer=TokenizerConfig(280),
        length=11,
        reaches=(1.0, 2.0, 8.0),
        probe_tokens=200,
        length_tokens=200,
    )
    small = replace(
        recipe,
        task=task,
        model=Gpt2Config(280, 11, width=12, depth=2, heads=3),
        training=replace(recipe.training, steps=3, batch_size=5, probes=2, warmup_steps=1),
    )
    runs = small.runs([0], ["vanilla", "mask", "toeplitz"])
    records = sweep(runs, tmp_path / "out", SilentReporter(), device=Device("cpu", threads=1))
    assert all(record.metrics["test_perplexity"] > 1 for record in records.values())
    keep_tokenizers(runs, tmp_path / "out")
    loaded = load_run(next(path for path, record in records.items() if record.prior == "toeplitz"))
    assert isinstance(loaded.model, Gpt2Model)
    assert loaded.longest is None
