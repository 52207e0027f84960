"""Attention over time and σ(M) before and after, as small pictures that a script of the page paints."""

import base64
import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from maskprior.analysis.html_elements import element, text
from maskprior.analysis.persistence_log import Log
from maskprior.analysis.persistence_tables import Logs

PICTURED_LAYERS = 12


def spread_evenly(count: int, limit: int) -> list[int]:
    """At most ``limit`` of the indices below ``count``, the first and the last among them."""
    if count <= limit:
        return list(range(count))
    return [round(index * (count - 1) / (limit - 1)) for index in range(limit)]


def pattern_browser(variants: Mapping[str, Logs], identity: str, moments: int) -> str:
    """A slider over training steps, and one row of pictures a variant: attention of each layer.

    Of each variant the lowest seed is shown. "" where no log has frames.
    """
    rows = []
    longest = 0
    for variant, logs in variants.items():
        seed = min(logs)
        frames = [
            (probe.step, probe.frames["attention"])
            for probe in logs[seed].probes
            if "attention" in probe.frames
        ]
        frames = [frames[index] for index in spread_evenly(len(frames), moments)]
        if frames:
            longest = max(longest, len(frames))
            rows.append(_row(f"{variant}, seed {seed}", frames, logs[seed]))
    if not rows:
        return ""
    slider = element(
        "input",
        type="range",
        min="0",
        max=str(longest - 1),
        value=str(longest - 1),
        id=f"{identity}-time",
        class_="time",
        aria_label="moment of training",
    )
    play = element("button", "▶", type="button", class_="play", aria_label="play")
    label = element("label", "end", for_=f"{identity}-time", class_="moment")
    wanted = _structure_row(next(iter(variants.values())))
    return element(
        "div", element("div", play, slider, label, class_="controls"), wanted, *rows, class_="browser"
    )


def _structure_row(logs: Logs) -> str:
    log = logs[min(logs)]
    shown = log.header.structure[:1]
    return element(
        "div",
        element("div", text("the structure"), class_="row-name"),
        element("div", _canvas([(0, shown)], 0, "query ↓  key →", log), class_="pictures"),
        class_="pattern-row",
    )


def _row(name: str, frames: Sequence[tuple[int, Tensor]], log: Log) -> str:
    layers = range(min(len(frames[0][1]), PICTURED_LAYERS))
    pictures = (_canvas(frames, layer, f"layer {layer + 1}", log) for layer in layers)
    return element(
        "div",
        element("div", text(name), class_="row-name"),
        element("div", *pictures, class_="pictures"),
        class_="pattern-row",
    )


def sigma_pairs(variants: Mapping[str, Logs]) -> str:
    """σ(M) of each mask prior before and after training, a row each; "" where there is none."""
    rows = []
    for variant, logs in variants.items():
        seed = min(logs)
        frames = [probe.frames["sigma"] for probe in logs[seed].probes if "sigma" in probe.frames]
        if frames:
            rows += [
                _row(f"{variant}, seed {seed}, {moment}", [(0, frame)], logs[seed])
                for moment, frame in (("before", frames[0]), ("after", frames[-1]))
            ]
    return element("div", *rows, class_="sigma") if rows else ""


def _canvas(frames: Sequence[tuple[int, Tensor]], layer: int, caption: str, log: Log) -> str:
    """A figure whose canvas carries its own data: one byte a cell and frame, the root of the value."""
    cells = torch.stack(
        [(frame[layer].clamp(0, 1).sqrt() * 255).round().to(torch.uint8) for _, frame in frames]
    )
    rows, columns = cells.shape[1:]
    names = list(log.header.tokens) if len(log.header.tokens) == rows == columns else []
    canvas = element(
        "canvas",
        width=str(columns),
        height=str(rows),
        data_cells=base64.b64encode(cells.numpy().tobytes()).decode("ascii"),
        data_steps=json.dumps([step for step, _ in frames]),
        data_names=json.dumps(names, ensure_ascii=False),
        role="img",
        aria_label=f"{caption}: attention of each query (row) to each key (column)",
    )
    return element("figure", canvas, element("figcaption", text(caption)))
