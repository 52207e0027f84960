"""Line charts with bands, as inline SVG that stays legible on a phone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from maskprior.analysis.html_elements import element, text
from maskprior.analysis.persistence_tables import Band

WIDTH, HEIGHT = 340.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 26.0, 34.0
TICKS = 5


@dataclass(frozen=True)
class Line:
    """One curve with its band.

    Attributes:
        name: for the tooltip.
        band: mean, lowest and highest over seeds.
        color: of the stroke and, lighter, of the band.
        dash: SVG dash pattern, "" for a solid line.
    """

    name: str
    band: Band
    color: str
    dash: str = ""


@dataclass(frozen=True)
class Axis:
    """What the vertical axis is like.

    Attributes:
        unit: "" or "%" (values are shares then).
        log: logarithmic; values that are not positive are left out.
        bounds: least range that is shown.
    """

    unit: str = ""
    log: bool = False
    bounds: tuple[float, float] | None = None


def line_chart(title: str, lines: Sequence[Line], axis: Axis, marks: Sequence[float] = ()) -> str:
    """A chart of curves over training steps.

    Args:
        title: stands above it.
        lines: drawn in this order.
        axis: the vertical axis.
        marks: dashed horizontal lines, such as a target.

    Returns:
        SVG; "" where there is nothing to draw but marks.
    """
    values = [v for line in lines for v in (*line.band.low, *line.band.high)] + list(marks)
    values = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)]
    steps = [step for line in lines for step in line.band.steps]
    if not values or not steps:
        return ""
    low, high = _range(values, axis)
    right = max(steps) or 1.0

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / right

    def y(value: float) -> float:
        part = _position(value, axis) - _position(low, axis)
        share = part / (_position(high, axis) - _position(low, axis))
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(share, 0.0), 1.0)

    grid = [_horizontal(y(tick), tick_label(tick, axis)) for tick in _ticks(low, high, axis)]
    grid += [_vertical(x(tick), f"{tick:g}") for tick in nice_ticks(0, right)]
    targets = [
        element("line", x1=_n(LEFT), x2=_n(WIDTH - RIGHT), y1=_n(y(m)), y2=_n(y(m)), class_="mark")
        for m in marks
    ]
    drawn = [*(_band(line, x, y, axis) for line in lines), *(_curve(line, x, y, axis) for line in lines)]
    return element(
        "svg",
        element("text", text(title), x="4", y="15", class_="title"),
        *grid,
        *targets,
        *drawn,
        _n_text("training step", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4),
        viewBox=f"0 0 {_n(WIDTH)} {_n(HEIGHT)}",
        class_="chart",
        role="img",
        aria_label=f"{title}: {', '.join(line.name for line in lines)}",
    )


def _range(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    low, high = min(values), max(values)
    if axis.bounds is not None:
        low, high = min(low, axis.bounds[0]), max(high, axis.bounds[1])
    if high > low:
        return low, high
    return (low / 2, high * 2) if axis.log else (low - 0.5, high + 0.5)


def _position(value: float, axis: Axis) -> float:
    return math.log10(value) if axis.log else value


def nice_ticks(low: float, high: float) -> list[float]:
    """Some round numbers from low to high, 1, 2 or 5 times a power of ten apart."""
    span = high - low or abs(high) or 1.0
    raw = span / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor((low + span) / step + 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def _ticks(low: float, high: float, axis: Axis) -> list[float]:
    if not axis.log:
        return [tick for tick in nice_ticks(low, high) if tick <= high + 1e-9 * (high - low)]
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    stride = max(1, math.ceil((last - first + 1) / (TICKS + 1)))
    powers = [10.0**power for power in range(first, last + 1, stride)]
    return powers if len(powers) > 1 else [low, high]


def tick_label(value: float, axis: Axis) -> str:
    """``0.5`` → ``50 %`` on an axis of shares; powers of ten short on a logarithmic one."""
    if axis.unit == "%":
        return f"{100 * value:.4g} %"
    if axis.log and (value < 0.01 or value >= 10_000):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e+")
    return f"{value:.3g}" if abs(value) < 10_000 else f"{value:.0f}"


def _horizontal(y: float, label: str) -> str:
    line = element("line", x1=_n(LEFT), x2=_n(WIDTH - RIGHT), y1=_n(y), y2=_n(y), class_="grid")
    return line + element("text", text(label), x=_n(LEFT - 5), y=_n(y + 4), text_anchor="end")


def _vertical(x: float, label: str) -> str:
    line = element("line", x1=_n(x), x2=_n(x), y1=_n(TOP), y2=_n(HEIGHT - BOTTOM), class_="grid")
    return line + _n_text(label, x, HEIGHT - BOTTOM + 14)


def _n_text(words: str, x: float, y: float) -> str:
    return element("text", text(words), x=_n(x), y=_n(y), text_anchor="middle")


def _points(
    steps: Sequence[float],
    values: Sequence[float],
    x: Callable[[float], float],
    y: Callable[[float], float],
    axis: Axis,
) -> list[str]:
    pairs = [(s, v) for s, v in zip(steps, values, strict=True) if v > 0 or not axis.log]
    return [f"{_n(x(step))},{_n(y(value))}" for step, value in pairs]


def _curve(line: Line, x: Callable[[float], float], y: Callable[[float], float], axis: Axis) -> str:
    points = _points(line.band.steps, line.band.mean, x, y, axis)
    return element(
        "polyline",
        element("title", text(line.name)),
        points=" ".join(points),
        stroke=line.color,
        stroke_dasharray=line.dash,
        class_="curve",
    )


def _band(line: Line, x: Callable[[float], float], y: Callable[[float], float], axis: Axis) -> str:
    upper = _points(line.band.steps, line.band.high, x, y, axis)
    lower = _points(line.band.steps, line.band.low, x, y, axis)
    return element("polygon", points=" ".join([*upper, *lower[::-1]]), fill=line.color, class_="band")


def _n(value: float) -> str:
    return f"{value:.1f}"
