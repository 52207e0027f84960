"""The closed form of qk_svd_, step by step, against least squares and Eckart–Young."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior.models import Transformer, TransformerConfig
from maskprior.priors import pattern_distance, qk_svd_
from maskprior.priors.qk_svd import position_readers, truncated_factors
from maskprior.priors.targets import centred_scores, target_log_patterns

DEPTH, HEADS, HEAD_WIDTH, N, WIDTH = 2, 3, 5, 7, 17


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_model(head_width: int = HEAD_WIDTH, depth: int = DEPTH) -> Transformer:
    config = TransformerConfig(
        vocab_size=2,
        length=N - 1,
        outputs=1,
        width=WIDTH,
        depth=depth,
        heads=HEADS,
        head_width=head_width,
        mlp_width=11,
        position_std=0.1,
        query_key_gain=3.0,
    )
    return Transformer(config, seeded(0))


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def test_without_noise_the_readers_are_the_pseudo_inverse() -> None:
    features = random(N, WIDTH)
    query, key = position_readers(features.expand(23, N, WIDTH))
    identity = torch.eye(N, dtype=torch.float64)
    torch.testing.assert_close(query, torch.linalg.pinv(features), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features @ query, identity, rtol=0, atol=1e-5)
    # The key side is right up to a vector that is the same for all positions.
    offset = features @ key - identity
    torch.testing.assert_close(offset, offset[:1].expand(N, N), rtol=0, atol=1e-5)


def test_readers_are_the_least_squares_reading_of_the_position() -> None:
    x = random(N, WIDTH) + 0.5 * random(41, N, WIDTH, seed=2)
    mean = x.mean(0)
    noise = torch.cov((x - mean).reshape(-1, WIDTH).T, correction=0)
    noise = noise + 1e-6 * x.square().mean() * torch.eye(WIDTH, dtype=torch.float64)
    root = torch.linalg.cholesky(noise).T
    for got, features in zip(position_readers(x), (mean, mean - mean.mean(0)), strict=True):
        # minimise ‖F G − I‖² + ‖C^½ G‖², one stacked least-squares problem
        stacked = torch.cat([features, root])
        wanted = torch.cat([torch.eye(N), torch.zeros(WIDTH, N)]).double()
        torch.testing.assert_close(got, torch.linalg.lstsq(stacked, wanted).solution, rtol=1e-8, atol=1e-10)


def test_readers_avoid_the_directions_in_which_tokens_differ() -> None:
    direction = torch.zeros(WIDTH, dtype=torch.float64)
    direction[3] = 1.0
    signal = 0.02 * random(N, WIDTH)
    x = signal + random(997, N, 1, seed=2) * direction
    x = x - (x - signal).mean(0)
    query, _ = position_readers(x)
    plain = torch.linalg.pinv(signal)
    assert float((direction @ query).norm()) < 1e-3 * float((direction @ plain).norm())
    torch.testing.assert_close(signal @ query, torch.eye(N, dtype=torch.float64), rtol=0, atol=0.05)


@given(seed=st.integers(0, 2**31), rank=st.integers(1, 11), heads=st.integers(1, 3))
def test_truncation_is_the_best_of_its_rank_up_to_its_scale(seed: int, rank: int, heads: int) -> None:
    scores = random(heads, N, N, seed=seed)
    left, right = truncated_factors(scores, rank, seeded(3))
    assert left.shape == right.shape == (heads, N, rank)
    product = left @ right.mT
    values = torch.linalg.svdvals(scores)
    scale = values.square().sum(-1) / values[:, :rank].square().sum(-1)
    # Eckart–Young: the error of the best approximation is the energy of the values left out.
    error = (scores - product / scale[:, None, None]).square().sum((-2, -1))
    torch.testing.assert_close(error, values[:, rank:].square().sum(-1), rtol=1e-5, atol=1e-12)
    torch.testing.assert_close((product * scores).sum((-2, -1)), scores.square().sum((-2, -1)))
    torch.testing.assert_close(left.square().sum(-2), right.square().sum(-2))


def test_truncating_a_permutation_costs_every_position_a_little() -> None:
    size, rank = 31, 13
    scores = 10 * torch.eye(size, dtype=torch.float64).roll(1, 0)
    left, right = truncated_factors(scores, rank, seeded(3))
    kept = ((left @ right.mT) * scores.sign()).sum(-1)
    # Without mixing, LAPACK keeps 13 positions at 10 · 31/13 and drops 18 to 0.
    assert float(kept.mean()) == pytest.approx(10.0, rel=1e-6)
    assert float(kept.min()) > 2.0


def test_no_scores_give_no_factors() -> None:
    left, right = truncated_factors(torch.zeros(HEADS, N, N, dtype=torch.float64), HEAD_WIDTH, seeded(3))
    assert bool((left == 0).all())
    assert bool((right == 0).all())


def test_scores_of_the_mean_features_are_the_target_scores() -> None:
    """With a head as wide as the structure's rank, F W_Qᵀ W_K Fᵀ / √d = T up to a constant a row."""
    model = make_model(head_width=N, depth=1)
    structure = (torch.rand(HEADS, N, N, generator=seeded(1)) < 0.4).float().maximum(torch.eye(N))
    (target,) = target_log_patterns(model, structure, allowed_logit=4.0, suppressed_logit=-10.0)
    qk_svd_(model, structure, seeded(2))
    tokens = torch.cartesian_prod(*[torch.arange(2)] * (N - 1))
    ((attention, x),) = list(model.layer_inputs(tokens))
    mean = x.detach().double().mean(0)
    query, key = (weight.detach().double() for weight in (attention.query_weight(), attention.key_weight()))
    scores = mean @ query.mT @ key @ mean.T / N**0.5
    scores = scores - scores.mean(-1, keepdim=True)
    torch.testing.assert_close(scores, centred_scores(target), rtol=0, atol=0.25)


def test_equal_heads_get_equal_weights_and_components_without_use_stay_trainable() -> None:
    model = make_model(head_width=11)
    before = model.blocks[0].get_submodule("attention").get_parameter("qkv.weight").detach().clone()
    qk_svd_(model, torch.eye(N), seeded(2))
    after = model.blocks[0].get_submodule("attention").get_parameter("qkv.weight").detach()
    query, key = after[: 2 * HEADS * 11].view(2, HEADS, 11, WIDTH)
    old_query = before[: HEADS * 11].view(HEADS, 11, WIDTH)
    # The row-centred identity has rank N − 1 = 6: five of eleven components are not used.
    assert torch.equal(query[0, : N - 1], query[1, : N - 1])
    assert bool((query[:, : N - 1] != old_query[:, : N - 1]).any(-1).all())
    assert torch.equal(query[:, N - 1 :], old_query[:, N - 1 :])
    assert bool((key[:, N - 1 :] == 0).all())
    assert bool((key[:, : N - 1] != 0).any(-1).all())


def test_a_structure_of_ones_gives_uniform_attention() -> None:
    model = make_model()
    qk_svd_(model, torch.ones(N, N), seeded(2))
    patterns = model.attention_patterns(model.sample_inputs(23, seeded(4)))
    torch.testing.assert_close(patterns, torch.full_like(patterns, 1 / N), rtol=0, atol=1e-6)


def test_later_layers_are_fitted_to_what_earlier_ones_make() -> None:
    """A layer's weights depend on the earlier layers' new weights, not on the vanilla ones."""
    first, other = make_model(), make_model()
    with torch.no_grad():
        other.blocks[0].get_submodule("attention").get_parameter("qkv.weight")[: 2 * HEADS * HEAD_WIDTH] *= 2
    for model in (first, other):
        qk_svd_(model, torch.eye(N).roll(1, 0), seeded(2))
    state = first.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in other.state_dict().items())


@pytest.mark.parametrize("samples", [1, 16, 1024])
def test_samples_may_be_few_or_many(samples: int) -> None:
    model = make_model(head_width=N)
    structure = torch.eye(N)
    qk_svd_(model, structure, seeded(2), samples=samples)
    distance = pattern_distance(model, structure, model.sample_inputs(64, seeded(4)))
    assert bool((distance < 0.05).all())
