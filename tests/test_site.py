from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.site import Site, load_site, refuse_unfilled, site_directories, unfilled, unfilled_lines
from dynamo_mlperf.topology.site_values import core_numbers


def site_file(folder: Path, text: str, name: str = "here") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> str:
    path = site_file(folder, text)
    with pytest.raises(ConfigError) as error:
        load_site(str(path), environment={"DISK": "/nvme"})
    return error.value.what.removeprefix(str(path))


def test_without_a_site_the_built_in_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches/me")
    site = load_site(None, environment={})
    assert (site.name, site.partition, site.interface, site.shared_path) == ("built-in", None, None, None)
    assert site.local_path == "/caches/me/dynamo-mlperf"
    assert site.ports == range(20000, 32001)
    assert site.engine_python == sys.executable


def test_a_site_is_found_by_name_path_or_variable(tmp_path: Path) -> None:
    path = site_file(tmp_path, "partition: gpu\n")
    for named, environment in (
        ("here", {}),
        (str(path), {}),
        (None, {"DYNAMO_MLPERF_SITE": "here"}),
        ("", {"DYNAMO_MLPERF_SITE": str(path)}),
    ):
        site = load_site(named, [tmp_path / "none", tmp_path], environment=environment)
        assert (site.name, site.partition) == ("here", "gpu")
    assert load_site("./here.yaml", [], base=tmp_path).partition == "gpu"


def test_the_first_folder_that_has_the_name_wins(tmp_path: Path) -> None:
    for folder, partition in (("one", "a"), ("two", "b")):
        (tmp_path / folder).mkdir()
        site_file(tmp_path / folder, f"partition: {partition}\n")
    assert load_site("here", [tmp_path / "one", tmp_path / "two"]).partition == "a"


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    site_file(tmp_path, "{}\n", "cluster")
    with pytest.raises(ConfigError) as error:
        load_site("clutser", [tmp_path])
    assert error.value.what == "no site 'clutser'; there are cluster"
    assert error.value.action == "--site cluster"


def test_variables_are_expanded_in_paths_only(tmp_path: Path) -> None:
    text = "local_path: ${DISK}/w\nshared_path: /nfs\nengine_python: ${DISK}/bin/python\nenvironment: {A: '${DISK}'}\n"
    site = load_site(str(site_file(tmp_path, text)), environment={"DISK": "/nvme"})
    assert (site.local_path, site.shared_path, site.engine_python) == ("/nvme/w", "/nfs", "/nvme/bin/python")
    assert dict(site.environment) == {"A": "${DISK}"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("partitoin: x\n", ":1: partitoin: no such key; did you mean partition?"),
        ("modules: ['x; rm']\n", ":1: modules[0]: wanted the name of a module, such as cuda/13.0; got 'x; rm'"),
        ("modules: [x]\ncontainer: {image: a}\n", ":1: modules: modules load on the host, but with pyxis engines see the image alone; leave them out"),
        ("prologue: x\n", ":1: prologue: wanted a list, got 'x'"),
        ('prologue: ["a\\nb"]\n', ":1: prologue[0]: wanted one line of bash for each entry"),
        ("prologue: [export HF_TOKEN=hf_x]\n", ":1: prologue[0]: looks like a secret, and this file is recorded with every run; leave it out: weights are staged before engines start, and engines start offline, so none of them needs one"),
        ("container: {mounts: [/a:/b]}\n", ":1: container.image: missing"),
        ("container: {imgae: x}\n", ":1: container.imgae: no such key; did you mean image?"),
        ("container: {image: x y}\n", ":1: container.image: wanted a path or the name of an image, got 'x y'"),
        ("container: {image: '${GONE}/x'}\n", ":1: container.image: ${GONE} is not set in the environment"),
        ("container: {image: x, mounts: ['/a:/b,/c:/d']}\n", ":1: container.mounts[0]: wanted HOST:PLACE or HOST:PLACE:FLAGS with absolute paths, got '/a:/b,/c:/d'"),
        ("container: {image: x, runtime: docker}\n", ":1: container.runtime: wanted pyxis or apptainer, got 'docker'"),
        ("container: {image: 'a#b', runtime: apptainer}\n", ":1: container: REGISTRY#IMAGE is pyxis' form; apptainer wants docker://REGISTRY/IMAGE:TAG or a .sif file"),
        ("segment: 4\n", ":1: segment: wanted true or false, got 4"),
        ("gpu_request: gpus\n", ":1: gpu_request: wanted gres or gpus-per-node or none, got 'gpus'"),
        ("numa: [{cores: 7-3}]\n", ":1: numa[0].cores: wanted cores such as 0-35 or 0-3,8-11; got '7-3'"),
        ("numa: [{coers: 0-3}]\n", ":1: numa[0].coers: no such key; did you mean cores?"),
        ("numa: [{cores: 0-3}, {cores: '3'}]\n", ":1: numa: core 3 stands in two NUMA nodes"),
        ("numa: [{cores: 0-3, gpus: [0]}, {cores: 4-7, gpus: [0]}]\n", ":1: numa: GPU 0 stands in two NUMA nodes"),
        ("local_path: ${GONE}/w\n", ":1: local_path: ${GONE} is not set in the environment"),
        ("local_path: $DISK/w\n", ":1: local_path: wanted an absolute path, with ${NAME} for variables; got '$DISK/w'"),
        ("local_path: rel\n", ":1: local_path: wanted an absolute path, with ${NAME} for variables; got 'rel'"),
        ("partition: ${DISK} x\n", ":1: partition: wanted one word, got '${DISK} x'"),
        ("partition: 5\n", ":1: partition: wanted text, got 5"),
        ("port_range: [1, 2]\n", ":1: port_range: wanted [first, last] with 1024 <= first < last <= 65535, got [1, 2]"),
        ("port_range: [30000, 20000]\n", ":1: port_range: wanted [first, last] with 1024 <= first < last <= 65535, got [30000, 20000]"),
        ("port_range: [20000, true]\n", ":1: port_range[1]: wanted a whole number, got true"),
        ("environment: {HF_TOKEN: x}\n", ":1: environment.HF_TOKEN: looks like a secret, and this file is recorded with every run; leave it out: weights are staged before engines start, and engines start offline, so none of them needs one"),
        ("name: a\nname: b\n", ":2: name: given twice, first on line 1"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert refused(tmp_path, text) == said


def test_containers_and_numa_nodes_are_read(tmp_path: Path) -> None:
    text = """container: {image: '${DISK}/e.sqsh', mounts: ['${DISK}/m:/models:ro+rprivate']}
prologue: ['export A=$B', 'ulimit -l unlimited']
numa: [{cores: '0-1,4', gpus: [0, 1], memory_gib: 480}, {cores: '2'}]
"""
    site = load_site(str(site_file(tmp_path, text)), environment={"DISK": "/nvme"})
    assert site.container is not None
    assert (site.container.image, site.container.mounts) == ("/nvme/e.sqsh", ["/nvme/m:/models:ro+rprivate"])
    assert site.prologue == ["export A=$B", "ulimit -l unlimited"]
    assert [(core_numbers(node.cores), node.gpus, node.memory_gib) for node in site.numa] == [
        ([0, 1, 4], [0, 1], 480),
        ([2], [], None),
    ]


def test_the_shipped_sites_load(repository: Path) -> None:
    directories = site_directories(repository)
    cluster = load_site("devcluster", directories, environment={"DEVCLUSTER_DIR": "/dc"})
    assert (cluster.partition, cluster.local_path, cluster.shared_path) == ("main", "/dc/nvme", "/dc/shared")
    assert load_site("laptop", directories, environment={}).interface == "lo"
    with pytest.raises(ConfigError, match=r"\$\{DEVCLUSTER_DIR\} is not set"):
        load_site("devcluster", directories, environment={})


def test_every_shipped_site_of_a_cluster_loads_as_it_stands(repository: Path) -> None:
    gb200 = load_site("gb200-pyxis", site_directories(repository), environment={})
    mi355x = load_site("mi355x-apptainer", site_directories(repository), environment={})
    assert gb200.container is not None
    assert mi355x.container is not None
    assert (gb200.container.runtime, gb200.segment, gb200.gpu_request) == ("pyxis", True, "gres")
    assert (mi355x.container.runtime, mi355x.container.devices, mi355x.modules) == ("apptainer", "amd", ["apptainer"])
    assert (gb200.partition, mi355x.partition) == ("FILL-IN", "FILL-IN")


def test_examples_that_nobody_filled_in_are_refused_with_file_line_and_key(repository: Path, tmp_path: Path) -> None:
    for name in ("gb200-pyxis", "mi355x-apptainer"):
        with pytest.raises(
            ConfigError, match=rf"{name}\.yaml:4: partition is still FILL-IN, and so are account \(line 5\)"
        ):
            refuse_unfilled(name, repository)
    nested = site_file(tmp_path, "# FILL-IN\nprologue: ['true', 'export A=FILL-IN']\n")
    assert unfilled(str(nested)) == f"{nested}:2: prologue[1] is still FILL-IN"
    assert unfilled(str(site_file(tmp_path, "partition: gpu   # FILL-IN\n"))) == ""
    assert unfilled("laptop", repository) == ""
    refuse_unfilled("laptop", repository)


def test_lines_that_are_marked_as_still_to_be_completed_are_told(repository: Path, tmp_path: Path) -> None:
    path = site_file(
        tmp_path, "gpu_request: none\n# partition: a   # FILL IN: sinfo\naccount: me   # FILL IN: sacctmgr\n"
    )
    said = f"{path}: FILL IN still stands in lines 2, 3: complete what is meant, then take the mark out"
    assert unfilled_lines(str(path)) == (said,)
    refuse_unfilled(str(path))
    assert unfilled_lines("laptop", repository) == ()


def test_a_variable_that_is_not_set_has_a_way_out(repository: Path, tmp_path: Path) -> None:
    def way_out(text: str) -> str:
        with pytest.raises(ConfigError) as error:
            load_site(str(site_file(tmp_path, text)), environment={})
        return error.value.action

    path = tmp_path / "here.yaml"
    both = "local_path: ${A}/w\nshared_path: ${B}/w\n"
    assert way_out("local_path: ${A}/w\n") == f"set A, or write the path out in {path}"
    assert way_out(both) == f"set A and B, or write the path out in {path}"
    assert way_out(both.replace("B", "A")) == f"set A, or write the path out in {path}"
    assert way_out(f"{both}segment: 1\n").startswith("`dynamo-mlperf schema site`")
    with pytest.raises(ConfigError) as error:
        load_site("devcluster", site_directories(repository), environment={})
    assert error.value.action.startswith("set DEVCLUSTER_DIR, or run it in `slurm/devcluster exec`, or write")


def test_a_site_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Site().name = "other"
