from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_mlperf.benchmark.rules import Reduction
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.document import parse_document
from dynamo_mlperf.topology.spec import Topology, load_topology, parse_topology
from tests.topology.topology_texts import role, topology_text

SAMPLE = topology_text(prefill=role(4, 2), decode=role(8))


def changed(old: str, new: str) -> str:
    assert SAMPLE.count(old) == 1, old
    return SAMPLE.replace(old, new)


def with_roles(roles: dict[str, str]) -> str:
    head, _roles, tail = SAMPLE.partition("  prefill:")
    rows = "".join(f"  {name}: {value}\n" for name, value in roles.items())
    return f"{head}{rows}{tail[tail.index('measure:') :]}"


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        parse_topology(text)
    return error.value.what


def test_a_file_is_read_past_its_shebang_and_batch_lines(tmp_path: Path) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text(SAMPLE)
    topology = load_topology(path)
    assert topology.disaggregated
    assert [(name, part.workers, part.gpus) for name, part in topology.roles.present()] == [
        ("prefill", 4, 2),
        ("decode", 8, 1),
    ]
    assert (topology.device, topology.frontends.router, topology.frontends.discovery) == ("cuda", "round-robin", "etcd")
    assert (topology.timeouts.ready_s, topology.timeouts.request_s, topology.timeouts.warmup_requests) == (900, 120, 8)
    assert topology.reduced is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("prefill:", "prefil:", "topology.yaml:11: roles.prefil: no such key; did you mean prefill?"),
        ("count: 4,", "cuont: 4,", "topology.yaml:5: nodes.cuont: no such key; did you mean count?"),
        ("engine: vllm", "engine: vlm", "topology.yaml:7: engine: wanted vllm or mocker or trtllm or sglang, got 'vlm'; did you mean vllm?"),
        ("engine: vllm\n", "", "topology.yaml: engine: missing"),
        ("head: first", "target_qps: 3", "topology.yaml:8: target_qps: no such key here; did you mean measure.target_qps?"),
        ("head: first", "xyzzy: 3", "topology.yaml:8: xyzzy: no such key; there are schema, name, site, nodes, model, engine, server, device, roles, frontends, head, measure, search, sweep, hold, reduced, timeouts"),
        ("count: 4,", "count: true,", "topology.yaml:5: nodes.count: wanted a whole number, got true"),
        ("count: 4,", "count: 4.0,", "topology.yaml:5: nodes.count: wanted a whole number, got 4.0"),
        ("count: 4,", "count: 0,", "topology.yaml:5: nodes.count: wanted at least 1, got 0"),
        ("count: 4,", "count: 10001,", "topology.yaml:5: nodes.count: wanted at most 10000, got 10001"),
        ("count: 4,", "count: 010,", "topology.yaml:5: nodes.count: YAML readers differ about 010; quote it, or write true, false or a decimal"),
        ("count: 4,", "count: 4, count: 5,", "topology.yaml:5: nodes.count: given twice, first on line 5"),
        ("target_qps: 40", "target_qps: .inf", "topology.yaml:13: measure.target_qps: wanted a finite number, got inf"),
        ("target_qps: 40", "target_qps: .nan", "topology.yaml:13: measure.target_qps: wanted a finite number, got nan"),
        ("target_qps: 40", "target_qps: 0", "topology.yaml:13: measure.target_qps: wanted more than 0, got 0"),
        ("target_qps: 40", "target_qps: true", "topology.yaml:13: measure.target_qps: wanted a number, got true"),
        ("target_qps: 40", "target_qps: '40'", "topology.yaml:13: measure.target_qps: wanted a number, got '40'; write it without quotes"),
        ("schema: 1", "schema: 2", "topology.yaml:3: schema: wanted 1, got 2"),
        ("schema: 1", "schema: true", "topology.yaml:3: schema: wanted 1, got true or false"),
        ("name: sample", "name: ../up", "topology.yaml:4: name: wanted up to 80 lower-case letters, digits, dots and dashes, got '../up'"),
        ("{path: /weights}", "{path: /weights, stage: m.yaml}", "topology.yaml:6: model.weights: wanted exactly one of stage (a manifest) and path (a directory)"),
        ("{path: /weights}", "{}", "topology.yaml:6: model.weights: wanted exactly one of stage (a manifest) and path (a directory)"),
        ("{path: /weights}", "[w]", "topology.yaml:6: model.weights: wanted keys and values, got ['w']"),
        ("scenario: Interactive", "scenario: interactive", "topology.yaml:13: measure.scenario: no scenario 'interactive'; there are Offline, Server, Interactive; write scenario: Interactive"),
        ("target_qps: 40", "target_qps: 40, client: endpoints, user_conf: a.conf", "topology.yaml:13: measure: user_conf is LoadGen's, and client is endpoints; take one of them out"),
        ("head: first", "search: {min: 5}", "topology.yaml:8: search.min: not a key of this block; did you mean low?"),
        ("head: first", "search: {max: 5}", "topology.yaml:8: search.max: not a key of this block; did you mean high?"),
        ("head: first", "search: {low: 5, high: 4}", "topology.yaml:8: search: low 5 is not below high 4: give a lower low or a higher high"),
        ("head: first", "search: {low: 5, start: 4}", "topology.yaml:8: search: start 4 is outside low and high: give one between them"),
        ("head: first", "search: {tolerance: 0}", "topology.yaml:8: search.tolerance: wanted at least 0.001, got 0"),
        ("target_qps: 40", "round: v6.1", "topology.yaml:13: measure.target_qps: missing; write target_qps: 10 (queries per second), or search: at the top level to find the highest rate"),
        ("target_qps: 40", "target_qps: 40, search: {}", "topology.yaml:13: measure.search: not a key of this block; write search: at the top level of the file, beside measure:"),
        ("head: first", "sweep: {splits: 3}", "topology.yaml:8: sweep.splits: wanted a list, got 3"),
        ("head: first", "sweep: {splits: [4P8D, 4P8D]}", "topology.yaml:8: sweep.splits: 4P8D is listed twice"),
        ("head: first", "sweep: {rates: [5], time_budget_s: 9}", "topology.yaml:8: sweep: rates and time_budget_s are both given; the budget is for searches, leave one out"),
        ("target_qps: 40", "target_qps: 40, sweep: {}", "topology.yaml:13: measure.sweep: not a key of this block; write sweep: at the top level of the file"),
        ("head: first", "accuracy: {}", "topology.yaml:8: accuracy: not a key of this block; write it inside measure: (accuracy: true)"),
        ("nodes: {count: 4, gpus: 4}\n", "nodes: {count: 1, gpus: 4}\n", None),
        ("head: first", "reduced: {}", "topology.yaml:8: reduced: wanted at least one of min_duration_s, samples, percentile, latency_limit_ms; or leave reduced out"),
        ("head: first", "reduced: {percentile: 100}", "topology.yaml:8: reduced.percentile: wanted less than 100, got 100"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_line_and_the_way_out(old: str, new: str, said: str | None) -> None:
    if said is None:
        parse_topology(changed(old, new))
    else:
        assert refused(changed(old, new)) == said


def test_all_problems_are_told_at_once_in_the_order_of_lines() -> None:
    text = (
        changed("engine: vllm", "engin: vllm").replace("count: 4,", "count: four,").replace("workers: 8", "workers: -8")
    )
    assert refused(text) == (
        "topology.yaml: 3 problems\n"
        "  topology.yaml:5: nodes.count: wanted a whole number, got 'four'\n"
        "  topology.yaml:7: engin: no such key; did you mean engine?\n"
        "  topology.yaml:12: roles.decode.workers: wanted at least 1, got -8"
    )


def with_decode(more: str) -> str:
    return topology_text(prefill=role(4, 2), decode=role(8, 1, more))


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("model: x", "not a flag to set here: model.weights sets it"),
        ("served-model-name: x", "not a flag to set here: model.name sets it, with the job's nonce"),
        ("tensor-parallel-size: 2", "not a flag to set here: tensor_parallel sets it"),
        ("tensor_parallel_size: 2", "not a flag to set here: tensor_parallel sets it"),
        ("data-parallel-size: 2", "not a flag to set here: data_parallel sets it"),
        ("disaggregation-mode: decode", "not a flag to set here: the role's name (prefill, decode, aggregated) sets it"),
        ("kv-transfer-config: {}", "not a flag to set here: the role's name (prefill, decode, aggregated) sets it"),
        ("host: 0.0.0.0", "not a flag to set here: the launcher sets it"),
        ("port: 1", "not a flag to set here: the launcher sets it"),
        ("enable-prefix-caching: true", "not a flag to set here: MLPerf forbids caching across queries, so the launcher always turns it off"),
        ("no-enable-prefix-caching: false", "not a flag to set here: MLPerf forbids caching across queries, so the launcher always turns it off"),
        ("enable-pre: true", "not a flag to set here: it abbreviates enable-prefix-caching, and MLPerf forbids caching across queries, so the launcher always turns it off"),
        ("max_num_seqs: 1", "write the flag as max-num-seqs"),
        ("--max-num-seqs: 1", "write the flag as max-num-seqs"),
        ("max num: 1", "wanted an engine flag of letters, digits, dots and dashes"),
        ("top: .inf", "wanted a finite number, got inf"),
        ("top: {a: [.nan]}", "wanted a finite number, got nan"),
        ("top: 2026-01-01", "YAML readers differ about 2026-01-01; quote it, or write true, false or a decimal"),
        ("top: no", "YAML readers differ about no; quote it, or write true, false or a decimal"),
    ],
)  # fmt: skip
def test_flags_that_are_not_the_files_to_set_are_refused(flag: str, said: str) -> None:
    place = f"roles.decode.args.{flag.split(':', maxsplit=1)[0]}"
    assert refused(with_decode(f", args: {{{flag}}}")) == f"topology.yaml:12: {place}: {said}"


def test_flag_values_keep_their_types() -> None:
    args = "{x-a: 1, x-b: 0.5, x-c: true, x-d: text, x-e: [1, x], x-f: {image: 1}, x-g: null, x-h: '010', x-i: 1e3}"
    both = f", args: {args}"
    topology = parse_topology(topology_text(prefill=role(4, 2, both), decode=role(8, 1, both)))
    assert topology.roles.decode is not None
    values = {flag.removeprefix("x-"): value for flag, value in topology.roles.decode.args.items()}
    text = {"d": "text", "e": [1, "x"], "f": {"image": 1}, "g": None, "h": "010"}
    assert values == {"a": 1, "b": 0.5, "c": True, **text, "i": 1000}
    assert values["c"] is True
    assert [type(values[key]) for key in "abi"] == [int, float, float]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("DYN_SYSTEM_PORT", "not a variable to set here: the launcher sets it"),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", "not a variable to set here: the launcher sets it"),
        ("CUDA_VISIBLE_DEVICES", "not a variable to set here: the launcher sets it"),
        ("ETCD_ENDPOINTS", "not a variable to set here: the launcher sets it"),
        ("HF_TOKEN", "looks like a secret, and this file is recorded with every run; leave it out: weights are staged before engines start, and engines start offline, so none of them needs one"),
        ("AWS_SECRET_ACCESS_KEY", "looks like a secret, and this file is recorded with every run; leave it out: weights are staged before engines start, and engines start offline, so none of them needs one"),
        ("HF_TOKEN_FILE", "looks like a secret, and this file is recorded with every run; leave it out: weights are staged before engines start, and engines start offline, so none of them needs one"),
        ("db_password", "looks like a secret, and this file is recorded with every run; leave it out: weights are staged before engines start, and engines start offline, so none of them needs one"),
        ("A-B", "wanted the name of a variable: letters, digits and underscores"),
    ],
)  # fmt: skip
def test_variables_that_are_not_the_files_to_set_are_refused(name: str, said: str) -> None:
    text = with_decode(f", env: {{{name}: x}}")
    assert refused(text) == f"topology.yaml:12: roles.decode.env.{name}: {said}"


def test_variables_pass_byte_for_byte() -> None:
    topology = parse_topology(
        with_decode(""", env: {A: 'eth0,eth1', B: 4, C: '{"k": "$v"}', TOKENIZERS_PARALLELISM: 'no'}""")
    )
    assert topology.roles.decode is not None
    assert dict(topology.roles.decode.env) == {
        "A": "eth0,eth1",
        "B": "4",
        "C": '{"k": "$v"}',
        "TOKENIZERS_PARALLELISM": "no",
    }
    assert "quote it" in refused(with_decode(", env: {A: 1.10}"))
    assert "quote it" in refused(with_decode(", env: {A: true}"))


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"prefill": role(1)}, "wanted prefill and decode, or aggregated alone; got prefill"),
        ({"decode": role(1)}, "wanted prefill and decode, or aggregated alone; got decode"),
        ({"prefill": role(1), "decode": role(1), "aggregated": role(1)}, "wanted prefill and decode, or aggregated alone; got prefill and decode and aggregated"),
    ],
)  # fmt: skip
def test_roles_come_in_two_shapes(roles: dict[str, str], said: str) -> None:
    assert refused(with_roles(roles)) == f"topology.yaml:10: roles: {said}"


def test_both_ends_of_a_kv_transfer_need_the_same_block_size() -> None:
    text = topology_text(prefill=role(1, 1, ", args: {block-size: 32}"), decode=role(1, 1, ", args: {block-size: 16}"))
    assert refused(text) == (
        "topology.yaml:12: roles.decode.args.block-size: prefill has 32 and decode has 16; "
        "KV transfer needs the same in both"
    )
    one = topology_text(prefill=role(1, 1, ", args: {dtype: float32}"), decode=role(1))
    assert "prefill has float32 and decode leaves the default" in refused(one)
    parse_topology(one.replace("engine: vllm", "engine: mocker"))


def test_degrees_have_to_divide() -> None:
    assert "expert_parallel 3 does not divide the worker's 8 GPUs" in refused(
        topology_text(aggregated=role(1, 8, ", expert_parallel: 3"))
    )
    assert "data_parallel 3 does not divide the 8 GPUs that its ranks share" in refused(
        topology_text(aggregated=role(1, 8, ", data_parallel: 3, expert_parallel: 8"))
    )


def test_a_dedicated_head_needs_a_second_node() -> None:
    text = topology_text(nodes=1, head="dedicated", aggregated=role(1))
    assert refused(text) == (
        "topology.yaml:8: head: a dedicated head on 1 node leaves none for workers; write nodes.count: 2 or head: first"
    )


def test_a_reduction_is_handed_to_the_rules() -> None:
    topology = parse_topology(changed("head: first", "reduced: {samples: 64, percentile: 90}"))
    assert topology.reduced is not None
    assert topology.reduced.reduction() == Reduction(samples=64, percentile=90)


@pytest.mark.parametrize(
    ("benchmark", "scenario", "reduced", "said"),
    [
        ("llama2-70b-99.9", "Server", "latency_limit_ms: 9", "has no end-to-end limit to lower"),
        ("qwen3-vl-235b-a22b", "Offline", "percentile: 90", "Offline has no latency limit to judge"),
        ("qwen3-vl-235b-a22b", "Offline", "latency_limit_ms: 9", "has no end-to-end limit to lower"),
    ],
)
def test_a_reduction_that_would_change_nothing_is_refused(
    benchmark: str, scenario: str, reduced: str, said: str
) -> None:
    text = changed("head: first", f"reduced: {{{reduced}}}")
    text = text.replace("qwen3-vl-235b-a22b", benchmark).replace("Interactive", scenario)
    assert said in refused(text)


def test_anchors_and_merge_keys_work_within_the_file() -> None:
    text = SAMPLE.replace(role(4, 2), "&p {workers: 4, tensor_parallel: 2, args: {seed: 1}}")
    text = text.replace(role(8), "{<<: *p, workers: 8}")
    topology = parse_topology(text)
    assert topology.roles.decode is not None
    assert (topology.roles.decode.workers, topology.roles.decode.tensor_parallel) == (8, 2)
    assert dict(topology.roles.decode.args) == {"seed": 1}
    wrong = text.replace("seed: 1", "port: 1")
    assert refused(wrong) == "topology.yaml:11: roles.prefill.args.port: not a flag to set here: the launcher sets it"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "an empty file where keys were expected"),
        ("- a\n", "a list where keys were expected"),
        ("word\n", "a single value where keys were expected"),
        ("a: 1\n---\nb: 2\n", ":2: expected a single document"),
        ("a: [1\n", ":2: while parsing a flow sequence"),
        ("a: b: c\n", ":1: mapping values are not allowed here"),
        ("a: &x [*x]\n", ":1: a[0]: its anchors unfold without end"),
        ("5: a\n", ":1: a key that is not text"),
        ("no: a\n", ":1: a key that is not text"),
        ("a: !!python/name:os.system x\n", ":1: could not determine a constructor"),
        ("a: !own x\n", ":1: tag !own"),
        ("a: \x01\n", "special characters are not allowed"),
        ("a: *gone\n", ":1: found undefined alias"),
        ("a: {<<: 1}\n", ":1: `<<` takes mappings only"),
    ],
)
def test_what_is_no_yaml_mapping_is_refused_with_its_line(text: str, said: str) -> None:
    assert refused(text).startswith("topology.yaml")
    assert said in refused(text)


def test_a_file_that_is_not_there_is_guessed_and_an_empty_one_begun(tmp_path: Path) -> None:
    for name in ("demo.yaml", "demo-sweep.yaml"):
        (tmp_path / name).write_text(SAMPLE)
    guesses = {"demo": "demo.yaml", "dmeo.yaml": "demo.yaml", "demo-sweep": "demo-sweep.yaml", "else.yaml": None}
    for name, meant in guesses.items():
        with pytest.raises(ConfigError) as refusal:
            load_topology(tmp_path / name)
        there = f"name a file that this user can read; in {tmp_path} there are demo-sweep.yaml, demo.yaml"
        wanted = f"did you mean {tmp_path / meant}?" if meant else there
        assert refusal.value.action == wanted, name
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"No such file.*\n.*there is no \.yaml file at all"):
        load_topology(tmp_path / "empty" / "demo.yaml")
    with pytest.raises(ConfigError, match="Not a directory") as refusal:
        load_topology(tmp_path / "demo.yaml" / "demo")
    (tmp_path / "demo.yaml").write_text("")
    with pytest.raises(ConfigError, match="an empty file") as refusal:
        load_topology(tmp_path / "demo.yaml")
    assert refusal.value.action.startswith("dynamo-mlperf init DIR")


def test_aliases_that_multiply_are_refused_quickly() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "its anchors unfold without end" in refused("\n".join(rows))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"name: x\n\xff\n", ":2: byte 0xff is not UTF-8"),
        (b"\xef\xbb\xbfname: x\n", ":1: starts with a byte order mark"),
        (b"#!/bin/sh\r\nname: x\r\n", ":1: DOS line break"),
    ],
)
def test_bytes_that_slurm_or_yaml_would_trip_over_are_refused(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError) as error:
        load_topology(path)
    assert error.value.what.startswith(f"{path}{said}")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=said):
            load_topology(path)


def test_paths_stay_as_written_until_they_are_resolved(tmp_path: Path) -> None:
    text = changed("{path: /weights}", "{stage: staging/m.yaml}").replace(
        "target_qps: 40", "target_qps: 40, dataset: data"
    )
    topology = parse_topology(text)
    assert topology.model.weights.stage == "staging/m.yaml"
    paths = topology.resolve(tmp_path)
    assert (paths.manifest, paths.weights, paths.dataset) == (tmp_path / "staging/m.yaml", None, tmp_path / "data")
    assert parse_topology(SAMPLE).resolve(tmp_path).weights == Path("/weights")
    assert "~" in refused(changed("{path: /weights}", "{path: ~/w}"))
    for odd in ("a\\nb", "a\\e[31mb", "\\x9bA"):
        assert "a path of one line without control characters" in refused(
            changed("{path: /weights}", f'{{path: "{odd}"}}')
        )


def test_every_shipped_topology_is_executable_and_fits(repository: Path) -> None:
    files = sorted((repository / "topologies").glob("*.yaml"))
    assert len(files) >= 5
    for path in files:
        topology = load_topology(path)
        assert topology.name == path.stem
        assert topology.site is None
        assert path.stat().st_mode & 0o111 == 0o111


def test_a_topology_cannot_be_changed() -> None:
    topology: Topology = parse_topology(SAMPLE)
    with pytest.raises(ValueError, match="frozen"):
        topology.name = "other"


def test_a_device_is_not_read_until_memory_ends() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: a device or pipe"):
        load_topology(Path("/dev/zero"))


@pytest.mark.parametrize("depth", [32, 400, 100_000])
@pytest.mark.parametrize("bracket", ["[", "{a: ", "- "])
def test_a_file_nested_too_deep_is_refused_at_its_line(depth: int, bracket: str) -> None:
    text = SAMPLE.replace("head: first", f"head:\n  {bracket * depth}")
    assert refused(text) == "topology.yaml:9: nested more than 32 deep"
    rows = "".join(f"{' ' * level}a:\n" for level in range(1, min(depth, 400) + 1))
    assert refused(SAMPLE.replace("head: first", f"head:\n{rows}")) == "topology.yaml:39: nested more than 32 deep"


def test_what_is_nested_less_is_told_by_its_meaning() -> None:
    deep = f"{'[' * 27}{']' * 27}"
    text = topology_text(prefill=role(4, 2), decode=role(8, 1, f", args: {{x: {deep}}}"))
    assert "roles.decode.args.x: nested more than 8 deep" in refused(text)


def test_a_search_needs_no_rate_and_no_settings() -> None:
    found = parse_topology(changed("target_qps: 40", "round: v6.1").replace("head: first", "search:"))
    assert found.search is not None
    assert (found.measure.target_qps, found.search.tolerance, found.finds_rate) == (None, 0.01, True)


@pytest.mark.parametrize("value", ["!!timestamp x", "!!bool x", '!!int ""', "!!float x"])
def test_a_word_that_does_not_fit_its_explicit_tag_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError):
        parse_document(f"name: {value}\n", tmp_path / "x.yaml")
