"""The overhead benchmark measures what it says, and the docs show what it measured."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import overhead, overhead_docs
from benchmarks.overhead import HOSTS, Host, Options, chosen, command, gpt2, main, summarise, vit
from maskprior import attach, structures
from maskprior.kernels import native
from recipes.blocks import fill_blocks


def tiny() -> Host:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 5, batch_first=True), 1)
    x = torch.randn(2, 5, 8)
    return Host(model, lambda host: host(x).square().sum(), structures.window(5, 1, 1))


def test_the_ratio_is_that_of_the_medians_and_the_spread_that_of_pairs() -> None:
    found = summarise([1.0, 2.0, 9.0], [3.0, 3.0, 3.0])
    assert (found["plain_seconds"], found["attached_seconds"], found["ratio"]) == (2.0, 3.0, 1.5)
    assert found["ratio_of_pairs_25_percent"] == pytest.approx((1 / 3 + 1.5) / 2)
    assert found["ratio_of_pairs_75_percent"] == pytest.approx((1.5 + 3) / 2)


def test_it_measures_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overhead, "HOSTS", {"tiny": tiny})
    monkeypatch.setattr(native, "LIBRARY", native.LIBRARY)
    main(Options(steps=2, without_native=True, json=tmp_path / "new" / "record.json"))
    record = json.loads((tmp_path / "new" / "record.json").read_text())
    (host,) = record["hosts"].values()
    assert host["backend"] == "aten"
    assert host["ratio"] == host["attached_seconds"] / host["plain_seconds"] > 0
    assert record["command"].startswith("python -m benchmarks.overhead --steps 2 --without-native --json ")
    assert {"commit", "dirty", "hardware", "versions", "libraries"} <= set(record)
    assert "tiny {" in capsys.readouterr().out


def test_only_the_copy_has_a_prior_and_m_learns() -> None:
    host = tiny()
    (plain, attached) = host.model, tiny().model
    attachment = attach(attached, host.structure)
    before = attachment.priors[0].mask_logits.detach().clone()
    overhead.training_step(attached, host.loss, attachment.param_groups(1e-4))()
    assert not torch.equal(attachment.priors[0].mask_logits, before)
    assert not hasattr(plain, "bias_priors")


@pytest.mark.parametrize(("host", "tokens"), [(lambda: vit(8, 4, 2), 5), (lambda: gpt2(7, 2), 7)])
def test_hosts_fit_their_structures(host: object, tokens: int) -> None:
    assert callable(host)
    built = host()
    assert built.structure.shape == (tokens, tokens)
    attachment = attach(built.model, built.structure)
    assert len(attachment.layers) in (4, 12)
    assert built.loss(built.model).isfinite()


def test_hosts_are_chosen_by_name() -> None:
    assert list(chosen("224x224")) == ["vit-tiny 224x224/16, 197 tokens, batch 8"]
    assert chosen("") == HOSTS
    with pytest.raises(ValueError, match=r"expected part of the name of a host in \['vit-tiny .* got 'bert'"):
        chosen("bert")


def test_the_command_is_that_of_the_options() -> None:
    assert command(Options()) == "python -m benchmarks.overhead"
    assert command(Options(threads=2, only="gpt2")) == "python -m benchmarks.overhead --threads 2 --only gpt2"


def test_the_documented_table_is_that_of_the_records() -> None:
    text = overhead_docs.DOCS.read_text()
    filled = fill_blocks(text, {overhead_docs.BLOCK: overhead_docs.block()})
    assert filled == text, "run `python -m benchmarks.overhead_docs`"
