"""Follows one training from outside and writes its persistence log.

The recorder hangs on the optimiser's own hooks, so it works in any loop that calls ``optimizer.step()``, and
changes nothing in it: no parameter, no gradient, no random number.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import Self

from maskprior.analysis.observation import Patterns
from maskprior.analysis.persistence import Target, allowed_pattern
from maskprior.analysis.persistence_log import Header, LogWriter, Probe
from maskprior.analysis.query_key import Part, QueryKeyWeights, find_query_key
from maskprior.mask_prior import MaskPrior

DEFAULT_INTERVAL = 100


@dataclass(frozen=True, eq=False)
class Subject:
    """What is followed, and how often.

    Attributes:
        model: the model in training.
        patterns: its present attention on a fixed batch; None follows the mask priors alone.
        structure: S ``[query, key]``, ``[1 or heads, query, key]`` or ``[layers, 1 or heads, query, key]``;
            None reads it from the mask priors as they start.
        allowed: hard constraint ``[query, key]`` of the model (True = may attend) or None.
        every: probe each so many steps, or at these numbers of finished steps; the last step always.
        frame_every: each so many probes, or those at these steps, come with pictures of the patterns; the
            last always.
        tokens: one name a token, for pictures.
        weights: W_Q and W_K; None finds them by name.

    Raises:
        ValueError: an interval that is not positive.
    """

    model: nn.Module
    patterns: Patterns | None
    structure: Tensor | None = None
    allowed: Tensor | None = None
    every: int | Collection[int] = DEFAULT_INTERVAL
    frame_every: int | Collection[int] = 1
    tokens: Sequence[str] = ()
    weights: QueryKeyWeights | None = None

    def __post_init__(self) -> None:
        """Check the intervals."""
        for name in ("every", "frame_every"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"expected {name} ≥ 1, got {value}")

    def due(self, step: int) -> bool:
        """Whether there is a probe after so many finished updates."""
        return step % self.every == 0 if isinstance(self.every, int) else step in self.every

    def pictured(self, step: int, probe: int) -> bool:
        """Whether the probe of that number, at that step, comes with pictures."""
        chosen = self.frame_every
        return probe % chosen == 0 if isinstance(chosen, int) else step in chosen

    def priors(self) -> list[MaskPrior]:
        """The mask priors of the model, each once."""
        return list(dict.fromkeys(m for m in self.model.modules() if isinstance(m, MaskPrior)))

    def prior_targets(self) -> list[Target]:
        """What each mask prior starts with."""
        return [Target.of_logits(prior.mask_logits, allowed=self.allowed) for prior in self.priors()]

    def attention_targets(self, layers: int) -> list[Target]:
        """What the attention of each layer is compared with.

        Raises:
            ValueError: there is no structure, or not one for each layer.
        """
        if self.structure is None:
            targets = self.prior_targets()
        else:
            each = list(self.structure) if self.structure.dim() == 4 else [self.structure]
            targets = [Target.of_structure(one, allowed=self.allowed) for one in each]
        if len(targets) not in (1, layers):
            raise ValueError(
                f"expected a structure for all or for each of {layers} attention calls, got {len(targets)}; "
                "pass structure="
            )
        return targets * layers if len(targets) == 1 else targets


class PersistenceRecorder:
    """Writes a probe at each due step: distances from the structure, gradient norms, relative updates.

    At step t the patterns are those before the update, the gradients those that the optimiser is given (after
    clipping, if any), the update sizes ‖ΔW‖/‖W‖ those of this step. For M the size is that of the bias
    log σ(M) with the mean of each row taken off, as row shifts change nothing. The last probe, when the
    context ends, has patterns alone.

    Args:
        subject: what is followed.
        path: the log; replaced if it exists.
    """

    def __init__(self, subject: Subject, path: Path) -> None:
        self._subject, self._path = subject, path
        self._weights = subject.weights or find_query_key(subject.model)
        self._priors = subject.priors()
        self._notes: dict[str, float] = {}
        self._pending: tuple[Probe, dict[str, list[Tensor]]] | None = None
        self._probes = 0
        self.step = 0

    @contextmanager
    def watching(self, optimizer: torch.optim.Optimizer) -> Iterator[Self]:
        """Follow this optimiser until the context ends; an exception ends it without a last probe.

        Raises:
            ValueError: the model shows no attention, or it does not fit the structure.
            OSError: the log cannot be written.
        """
        inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper has no hooks of its own
        self._start()
        handles = [
            inner.register_step_pre_hook(lambda *_: self._before_update()),
            inner.register_step_post_hook(lambda *_: self._after_update()),
        ]
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()
        self._write(self._look(last=True))

    def note(self, values: Mapping[str, float]) -> None:
        """Numbers that go into the next probe, such as ``{"loss_train": 0.3}``; newer ones replace older."""
        self._notes.update({name: float(value) for name, value in values.items()})

    def _start(self) -> None:
        patterns = [] if self._subject.patterns is None else self._subject.patterns()
        if not patterns and not self._priors:
            raise ValueError("expected attention or mask priors to follow, got neither")
        self._prior_targets = self._subject.prior_targets()
        self._targets = self._subject.attention_targets(len(patterns)) if patterns else []
        shown = [target.structure for target in self._targets or self._prior_targets]
        header = Header(
            structure=head_means(shown),
            attention_limit=[target.limit for target in self._targets],
            prior_limit=[target.limit for target in self._prior_targets],
            tokens=self._subject.tokens,
        )
        for pattern, target in zip(patterns, self._targets, strict=True):
            target.measure(pattern)  # a structure of another size is told before training, not in it
        self._writer = LogWriter(self._path, header)

    def _before_update(self) -> None:
        if self._subject.due(self.step):
            probe = self._look()
            gradients = {f"gradient_{name}": norms(tensors) for name, tensors in self._gradients().items()}
            kept = {name: [t.clone() for t in tensors] for name, tensors in self._values().items()}
            self._pending = replace(probe, measures={**probe.measures, **gradients}), kept

    def _after_update(self) -> None:
        self.step += 1
        if self._pending is None:
            return
        probe, before = self._pending
        self._pending = None
        updates = {
            f"update_{name}": relative_changes(before[name], tensors)
            for name, tensors in self._values().items()
        }
        self._write(replace(probe, measures={**probe.measures, **updates}))

    @torch.no_grad()
    def _look(self, *, last: bool = False) -> Probe:
        measures: dict[str, Sequence[float]] = {}
        frames: dict[str, Tensor] = {}
        with_frames = last or self._subject.pictured(self.step, self._probes)
        if self._subject.patterns is not None:
            patterns = self._subject.patterns()
            measures |= _measure("attention", self._targets, patterns)
            frames |= {"attention": head_means(patterns)} if with_frames else {}
        if self._priors:
            logits = [prior.mask_logits.detach() for prior in self._priors]
            measures |= _measure(
                "prior", self._prior_targets, [allowed_pattern(m, self._subject.allowed) for m in logits]
            )
            frames |= {"sigma": head_means([m.sigmoid() for m in logits])} if with_frames else {}
        return Probe(self.step, measures, dict(self._notes), frames)

    def _write(self, probe: Probe) -> None:
        self._writer.write(probe)
        self._probes += 1

    def _gradients(self) -> dict[str, list[Tensor | None]]:
        """∂L/∂M, ∂L/∂W_Q, ∂L/∂W_K, layer by layer; None where a parameter has none."""
        found: dict[str, list[Tensor | None]] = {"mask": [prior.mask_logits.grad for prior in self._priors]}
        for name, parts in self._weights._asdict().items():
            found[name] = [None if p.parameter.grad is None else p.of(p.parameter.grad) for p in parts]
        return {name: tensors for name, tensors in found.items() if tensors}

    @torch.no_grad()
    def _values(self) -> dict[str, list[Tensor]]:
        """Row-centred bias, W_Q, W_K, layer by layer."""
        biases = [prior().detach() for prior in self._priors]
        found = {"mask": [bias - bias.mean(dim=-1, keepdim=True) for bias in biases]}
        parts: Sequence[Part]
        for name, parts in self._weights._asdict().items():
            found[name] = [part.of(part.parameter.detach()) for part in parts]
        return {name: tensors for name, tensors in found.items() if tensors}


def _measure(kind: str, targets: Sequence[Target], patterns: Sequence[Tensor]) -> dict[str, list[float]]:
    """Measures of all layers, one list a measure."""
    found = [target.measure(pattern) for target, pattern in zip(targets, patterns, strict=True)]
    return {f"{kind}_{name}": [one[name] for one in found] for name in found[0]}


def norms(tensors: Sequence[Tensor | None]) -> list[float]:
    """Euclidean norm of each; NaN for None."""
    return [nan if tensor is None else float(tensor.detach().norm()) for tensor in tensors]


def relative_changes(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[float]:
    """‖after − before‖ / ‖before‖ of each; NaN where ‖before‖ is 0."""
    pairs = [(float((b - a).norm()), float(a.norm())) for a, b in zip(before, after, strict=True)]
    return [change / size if size > 0 else nan for change, size in pairs]


def head_means(patterns: Sequence[Tensor]) -> Tensor:
    """``[layers, query, key]``: means over heads, other sizes resampled to the first one's."""
    means = [p.detach().float().cpu().reshape(-1, *p.shape[-2:]).mean(dim=0) for p in patterns]
    size = (means[0].shape[0], means[0].shape[1])
    resample = torch.nn.functional.adaptive_avg_pool2d
    return torch.stack([m if m.shape == size else resample(m[None], size)[0] for m in means])
