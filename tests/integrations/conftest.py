"""The host models of the contract suite: real ones, tiny, randomly initialised, built from their configs."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import timm
import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskprior import models, structures

IMAGE = "images are not padded"


@dataclass(frozen=True)
class Host:
    """One host and how the contract talks to it.

    Attributes:
        name: as in the documentation's table.
        build: a new model, in evaluation mode, always with the same weights.
        run: its output for fixed inputs, ``[batch, ...]``.
        structure: a real structure for it, ``[N, N]``.
        block: name of a module that ``torch.compile`` takes whole.
        expected: its output with a bias ``[N, N]`` in every layer, by means of the host's own.
        checkpointed: switch gradient checkpointing on.
        padded: (real outputs with padding, the same without), or None.
        without: checks that do not apply, with the reason.
    """

    name: str
    build: Callable[[], nn.Module]
    run: Callable[[nn.Module], Tensor]
    structure: Tensor
    block: str
    expected: Callable[[nn.Module, Tensor], Tensor]
    checkpointed: Callable[[nn.Module], object]
    padded: Callable[[nn.Module], tuple[Tensor, Tensor]] | None = None
    without: dict[str, str] = field(default_factory=dict)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randomised(model: nn.Module) -> nn.Module:
    """Weights, tables of biases and layer scales large enough for attention to matter; in evaluation mode."""
    draw = generator(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                std = 1.4 / parameter[0].numel() ** 0.5
                parameter.copy_(std * torch.randn(parameter.shape, generator=draw))
            elif "bias" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw))
            else:
                parameter.fill_(1.0)
    return model.eval()


def noisy(structure: Tensor) -> Tensor:
    """The structure, graded, so that no symmetry hides a transposition."""
    return 0.7 * structure + 0.3 * torch.rand(structure.shape, generator=generator(2))


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, 29, shape, generator=generator(3))


def images(size: int) -> Tensor:
    return torch.randn(2, 3, size, size, generator=generator(4))


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(5))


# torch.nn ------------------------------------------------------------------------------------------------

LENGTH, WIDTH, BATCH = 7, 10, 3
LINE = noisy(structures.window(LENGTH, 2, 1))


def checkpoint_layers(model: nn.Module) -> None:
    """What users of torch.nn do: run each layer under checkpointing."""
    stack = model.get_submodule("layers") if hasattr(model, "layers") else model.get_submodule("blocks")
    for layer in stack.children():
        vars(layer)["forward"] = partial(checkpoint, layer.forward, use_reentrant=False)


def run_attention(model: nn.Module, x: Tensor | None = None, **masks: Tensor) -> Tensor:
    x = vectors(BATCH, LENGTH, WIDTH) if x is None else x
    output: Tensor = model(x, x, x, need_weights=False, **masks)[0]
    return output


def padded_batch() -> tuple[Tensor, Tensor]:
    """The fixed inputs with two more tokens, and where they are padding (True)."""
    x = torch.cat([vectors(BATCH, LENGTH - 2, WIDTH), 9 * vectors(BATCH, 2, WIDTH)], dim=1)
    return x, torch.arange(LENGTH).expand(BATCH, -1) >= LENGTH - 2


def padded_attention(model: nn.Module) -> tuple[Tensor, Tensor]:
    x, padding = padded_batch()
    short = run_attention(model, x[:, :-2])
    return run_attention(model, x, key_padding_mask=padding)[:, :-2], short


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 11, batch_first=True, dropout=0.0)
    return randomised(nn.TransformerEncoder(layer, 2))


def padded_encoder(model: nn.Module) -> tuple[Tensor, Tensor]:
    x, padding = padded_batch()
    return model(x, src_key_padding_mask=padding)[:, :-2], model(x[:, :-2])


def decoder() -> nn.Module:
    layer = nn.TransformerDecoderLayer(WIDTH, 2, 11, batch_first=True, norm_first=True, dropout=0.0)
    return randomised(nn.TransformerDecoder(layer, 2))


def causal_ban(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def run_decoder(model: nn.Module, x: Tensor | None = None, **masks: Tensor) -> Tensor:
    x = vectors(BATCH, LENGTH, WIDTH) if x is None else x
    masks = {"tgt_mask": causal_ban(x.shape[1]), **masks}
    output: Tensor = model(x, vectors(BATCH, 13, WIDTH), **masks)
    return output


def expected_decoder(model: nn.Module, bias: Tensor) -> Tensor:
    return run_decoder(model, tgt_mask=bias.masked_fill(causal_ban(LENGTH), float("-inf")))


def padded_decoder(model: nn.Module) -> tuple[Tensor, Tensor]:
    x, padding = padded_batch()
    return run_decoder(model, x, tgt_key_padding_mask=padding)[:, :-2], run_decoder(model, x[:, :-2])


def own_transformer() -> nn.Module:
    config = models.TransformerConfig(
        29, LENGTH - 1, 5, width=12, depth=2, heads=3, head_width=4, mlp_width=11
    )
    return randomised(models.Transformer(config))


def expected_own(model: nn.Module, bias: Tensor) -> Tensor:
    """Through the model's own block argument."""
    assert isinstance(model, models.Transformer)
    x = model.embed(tokens(BATCH, LENGTH - 1))
    for block in model.blocks:
        x = block(x, bias, None)
    return model.head(model.norm(x))[:, 0]  # type: ignore[no-any-return]


# timm ----------------------------------------------------------------------------------------------------

GRID = structures.grid_neighbourhood(3, 3, radius=1)


def with_prefix(prefix: int) -> Tensor:
    structure = GRID
    for _ in range(prefix):
        structure = structures.with_readout(structure, read_by="all", self_read=True)
    return noisy(structure)


def timm_model(name: str, **sizes: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        return randomised(timm.create_model(name, num_classes=5, **sizes))

    return build


VIT = {"img_size": 12, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3}


def expected_vit(model: nn.Module, bias: Tensor) -> Tensor:
    output: Tensor = model(images(12), attn_mask=bias)
    return output


def expected_deit(model: nn.Module, bias: Tensor) -> Tensor:
    """The distilled model's ``forward`` takes no mask, its ``forward_features`` does."""
    features = model.get_submodule("").forward_features(images(12), attn_mask=bias)  # type: ignore[operator]
    return model.get_submodule("").forward_head(features)  # type: ignore[operator,no-any-return]


def expected_beit(model: nn.Module, bias: Tensor) -> Tensor:
    """Every block adds a shared relative bias to its own, if there is one."""

    class Shared(nn.Module):
        def forward(self) -> Tensor:
            return bias

    model.rel_pos_bias = Shared()
    output: Tensor = model(images(12))
    del model.rel_pos_bias
    model.rel_pos_bias = None  # type: ignore[assignment]
    return output


def expected_swin(model: nn.Module, bias: Tensor) -> Tensor:
    """The windows' own mask is additive, so it can carry the bias too."""
    handles = []
    for name, module in model.named_modules():
        if name.endswith(".attn"):

            def add(module: nn.Module, inputs: Any, kwargs: Any) -> Any:
                mask = kwargs.get("mask")
                return inputs, {"mask": bias[None] if mask is None else mask + bias}

            handles.append(module.register_forward_pre_hook(add, with_kwargs=True))
    output: Tensor = model(images(24))
    for handle in handles:
        handle.remove()
    return output


def timm_checkpointing(model: nn.Module) -> None:
    model.set_grad_checkpointing(True)  # type: ignore[operator]


def run_images(size: int) -> Callable[[nn.Module], Tensor]:
    def run(model: nn.Module) -> Tensor:
        output: Tensor = model(images(size))
        return output

    return run


def vit_host(name: str, build: Callable[[], nn.Module], structure: Tensor, **changes: Any) -> Host:
    parts: dict[str, Any] = {
        "run": run_images(12),
        "block": "blocks.1",
        "expected": expected_vit,
        "checkpointed": timm_checkpointing,
        "without": {"padding": IMAGE},
    }
    return Host(name, build, structure=structure, **{**parts, **changes})


# Hugging Face ---------------------------------------------------------------------------------------------

TEXT = 11
TEXT_LINE = noisy(structures.linear_distance(TEXT, reach=6.0))
SIZES: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
}


def hugging_face(kind: str, config: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        return randomised(getattr(transformers, kind)(config()))

    return build


def llama_config() -> Any:
    return transformers.LlamaConfig(
        **SIZES,
        num_key_value_heads=2,
        intermediate_size=13,
        max_position_embeddings=64,
        pad_token_id=0,
        use_cache=False,
    )


def gpt2_config() -> Any:
    return transformers.GPT2Config(
        vocab_size=31,
        n_embd=24,
        n_layer=2,
        n_head=3,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )


def bert_config() -> Any:
    return transformers.BertConfig(
        **SIZES,
        intermediate_size=13,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def modernbert_config() -> Any:
    return transformers.ModernBertConfig(
        **SIZES,
        layer_types=["full_attention", "sliding_attention"],
        intermediate_size=13,
        max_position_embeddings=64,
        local_attention=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )


def t5_config() -> Any:
    config = transformers.T5Config(
        vocab_size=31,
        d_model=24,
        d_kv=5,
        d_ff=13,
        num_layers=2,
        num_heads=3,
        dropout_rate=0.0,
        use_cache=False,
    )
    config.decoder_start_token_id = 0
    return config


def vit_config() -> Any:
    return transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=13,
        image_size=12,
        patch_size=4,
    )


def run_text(model: nn.Module, ids: Tensor | None = None, **arguments: Any) -> Tensor:
    """Logits, or hidden states, of the fixed tokens."""
    output = model(tokens(2, TEXT) if ids is None else ids, **arguments)
    result: Tensor = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return result


def expected_text(causal: bool) -> Callable[[nn.Module, Tensor], Tensor]:
    """transformers passes a ready additive mask ``[batch, 1, queries, keys]`` on as it is."""

    def expected(model: nn.Module, bias: Tensor) -> Tensor:
        n = len(bias)
        mask = bias.masked_fill(causal_ban(n), float("-inf")) if causal else bias
        return run_text(model, attention_mask=mask.expand(2, 1, n, n))

    return expected


def expected_modernbert(model: nn.Module, bias: Tensor) -> Tensor:
    """It takes one mask for its global layers and one for its local ones (4 tokens to each side here)."""
    n = len(bias)
    distance = (torch.arange(n) - torch.arange(n)[:, None]).abs()
    near = bias.masked_fill(distance > 4, float("-inf"))
    masks = {"full_attention": bias.expand(2, 1, n, n), "sliding_attention": near.expand(2, 1, n, n)}
    return run_text(model, attention_mask=masks)


def padding_of(ids: Tensor, left: int, right: int) -> dict[str, Tensor]:
    """The tokens between padding, with the mask and the positions that a user passes."""
    real = torch.ones_like(ids)
    sides = [torch.zeros(len(ids), width, dtype=torch.long) for width in (left, right)]
    mask = torch.cat([sides[0], real, sides[1]], dim=1)
    return {
        "ids": torch.cat([sides[0], ids, sides[1]], dim=1),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
    }


def padded_text(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Two tokens of padding, on the left and on the right."""
    ids = tokens(2, TEXT - 2)
    short = run_text(model, ids)
    left = run_text(model, **padding_of(ids, 2, 0))[:, 2:]
    right = run_text(model, **padding_of(ids, 0, 2))[:, :-2]
    return torch.stack([left, right]), torch.stack([short, short])


def t5_inputs(length: int = TEXT) -> dict[str, Tensor]:
    return {"input_ids": tokens(2, length), "decoder_input_ids": tokens(2, length).flip(1)}


def run_t5(model: nn.Module, **arguments: Any) -> Tensor:
    result: Tensor = model(**{**t5_inputs(), **arguments}).logits
    return result


def expected_t5(model: nn.Module, bias: Tensor) -> Tensor:
    n = len(bias)
    full = bias.expand(2, 1, n, n)
    causal = full.masked_fill(causal_ban(n), float("-inf"))
    encoded = model.get_submodule("encoder")(input_ids=tokens(2, TEXT), attention_mask=full)
    return run_t5(model, input_ids=None, encoder_outputs=encoded, decoder_attention_mask=causal)


def padded_t5(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Padding on the left and on the right of the encoder, on the right of the decoder."""
    short = t5_inputs(TEXT - 2)
    reference: Tensor = model(**short).logits
    outputs = []
    for left, right in ((2, 0), (0, 2)):
        source = padding_of(short["input_ids"], left, right)
        target = padding_of(short["decoder_input_ids"], 0, 2)
        padded = model(
            input_ids=source["ids"],
            attention_mask=source["attention_mask"],
            decoder_input_ids=target["ids"],
            decoder_attention_mask=target["attention_mask"],
        )
        outputs.append(padded.logits[:, :-2])
    return torch.stack(outputs), torch.stack([reference, reference])


def expected_hf_vit(model: nn.Module, bias: Tensor) -> Tensor:
    """The library's ViT takes no mask; its layers do."""
    embedded = model.get_submodule("vit.embeddings")(images(12))
    for name, layer in model.named_modules():
        if type(layer).__name__ == "ViTLayer":
            output = layer(embedded, attention_mask=bias[None, None])
            embedded = output if isinstance(output, Tensor) else output[0]
            assert name
    normed = model.get_submodule("vit.layernorm")(embedded)
    result: Tensor = model.get_submodule("classifier")(normed[:, 0])
    return result


def run_hf_vit(model: nn.Module) -> Tensor:
    result: Tensor = model(images(12)).logits
    return result


def hf_checkpointing(model: nn.Module) -> None:
    model.activation_checkpointing_enable()  # type: ignore[operator]


def text_host(
    name: str, build: Callable[[], nn.Module], block: str, expected: Callable[[nn.Module, Tensor], Tensor]
) -> Host:
    return Host(
        name,
        build,
        run=run_text,
        structure=TEXT_LINE,
        block=block,
        expected=expected,
        checkpointed=hf_checkpointing,
        padded=padded_text,
    )


HOSTS = (
    Host(
        "nn.MultiheadAttention",
        build=lambda: randomised(nn.MultiheadAttention(WIDTH, 2, batch_first=True)),
        run=run_attention,
        structure=LINE,
        block="",
        expected=lambda model, bias: run_attention(model, attn_mask=bias),
        checkpointed=lambda model: None,
        padded=padded_attention,
        without={"checkpointing": "one module has no layers to checkpoint"},
    ),
    Host(
        "nn.TransformerEncoder",
        build=encoder,
        run=lambda model: model(vectors(BATCH, LENGTH, WIDTH)),
        structure=LINE,
        block="layers.1",
        expected=lambda model, bias: model(vectors(BATCH, LENGTH, WIDTH), mask=bias),
        checkpointed=checkpoint_layers,
        padded=padded_encoder,
    ),
    Host(
        "nn.TransformerDecoder",
        build=decoder,
        run=run_decoder,
        structure=LINE,
        block="layers.1",
        expected=expected_decoder,
        checkpointed=checkpoint_layers,
        padded=padded_decoder,
    ),
    Host(
        "maskprior.models.Transformer",
        build=own_transformer,
        run=lambda model: model(tokens(BATCH, LENGTH - 1)),
        structure=LINE,
        block="blocks.0",
        expected=expected_own,
        checkpointed=checkpoint_layers,
        without={"padding": "its tasks have one length"},
    ),
    vit_host("timm ViT", timm_model("vit_tiny_patch16_224", **VIT), with_prefix(1)),
    vit_host(
        "timm ViT, registers",
        timm_model("vit_tiny_patch16_224", **VIT, reg_tokens=2, no_embed_class=True),
        with_prefix(3),
    ),
    vit_host(
        "timm DeiT, distilled",
        timm_model("deit_tiny_distilled_patch16_224", **VIT),
        with_prefix(2),
        expected=expected_deit,
    ),
    vit_host("timm EVA-02 (rotary)", timm_model("eva02_tiny_patch14_224", **VIT), with_prefix(1)),
    vit_host(
        "timm BEiT (own relative bias)",
        timm_model("beitv2_base_patch16_224", **VIT),
        with_prefix(1),
        expected=expected_beit,
    ),
    vit_host(
        "timm Swin (in the window)",
        timm_model(
            "swin_tiny_patch4_window7_224",
            img_size=24,
            patch_size=4,
            embed_dim=12,
            depths=(2,),
            num_heads=(3,),
            window_size=3,
            drop_path_rate=0.0,
        ),
        noisy(GRID),
        run=run_images(24),
        block="layers.0.blocks.1",
        expected=expected_swin,
    ),
    text_host(
        "transformers BERT",
        hugging_face("BertModel", bert_config),
        "encoder.layer.1",
        expected_text(causal=False),
    ),
    text_host(
        "transformers GPT-2",
        hugging_face("GPT2LMHeadModel", gpt2_config),
        "transformer.h.1",
        expected_text(causal=True),
    ),
    text_host(
        "transformers Llama (grouped queries)",
        hugging_face("LlamaForCausalLM", llama_config),
        "model.layers.1",
        expected_text(causal=True),
    ),
    Host(
        "transformers T5 (own position bias)",
        hugging_face("T5ForConditionalGeneration", t5_config),
        run=run_t5,
        structure=TEXT_LINE,
        block="encoder.block.1",
        expected=expected_t5,
        checkpointed=hf_checkpointing,
        padded=padded_t5,
    ),
    vit_host(
        "transformers ViT",
        hugging_face("ViTForImageClassification", vit_config),
        with_prefix(1),
        run=run_hf_vit,
        block="vit.layers.1",
        expected=expected_hf_vit,
        checkpointed=hf_checkpointing,
    ),
    text_host(
        "transformers ModernBERT",
        hugging_face("ModernBertModel", modernbert_config),
        "layers.1",
        expected_modernbert,
    ),
)


@pytest.fixture(params=HOSTS, ids=lambda host: host.name)
def host(request: pytest.FixtureRequest) -> Host:
    """One host model."""
    chosen: Host = request.param
    return chosen


@pytest.fixture(
    params=[each for each in HOSTS if "checkpointing" not in each.without], ids=lambda host: host.name
)
def deep_host(request: pytest.FixtureRequest) -> Host:
    """One host model with layers to checkpoint."""
    chosen: Host = request.param
    return chosen


@pytest.fixture(params=[each for each in HOSTS if "padding" not in each.without], ids=lambda host: host.name)
def padded_host(request: pytest.FixtureRequest) -> Host:
    """One host model whose inputs may be padded."""
    chosen: Host = request.param
    return chosen


@pytest.fixture
def hosts() -> dict[str, Host]:
    """Every host model by its name."""
    return {each.name: each for each in HOSTS}


@pytest.fixture(autouse=True)
def quiet_libraries() -> None:
    """Advice of the libraries to their users is not this suite's concern; warnings stay errors."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
