"""The page as text: whole, self-contained, escaped, the same each time. Its looks are for a browser."""

import base64
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from maskprior.analysis import html
from maskprior.analysis.formatting import TextTable
from maskprior.analysis.html import write_html
from maskprior.analysis.html_charts import Axis, Line, line_chart, nice_ticks, tick_label
from maskprior.analysis.html_elements import VOID, element, table
from maskprior.analysis.html_patterns import pattern_browser, sigma_pairs, spread_evenly
from maskprior.analysis.html_sections import degree_of, degree_weights
from maskprior.analysis.persistence_log import Header, Log, LogWriter, Probe, log_path
from maskprior.analysis.persistence_tables import Band
from maskprior.analysis.recorded_run import RunLabel
from maskprior.experiments.record import RunRecord, write_record

TOKENS = ["[CLS]", "<b>", "x1"]


def probe(step: int, kept: float) -> Probe:
    frame = torch.full((2, 3, 3), kept)
    return Probe(
        step,
        measures={
            "attention_advantage": [0.6 * kept] * 2,
            "attention_variation": [0.6 * (1 - kept)] * 2,
            "attention_divergence": [0.1] * 2,
            "attention_suppressed": [1 - kept] * 2,
            "prior_advantage": [0.6] * 2,
            "gradient_mask": [0.01, 0.02],
        },
        frames={"attention": frame, "sigma": frame},
    )


HEADER = Header(torch.eye(3)[None], [0.65, 0.65], [0.65, 0.65], TOKENS)
PROBES = [probe(step, 1 - step / 100) for step in (0, 20, 40)]


def write_run(folder: Path, label: RunLabel, *, log: bool = True) -> None:
    path = label.path(folder)
    record = RunRecord(
        task=label.task,
        prior=label.prior,
        preset=label.preset,
        seed=label.seed,
        config=label.config(),
        versions={"python": "3"},
        commit="unknown",
        dirty=False,
        hardware={},
        seconds=1.0,
        metrics={"accuracy": 0.5, "target_coefficients": {"x0*x1": 1.0, "1": 0.0}},
        curves={
            "step": [0.0, 20.0, 40.0],
            "loss_unseen": [1.0, 0.1, 0.01],
            "coefficient.x0*x1": [0.0, 0.5, 1.0],
            "coefficient.1": [0.1, 0.0, 0.0],
        },
    )
    if log:
        writer = LogWriter(log_path(path), HEADER)
        for one in PROBES:
            writer.write(one)
    write_record(path, record)


class Checker(HTMLParser):
    """Every tag that opens closes; collects attributes that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return checker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed in (0, 1):
        write_run(tmp_path, RunLabel(task="parity", seed=seed))
        write_run(tmp_path, RunLabel(task="parity", prior="qk_svd", seed=seed), log=False)
    write_run(tmp_path, RunLabel(task="other"))
    return tmp_path


def test_the_page_is_whole_self_contained_and_the_same_each_time(folder: Path) -> None:
    path = write_html(folder)
    assert path == folder / "report" / "report.html"
    page = path.read_text()
    found = check(page)
    assert all(address.startswith(("#", "data:")) for address in found.addresses)
    assert not re.search(r"@import|url\(|https?://", page.replace("http://www.w3.org/2000/svg", ""))
    assert write_html(folder).read_text() == page


def test_the_page_has_all_that_it_promises(folder: Path) -> None:
    page = write_html(folder).read_text()
    found = check(page)
    for words in (
        "5 runs of 2 tasks",
        "mask kept 100 % of its structure in the prior’s own pattern",
        "Final metrics",
        "loss, unseen",
        "kept by the prior’s own pattern",
        "attention on suppressed pairs",
        "Attention over time",
        "σ(M) before and after training",
        "Fourier degrees over time",
        "Where the numbers come from",
    ):
        assert words in page
    # parity: the structure, two layers, twice two of σ(M); other: the same
    assert found.tags.count("canvas") == 2 * (1 + 2 + 4)


def test_a_page_that_would_be_too_large_has_fewer_pictures(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = write_html(folder).stat().st_size
    monkeypatch.setattr(html, "LARGEST_PAGE", size)
    smaller = write_html(folder)
    assert smaller.stat().st_size < size
    assert "canvas" in check(smaller.read_text()).tags
    monkeypatch.setattr(html, "LARGEST_PAGE", 1000)
    with pytest.raises(ValueError, match="less than 1000 bytes"):
        write_html(folder)


def test_records_without_logs_still_make_a_page(tmp_path: Path) -> None:
    write_run(tmp_path, RunLabel(task="parity"), log=False)
    page = write_html(tmp_path).read_text()
    check(page)
    assert "loss, unseen" in page
    assert "canvas" not in check(page).tags
    assert 'class="verdict"' not in page


def test_what_comes_from_outside_is_escaped() -> None:
    assert element("p", "x", title='a"<b') == '<p title="a&quot;&lt;b">x</p>'
    shown = table(TextTable(("a<b", "n"), (("<script>", "&"),), labels=1), 'say "<i>"')
    check(shown)
    assert "<script>" not in shown
    assert "<i>" not in shown


def test_frames_are_embedded_as_bytes_of_roots() -> None:
    shown = pattern_browser({"mask": {5: Log(HEADER, PROBES)}}, "p", 7)
    check(shown)
    assert "mask, seed 5" in shown
    assert "&lt;b&gt;" in shown
    cells = re.findall(r'data-cells="([^"]*)"', shown)
    assert [len(base64.b64decode(text)) for text in cells] == [9, 27, 27]
    last = base64.b64decode(cells[1])[18:]
    assert [(value / 255) ** 2 for value in last] == pytest.approx([0.6] * 9, abs=0.004)
    assert json.loads(re.findall(r'data-steps="([^"]*)"', shown)[1]) == [0, 20, 40]


def test_without_frames_there_are_no_pictures() -> None:
    bare = Log(HEADER, [Probe(0, {})])
    assert pattern_browser({"mask": {0: bare}}, "p", 7) == ""
    assert sigma_pairs({"mask": {0: bare}}) == ""


@pytest.mark.parametrize("count", [1, 2, 7, 8, 1000])
def test_a_long_training_is_thinned_out_evenly(count: int) -> None:
    chosen = spread_evenly(count, 7)
    assert chosen[0] == 0
    assert chosen[-1] == count - 1
    assert len(chosen) == min(count, 7)
    gaps = [b - a for a, b in pairwise(chosen)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def line(*values: float) -> Line:
    steps = [float(10 * index) for index in range(len(values))]
    return Line("mask", Band(steps, values, [v - 0.1 for v in values], [v + 0.1 for v in values]), "#0072b2")


def points(chart: str) -> list[tuple[float, float]]:
    (text,) = re.findall(r'<polyline points="([^"]*)"', chart)
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in text.split())]


def test_a_chart_puts_values_where_they_belong() -> None:
    (x0, y0), (x1, y1), (x2, y2) = points(line_chart("t", [line(0.0, 0.5, 1.0)], Axis(bounds=(0, 1))))
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y2 < y0


def test_a_logarithmic_chart_spaces_powers_evenly_and_leaves_out_the_rest() -> None:
    band = Band([0.0, 10.0, 20.0, 30.0], [1.0, 0.1, 0.01, 0.0], [1.0, 0.1, 0.01, 0.0], [1.0, 0.1, 0.01, 0.0])
    found = points(line_chart("t", [Line("mask", band, "#000000")], Axis(log=True)))
    assert len(found) == 3
    assert found[1][1] - found[0][1] == pytest.approx(found[2][1] - found[1][1], abs=0.2)


@pytest.mark.parametrize("axis", [Axis(), Axis("%"), Axis(log=True), Axis(bounds=(0, 1))])
@pytest.mark.parametrize("values", [(0.5,), (0.5, 0.5), (1e-9, 3e4), (-2.0, 0.25)])
def test_charts_of_any_values_stay_inside(axis: Axis, values: tuple[float, ...]) -> None:
    chart = line_chart("t", [line(*values)], axis, [0.3])
    check(chart)
    assert "nan" not in chart
    assert all(0 <= x <= 340 and 0 <= y <= 210 for x, y in points(chart))


def test_a_chart_of_nothing_is_nothing() -> None:
    assert line_chart("t", [], Axis()) == ""
    assert line_chart("t", [], Axis(), marks=[0.9]) == ""
    zero = Band([0.0], [0.0], [0.0], [0.0])
    assert line_chart("t", [Line("mask", zero, "#000000")], Axis(log=True)) == ""


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, 400, [0, 100, 200, 300, 400]), (-1, 1, [-1, -0.5, 0, 0.5, 1])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(expected)


def test_tick_labels_are_short() -> None:
    assert tick_label(0.2, Axis("%")) == "20 %"
    assert tick_label(1e-6, Axis(log=True)) == "1e-6"
    assert tick_label(0.30000000000000004, Axis()) == "0.3"
    assert tick_label(20000.0, Axis()) == "20000"


def test_degrees_of_monomials() -> None:
    assert [degree_of(name) for name in ("1", "x3", "x0*x1", "x0*x1*x2")] == [0, 1, 2, 3]
    assert degree_weights({"x0": 0.5, "x1": -0.5, "x0*x1": 2.0}) == {1: 0.5, 2: 4.0}
