"""More models of transformers than those of the contract: on its attention interface, so taken too."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from maskprior import structures
from maskprior.integrations import attach

LENGTH, PROMPT = 9, 5
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 13,
    "max_position_embeddings": 64,
    **SPECIAL,
}
BART: dict[str, Any] = {
    **{f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")},
    "vocab_size": 31,
    "d_model": 24,
    "encoder_ffn_dim": 13,
    "decoder_ffn_dim": 13,
    **SPECIAL,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
# Class of the model (its configuration's is named alike), settings, layers that get a prior.
MODELS: list[tuple[str, str, dict[str, Any], int]] = [
    ("RobertaModel", "RobertaConfig", SIZES, 2),
    ("ElectraModel", "ElectraConfig", SIZES, 2),
    ("AlbertModel", "AlbertConfig", {**SIZES, "embedding_size": 11}, 1),  # one layer, used twice
    ("DistilBertModel", "DistilBertConfig", {"vocab_size": 31, "dim": 24, "n_layers": 2, "n_heads": 3}, 2),
    (
        "OPTForCausalLM",
        "OPTConfig",
        {**SIZES, "ffn_dim": 13, "word_embed_proj_dim": 24},
        2,
    ),
    ("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES, 2),
    ("PhiForCausalLM", "PhiConfig", {**SIZES, "num_key_value_heads": 3}, 2),
    ("Qwen3ForCausalLM", "Qwen3Config", {**SIZES, "num_key_value_heads": 1, "head_dim": 8}, 2),
    (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**SIZES, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4},
        2,
    ),
    ("BartForConditionalGeneration", "BartConfig", BART, 4),
]


def build(kind: str, config: str, settings: dict[str, Any]) -> Any:
    """The model with weights large enough for attention to matter."""
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                std = 1.4 / parameter[0].numel() ** 0.5
                parameter.copy_(std * torch.randn(parameter.shape, generator=draw))
    return model


@torch.no_grad()
def outputs(model: Any) -> Tensor:
    ids = torch.randint(3, 31, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    result = model(ids)
    output: Tensor = result.logits if hasattr(result, "logits") else result.last_hidden_state
    return output


@pytest.mark.parametrize(("kind", "config", "settings", "layers"), MODELS, ids=[each[0] for each in MODELS])
def test_attach_effect_and_detach(kind: str, config: str, settings: dict[str, Any], layers: int) -> None:
    model = build(kind, config, settings)
    plain = outputs(model)
    uniform = attach(model, torch.ones(LENGTH, LENGTH))
    assert len(uniform.layers) == layers
    assert (outputs(model) - plain).abs().max() <= 2e-6 * plain.abs().max().clamp(min=1.0)
    uniform.detach()
    attachment = attach(model, structures.window(LENGTH, 1, 0))
    assert (outputs(model) - plain).abs().max() > 0.5
    attachment.detach()
    assert torch.equal(outputs(model), plain)


GENERATORS = [each for each in MODELS if "For" in each[0]]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    ("kind", "config", "settings", "layers"), GENERATORS, ids=[each[0] for each in GENERATORS]
)
def test_generation_with_every_cache(
    kind: str, config: str, settings: dict[str, Any], layers: int, beams: int
) -> None:
    model = build(kind, config, settings)
    assert len(attach(model, structures.window(24, 1, 0), lengths="slice").layers) == layers
    prompt = torch.randint(3, 31, (2, PROMPT), generator=torch.Generator().manual_seed(2))

    def generated(**cache: Any) -> Tensor:
        result: Tensor = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=8,
            do_sample=False,
            num_beams=beams,
            eos_token_id=None,
            **cache,
        )
        return result

    expected = generated(use_cache=False)
    assert torch.equal(generated(), expected)
    assert torch.equal(generated(cache_implementation="static"), expected)
