from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.report.charts import Mark, axis_end, distribution, over_time
from dynamo_mlperf.report.svg import Plot, n, text, tick_label, ticks

LIMIT = Mark("limit", "limit", 1500.0)


def by_class(svg: str, css: str) -> list[ET.Element]:
    """Elements with this class; parsing also proves that the picture is well-formed XML."""
    return [element for element in ET.fromstring(svg).iter() if css in element.get("class", "").split()]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("text")]


def description(svg: str) -> str:
    return ET.fromstring(svg).findtext("desc") or ""


@given(st.floats(0, 1e5), st.floats(1e-3, 1e6))
def test_ticks_lie_inside_and_are_evenly_round(first: float, span: float) -> None:
    found = ticks(first, first + span)
    assert 1 <= len(found) <= 13
    assert all(first - span * 1e-6 <= value <= first + span * (1 + 1e-6) for value in found)
    assert all(f"{gap:.3e}"[0] in "1259" for gap in np.diff(found))


def test_tick_labels() -> None:
    assert [tick_label(v) for v in (0.0, 1500.0, 0.25, 0.30000000000000004)] == ["0", "1,500", "0.25", "0.3"]


def test_a_plot_maps_its_ranges_onto_its_edges() -> None:
    plot = Plot(10, 110, 20, 220, (0, 50), (0, 4))
    assert (plot.x(0), plot.x(25), plot.x(50)) == (10, 60, 110)
    assert (plot.y(0), plot.y(4)) == (220, 20)


def test_texts_are_escaped_and_printable() -> None:
    assert text(1, 2.25, "<script>&\x07", "tick") == '<text x="1" y="2.2" class="tick">&lt;script&gt;&amp;\ufffd</text>'
    assert n(3.04) == "3"


def test_bars_hold_every_query_and_stand_where_they_are() -> None:
    svg = distribution("d", "t", np.array([100.0] * 3 + [900.0]), ())
    (bars,) = by_class(svg, "bars")
    steps = re.findall(r"M([\d.]+) ([\d.]+)V([\d.]+)h", bars.get("d", ""))
    assert len(steps) == 2
    heights = [float(bottom) - float(top) for _, bottom, top in steps]
    assert heights[0] == pytest.approx(3 * heights[1], abs=0.3)
    left, right = 64.0, 904.0
    shares = [(float(x) - left) / (right - left) for x, _, _ in steps]
    assert shares == pytest.approx([100 / 954, 900 / 954], abs=1 / 72)


def test_the_curve_ends_at_everything() -> None:
    (curve,) = by_class(distribution("d", "t", np.linspace(500, 900, 1000), ()), "curve")
    points = re.findall(r"([\d.]+) ([\d.]+)", curve.get("d", "").replace("M", "").replace("L", " "))
    assert float(points[-1][1]) == 26.0
    heights = [float(y) for _, y in points[1:]]
    assert heights == sorted(heights, reverse=True)


def test_marks_stand_at_their_values_and_their_labels_do_not_touch() -> None:
    marks = (Mark("judged", "p99", 1457.0), Mark("early", "early stopping", 1487.2), LIMIT)
    svg = distribution("d", "t", np.linspace(600, 1800, 500), marks)
    assert {"p99 1,457.0 ms", "early stopping 1,487.2 ms", "limit 1,500 ms"} <= set(texts(svg))
    end = 1800 * 1.06
    for mark in marks:
        (drawn,) = [e for e in by_class(svg, mark.kind) if e.tag == "path"]
        at = float(drawn.get("d", "").removeprefix("M").split(" ")[0])
        assert at == pytest.approx(64 + mark.value_ms / end * 840, abs=0.1)
    rows = [float(e.get("y", "")) for e in by_class(svg, "mark-text")]
    assert len(set(rows)) == 3
    by_row = sorted((float(e.get("y", "")), float(e.get("x", ""))) for e in by_class(svg, "mark-text"))
    assert [x for _, x in by_row] == sorted((x for _, x in by_row), reverse=True)


def test_a_limit_far_away_does_not_squeeze_the_picture() -> None:
    values = np.linspace(40, 60, 500)
    assert axis_end(values, [LIMIT]) == pytest.approx(60 * 1.06)
    svg = distribution("d", "t", values, [LIMIT])
    assert "limit 1,500 ms, further right →" in texts(svg)
    assert not [e for e in by_class(svg, "limit") if e.tag == "path"]


def test_stragglers_beyond_the_edge_are_counted() -> None:
    values = np.sort(np.append(np.linspace(500, 1000, 997), [1500.0, 90_000.0, 95_000.0]))
    assert axis_end(values, ()) < 2000
    assert "3 of them lie beyond the right edge" in description(distribution("d", "t", values, ()))


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-3.0, -1.0], [1e-9], [1e12]])
def test_odd_values_still_make_a_picture(values: list[float]) -> None:
    array = np.array(values)
    assert "nan" not in distribution("d", "t", array, [LIMIT])
    svg = over_time(
        "o", "t", issued_s=array * 0, latency_ms=array, failed=np.zeros(len(array), dtype=bool), limit_ms=1500.0
    )
    assert "nan" not in svg.lower()
    ET.fromstring(svg)


def scatter(count: int, *, over: int = 0, failed: int = 0, limit: float | None = 1500.0) -> str:
    random = np.random.default_rng(3)
    issued = np.sort(random.uniform(0, 600, count))
    latency = random.uniform(300, 1400, count)
    latency[:over] = 1700.0
    is_failed = np.zeros(count, dtype=bool)
    is_failed[count - failed :] = True
    latency[is_failed] = np.nan
    return over_time("o", "t", issued_s=issued, latency_ms=latency, failed=is_failed, limit_ms=limit)


def strokes(svg: str, css: str) -> int:
    return sum(element.get("d", "").count("M") for element in by_class(svg, css))


def test_few_queries_are_drawn_one_by_one() -> None:
    svg = scatter(1000, over=7, failed=3)
    assert (strokes(svg, "dots"), strokes(svg, "over")) == (997, 7)
    assert "997 answered and 3 failed queries. 7 over the limit." in description(svg)
    assert "3 failed" in texts(svg)
    assert 1 <= by_class(svg, "cross")[0].get("d", "").count("M") <= 3


def test_many_queries_make_a_small_picture_that_loses_no_slow_one() -> None:
    svg = scatter(50_000, over=1)
    assert len(svg) < 200_000
    assert strokes(svg, "over") == 1
    assert strokes(svg, "dots") < 13_000


def test_without_a_limit_nothing_is_over_it() -> None:
    svg = scatter(100, over=5, limit=None)
    assert by_class(svg, "over") == by_class(svg, "limit") == []
    assert "over the limit" not in description(svg)


def test_a_limit_far_above_is_named_and_not_drawn() -> None:
    svg = scatter(100, limit=9000.0)
    assert "limit 9,000 ms, further up \u2191" in texts(svg)
    assert [e.get("text-anchor") for e in by_class(svg, "limit")] == ["end"]


def test_a_query_that_never_was_issued_counts_and_has_no_place() -> None:
    issued = np.array([0.0, 1.0, np.nan])
    latency, failed = np.array([100.0, np.nan, np.nan]), np.array([False, True, True])
    svg = over_time("o", "t", issued_s=issued, latency_ms=latency, failed=failed, limit_ms=None)
    assert "nan" not in svg.lower()
    assert "2 failed" in texts(svg)
    assert by_class(svg, "cross")[0].get("d", "").count("M") == 1


def test_all_failed() -> None:
    svg = scatter(20, failed=20)
    assert by_class(svg, "dots") == []
    assert "0 answered and 20 failed" in description(svg)


def test_the_median_follows_the_run() -> None:
    issued = np.linspace(0, 600, 1200)
    latency = np.where(issued < 300, 400.0, 800.0)
    svg = over_time("o", "t", issued_s=issued, latency_ms=latency, failed=np.zeros(1200, dtype=bool), limit_ms=None)
    (median,) = by_class(svg, "median")
    heights = [float(y) for y in re.findall(r" ([\d.]+)", median.get("d", ""))]
    assert len(heights) == 60
    bottom = 32.0 + 230.0
    assert bottom - heights[-1] == pytest.approx(2 * (bottom - heights[0]), abs=0.3)
