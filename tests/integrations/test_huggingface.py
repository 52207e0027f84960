"""Hugging Face models: causality, caches, generation, Trainer, saving, and what is refused."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from maskprior import structures
from maskprior.integrations import Attachment, attach

VOCABULARY, LENGTH, LONGEST = 31, 11, 16
LINE = 0.6 * structures.linear_distance(LONGEST, reach=7.0) + 0.4 * torch.rand(
    LONGEST, LONGEST, generator=torch.Generator().manual_seed(0)
)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 13,
    "max_position_embeddings": 64,
}


def build(kind: str, **changes: Any) -> Any:
    """A tiny model with weights large enough for attention to matter."""
    configs: dict[str, Any] = {
        "GPT2LMHeadModel": lambda: transformers.GPT2Config(
            **{
                "vocab_size": VOCABULARY,
                "n_embd": 24,
                "n_layer": 2,
                "n_head": 3,
                "n_positions": 64,
                **changes,
            }
        ),
        "LlamaForCausalLM": lambda: transformers.LlamaConfig(**{**SIZES, **changes}),
        "MistralForCausalLM": lambda: transformers.MistralConfig(**{**SIZES, **changes}),
        "GptOssForCausalLM": lambda: transformers.GptOssConfig(
            **{**SIZES, "head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1, **changes}
        ),
        "Gemma2ForCausalLM": lambda: transformers.Gemma2Config(**{**SIZES, "head_dim": 4, **changes}),
        "T5ForConditionalGeneration": lambda: transformers.T5Config(
            vocab_size=VOCABULARY, d_model=24, d_kv=5, d_ff=13, num_layers=2, num_heads=3, **changes
        ),
    }
    config = configs[kind]()
    config.pad_token_id = config.decoder_start_token_id = 0
    config.bos_token_id, config.eos_token_id = 1, None
    model = getattr(transformers, kind)(config)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                std = 1.2 / parameter[0].numel() ** 0.5
                parameter.copy_(std * torch.randn(parameter.shape, generator=draw))
    return model.eval()


def tokens(batch: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(2))


def attached(kind: str, lengths: Any = "slice", structure: Tensor = LINE, **changes: Any) -> Any:
    model = build(kind, **changes)
    attach(model, structure, lengths=lengths, suppressed_logit=-4.0)
    return model


DECODERS = ["GPT2LMHeadModel", "LlamaForCausalLM"]


# Causality and caches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("t", [0, 5, 9])
def test_later_tokens_leave_earlier_logits_alone(kind: str, t: int) -> None:
    model, ids = attached(kind), tokens()
    changed = ids.clone()
    changed[:, t + 1] = (ids[:, t + 1] + 1) % VOCABULARY
    before, after = model(ids).logits, model(changed).logits
    assert torch.equal(after[:, : t + 1], before[:, : t + 1])
    assert not torch.allclose(after[:, t + 1 :], before[:, t + 1 :], atol=1e-3)


def caches(model: Any) -> list[Any]:
    return [DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=LONGEST)]


def decoded(model: Any, ids: Tensor, cache: Any, prefill: int, **arguments: Any) -> Tensor:
    """Logits of a prefill and then of single steps."""
    mask = arguments.get("attention_mask")
    logits = []
    with torch.no_grad():
        for start, end in [(0, prefill), *((t, t + 1) for t in range(prefill, ids.shape[1]))]:
            now = {} if mask is None else {"attention_mask": mask[:, :end]}
            if mask is not None:
                now["position_ids"] = (mask[:, :end].cumsum(-1) - 1).clamp(min=0)[:, start:end]
            logits.append(model(ids[:, start:end], cache=cache, use_cache=True, **now).logits)
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("which", [0, 1], ids=["dynamic", "static"])
def test_eight_cached_steps_are_one_full_forward(kind: str, which: int) -> None:
    model, ids = attached(kind), tokens()
    steps = decoded(model, ids, caches(model)[which], prefill=LENGTH - 8)
    full = model(ids).logits
    assert (steps - full).abs().max() <= 1e-5 * full.abs().max()


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("which", [0, 1], ids=["dynamic", "static"])
def test_cached_steps_with_left_padding_are_those_without(kind: str, which: int) -> None:
    model, ids = attached(kind), tokens()
    padding = torch.zeros(2, 2, dtype=torch.long)
    padded, mask = torch.cat([padding, ids], 1), torch.cat([padding, torch.ones_like(ids)], 1)
    steps = decoded(model, padded, caches(model)[which], prefill=5, attention_mask=mask)
    full = model(ids).logits
    assert (steps[:, 2:] - full).abs().max() <= 1e-5 * full.abs().max()


def test_chunked_prefill_is_one_full_forward() -> None:
    model, ids = attached("LlamaForCausalLM"), tokens()
    for cache in caches(model):
        with torch.no_grad():
            parts = [
                model(ids[:, a:b], cache=cache, use_cache=True).logits for a, b in ((0, 4), (4, 9), (9, 11))
            ]
        torch.testing.assert_close(torch.cat(parts, 1), model(ids).logits, rtol=1e-5, atol=2e-5)


def test_t5_decodes_with_its_cache_as_without() -> None:
    model, source, target = attached("T5ForConditionalGeneration"), tokens(), tokens().flip(1)
    full = model(input_ids=source, decoder_input_ids=target).logits
    for own in caches(model):
        cache = EncoderDecoderCache(own, DynamicCache(config=model.config))
        with torch.no_grad():
            steps = [
                model(
                    input_ids=source, decoder_input_ids=target[:, t : t + 1], cache=cache, use_cache=True
                ).logits
                for t in range(LENGTH)
            ]
        torch.testing.assert_close(torch.cat(steps, 1), full, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("lengths", ["slice", "relative"])
def test_a_sliding_window_cache_keeps_the_positions(lengths: str) -> None:
    structure = structures.linear_distance(LONGEST, reach=9.0) if lengths == "relative" else LINE
    model = attached("MistralForCausalLM", lengths, structure, sliding_window=5)
    ids = tokens(length=14)
    steps = decoded(model, ids, DynamicCache(config=model.config), prefill=3)
    torch.testing.assert_close(steps, model(ids).logits, rtol=1e-5, atol=2e-5)


def test_relative_goes_on_beyond_the_structure() -> None:
    structure = structures.linear_distance(6, reach=9.0, causal=True)
    model = attached("LlamaForCausalLM", "relative", structure)
    ids = tokens(length=LONGEST)
    full = model(ids).logits
    for cache in caches(model):
        steps = decoded(model, ids, cache, prefill=3)
        torch.testing.assert_close(steps, full, rtol=1e-5, atol=2e-5)


def test_a_static_cache_longer_than_the_structure_needs_another_rule() -> None:
    model = attached("LlamaForCausalLM", structure=LINE[:8, :8])
    cache = StaticCache(config=model.config, max_cache_len=LONGEST)
    ids = tokens()
    decoded(model, ids[:, :8], cache, prefill=4)
    with pytest.raises(
        ValueError, match=r"attention module 'model.layers.0.self_attn': expected positions below 8"
    ):
        model(ids[:, 8:9], cache=cache, use_cache=True)


# Generation -----------------------------------------------------------------------------------------------


def generate(model: Any, ids: Tensor, **options: Any) -> Tensor:
    options = {"attention_mask": torch.ones_like(ids), **options}
    with torch.no_grad():
        result: Tensor = model.generate(ids, max_new_tokens=8, do_sample=False, **options)
    return result


@pytest.mark.parametrize("kind", DECODERS)
def test_generation_is_the_same_with_every_cache(kind: str) -> None:
    model, prompt = attached(kind), tokens(length=5)
    expected = generate(model, prompt, use_cache=False)
    assert torch.equal(generate(model, prompt), expected)
    assert torch.equal(generate(model, prompt, cache_implementation="static"), expected)
    assert not torch.equal(generate(build(kind), prompt), expected)
    mask = torch.ones_like(prompt)
    mask[0, :2] = 0
    padded = generate(model, prompt, attention_mask=mask)
    assert torch.equal(padded, generate(model, prompt, attention_mask=mask, cache_implementation="static"))
    assert torch.equal(padded[0, 2:], generate(model, prompt[:1, 2:])[0])


def test_t5_generates_the_same_with_every_cache() -> None:
    model, prompt = attached("T5ForConditionalGeneration"), tokens(length=5)
    expected = generate(model, prompt, use_cache=False)
    assert torch.equal(generate(model, prompt), expected)
    assert torch.equal(generate(model, prompt, cache_implementation="static"), expected)


# Training and saving --------------------------------------------------------------------------------------


class Sentences(Dataset[dict[str, Tensor]]):
    """Random tokens for the Trainer."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": tokens(4)[index], "labels": tokens(4)[index]}


def test_the_trainer_learns_m_and_does_not_decay_it(tmp_path: Path) -> None:
    model = attached("GPT2LMHeadModel")
    before = [prior.mask_logits.detach().clone() for prior in Attachment.of(model).priors]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        max_steps=2,
        per_device_train_batch_size=2,
        weight_decay=0.5,
        learning_rate=0.1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Sentences())
    trainer.train()
    assert trainer.optimizer is not None
    logits = Attachment.of(model).priors[0].mask_logits
    decayed = [
        group["weight_decay"]
        for group in trainer.optimizer.param_groups
        for parameter in group["params"]
        if parameter is logits
    ]
    assert decayed == [0.0]
    for prior, old in zip(Attachment.of(model).priors, before, strict=True):
        used = torch.ones(LENGTH, LENGTH).tril() > 0
        assert (prior.mask_logits.detach() - old)[:LENGTH, :LENGTH][used].abs().max() > 0.01
        assert torch.equal(prior.mask_logits[LENGTH:], old[LENGTH:])


def test_the_hosts_own_checkpoint_holds_m_bit_by_bit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, ids = attached("LlamaForCausalLM"), tokens()
    with torch.no_grad():
        Attachment.of(model).priors[1].mask_logits.normal_()
    model.save_pretrained(tmp_path / "host")
    Attachment.of(model).save_pretrained(tmp_path / "prior")
    saved = load_file(tmp_path / "host" / "model.safetensors")
    for index, prior in enumerate(Attachment.of(model).priors):
        assert torch.equal(saved[f"bias_priors.{index}.mask_logits"], prior.mask_logits)
    logger = logging.getLogger("transformers")
    logger.propagate, level = True, logger.level
    logger.setLevel(logging.WARNING)
    with caplog.at_level(logging.WARNING):
        loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "host")
    logger.propagate = False
    logger.setLevel(level)
    assert "bias_priors.{0, 1}.mask_logits" in caplog.text or "bias_priors.0.mask_logits" in caplog.text
    assert loaded.config._attn_implementation == "sdpa"
    Attachment.load(loaded, tmp_path / "prior")
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    again = attached("LlamaForCausalLM")
    again.load_state_dict(saved, strict=False)
    assert torch.equal(again(ids).logits, model(ids).logits)


# Implementation of the host -------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["eager", "sdpa"])
def test_the_hosts_implementation_comes_back(before: str) -> None:
    model, ids = build("LlamaForCausalLM", attn_implementation=before), tokens()
    plain = model(ids).logits
    attachment = attach(model, torch.ones(LENGTH, LENGTH))
    assert model.config._attn_implementation == "maskprior"
    torch.testing.assert_close(model(ids).logits, plain, rtol=1e-4, atol=1e-5)
    attachment.detach()
    assert model.config._attn_implementation == before
    assert torch.equal(model(ids).logits, plain)


def test_another_implementation_set_later_does_not_drop_the_prior() -> None:
    model, ids = attached("LlamaForCausalLM"), tokens()
    expected = model(ids).logits
    model.set_attn_implementation("sdpa")
    with pytest.raises(
        ValueError, match=r"'model.layers.0.self_attn' has a prior, but the model runs 'sdpa', which would"
    ):
        model(ids)
    model.set_attn_implementation("maskprior")
    assert torch.equal(model(ids).logits, expected)


def test_every_configuration_of_an_encoder_and_decoder_changes_and_comes_back() -> None:
    model = build("T5ForConditionalGeneration")
    configs = [model.config, model.encoder.config, model.decoder.config]
    attachment = attach(model, LINE, layers=["decoder.*"])
    assert [config._attn_implementation for config in configs] == ["maskprior"] * 3
    attachment.detach()
    assert [config._attn_implementation for config in configs] == ["sdpa"] * 3


def test_layers_without_a_prior_are_those_of_the_host() -> None:
    model, plain, ids = build("GPT2LMHeadModel"), build("GPT2LMHeadModel"), tokens()
    attach(model, LINE, layers=[1], lengths="slice")
    mine = model(ids, output_hidden_states=True).hidden_states
    theirs = plain(ids, output_hidden_states=True).hidden_states
    assert torch.equal(mine[1], theirs[1])
    assert not torch.allclose(mine[2], theirs[2], atol=1e-3)
    mask = torch.ones_like(ids)
    mask[:, :3] = 0
    position_ids = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = {"attention_mask": mask, "position_ids": position_ids, "output_hidden_states": True}
    torch.testing.assert_close(
        model(ids, **padded).hidden_states[1][:, 3:], plain(ids, **padded).hidden_states[1][:, 3:]
    )


# Llama hands the argument on, GPT-2 leaves it to the library's hooks.
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_attention_weights_are_returned_where_they_are_asked_for(name: str) -> None:
    model = attached(name)
    assert not model(tokens()).attentions
    weights = model(tokens(), output_attentions=True).attentions
    assert len(weights) == 2
    heads = model.config.num_attention_heads
    assert weights[0].shape == (2, heads, LENGTH, LENGTH)
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, heads, LENGTH))
    assert weights[0].triu(1).abs().max() == 0


def test_a_prior_of_relations_in_a_language_model() -> None:
    from maskprior.integrations import attach_relations

    model, same = build("LlamaForCausalLM"), attached("LlamaForCausalLM", "error", LINE[:LENGTH, :LENGTH])
    values, index = LINE[:LENGTH, :LENGTH].unique(return_inverse=True)
    attachment = attach_relations(model, values, suppressed_logit=-4.0)
    with attachment.relations(index.expand(2, -1, -1)):
        torch.testing.assert_close(model(tokens()).logits, same(tokens()).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "layers", "changes", "message"),
    [
        (
            "T5ForConditionalGeneration",
            "*.EncDecAttention",
            {},
            "EncDecAttention': in cached decoding, cross-att",
        ),
        (
            "GPT2LMHeadModel",
            "*.crossattention",
            {"add_cross_attention": True},
            "cross-attention does not tell",
        ),
        ("Gemma2ForCausalLM", None, {}, "attn_logit_softcapping"),
        ("GptOssForCausalLM", None, {}, "attention sinks change the equation"),
    ],
)
def test_what_cannot_have_a_prior_is_refused(kind: str, layers: Any, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attach(build(kind, **changes), LINE, layers=layers)


def test_hosts_on_other_kernels_are_refused() -> None:
    model = build("LlamaForCausalLM")
    model.set_attn_implementation("flex_attention")
    with pytest.raises(
        ValueError, match=r"the model runs 'flex_attention': call set_attn_implementation\('sdpa'\)"
    ):
        attach(model, LINE)


def test_a_vision_models_length_is_known() -> None:
    config = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=13,
        image_size=12,
        patch_size=4,
    )
    with pytest.raises(ValueError, match=r"'layers.0.attention' \(ViTAttention\): 10 tokens, expected 9"):
        attach(transformers.ViTModel(config), structures.everything(9))


def test_an_inner_module_takes_a_prior_too() -> None:
    model, ids = build("LlamaForCausalLM"), tokens()
    plain = model(ids).logits
    attachment = attach(model.model, LINE, lengths="slice")
    assert isinstance(model.model.bias_priors, nn.ModuleList)
    assert not torch.allclose(model(ids).logits, plain, atol=1e-3)
    attachment.detach()
    assert torch.equal(model(ids).logits, plain)
