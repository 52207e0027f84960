"""What an attachment does and refuses, on hosts of torch.nn and timm."""

import copy
import gc
import io
import warnings

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import maskprior
from maskprior import structures
from maskprior.integrations import Attachment, DecayWarning, Lengths, attach
from maskprior.structures import check_structure

LENGTH, WIDTH, HEADS, DEPTH = 5, 12, 4, 3
STRUCTURE = structures.window(LENGTH, 1, 1)


def encoder(depth: int = DEPTH, heads: int = HEADS) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, heads, 7, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, depth)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    return model.eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def test_the_package_exports_attach() -> None:
    assert maskprior.attach is attach


# Heads, layers, sharing -----------------------------------------------------------------------------------


def test_heads_without_a_prior_have_no_bias(x: Tensor) -> None:
    chosen, spelled = encoder(), encoder()
    attachment = attach(chosen, STRUCTURE, heads=[3, 1])
    free = torch.ones(LENGTH, LENGTH)
    attach(spelled, torch.stack([free, STRUCTURE, free, STRUCTURE]))
    assert attachment.priors[0].mask_logits.shape == (LENGTH, LENGTH)
    assert torch.allclose(chosen(x), spelled(x), atol=1e-5)


def test_heads_take_their_own_structures_in_the_order_given(x: Tensor) -> None:
    chosen, spelled = encoder(), encoder()
    first, second = structures.identity(LENGTH), structures.causal(LENGTH)
    attach(chosen, torch.stack([first, second]), heads=[3, 1])
    free = torch.ones(LENGTH, LENGTH)
    attach(spelled, torch.stack([free, second, free, first]))
    assert torch.allclose(chosen(x), spelled(x), atol=1e-5)


def test_one_structure_a_layer(x: Tensor) -> None:
    each = [structures.identity(LENGTH), structures.causal(LENGTH), structures.everything(LENGTH)]
    model = encoder()
    attachment = attach(model, structures.per_layer(each))
    for prior, structure in zip(attachment.priors, each, strict=True):
        assert torch.equal(prior.mask_logits[0] > 0, structure > 0)
    assert model(x).shape == x.shape


def test_a_shared_prior_gathers_the_gradients_of_its_layers(x: Tensor) -> None:
    shared, separate = encoder(), encoder()
    one = attach(shared, STRUCTURE, share=True)
    many = attach(separate, STRUCTURE)
    shared(x).square().sum().backward()
    separate(x).square().sum().backward()
    (prior,) = one.priors
    total = sum(other.mask_logits.grad for other in many.priors if other.mask_logits.grad is not None)
    assert prior.mask_logits.grad is not None
    assert torch.allclose(prior.mask_logits.grad, torch.as_tensor(total), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "structure",
    [
        structures.relative_distance(6, half_life=2.0),
        structures.linear_distance(6, reach=4.0, causal=True),
        structures.relative_distance(6, structures.geometric_half_lives(HEADS, 1.0, 8.0)),
        structures.with_readout(structures.with_fallback_self(structures.groups(5, [[0, 1, 2], [3, 4]]))),
        structures.with_self(structures.same_label([0, 0, 1, 1, 2, 2])),
        structures.with_fallback_self(structures.digit_alignment(structures.digit_columns("12+34="))),
        structures.graph_distance(structures.cyclic_window(6, [1, -1]), half_life=1.0),
    ],
    ids=["relative", "alibi", "half-lives", "column groups", "table", "digits", "graph"],
)
def test_structures_of_many_kinds_attach_and_learn(structure: Tensor) -> None:
    model = encoder(depth=1)
    attachment = attach(model, structure)
    model(torch.randn(2, 6, WIDTH)).square().sum().backward()
    gradient = attachment.priors[0].mask_logits.grad
    assert gradient is not None
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("side", [7, 8, 14])
def test_grids_with_a_class_token_fit_their_vit(side: int) -> None:
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=2 * side,
        patch_size=2,
        embed_dim=6,
        depth=1,
        num_heads=2,
        num_classes=3,
    )
    grid = structures.grid_neighbourhood(side, side, radius=1)
    attach(model, structures.with_readout(grid, read_by="all", self_read=True))
    assert model(torch.randn(1, 3, 2 * side, 2 * side)).shape == (1, 3)


# Switches -------------------------------------------------------------------------------------------------


def test_freeze_and_unfreeze() -> None:
    attachment = attach(encoder(), STRUCTURE, learnable=False)
    learn = [prior.mask_logits.requires_grad for prior in attachment.priors]
    attachment.unfreeze()
    learn += [prior.mask_logits.requires_grad for prior in attachment.priors]
    attachment.freeze()
    learn += [prior.mask_logits.requires_grad for prior in attachment.priors]
    assert learn == [False] * 3 + [True] * 3 + [False] * 3


def test_disabled_nests_and_survives_errors(x: Tensor) -> None:
    model, plain = encoder(), encoder()
    attachment = attach(model, STRUCTURE)
    with torch.no_grad():
        changed, expected = model(x), plain(x)
        with attachment.disabled(), attachment.disabled():
            assert torch.equal(model(x), expected)
        assert torch.equal(model(x), changed)
        with pytest.raises(ValueError, match="empty"), attachment.disabled():
            check_structure(torch.zeros(2, 2))
        assert torch.equal(model(x), changed)
        with attachment.disabled():
            attachment.detach()
        assert torch.equal(model(x), expected)


def test_a_detached_attachment_says_so() -> None:
    model = encoder()
    attachment = attach(model, STRUCTURE)
    attachment.detach()
    with pytest.raises(
        ValueError, match="TransformerEncoder has none: nothing was attached, it was detached"
    ):
        attachment.freeze()
    with pytest.raises(ValueError, match="expected a model with attached priors"):
        Attachment.of(model)


def test_baking_keeps_the_outputs_and_leaves_nothing_to_learn(x: Tensor) -> None:
    model = encoder()
    attachment = attach(model, STRUCTURE, heads=[0, 2], share=True)
    with torch.no_grad():
        attachment.priors[0].mask_logits.normal_()
        before = model(x)
        attachment.bake()
        assert torch.equal(model(x), before)
    assert attachment.priors == ()
    assert [name for name, _ in model.named_parameters() if "bias_priors" in name] == []
    assert [name for name in model.state_dict() if "bias_priors" in name] == ["bias_priors.0.bias"]
    model.bfloat16()
    assert model.get_buffer("bias_priors.0.bias").dtype == torch.float32
    with pytest.raises(ValueError, match=r"got 'layers.0.self_attn'"):
        attachment.prior_of("layers.0.self_attn")
    attachment.detach()
    assert not hasattr(model, "bias_priors")


def test_repr_says_where() -> None:
    attachment = attach(encoder(), STRUCTURE, layers=[0, 2], share=True)
    assert repr(attachment) == "Attachment(1 prior(s) in layers.0.self_attn, layers.2.self_attn)"


# Optimisers -----------------------------------------------------------------------------------------------


def test_parameter_groups_decay_everything_but_m(x: Tensor) -> None:
    model = encoder()
    attachment = attach(model, STRUCTURE)
    groups = attachment.param_groups(0.1, 0.2, mask_lr_factor=3.0)
    last = groups[-1]
    assert (last["name"], last["lr"], last["weight_decay"]) == ("mask_logits", pytest.approx(0.3), 0.0)
    assert [id(p) for p in last["params"]] == [id(prior.mask_logits) for prior in attachment.priors]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = torch.optim.AdamW(groups)
        model(x).sum().backward()
        optimizer.step()


def test_an_optimiser_that_decays_m_is_noticed_once(x: Tensor) -> None:
    model = encoder()
    attach(model, STRUCTURE)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    model(x).sum().backward()
    with pytest.warns(
        DecayWarning, match=r"AdamW decays mask logits \(group 0 with 0.5\): decay pulls M to 0"
    ):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1).step()


def test_the_watch_ends_with_the_model_and_ignores_others(x: Tensor) -> None:
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    gc.collect()
    before = len(_global_optimizer_pre_hooks)
    model, other = encoder(), encoder()
    attach(model, STRUCTURE)
    assert len(_global_optimizer_pre_hooks) == before + 1
    other(x).sum().backward()
    torch.optim.AdamW(other.parameters(), weight_decay=0.5).step()
    del model
    gc.collect()
    assert len(_global_optimizer_pre_hooks) == before


# States of a host -----------------------------------------------------------------------------------------


def test_attaching_twice_is_refused() -> None:
    model = encoder()
    attach(model, STRUCTURE, layers=[0])
    with pytest.raises(
        ValueError, match=r"TransformerEncoder has attached priors already: detach\(\) them first"
    ):
        attach(model, STRUCTURE, layers=[1])


def test_attaching_after_compile_is_refused() -> None:
    model = encoder()
    with pytest.raises(ValueError, match="OptimizedModule is compiled: attach first, compile afterwards"):
        attach(torch.compile(model), STRUCTURE)  # type: ignore[arg-type]
    model.get_submodule("layers.0").compile()
    with pytest.raises(ValueError, match="TransformerEncoder is compiled"):
        attach(model, STRUCTURE)


def test_a_compiled_model_follows_what_happens_to_the_model_inside(x: Tensor) -> None:
    model = encoder(depth=1)
    compiled, plain = torch.compile(model, backend="eager"), model(x)
    assert torch.allclose(compiled(x), plain, atol=1e-6)
    attachment = attach(model, STRUCTURE)
    changed = model(x)
    assert not torch.allclose(changed, plain, atol=1e-3)
    assert torch.allclose(compiled(x), changed, atol=1e-6)
    with attachment.disabled():
        assert torch.allclose(compiled(x), plain, atol=1e-6)
    assert torch.allclose(compiled(x), changed, atol=1e-6)
    attachment.detach()
    assert torch.allclose(compiled(x), plain, atol=1e-6)


def test_containers_without_a_forward_of_their_own_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a model with a forward of its own, got Sequential"):
        attach(nn.Sequential(encoder()), STRUCTURE)


def test_a_forward_that_was_replaced_is_not_overwritten() -> None:
    attention = nn.MultiheadAttention(WIDTH, HEADS)
    vars(attention)["forward"] = attention.forward
    with pytest.raises(ValueError, match="its forward was replaced on the instance"):
        attach(attention, STRUCTURE)


def test_ema_copies_average_m(x: Tensor) -> None:
    model = encoder()
    attachment = attach(model, STRUCTURE)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    average.update_parameters(model)  # the first update copies
    with torch.no_grad():
        attachment.priors[0].mask_logits.add_(1.0)
    average.update_parameters(model)
    copied = Attachment.of(average.module).priors[0].mask_logits
    assert torch.allclose(copied, attachment.priors[0].mask_logits - 0.5)
    assert not torch.equal(average(x), model(x))


def test_a_pickled_model_keeps_its_priors(x: Tensor) -> None:
    model = encoder()
    attach(model, STRUCTURE)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(x), model(x))
    Attachment.of(loaded).detach()
    assert torch.allclose(loaded(x), encoder()(x), atol=1e-6)


def test_functional_call_reaches_the_priors(x: Tensor) -> None:
    model = encoder()
    attachment = attach(model, STRUCTURE)
    state = {"bias_priors.0.mask_logits": torch.zeros(LENGTH, LENGTH)}
    before = model(x)
    replaced = torch.func.functional_call(model, state, (x,))
    with torch.no_grad():
        attachment.priors[0].mask_logits.zero_()
    assert torch.equal(replaced, model(x))
    assert not torch.equal(replaced, before)


def test_a_deepcopy_in_disabled_state_stays_disabled(x: Tensor) -> None:
    model = encoder()
    attachment = attach(model, STRUCTURE, lengths=Lengths("slice"))
    with attachment.disabled():
        twin = copy.deepcopy(model)
    assert torch.allclose(twin(x), encoder()(x), atol=1e-6)
