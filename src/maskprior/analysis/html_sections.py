"""The sections of the report's page: what is shown of one panel, piece by piece."""

from collections.abc import Iterable, Mapping, Sequence

from maskprior.analysis.curves import Points, curve, measured_parts
from maskprior.analysis.formatting import is_lower_better, is_share, metric_label
from maskprior.analysis.html_charts import Axis, Line, line_chart
from maskprior.analysis.html_elements import bullets, element, folded, legend, paragraph, table, text
from maskprior.analysis.html_patterns import pattern_browser, sigma_pairs
from maskprior.analysis.persistence_tables import (
    KEPT,
    Band,
    Logs,
    measure_band,
    persistence_table,
    retained_band,
    summarise_logs,
    verdict,
)
from maskprior.analysis.style import lighten, prior_color
from maskprior.analysis.tables import Panel, first_object
from maskprior.experiments.record import RunRecord

DASHES = ("", "7 3", "2 3", "7 3 2 3")
DEGREE_COLORS = ("#5c5c5c", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00")
COEFFICIENT = "coefficient."
DISTANCES = {
    "attention_variation": ("total variation from the structure", Axis("%", bounds=(0, 1))),
    "attention_divergence": ("Jensen–Shannon from it (bits)", Axis(bounds=(0, 1))),
    "attention_suppressed": ("attention on suppressed pairs", Axis("%", bounds=(0, 1))),
}
INNER = {
    "gradient_mask": "gradient of M",
    "gradient_query": "gradient of W_Q",
    "gradient_key": "gradient of W_K",
    "update_mask": "update of log σ(M)",
    "update_query": "update of W_Q",
    "update_key": "update of W_K",
}
KEPT_WORDS = (
    "Kept: the advantage over uniform attention in total variation, relative to the start. 100 % is all of "
    "it, 0 uniform attention, below 0 further from the structure than uniform attention. Dashed: 90 %. "
    "Means over layers, heads and queries."
)
INNER_WORDS = (
    "Norms of the gradients that the optimiser gets, and sizes of one update relative to what is updated; "
    "for M that of the bias log σ(M) with rows centred. Means over layers."
)
PATTERN_WORDS = (
    "Rows are queries, columns are keys; mean over heads and over the inputs of the probe. White is 0 and "
    "dark blue 1, by the square root, so that small weights can be seen. Lowest seed of each variant."
)
DEGREE_WORDS = (
    "Sum of the squared coefficients of the monomials that the record follows, by degree, estimated on the "
    "probe. Dashed: the target’s."
)

Look = tuple[str, str]
"""Colour and SVG dash pattern of a variant."""


def variant_looks(panel: Panel) -> dict[str, Look]:
    """Colour by prior; dash pattern, then a lighter shade, by place among the variants of that prior."""
    seen: dict[str, int] = {}
    looks = {}
    for variant, runs in panel.variants.items():
        prior = next(iter(runs.values())).prior
        place = seen[prior] = seen.get(prior, -1) + 1
        shade, dash = divmod(place, len(DASHES))
        looks[variant] = (lighten(prior_color(prior), 0.4 * shade), DASHES[dash])
    return looks


def variant_legend(looks: Mapping[str, Look]) -> str:
    """Which line is which variant."""
    return legend([(variant, *look) for variant, look in looks.items()])


def verdict_box(logs: Mapping[str, Logs]) -> str:
    """The verdict in plain words; "" without logs."""
    if not logs:
        return ""
    sentences = verdict([summarise_logs(variant, found) for variant, found in logs.items()])
    return element("div", bullets(map(text, sentences)), class_="verdict")


def learning_section(panel: Panel, looks: Mapping[str, Look]) -> str:
    """Loss and accuracy over time, on seen and unseen; "" without such curves."""
    quantities, parts = measured_parts(panel)
    charts = []
    for quantity in quantities:
        axis = Axis("%", bounds=(0, 1)) if is_share(quantity) else Axis(log=is_lower_better(quantity))
        words = metric_label(quantity).removesuffix(" (%)")
        for part in parts:
            bands = {
                variant: _record_band(curve(record, f"{quantity}_{part}") for record in runs.values())
                for variant, runs in panel.variants.items()
            }
            charts.append(line_chart(f"{words}, {part}", _lines(bands, looks), axis))
    explained = "Line: mean over seeds. Band: lowest to highest seed."
    return _charts("Learning", explained, charts, variant_legend(looks))


def persistence_section(logs: Mapping[str, Logs], looks: Mapping[str, Look]) -> str:
    """What is left of the structure over time, gradients and updates; "" without logs."""
    if not logs:
        return ""
    shares = Axis("%", bounds=(0, 1))

    def kept(kind: str) -> list[Line]:
        return _lines({variant: retained_band(found, kind) for variant, found in logs.items()}, looks)

    def measured(name: str) -> list[Line]:
        return _lines({variant: measure_band(found, name) for variant, found in logs.items()}, looks)

    charts = [
        line_chart("kept by the prior’s own pattern", kept("prior"), shares, [KEPT]),
        line_chart("kept by the attention", kept("attention"), shares, [KEPT]),
        *(line_chart(title, measured(name), axis) for name, (title, axis) in DISTANCES.items()),
    ]
    inner = [line_chart(title, measured(name), Axis(log=True)) for name, title in INNER.items()]
    summary = persistence_table([summarise_logs(variant, found) for variant, found in logs.items()])
    return (
        _charts("Persistence", KEPT_WORDS, charts, variant_legend(looks))
        + table(summary, "At the end of training: mean over seeds, worst seed in brackets.")
        + folded("Gradients and updates", paragraph(INNER_WORDS), element("div", *inner, class_="charts"))
    )


def patterns_section(logs: Mapping[str, Logs], identity: str, moments: int) -> str:
    """Attention at so many moments of training, and σ(M) before and after; "" without frames."""
    attention, sigma = pattern_browser(logs, identity, moments), sigma_pairs(logs)
    parts = []
    if attention:
        parts += [element("h3", "Attention over time"), paragraph(PATTERN_WORDS), attention]
    if sigma:
        parts += [element("h3", "σ(M) before and after training"), sigma]
    return "".join(parts)


def degrees_section(panel: Panel) -> str:
    """Fourier weight by degree over time, a chart a variant; "" where records follow no coefficients."""
    target = degree_weights(first_object((r.metrics for r in panel.records()), "target_coefficients"))
    marks = sorted({weight for weight in target.values() if weight > 0})
    charts = []
    for variant, runs in panel.variants.items():
        lines = [
            Line(f"degree {degree}", band, _degree_color(degree))
            for degree in sorted(target)
            if (band := _record_band(degree_curve(record, degree) for record in runs.values())) is not None
        ]
        charts.append(
            line_chart(variant, lines, Axis(bounds=(0, max(marks, default=1))), marks) if lines else ""
        )
    entries = [(f"degree {degree}", _degree_color(degree), "") for degree in sorted(target)]
    return _charts("Fourier degrees over time", DEGREE_WORDS, charts, legend(entries))


def degree_of(monomial: str) -> int:
    """``1`` → 0, ``x3`` → 1, ``x0*x1`` → 2."""
    return 0 if monomial == "1" else monomial.count("*") + 1


def degree_weights(coefficients: Mapping[str, float]) -> dict[int, float]:
    """Σ c² of the monomials of each degree."""
    weights: dict[int, float] = {}
    for name, value in coefficients.items():
        weights[degree_of(name)] = weights.get(degree_of(name), 0.0) + value**2
    return weights


def degree_curve(record: RunRecord, degree: int) -> Points:
    """Weight of one degree over time; empty where the record follows no such monomial."""
    names = [
        name
        for name in record.curves
        if name.startswith(COEFFICIENT) and degree_of(name.removeprefix(COEFFICIENT)) == degree
    ]
    if not names:
        return [], []
    columns = zip(*(record.curves[name] for name in names), strict=True)
    return record.curves["step"], [sum(value**2 for value in values) for values in columns]


def _degree_color(degree: int) -> str:
    return DEGREE_COLORS[degree % len(DEGREE_COLORS)]


def _record_band(curves: Iterable[Points]) -> Band | None:
    return Band.of([points for points in curves if points[0]])


def _lines(bands: Mapping[str, Band | None], looks: Mapping[str, Look]) -> list[Line]:
    return [Line(variant, band, *looks[variant]) for variant, band in bands.items() if band is not None]


def _charts(title: str, words: str, charts: Sequence[str], above: str = "") -> str:
    drawn = [chart for chart in charts if chart]
    if not drawn:
        return ""
    return element("h3", text(title)) + paragraph(words) + above + element("div", *drawn, class_="charts")
