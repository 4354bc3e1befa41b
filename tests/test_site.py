from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.site import Site, load_site, site_directories


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
        ("modules: [x]\n", ":1: modules: not available in this version; load modules in the shell that submits"),
        ("prologue: x\n", ":1: prologue: not available in this version; run it in the shell that submits"),
        ("local_path: ${GONE}/w\n", ":1: local_path: ${GONE} is not set in the environment"),
        ("local_path: $DISK/w\n", ":1: local_path: wanted an absolute path, with ${NAME} for variables; got '$DISK/w'"),
        ("local_path: rel\n", ":1: local_path: wanted an absolute path, with ${NAME} for variables; got 'rel'"),
        ("partition: ${DISK} x\n", ":1: partition: wanted one word, got '${DISK} x'"),
        ("partition: 5\n", ":1: partition: wanted text, got 5"),
        ("port_range: [1, 2]\n", ":1: port_range: wanted [first, last] with 1024 <= first < last <= 65535, got [1, 2]"),
        ("port_range: [30000, 20000]\n", ":1: port_range: wanted [first, last] with 1024 <= first < last <= 65535, got [30000, 20000]"),
        ("port_range: [20000, true]\n", ":1: port_range[1]: wanted a whole number, got true"),
        ("environment: {HF_TOKEN: x}\n", ":1: environment.HF_TOKEN: looks like a secret, and this file is recorded with every run; set it on the nodes instead"),
        ("name: a\nname: b\n", ":2: name: given twice, first on line 1"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert refused(tmp_path, text) == said


def test_the_shipped_sites_load(repository: Path) -> None:
    directories = site_directories(repository)
    cluster = load_site("devcluster", directories, environment={"DEVCLUSTER_DIR": "/dc"})
    assert (cluster.partition, cluster.local_path, cluster.shared_path) == ("main", "/dc/nvme", "/dc/shared")
    assert load_site("laptop", directories, environment={}).interface == "lo"
    with pytest.raises(ConfigError, match=r"\$\{DEVCLUSTER_DIR\} is not set"):
        load_site("devcluster", directories, environment={})


def test_a_site_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Site().name = "other"
