"""Boolean functions learned from part of the cube: generalisation on the unseen (GOTU).

Source: Abbe, Bengio, Lotfi, Rizk, "Generalization on the Unseen, Logic Reasoning and Degree Curriculum",
2023, arXiv 2301.13105, section 2; tasks of Ma et al. 2026, section 5.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from maskprior.analysis import fourier, mdi
from maskprior.structures import check_structure
from maskprior.tasks.base import Predict, Split, Splits, TokenInterface

BooleanFunction = Callable[[Tensor], Tensor]
"""Maps points ``[..., n]`` of ±1 to values ``[...]``: real for a target, bool for a seen condition."""

EVALUATION_BATCH = 1024
PROBE_SIZE = 1024
MAX_REPORTED = 16
# Walsh–Hadamard coefficients below this share of the largest are rounding.
SPECTRUM_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Polynomial:
    """Σ_S c_S Π_{i∈S} x_i, the Fourier form of a Boolean function.

    Attributes:
        terms: (monomial, coefficient) pairs; a monomial is a tuple of distinct coordinates.
    """

    terms: tuple[tuple[tuple[int, ...], float], ...]

    def __post_init__(self) -> None:
        """Check the monomials (ValueError)."""
        monomials = [monomial for monomial, _ in self.terms]
        for monomial in monomials:
            if list(monomial) != sorted(set(monomial)) or any(i < 0 for i in monomial):
                raise ValueError(f"expected a monomial as ascending distinct coordinates ≥ 0, got {monomial}")
        if len(set(monomials)) < len(monomials):
            raise ValueError(f"expected each monomial once, got {monomials}")

    def __call__(self, points: Tensor) -> Tensor:
        """Values ``[...]`` at points ``[..., n]``."""
        value = torch.zeros(points.shape[:-1], dtype=points.dtype, device=points.device)
        for monomial, coefficient in self.terms:
            value = value + coefficient * points[..., list(monomial)].prod(-1)
        return value

    def __str__(self) -> str:
        """As it is written: "0.5*x0 - 0.5*x0*x1"."""
        text = " + ".join(
            fourier.monomial_name(monomial) if c == 1 else f"{c:g}*{fourier.monomial_name(monomial)}"
            for monomial, c in self.terms
        )
        return text.replace("+ -", "- ")


@dataclass(frozen=True)
class AnyIsOne:
    """Seen condition "x_i = 1 for at least one of these i"; its complement is one corner of the cube."""

    coordinates: tuple[int, ...]

    def __call__(self, points: Tensor) -> Tensor:
        """bool ``[...]`` at points ``[..., n]``."""
        return (points[..., list(self.coordinates)] > 0).any(-1)

    def __str__(self) -> str:
        """As it is written: "x0=1 or x1=1"."""
        return " or ".join(f"x{i}=1" for i in self.coordinates)


@dataclass(frozen=True, eq=False)
class BooleanTask:
    """Learn a function on {±1}ⁿ from the seen points; be judged on all of them.

    One row of 2parity at n = 4, x = (+1, −1, −1, +1): tokens ``[1, 0, 0, 1]`` (0 stands for −1), before which
    the model puts its read-out token; target x0·x1 = −1; seen, as x0 = 1::

        [CLS]  x0  x1  x2  x3        mean squared error on seen points,
          ·     1   0   0   1  → −1  sign accuracy on the whole cube

    Attributes:
        name: short name.
        dimension: n, number of bits. Up to 20 the cube is enumerated, beyond it is sampled.
        target: function to learn, a :class:`Polynomial` or any function of points ``[..., n]``.
        seen: which points may be trained on, a function of points to bool.
        interaction: structure ``[*heads, n + 1, n + 1]`` with the read-out token first.
        monomials: coefficients to report besides the largest of the target and of its minimum-degree
            interpolator (MDI).
        samples: points drawn where the cube is not enumerated.

    Raises:
        ValueError: the structure does not fit, nothing or everything is seen, or the target is not finite.
    """

    name: str
    dimension: int
    target: BooleanFunction
    seen: BooleanFunction
    interaction: Tensor
    monomials: tuple[tuple[int, ...], ...] = ()
    samples: int = 65_536

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.dimension < 1:
            raise ValueError(f"expected dimension ≥ 1, got {self.dimension}")
        check_structure(self.interaction, length=self.dimension + 1)
        self._check_coordinates()
        self._check_functions()

    def _check_coordinates(self) -> None:
        named = {"monomials": list(self.monomials)}
        if isinstance(self.target, Polynomial):
            named["target"] = [monomial for monomial, _ in self.target.terms]
        if isinstance(self.seen, AnyIsOne):
            named["seen"] = [self.seen.coordinates]
        for name, monomials in named.items():
            for monomial in monomials:
                fourier.check_subset(tuple(sorted(monomial)))
                if any(i >= self.dimension for i in monomial):
                    raise ValueError(
                        f"expected coordinates of `{name}` from 0 to {self.dimension - 1}, got {monomial}"
                    )

    def _check_functions(self) -> None:
        targets, seen = self._targets, self._seen
        if seen.dtype != torch.bool or seen.shape != (len(self._points),):
            raise ValueError(
                f"expected `seen` to map [points, {self.dimension}] to bool [points], got {seen.dtype} "
                f"{tuple(seen.shape)} for {len(self._points)} points"
            )
        if targets.shape != seen.shape or not bool(targets.isfinite().all()):
            raise ValueError(
                f"expected `target` to map [points, {self.dimension}] to finite values [points], got "
                f"{tuple(targets.shape)}, {int((~targets.isfinite()).sum())} of them not finite"
            )
        if not bool(seen.any()) or bool(seen.all()):
            raise ValueError(
                f"expected some points seen and some not, got {int(seen.sum())} seen of {len(seen)}"
            )

    @cached_property
    def _points(self) -> Tensor:
        """The cube ``[2ⁿ, n]``, or a fixed sample of it where it is too large."""
        if self._enumerated:
            return fourier.enumerate_cube(self.dimension)
        generator = torch.Generator().manual_seed(0)
        return torch.randint(2, (self.samples, self.dimension), generator=generator) * 2.0 - 1

    @cached_property
    def _targets(self) -> Tensor:
        # A copy, as a user's function may write into its argument.
        return self.target(self._points.clone()).to(torch.float32)

    @cached_property
    def _seen(self) -> Tensor:
        return self.seen(self._points.clone())

    @cached_property
    def target_spectrum(self) -> dict[fourier.Subset, float] | None:
        """The target's monomials; None for a function other than a polynomial beyond n = 20."""
        if isinstance(self.target, Polynomial):
            return {tuple(sorted(monomial)): c for monomial, c in self.target.terms}
        return _sparse_spectrum(self._targets) if self._enumerated else None

    @cached_property
    def mdi_spectrum(self) -> dict[fourier.Subset, float] | None:
        """Monomials of the minimum-degree interpolator, exact; None where it cannot be computed.

        That is: beyond n = 20 unless the target is a polynomial and the seen condition :class:`AnyIsOne`, and
        for seen conditions on more than ``mdi.MAX_SEEN_VARIABLES`` coordinates.
        """
        if self._enumerated:
            if len(fourier.relevant_variables(self._seen.double())) > mdi.MAX_SEEN_VARIABLES:
                return None
            return _sparse_spectrum(mdi.minimum_degree_interpolator(self._targets, self._seen))
        if not isinstance(self.seen, AnyIsOne) or self.target_spectrum is None:
            return None
        corner = AnyIsOne(tuple(range(len(self.seen.coordinates))))
        seen = corner(fourier.enumerate_cube(len(self.seen.coordinates)))
        return mdi.minimum_degree_interpolator_of_polynomial(
            self.target_spectrum, seen, self.seen.coordinates
        )

    @cached_property
    def reported_monomials(self) -> tuple[fourier.Subset, ...]:
        """Asked for, then the largest of the target's and of the MDI's; at most ``MAX_REPORTED`` of each."""
        chosen = dict.fromkeys(self.monomials)
        for spectrum in (self.target_spectrum, self.mdi_spectrum):
            largest = sorted((spectrum or {}).items(), key=lambda term: (-abs(term[1]), term[0]))
            chosen |= dict.fromkeys(subset for subset, _ in largest[:MAX_REPORTED])
        return tuple(chosen)

    @property
    def _enumerated(self) -> bool:
        return self.dimension <= fourier.MAX_CUBE_DIMENSION

    def describe(self) -> dict[str, Any]:
        """Name, dimension, formulas, tokens, and a fingerprint of the values that the functions take."""
        digest = hashlib.sha256()
        for tensor in (self._targets, self._seen, self.interaction.float()):
            digest.update(tensor.contiguous().numpy().tobytes())
        return {
            "name": self.name,
            "dimension": self.dimension,
            "target": _formula(self.target),
            "seen": _formula(self.seen),
            "tokens": self.token_names(),
            "monomials": [fourier.monomial_name(monomial) for monomial in self.monomials],
            "fingerprint": digest.hexdigest()[:16],
        }

    def interface(self) -> TokenInterface:
        """Two tokens, n of them, a read-out token, one real output."""
        return TokenInterface(vocab_size=2, length=self.dimension, outputs=1, readout="cls")

    def structure(self) -> Tensor:
        """The interaction structure, read-out token first."""
        return self.interaction

    def token_names(self) -> list[str]:
        """[CLS], x0, x1, …"""
        return ["[CLS]", *(f"x{i}" for i in range(self.dimension))]

    def splits(self, generator: torch.Generator) -> Splits:
        """Seen points to train on, ``PROBE_SIZE`` points as the probe for curves, all points to test on."""
        order = torch.randperm(len(self._points), generator=generator)
        return Splits(
            train=self._split(self._seen.nonzero()[:, 0]),
            probe=self._split(order[:PROBE_SIZE]),
            test=self._split(torch.arange(len(self._points))),
        )

    def _split(self, rows: Tensor) -> Split:
        return Split(to_tokens(self._points[rows]), self._targets[rows].unsqueeze(-1))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error."""
        return torch.nn.functional.mse_loss(outputs, targets)

    def probe_metrics(self, outputs: Tensor, probe: Split) -> dict[str, float]:
        """Loss and sign accuracy on the probe's seen and unseen points, and coefficients estimated on it."""
        points = to_points(probe.inputs)
        values, targets, seen = outputs.squeeze(-1), probe.targets.squeeze(-1), self.seen(points)
        point: dict[str, float] = {}
        for name, chosen in (("seen", seen), ("unseen", ~seen)):
            point[f"loss_{name}"] = float((values - targets)[chosen].square().mean())
            point[f"accuracy_{name}"] = sign_accuracy(values[chosen], targets[chosen])
        estimates = fourier.estimate_coefficients(points, values, self.reported_monomials)
        return point | {f"coefficient.{name}": value for name, value in estimates.items()}

    def metrics(self, predict: Predict, test: Split) -> dict[str, Any]:
        """Accuracy and loss on the cube and its unseen part, coefficients, and the distance from the MDI.

        The cube is whole up to n = 20 and the coefficients exact; beyond, both are those of a fixed sample.
        ``mdi_distance`` is the root mean square of (model − MDI) over the unseen points, in units of the
        target; None where the MDI is not known.
        """
        batches = test.inputs.split(EVALUATION_BATCH)
        values = torch.cat([predict(tokens) for tokens in batches]).squeeze(-1).double().cpu()
        targets, seen = self._targets.double(), self._seen
        error = (values - targets).square()
        return {
            "accuracy": sign_accuracy(values, targets),
            "loss": float(error.mean()),
            "accuracy_unseen": sign_accuracy(values[~seen], targets[~seen]),
            "loss_unseen": float(error[~seen].mean()),
            "loss_seen": float(error[seen].mean()),
            **self._spectral_metrics(values),
        }

    def _spectral_metrics(self, values: Tensor) -> dict[str, Any]:
        reported = self.reported_monomials
        if self._enumerated:
            spectrum = fourier.walsh_hadamard(values)
            coefficients = fourier.coefficients(spectrum, reported)
            profile = fourier.degree_profile(spectrum).tolist()
        else:
            coefficients = fourier.estimate_coefficients(self._points, values, reported)
            profile = None
        return {
            "coefficients": coefficients,
            "target_coefficients": _named(self.target_spectrum, reported),
            "mdi_coefficients": _named(self.mdi_spectrum, reported),
            "degree_profile": profile,
            "mdi_distance": self._mdi_distance(values),
        }

    def _mdi_distance(self, values: Tensor) -> float | None:
        if self.mdi_spectrum is None:
            return None
        mdi_values = fourier.polynomial_values(self.mdi_spectrum, self._points.double())
        return mdi.mdi_distance(values, mdi_values, ~self._seen)


def to_tokens(points: Tensor) -> Tensor:
    """Token ids of points ``[..., n]`` of ±1: −1 → 0, +1 → 1."""
    return (points > 0).long()


def to_points(tokens: Tensor) -> Tensor:
    """Inverse of :func:`to_tokens`, float32."""
    return tokens.float() * 2 - 1


def sign_accuracy(values: Tensor, targets: Tensor) -> float:
    """Share of points, in [0, 1], where the value has the target's sign (a value of 0 has none but 0's)."""
    return float((values.sign() == targets.sign()).double().mean())


def _sparse_spectrum(values: Tensor) -> dict[fourier.Subset, float]:
    spectrum = fourier.walsh_hadamard(values)
    codes = (spectrum.abs() > SPECTRUM_TOLERANCE * spectrum.abs().max()).nonzero()[:, 0].tolist()
    return {fourier.code_subset(code): float(spectrum[code]) for code in codes}


def _named(
    spectrum: dict[fourier.Subset, float] | None, reported: tuple[fourier.Subset, ...]
) -> dict[str, float] | None:
    if spectrum is None:
        return None
    return {fourier.monomial_name(subset): spectrum.get(subset, 0.0) for subset in reported}


def _formula(function: BooleanFunction) -> str:
    if isinstance(function, Polynomial | AnyIsOne):
        return str(function)
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
