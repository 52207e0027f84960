"""Boolean tasks: the cube enumerated, metrics exact, bad definitions refused."""

import pickle
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskprior import structures
from maskprior.tasks.boolean import (
    AnyIsOne,
    BooleanFunction,
    BooleanTask,
    Polynomial,
    sign_accuracy,
    to_points,
    to_tokens,
)
from maskprior.tasks.gotu import BOOLEAN_TASKS, cyclic3, majority3, two_parity


def make(
    dimension: int = 3,
    target: object = Polynomial((((0, 1), 1.0),)),
    seen: object = AnyIsOne((0,)),
    interaction: Tensor | None = None,
    samples: int = 4096,
) -> BooleanTask:
    interaction = structures.everything(dimension + 1) if interaction is None else interaction
    return BooleanTask("made", dimension, target, seen, interaction, samples=samples)  # type: ignore[arg-type]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


terms = st.dictionaries(
    st.frozensets(st.integers(0, 4), max_size=4).map(lambda s: tuple(sorted(s))),
    st.floats(-3, 3),
    min_size=1,
    max_size=5,
)


@given(terms)
def test_polynomial_equals_its_formula(chosen: dict[tuple[int, ...], float]) -> None:
    polynomial = Polynomial(tuple(chosen.items()))
    for point in product((-1.0, 1.0), repeat=5):
        expected = 0.0
        for monomial, coefficient in chosen.items():
            value = coefficient
            for i in monomial:
                value *= point[i]
            expected += value
        assert float(polynomial(torch.tensor(point, dtype=torch.float64))) == pytest.approx(
            expected, abs=1e-12
        )


def test_formulas_read_as_written() -> None:
    target = Polynomial((((0,), 1.0), ((1, 2), -0.5)))
    assert make(target=target).describe()["target"] == "x0 - 0.5*x1*x2"
    assert make(seen=AnyIsOne((0, 2))).describe()["seen"] == "x0=1 or x2=1"


def test_training_data_are_exactly_the_seen_points() -> None:
    train = make(dimension=4, seen=AnyIsOne((0, 2))).splits(generator()).train
    rows = {tuple(row) for row in to_points(train.inputs).int().tolist()}
    expected = {point for point in product((-1, 1), repeat=4) if point[0] == 1 or point[2] == 1}
    assert rows == expected
    assert len(train) == len(expected)
    points = to_points(train.inputs)
    assert train.targets.shape == (12, 1)
    assert torch.equal(train.targets[:, 0], points[:, 0] * points[:, 1])


def test_probe_depends_on_the_generator_alone() -> None:
    task = two_parity(12)
    same, again, other = (task.splits(generator(seed)).probe for seed in (1, 1, 2))
    assert torch.equal(same.inputs, again.inputs)
    assert not torch.equal(same.inputs, other.inputs)


def test_tokens_and_points_are_inverse() -> None:
    points = torch.tensor([[1.0, -1.0, -1.0]])
    assert to_tokens(points).tolist() == [[1, 0, 0]]
    assert torch.equal(to_points(to_tokens(points)), points)


def measure(task: BooleanTask, function: BooleanFunction) -> dict[str, Any]:
    """Metrics of a model that computes the function exactly."""
    test = task.splits(generator()).test
    return task.metrics(lambda tokens: function(to_points(tokens)).unsqueeze(-1), test)


@pytest.mark.parametrize("name", list(BOOLEAN_TASKS))
def test_a_perfect_model_has_perfect_metrics(name: str) -> None:
    task = BOOLEAN_TASKS[name](7)
    metrics = measure(task, task.target)
    assert metrics["accuracy"] == metrics["accuracy_unseen"] == 1.0
    assert metrics["loss"] == metrics["loss_unseen"] == metrics["loss_seen"] == 0.0
    assert metrics["coefficients"] == pytest.approx(metrics["target_coefficients"], abs=1e-12)
    assert metrics["mdi_distance"] > 1.0


@pytest.mark.parametrize(
    ("task", "accuracy", "distance_of_target"),
    [(two_parity(6), 0.75, 4.0), (majority3(6), 0.875, None), (cyclic3(7), None, None)],
)
def test_the_interpolator_has_the_closed_form_accuracy(
    task: BooleanTask, accuracy: float | None, distance_of_target: float | None
) -> None:
    assert task.mdi_spectrum is not None
    interpolator = Polynomial(tuple(task.mdi_spectrum.items()))
    metrics = measure(task, interpolator)
    assert metrics["mdi_distance"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["loss_seen"] == pytest.approx(0.0, abs=1e-9)
    if accuracy is not None:
        assert metrics["accuracy"] == accuracy
    if distance_of_target is not None:
        perfect = measure(task, task.target)
        assert perfect["mdi_distance"] == pytest.approx(distance_of_target)


def test_two_parity_interpolator_is_the_known_line() -> None:
    assert two_parity(5).mdi_spectrum == pytest.approx({(): -1.0, (0,): 1.0, (1,): 1.0})


def test_cyclic3_interpolator_lowers_only_the_unseen_window() -> None:
    spectrum = cyclic3(6).mdi_spectrum
    assert spectrum is not None
    windows = {tuple(sorted((i + k) % 6 for k in range(3))) for i in range(6)} - {(0, 1, 2)}
    assert all(spectrum[window] == pytest.approx(1.0) for window in windows)
    assert (0, 1, 2) not in spectrum
    assert all(len(subset) < 3 for subset in set(spectrum) - windows)


@pytest.mark.parametrize("name", list(BOOLEAN_TASKS))
def test_structure_fits_and_names_its_tokens(name: str) -> None:
    task = BOOLEAN_TASKS[name](8)
    assert task.structure().shape == (9, 9)
    assert task.token_names() == ["[CLS]", *(f"x{i}" for i in range(8))]
    assert task.interface().length == 8


def test_the_structures_are_as_drawn() -> None:
    assert structures.draw(two_parity(3).structure()).split("\n") == [
        "■ · · ·",
        "· · ■ ·",
        "· ■ · ·",
        "· · · ■",
    ]
    assert structures.draw(majority3(4).structure()).split("\n") == [
        "· ■ ■ ■ ·",
        "· · ■ ■ ·",
        "· ■ · ■ ·",
        "· ■ ■ · ·",
        "· · · · ■",
    ]
    assert structures.draw(cyclic3(4).structure()).split("\n") == [
        "· ■ ■ ■ ■",
        "· · ■ ■ ·",
        "· · · ■ ■",
        "· ■ · · ■",
        "· ■ ■ · ·",
    ]


def test_beyond_twenty_bits_the_cube_is_sampled() -> None:
    task = two_parity(23)
    splits = task.splits(generator())
    assert abs(len(splits.train) / task.samples - 0.75) < 0.02
    metrics = measure(task, task.target)
    assert metrics["accuracy"] == 1.0
    assert metrics["degree_profile"] is None
    assert metrics["mdi_distance"] == pytest.approx(4.0)
    assert metrics["coefficients"]["x0*x1"] == pytest.approx(1.0)


def test_a_python_function_is_a_target() -> None:
    def target(points: Tensor) -> Tensor:
        return (points.sum(-1) > 0).float() * 2 - 1

    task = make(dimension=5, target=target, seen=lambda points: points[..., 1] > 0)
    assert task.target_spectrum is not None
    assert task.target_spectrum[(0,)] == pytest.approx(0.375)
    assert task.describe()["target"].endswith("target")
    assert task.mdi_spectrum is not None


def test_a_seen_condition_on_too_many_bits_has_no_interpolator() -> None:
    task = make(dimension=13, seen=lambda points: points.sum(-1) > 0)
    assert task.mdi_spectrum is None
    assert measure(task, task.target)["mdi_distance"] is None


def test_the_fingerprint_follows_values_not_names() -> None:
    first = make(seen=lambda points: points[..., 0] > 0)
    same = make(seen=AnyIsOne((0,)))
    other = make(seen=AnyIsOne((1,)))
    prints = [task.describe()["fingerprint"] for task in (first, same, other)]
    assert prints[0] == prints[1] != prints[2]


def test_probe_metrics_split_seen_from_unseen() -> None:
    task = two_parity(6)
    probe = task.splits(generator()).probe
    outputs = -probe.targets
    point = task.probe_metrics(outputs, probe)
    assert point["accuracy_seen"] == point["accuracy_unseen"] == 0.0
    assert point["loss_seen"] == point["loss_unseen"] == pytest.approx(4.0)
    assert point["coefficient.x0*x1"] == pytest.approx(-1.0)


def test_sign_accuracy_counts_zero_as_wrong() -> None:
    assert sign_accuracy(torch.tensor([0.0, 2.0, -1.0]), torch.tensor([1.0, 1.0, 1.0])) == pytest.approx(
        1 / 3
    )


def test_named_tasks_can_go_to_worker_processes() -> None:
    task = pickle.loads(pickle.dumps(majority3(5)))  # noqa: S301
    assert task.describe() == majority3(5).describe()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dimension": 0, "interaction": torch.ones(1, 1)}, "dimension ≥ 1"),
        ({"interaction": torch.ones(3, 3)}, r"\[\*heads, 4, 4\]"),
        ({"interaction": torch.eye(4) * torch.tensor([1.0, 1, 1, 0])}, "empty row"),
        ({"interaction": torch.full((4, 4), float("nan"))}, "finite"),
        ({"interaction": torch.full((4, 4), 2.0)}, r"\[0, 1\]"),
        ({"seen": lambda points: points[..., 0]}, "bool"),
        ({"seen": lambda points: points[..., 0] != 0}, "8 seen of 8"),
        ({"seen": lambda points: points[..., 0] == 0}, "0 seen of 8"),
        ({"target": lambda points: points / 0}, "target"),
        ({"target": lambda points: points[..., 0] / 0}, "8 of them not finite"),
    ],
)
def test_bad_definitions_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "dimension"), [("2parity", 1), ("majority3", 2), ("cyclic3", 3)])
def test_too_few_bits_are_refused(name: str, dimension: int) -> None:
    with pytest.raises(ValueError, match="expected dimension ≥"):
        BOOLEAN_TASKS[name](dimension)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ((((1, 0), 1.0),), "ascending"),
        ((((0, 0), 1.0),), "ascending"),
        ((((-1,), 1.0),), "≥ 0"),
        ((((0,), 1.0), ((0,), 2.0)), "once"),
    ],
)
def test_a_polynomial_is_in_normal_form(
    terms: tuple[tuple[tuple[int, ...], float], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Polynomial(terms)


@pytest.mark.parametrize(
    ("change", "name"),
    [({"target": Polynomial((((7,), 1.0),))}, "target"), ({"seen": AnyIsOne((3,))}, "seen")],
)
def test_coordinates_beyond_the_cube_are_refused(change: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=f"coordinates of `{name}` from 0 to 2"):
        make(**change)  # type: ignore[arg-type]


def test_a_function_that_writes_into_its_argument_does_no_harm() -> None:
    task = make(target=lambda points: points.mul_(-1)[..., 0])
    assert torch.equal(task._points, make()._points)
