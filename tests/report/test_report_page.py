from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING, get_args

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import append_json_line, write_json
from dynamo_mlperf.report.layout import read_layout
from dynamo_mlperf.report.page import (
    common_environment,
    counter_tables,
    flat,
    gpu_grid,
    plain_number,
    shell_line,
    write_report,
)
from dynamo_mlperf.report.run_data import Command, read_run
from tests.report.run_builder import Kind, build_run, plan

if TYPE_CHECKING:
    from pathlib import Path

VOID = {"meta", "br", "path", "rect"}
ATTACK = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}"


@dataclass
class Page(HTMLParser):
    """A parsed page: its texts and elements; fails on a tag that is not closed in order."""

    source: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, tag
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open and data.strip():
            self.words.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def tags(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(run_dir: Path) -> Page:
    return Page(write_report(run_dir).read_text())


@pytest.mark.parametrize("kind", get_args(Kind))
def test_pages_are_well_formed_self_contained_and_accessible(tmp_path: Path, kind: Kind) -> None:
    page = page_of(build_run(tmp_path / "run", kind).root)
    assert page.source.startswith("<!DOCTYPE html>")
    assert page.tags("script") == page.tags("link") == page.tags("img") == []
    for _, attributes in page.elements:
        assert not {"src", "href", "onload", "style"} & attributes.keys()
    assert "url(" not in page.source
    assert "@import" not in page.source
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = {word for _, attributes in page.elements for word in (attributes.get("aria-labelledby") or "").split()}
    assert named <= set(ids)
    assert all(svg["role"] == "img" and svg["aria-labelledby"] for svg in page.tags("svg"))
    assert all(cell.get("scope") in ("row", "col") for cell in page.tags("th"))
    assert len(page.tags("table")) == len(page.tags("thead"))


def test_a_valid_run_shows_its_facts(tmp_path: Path) -> None:
    page = page_of(build_run(tmp_path / "run").root)
    for fact in (
        "VALID official qwen3-vl-235b-a22b, Interactive The run finished and every rule was met.",
        "4P8D (8:8 GPUs)",
        "began 2026-11-29 12:00:00 UTC",
        "Model qwen3-vl-235b-a22b-nvfp4 Completed, queries/s 39.85 target 40.00",
        "Requests 24,000 0 failed",
        "end-to-end early stopping 1,396.4 ms limit 1,500 ms at p99",
        "24,000 of 24,000 prefilled remotely",
        "24,000 transfers, 0 failed",
        "prefill-3 · gb200-004",
        "gb200-002 P1 P1 D2 D3",
        "issue delay p99, ms 0.184",
        "http-0 CPU, s 211.6",
        "in flight bound \u2013",
        "Versions (4)",
        "measure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive",
        "vllm:request_success_total 6,000 6,000 6,000 6,000 24,000",
    ):
        assert fact in page.text, fact
    assert len(page.tags("svg")) == 6


def test_an_invalid_run_says_why_and_what_to_do(tmp_path: Path) -> None:
    page = page_of(build_run(tmp_path / "run", "invalid").root)
    assert "failed requests : wanted 0 of 24000, got 3. Read the three errors below" in page.text
    assert "Class reduced : reduced rules, for tuning and demos; cannot be submitted." in page.text
    assert "HTTP 500: no worker for this request 3" in page.text
    assert "3 failed" in page.text


@pytest.mark.parametrize("kind", ["failed", "running"])
def test_a_run_without_a_measurement_shows_no_figure(tmp_path: Path, kind: Kind) -> None:
    page = page_of(build_run(tmp_path / "run", kind).root)
    assert page.text.count("did not measure") >= 3
    assert not re.search(r"queries/s|tokens/s|\bp99\b|early stopping", page.text)


def test_a_failed_run_shows_who_died_and_how_its_log_ends(tmp_path: Path) -> None:
    page = page_of(build_run(tmp_path / "run", "failed").root)
    assert "decode-3 on gb200-002 ended by itself 2 min 35 s after the job began, status -9" in page.text
    assert "decode-3.log: decode-3 ended with status -9 loading weights CUDA error: out of memory" in page.text
    assert "Not in the run directory: evidence.json, loadgen/client.json, loadgen/queries.csv." in page.text


def test_queries_of_a_run_that_did_not_end_are_a_diagnosis(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", "invalid", queries=800)
    paths.verdict.unlink()
    page = page_of(paths.root)
    assert "For diagnosis only: this run did not measure." in page.text
    assert "797 answered and 3 failed queries" in page.text
    assert "distribution of the" not in page.text.lower()


def test_untrusted_text_stays_text(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", "failed")
    harmless = len(page_of(paths.root).elements)
    attacked = json.loads(json.dumps(plan()).replace("gb200-002", json.dumps(ATTACK)[1:-1]))
    attacked["name"] = attacked["workers"][0]["role"] = attacked["split"]["workers"] = ATTACK
    write_json(paths.plan, attacked)
    write_json(paths.versions, {ATTACK: ATTACK})
    paths.topology.write_text(f"name: {ATTACK}\n</pre></style>{ATTACK}")
    (paths.logs / "decode-3.log").write_text(f"</pre>{ATTACK}\x00\x1b[31m")
    (paths.load / "queries.csv").write_text(
        "order,sample,issued_ms,first_token_ms,completed_ms,output_tokens,prompt_tokens,error\n"
        '0,0,1.0,,,0,0,"<script>alert(2)</script>"\n'
    )
    write_json(paths.evidence, {"canary": {ATTACK: ATTACK}, "workers": {ATTACK: {ATTACK: 1}}})
    write_json(paths.load / "client.json", {ATTACK: {ATTACK: ATTACK}})
    at = read_run(paths.root).timeline.began_at
    append_json_line(paths.events, {"t": at, "event": "process_started", "process": ATTACK, "node": ATTACK})
    append_json_line(paths.events, {"t": at, "event": "phase_begin", "phase": ATTACK})
    append_json_line(paths.events, {"t": at, "event": "error", "what": ATTACK})
    append_json_line(paths.commands, {"process": ATTACK, "host": ATTACK, "argv": [ATTACK], "env": {ATTACK: ATTACK}})
    verdict = dict(read_run(paths.root).verdict or {})
    texts = dict.fromkeys(("verdict", "class", "benchmark", "scenario"), ATTACK)
    reason = dict.fromkeys(("check", "wanted", "got", "action"), ATTACK)
    write_json(paths.verdict, {**verdict, **texts, "reasons": [reason], "notes": [ATTACK]})

    page = page_of(paths.root)
    assert page.tags("script") == page.tags("img") == []
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")]
    assert len(page.elements) > harmless
    assert page.text.count("<script>alert(1)</script>") > 20
    assert "49" not in page.text.replace(ATTACK, "").split("alert(1)")[0]
    assert "\x00" not in page.source
    assert "\x1b" not in page.source
    (policy,) = [meta["content"] for meta in page.tags("meta") if "http-equiv" in meta]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_a_rehearsal_says_so_wherever_it_shows_a_figure(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    verdict = dict(read_run(paths.root).verdict or {})
    write_json(paths.verdict, {**verdict, "class": "rehearsal"})
    page = page_of(paths.root)
    for heading in ("Key figures", "Latency distribution", "Latency over the run"):
        assert f"{heading}, simulated" in page.text
    assert "VALID rehearsal" in page.text
    assert "simulated engines; says nothing about real hardware and cannot be submitted" in page.text


def test_a_run_on_cpus_has_slots_on_numbered_nodes(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    local = plan()
    for node in local["binding"]:
        node["host"] = "localhost"
    write_json(paths.plan, local)
    paths.topology.write_text(f"device: cpu\n{paths.topology.read_text()}")
    page = page_of(paths.root)
    for fact in ("4 nodes, 16 slots", "(8:8 slots)", "Nodes and slots", "node 1 P1 P1 D2 D3", "slot 3", "0 slots idle"):
        assert fact in page.text, fact
    assert "decode-2 on node 1" in page.text
    assert "localhost" not in page.text.partition("What ran")[0]


def test_nodes_that_share_a_host_carry_its_name_and_their_own() -> None:
    hosts = ("n1", "n1", "n2")
    layout = read_layout(
        {
            "nodes": [{"position": i, "gpus": 1} for i in range(3)],
            "binding": [{"position": i, "host": host} for i, host in enumerate(hosts)],
        }
    )
    assert [node.name for node in layout.nodes] == ["node 0 (n1)", "node 1 (n1)", "n2"]


@pytest.mark.parametrize(("queries", "drawn"), [(220, False), (2000, True)])
def test_the_median_is_named_where_it_is_drawn(tmp_path: Path, queries: int, drawn: bool) -> None:  # noqa: FBT001
    page = page_of(build_run(tmp_path / "run", queries=queries).root)
    assert ("running median" in page.text) == drawn
    assert any(path.get("class") == "median" for path in page.tags("path")) == drawn


def test_a_cause_is_told_in_one_line(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", "failed")
    verdict = dict(read_run(paths.root).verdict or {})
    got = "decode-3 on node 1 ended with status 7; its last lines:\n    loading weights\n    no kernel image"
    verdict["reasons"] = [{"check": "run", "wanted": "a measurement", "got": got, "action": "read its log"}]
    write_json(paths.verdict, verdict)
    paths.events.write_text(
        paths.events.read_text().replace('"decode-3 died before it was ready"', json.dumps(f"{got}\n  Try: x"))
    )
    page = page_of(paths.root)
    assert "got decode-3 on node 1 ended with status 7. Last line of its log: no kernel image read its log" in page.text
    assert page.text.count("ended with status 7") == 1


def test_fifty_thousand_queries_make_a_small_page(tmp_path: Path) -> None:
    page = page_of(build_run(tmp_path / "run", queries=50_000).root)
    assert len(page.source) < 500_000
    assert "Latencies of 50,000 answered queries." in page.text


def test_thousands_of_processes_make_a_page_that_opens(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    argv = ["python", "-m", "dynamo.vllm", *(f"--option-{i}=value-{i}" for i in range(30))]
    env = {f"VARIABLE_{i}": "value" for i in range(40)}
    for worker in range(2000):
        at = 1795953700.0 + worker
        append_json_line(paths.events, {"t": at, "event": "process_started", "process": f"decode-{worker}", "node": 0})
        append_json_line(paths.commands, {"process": f"decode-{worker}", "argv": argv, "env": env})
    page = page_of(paths.root)
    assert len(page.source) < 1_500_000
    assert "1932 more in commands.jsonl." in page.text
    assert "1,954 processes that came up sooner left out" in page.text


def test_the_same_run_makes_the_same_page(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    assert write_report(paths.root).read_bytes() == write_report(paths.root, tmp_path / "other.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.html", "run"]


def test_a_place_that_cannot_be_written_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", "failed")
    with pytest.raises(ConfigError, match="No such file or directory") as caught:
        write_report(paths.root, tmp_path / "absent" / "page.html")
    assert "--html FILE" in caught.value.action


def test_the_grid_has_a_cell_per_gpu_and_holes_where_nodes_differ() -> None:
    layout = read_layout(
        {
            "nodes": [{"position": 0, "gpus": 2}, {"position": 1, "gpus": 1}],
            "workers": [{"role": "decode", "index": 5, "ranks": [{"node": 0, "gpu": 1}]}],
        }
    )
    grid = [(name, [(cell.label, cell.css) for cell in cells]) for name, cells in gpu_grid(layout)]
    assert grid == [
        ("node 0", [("idle", "gpu idle"), ("D5", "gpu decode shade-1")]),
        ("node 1", [("idle", "gpu idle"), ("", "")]),
    ]


def test_counters_are_told_per_role_with_their_sum() -> None:
    prefill, decode = counter_tables({"prefill-0": {"a": 1}, "decode-0": {"a": 2, "b": 0.5}, "decode-1": {"a": 3000}})
    assert (prefill.role, prefill.workers, prefill.rows) == ("prefill", ("prefill-0",), (("a", ("1",), "1"),))
    assert decode.rows == (("a", ("2", "3,000"), "3,002"), ("b", ("0.5", "\u2013"), "0.5"))


@pytest.mark.parametrize(
    ("value", "text"), [(34.2, "34.2"), (0.0001234, "0.0001234"), (-2.0, "-2"), (1234567.0, "1,234,567")]
)
def test_plain_numbers(value: float, text: str) -> None:
    assert plain_number(value) == text


def test_nested_values_are_flattened() -> None:
    assert flat(
        {
            "a": {"b": 1, "c": {"d": None}},
            "e": [1, "x"],
            "f": True,
            "g": [],
            "h": [{"name": "x", "v": 1}, {"v": 2}],
            "i": [0] * 17,
        }
    ) == [
        ("a.b", "1"),
        ("a.c.d", "\u2013"),
        ("e", "1, x"),
        ("f", "yes"),
        ("g", "none"),
        ("h.x.v", "1"),
        ("h.1.v", "2"),
        ("i", "17 entries"),
    ]


def test_the_clients_table_has_no_row_for_programs(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    process = {"name": "http-0", "role": "http", "cpu_s": 1.5, "rested": 7}
    written = json.loads((paths.load / "client.json").read_text())
    write_json(paths.load / "client.json", {**written, "processes": [process], "first_issue_t": 1796097602.745})
    table = write_report(paths.root).read_text().partition('id="client"')[2].partition("</section>")[0]
    words = re.sub(r"<[^>]*>|\s+", " ", table)
    assert "http-0 CPU, s" in words
    assert "http-0 times that connections were left to rest" in words
    assert not [raw for raw in ("first issue t", "name", "role", "1,796,097,602") if raw in words]


def test_only_what_all_processes_share_is_common() -> None:
    first, second = (Command(name, "0", "n1", (), {"A": "1", "B": name}, "") for name in ("x", "y"))
    assert common_environment([first, second]) == {"A": "1"}
    assert common_environment([first]) == {}


def test_a_command_can_be_pasted_into_a_shell() -> None:
    assert shell_line(["python", "-m", "x", "--config", '{"a": 1}', "--eager"]) == (
        "python -m x \\\n    --config '{\"a\": 1}' \\\n    --eager"
    )
