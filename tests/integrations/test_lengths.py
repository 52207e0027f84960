"""Other lengths than the structure's: each rule against its definition, and in models."""

from typing import Any

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from maskprior import structures
from maskprior.integrations import Attachment, Lengths, attach

N = 7


def table(n: int = N, heads: int = 3) -> Tensor:
    return torch.randn(heads, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


# The rules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["error", "slice", "relative"])
def test_the_own_length_is_returned_as_it_is(rule: Any) -> None:
    values = table()
    assert Lengths(rule).fit(values, N, N) is values


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (8, 8), (1, N), (1, 5)])
def test_error_refuses_every_other_length(queries: int, keys: int) -> None:
    message = (
        f"expected 7 queries and 7 keys with lengths='error', got {queries} and {keys}; other lengths need"
    )
    with pytest.raises(ValueError, match=message):
        Lengths().fit(table(), queries, keys)


@pytest.mark.parametrize("rule", ["slice", "relative"])
@given(keys=st.integers(1, N), queries=st.integers(1, N))
def test_shorter_takes_the_first_keys_and_the_last_queries(rule: Any, keys: int, queries: int) -> None:
    if queries > keys:
        with pytest.raises(ValueError, match="queries"):
            Lengths(rule).fit(table(), queries, keys)
        return
    values = table()
    fitted = Lengths(rule).fit(values, queries, keys)
    assert torch.equal(fitted, values[:, :keys, :keys][:, -queries:])


def test_slice_cannot_extend() -> None:
    with pytest.raises(
        ValueError, match="expected at most 7 tokens with lengths='slice', got 8; make the struct"
    ):
        Lengths("slice").fit(table(), 8, 8)


def test_relative_extends_by_the_means_of_the_diagonals() -> None:
    values, longer = table(), 11
    fitted = Lengths("relative").fit(values, longer, longer)
    for i in range(longer):
        for j in range(longer):
            offset = min(max(j - i, 1 - N), N - 1)
            inside = i < N and j < N
            expected = values[:, i, j] if inside else values.diagonal(offset, -2, -1).mean(-1)
            torch.testing.assert_close(fitted[:, i, j], expected, rtol=1e-12, atol=1e-12)


@given(queries=st.integers(1, 11))
def test_relative_rows_of_cached_decoding_are_those_of_the_full_table(queries: int) -> None:
    full = Lengths("relative").fit(table(), 11, 11)
    assert torch.equal(Lengths("relative").fit(table(), queries, 11), full[:, -queries:])


def test_relative_keeps_a_toeplitz_table_toeplitz() -> None:
    short = structures.linear_distance(N, reach=20.0, causal=True).double()
    longer = Lengths("relative").fit(short, 13, 13)
    inner = structures.linear_distance(13, reach=20.0, causal=True).double()
    near = (torch.arange(13) - torch.arange(13)[:, None]).abs() < N
    torch.testing.assert_close(longer[near], inner[near])
    assert torch.equal(longer[1:, 1:], longer[:-1, :-1])
    assert torch.equal(longer[~near & (longer > 0)].unique(), short[N - 1, 0].reshape(1))


def test_positions_beyond_the_structure_need_relative() -> None:
    query, key = torch.tensor([[0, N]]), torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match="expected positions below 7 with lengths='slice', got 7; make the"):
        Lengths("slice").at(table(), query, key)
    assert Lengths("relative").at(table(), query, key).shape == (3, 1, 2)


def test_relative_passes_gradients_to_every_entry() -> None:
    values = table().requires_grad_()
    assert torch.autograd.gradcheck(lambda m: Lengths("relative").fit(m, 9, 9), values)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize(("old", "new"), [((3, 3), (5, 5)), ((4, 4), (2, 2)), ((2, 3), (4, 6))])
def test_interpolate_resizes_both_axes_and_keeps_the_prefix(
    prefix: int, old: tuple[int, int], new: tuple[int, int]
) -> None:
    values = table(prefix + old[0] * old[1])
    tokens = prefix + new[0] * new[1]
    fitted = Lengths("interpolate", grid=old, prefix=prefix).fit(values, tokens, tokens)

    def resized(rows: Tensor) -> Tensor:
        grids = rows.reshape(-1, 1, *old)
        image = nn.functional.interpolate(grids, new, mode="bilinear", antialias=True, align_corners=False)
        return image.reshape(*rows.shape[:-1], new[0] * new[1])

    assert torch.equal(fitted[:, :prefix, :prefix], values[:, :prefix, :prefix])
    assert torch.allclose(fitted[:, :prefix, prefix:], resized(values[:, :prefix, prefix:]))
    assert torch.allclose(fitted[:, prefix:, :prefix].mT, resized(values[:, prefix:, :prefix].mT))
    patches = resized(resized(values[:, prefix:, prefix:]).mT).mT
    assert torch.allclose(fitted[:, prefix:, prefix:], patches)


def test_interpolate_stays_in_the_range_of_the_table() -> None:
    grid = structures.with_readout(structures.grid_neighbourhood(4, 4, 1), read_by="all", self_read=True)
    fitted = Lengths("interpolate", prefix=1).fit(grid, 50, 50)
    assert fitted.min() >= 0
    assert fitted.max() <= 1
    assert torch.equal(fitted[0], torch.ones(50))


def test_interpolate_needs_a_grid_of_the_proportions() -> None:
    rule = Lengths("interpolate", grid=(2, 3), prefix=1)
    with pytest.raises(
        ValueError, match=r"1 prefix token\(s\) and a grid of the proportions of 2 × 3, got 10"
    ):
        rule.fit(table(7), 10, 10)
    with pytest.raises(ValueError, match="a grid of the proportions of a square, got 8 tokens"):
        Lengths("interpolate").check(table(8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zoom",), "expected a length rule in .*, got 'zoom'"),
        (("slice", (2, 2)), "expected grid and prefix with rule='interpolate' only, got rule='slice'"),
        (("interpolate", (0, 2)), "expected a grid ≥ 1 × 1"),
        (("interpolate", None, -1), "prefix ≥ 0"),
    ],
)
def test_wrong_rules_are_errors(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lengths(*arguments)


def test_rules_that_a_structure_cannot_follow_are_errors() -> None:
    with pytest.raises(
        ValueError, match=r"constant along each diagonal.* with lengths='relative', got one that is"
    ):
        Lengths("relative").check(table())
    with pytest.raises(ValueError, match="expected a square structure with lengths='slice', got 3 × 5"):
        Lengths("slice").check(torch.ones(3, 5))
    Lengths("relative").check(structures.window(N, 2, 1))
    Lengths("error").check(torch.ones(3, 5))


# In models ------------------------------------------------------------------------------------------------


def encoder() -> nn.TransformerEncoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 5, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 2).eval()


def test_a_model_uses_the_rule_at_each_length() -> None:
    model, plain = encoder(), encoder()
    structure = structures.relative_distance(N, half_life=2.0)
    attach(model, structure, lengths="relative")
    for n in (3, N):
        x = torch.randn(2, n, 8)
        attach(plain, structure[:n, :n])
        assert torch.allclose(model(x), plain(x), atol=1e-6)
        Attachment.of(plain).detach()
    assert model(torch.randn(2, 20, 8)).shape == (2, 20, 8)


def test_a_vit_of_another_image_size_interpolates() -> None:
    sizes: dict[str, Any] = {"patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 2, "reg_tokens": 2}
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, dynamic_img_size=True, num_classes=3, **sizes
    )
    structure = structures.grid_neighbourhood(4, 4, 1)
    for _ in range(3):
        structure = structures.with_readout(structure, read_by="all", self_read=True)
    attach(model, structure, lengths=Lengths("interpolate", prefix=3))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    with pytest.raises(
        ValueError, match=r"attention module 'blocks.0.attn': expected 3 prefix token\(s\) and a g"
    ):
        model(torch.randn(2, 3, 16, 32))


@pytest.mark.parametrize(
    ("lengths", "own", "loaded"),
    [
        (Lengths("slice"), 5, N),
        (Lengths("relative"), 11, N),
        (Lengths("interpolate"), 16, 9),
        (Lengths("interpolate", prefix=1), 10, 17),
    ],
)
def test_a_state_of_another_length_is_brought_to_the_own(lengths: Lengths, own: int, loaded: int) -> None:
    source, target = encoder(), encoder()
    attach(source, structures.everything(loaded), lengths=lengths)
    attachment = attach(target, structures.everything(own), lengths=lengths)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    target.load_state_dict(source.state_dict())
    expected = lengths.fit(Attachment.of(source).priors[1].mask_logits, own, own)
    assert torch.equal(attachment.priors[1].mask_logits, expected)


def test_a_state_of_another_length_is_refused_where_no_rule_says_how() -> None:
    source, target = encoder(), encoder()
    attach(source, structures.everything(N))
    attach(target, structures.everything(5))
    with pytest.raises(RuntimeError, match=r"size mismatch for bias_priors.0.mask_logits"):
        target.load_state_dict(source.state_dict())
    Attachment.of(target).detach()
    attach(target, structures.everything(11), lengths="slice")
    with pytest.raises(ValueError, match="expected at most 7 tokens with lengths='slice', got 11"):
        target.load_state_dict(source.state_dict())
