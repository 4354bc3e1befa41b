"""The picture: who is drawn where, in colours that tell neighbours apart."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.topology.capacity import fits
from dynamo_mlperf.topology.picture import SHADES, Row, as_svg, cells_of, rows_of, shades
from dynamo_mlperf.topology.plan import Plan, make_plan
from dynamo_mlperf.topology.spec import Topology, parse_topology
from tests.topology.test_topology_plan import roomy_deployments
from tests.topology.topology_texts import disaggregated, role, topology_text


def drawn(topology: Topology) -> list[Row]:
    return rows_of(make_plan(topology))


def words(row: Row) -> str:
    return " ".join(worker.name if worker else "." for worker in row.cells)


def test_equal_nodes_of_a_large_plan_are_one_row() -> None:
    rows = drawn(parse_topology(topology_text(nodes=65, gpus=2, head="dedicated", aggregated=role(128))))
    assert [(words(row), row.others) for row in rows] == [
        (". .", ""),
        ("aggregated-0 aggregated-1", "x 64, nodes 1-64"),
    ]
    mixed = drawn(disaggregated((45, 2), (30, 1), nodes=30))
    assert [(words(row), row.nodes[:3], row.others) for row in mixed] == [
        ("prefill-0 prefill-0 decode-0 decode-1", (0,), ""),
        ("prefill-1 prefill-1 prefill-2 prefill-2", (1, 3, 5), "x 15, nodes 1 to 29"),
        ("prefill-3 prefill-3 decode-2 decode-3", (2, 4, 6), "x 14, nodes 2 to 28"),
    ]


def test_small_plans_are_drawn_node_by_node() -> None:
    assert [row.nodes for row in drawn(parse_topology(topology_text(nodes=24, aggregated=role(96))))] == [
        (node,) for node in range(24)
    ]


def kinds(plan: Plan) -> list[list[tuple[str, int] | None]]:
    return [[(worker.role, len(worker.ranks)) if worker else None for worker in here] for here in cells_of(plan)]


@given(roomy_deployments(), st.integers(1, 9))
def test_rows_stand_for_every_node_once_and_neighbours_differ(topology: Topology, most_rows: int) -> None:
    if not fits(topology):
        return
    plan = make_plan(topology)
    rows = rows_of(plan, most_rows)
    assert sorted(node for row in rows for node in row.nodes) == list(range(topology.nodes.count))
    each = kinds(plan)
    assert all(each[node] == each[row.nodes[0]] for row in rows for node in row.nodes)
    check_colours(rows)


def check_colours(rows: list[Row]) -> None:
    """Workers of one role that touch have different colours."""
    colours = shades(rows)
    assert set(colours.values()) <= set(range(SHADES))
    beside = [pair for row in rows for pair in pairwise(row.cells)]
    above = [pair for one, other in pairwise(rows) for pair in zip(one.cells, other.cells, strict=True)]
    for one, other in beside + above:
        if one and other and one.role == other.role and one.name != other.name:
            assert colours[one.name] != colours[other.name]


@pytest.mark.parametrize("gpus", range(1, 9))
def test_full_nodes_of_small_workers_differ_from_those_above(gpus: int) -> None:
    check_colours(drawn(parse_topology(topology_text(nodes=8, gpus=gpus, aggregated=role(8 * gpus)))))


@pytest.mark.parametrize("title", ["a plan", 'odd <&"> title'])
def test_the_svg_holds_every_cell_and_needs_nothing_else(title: str) -> None:
    plan = make_plan(disaggregated((5, 2), (6, 1)))
    text = as_svg(plan, title, ["a note"])
    root = ET.fromstring(text)
    namespace = "{http://www.w3.org/2000/svg}"
    texts = ["".join(element.itertext()) for element in root.iter(f"{namespace}text")]
    assert texts[0] == title
    assert texts[-1] == "a note"
    assert [cell for cell in texts if cell[0] in "PD" and cell[1:].isdigit()] == (
        ["P0", "P0", "D0", "D1", "P1", "P1", "D2", "D3", "P2", "P2", "D4", "D5", "P3", "P3", "P4", "P4"]
    )
    assert "href" not in text
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iter(f"{namespace}rect"):
        assert float(box.attrib.get("x", 0)) + float(box.attrib["width"]) <= width
        assert float(box.attrib.get("y", 0)) + float(box.attrib["height"]) <= height
