"""The contract that every prior of image models keeps."""

import copy
import random
import re
from functools import partial

import pytest
import torch
from torch import Tensor

from maskprior.models import Transformer, TransformerConfig
from maskprior.priors import ALL_PRIORS, PRIORS, VISION_PRIORS, impulse_, mimetic_, mimetic_mask_, vanilla_
from maskprior.vision.model import VitConfig, VitModel

DEPTH, HEADS, N, WIDTH = 2, 3, 7, 12
CONFIG = VitConfig(
    image_size=(4, 6), patch_size=2, classes=5, width=WIDTH, depth=DEPTH, heads=HEADS, mlp_ratio=2.0
)

every_prior = pytest.mark.parametrize("name", list(VISION_PRIORS))
every_shape = pytest.mark.parametrize(
    "leading", [(), (1,), (HEADS,), (DEPTH, 1), (DEPTH, HEADS)], ids=["plain", "1", "heads", "layers", "both"]
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_model(seed: int = 0) -> VitModel:
    return VitModel(CONFIG, seeded(seed))


def make_structure(leading: tuple[int, ...] = ()) -> Tensor:
    drawn = torch.rand(*leading, N, N, generator=seeded(1)) < 0.3
    return (drawn | torch.eye(N, dtype=torch.bool)).float()


def state(model: VitModel) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def own_parameters(name: str, key: str, value: Tensor) -> Tensor:
    """Bool, the shape of the value: the elements that the prior of this name may change."""
    own = torch.zeros_like(value, dtype=torch.bool)
    if name in ("mimetic", "impulse"):
        own[...] = key == "vit.pos_embed"
        if re.fullmatch(r"vit\.blocks\.\d+\.attn\.qkv\.weight", key):
            own[: (3 if name == "mimetic" else 2) * WIDTH] = True
    if name == "mimetic" and re.fullmatch(r"vit\.blocks\.\d+\.attn\.proj\.weight", key):
        own[...] = True
    return own


@every_prior
@every_shape
def test_changes_its_own_parameters_only(name: str, leading: tuple[int, ...]) -> None:
    model, structure = make_model(), make_structure(leading)
    before, given = state(model), structure.clone()
    VISION_PRIORS[name](model, structure, seeded(2))
    after = state(model)
    added = {f"vit.bias_priors.{layer}.mask_logits" for layer in range(DEPTH)}
    assert set(after) - set(before) == (added if name == "mask" else set())
    for key, value in before.items():
        own = own_parameters(name, key, value)
        torch.testing.assert_close(after[key][~own], value[~own], rtol=0, atol=0)
        assert bool((after[key] != value)[own].any()) == bool(own.any())
    assert torch.equal(structure, given)


@every_prior
def test_is_deterministic_given_the_generator(name: str) -> None:
    models = [make_model() for _ in range(3)]
    for model, seed in zip(models, (2, 2, 3), strict=True):
        VISION_PRIORS[name](model, make_structure((HEADS,)), seeded(seed))
    first, second, other = (state(model) for model in models)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(first[key], other[key]) for key in first) == (name in ("vanilla", "mask"))


@every_prior
def test_leaves_flags_modes_gradients_and_global_generators_alone(name: str) -> None:
    model = make_model()
    model.vit.blocks[1].eval()
    model.vit.head.weight.requires_grad = False
    flags = {key: value.requires_grad for key, value in model.named_parameters()}
    modes = {key: module.training for key, module in model.named_modules()}
    global_states = torch.get_rng_state(), random.getstate()
    VISION_PRIORS[name](model, make_structure(), seeded(2))
    assert torch.equal(torch.get_rng_state(), global_states[0])
    assert random.getstate() == global_states[1]
    assert torch.is_grad_enabled()
    assert {key: module.training for key, module in model.named_modules() if key in modes} == modes
    assert all(value.grad is None and value.is_leaf for value in model.parameters())
    assert {key: value.requires_grad for key, value in model.named_parameters() if key in flags} == flags


@every_prior
@every_shape
def test_state_dict_round_trip(name: str, leading: tuple[int, ...]) -> None:
    model, other = make_model(), make_model(5)
    VISION_PRIORS[name](model, make_structure(leading), seeded(2))
    VISION_PRIORS[name](other, make_structure(leading), seeded(3))
    images = model.sample_inputs(3, seeded(4))
    assert not torch.equal(model(images), other(images))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(images), other(images))


@every_prior
def test_deepcopy_is_equal_and_independent(name: str) -> None:
    model = make_model()
    VISION_PRIORS[name](model, make_structure((HEADS,)), seeded(2))
    images = model.sample_inputs(3, seeded(4))
    twin, expected = copy.deepcopy(model), model(images)
    assert torch.equal(twin(images), expected)
    with torch.no_grad():
        for value in twin.parameters():
            value.mul_(0.5)
    assert torch.equal(model(images), expected)
    assert not torch.equal(twin(images), expected)


@every_prior
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_works_on_a_model_of_another_dtype(name: str, dtype: torch.dtype) -> None:
    model = make_model().to(dtype)
    VISION_PRIORS[name](model, make_structure(), seeded(2))
    for key, value in model.named_parameters():
        assert value.dtype == (torch.float32 if "mask_logits" in key else dtype), key
        assert bool(value.isfinite().all())
    assert model(model.sample_inputs(3, seeded(4))).dtype == dtype


@every_prior
def test_trains_afterwards(name: str) -> None:
    model = make_model()
    VISION_PRIORS[name](model, make_structure(), seeded(2))
    model(model.sample_inputs(11, seeded(4))).square().mean().backward()
    for key, value in model.named_parameters():
        assert value.grad is not None, key
        assert bool(value.grad.isfinite().all()), key
        if key.endswith("attn.qkv.weight"):
            assert bool((value.grad[: 2 * WIDTH].view(2 * HEADS, -1).norm(dim=-1) > 0).all()), key


@every_prior
def test_a_structure_that_does_not_fit_is_refused(name: str) -> None:
    model = make_model()
    before = state(model)
    with pytest.raises(ValueError, match=r"expected a structure \[7, 7\]"):
        VISION_PRIORS[name](model, torch.ones(5, 5), seeded(2))
    empty = make_structure()
    empty[3] = 0
    with pytest.raises(ValueError, match="row"):
        VISION_PRIORS[name](model, empty, seeded(2))
    assert all(torch.equal(value, before[key]) for key, value in state(model).items())


@pytest.mark.parametrize("prior", [mimetic_, impulse_])
def test_models_of_tokens_are_refused(prior: object) -> None:
    model = Transformer(TransformerConfig(vocab_size=2, length=6, outputs=1), seeded(0))
    with pytest.raises(TypeError, match=r"expected a model of image patches for .*, got Transformer"):
        prior(model, torch.ones(7, 7), seeded(1))  # type: ignore[operator]


def test_priors_are_listed_by_their_names() -> None:
    assert list(VISION_PRIORS) == ["vanilla", "mimetic", "impulse", "mask"]
    assert set(ALL_PRIORS) >= set(PRIORS) | set(VISION_PRIORS)
    assert VISION_PRIORS["vanilla"] is vanilla_
    for name, prior in ALL_PRIORS.items():
        assert getattr(prior, "__name__", "") == f"{name}_"
        assert not isinstance(prior, partial)


def test_mask_and_mimetic_together_are_what_each_does() -> None:
    structure, both, mimetic = make_structure(), make_model(), make_model()
    mimetic_mask_(both, structure, seeded(4), suppressed_logit=-3.0, learnable=False)
    mimetic_(mimetic, structure, seeded(4), value_output=False, sinusoidal=False)
    weights = state(mimetic)
    assert all(torch.equal(both.state_dict()[name], value) for name, value in weights.items())
    logits = both.mask_logits()
    assert logits is not None
    torch.testing.assert_close(logits, (-3 + 7 * structure).expand_as(logits))
    assert not logits.requires_grad
