"""Manifests: what they say, what they refuse, and which links they follow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from blake3 import blake3

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.staging.manifest import load_manifest, make_manifest

DIGEST = blake3(b"one").hexdigest()
GOOD = {
    "schema": 1,
    "name": "m",
    "kind": "model",
    "source": "models/m",
    "destination": "m",
    "files": [{"path": "a/one.bin", "bytes": 3, "blake3": DIGEST}],
}


def _source(directory: Path) -> Path:
    (directory / "a").mkdir(parents=True)
    (directory / "a" / "one.bin").write_bytes(b"one")
    (directory / "two.bin").write_bytes(b"two two")
    (directory / ".hidden").write_bytes(b"left out")
    (directory / ".git").mkdir()
    (directory / ".git" / "config").write_bytes(b"left out")
    return directory


def _load(directory: Path, **changes: object) -> None:
    path = directory / "m.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **changes}))
    load_manifest(path)


def test_written_manifest_whole(tmp_path: Path) -> None:
    manifest = make_manifest(_source(tmp_path / "s"), source="models/s", name="small", kind="dataset")
    assert manifest.to_yaml() == (
        "schema: 1\n"
        "name: small\n"
        "kind: dataset\n"
        "source: models/s\n"
        "destination: small\n"
        "files:\n"
        "- path: a/one.bin\n"
        "  bytes: 3\n"
        "  blake3: d33fb48ab5adff269ae172b29a6913ff04f6f266207a7a8e976f2ecd571d4492\n"
        "- path: two.bin\n"
        "  bytes: 7\n"
        "  blake3: c3b82283989fcb38cc590005aa8a2ec6b79d558a19f0d0b2be7870299ebc718b\n"
    )


def test_a_manifest_survives_its_file(tmp_path: Path) -> None:
    manifest = make_manifest(_source(tmp_path / "s"))
    (tmp_path / "m.yaml").write_text(manifest.to_yaml())
    assert load_manifest(tmp_path / "m.yaml") == manifest
    assert manifest.name == manifest.destination == "s"
    assert manifest.source == str(tmp_path / "s")
    assert manifest.total_bytes == 10


def test_digest_is_that_of_the_content_alone(tmp_path: Path) -> None:
    source = _source(tmp_path / "s")
    before = make_manifest(source)
    assert make_manifest(source, source="elsewhere", name="other").digest == before.digest
    (source / "two.bin").write_bytes(b"two TWO")
    changed = make_manifest(source)
    assert changed.digest != before.digest
    (source / "two.bin").rename(source / "three.bin")
    assert make_manifest(source).digest != changed.digest


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"schema": 2}, "schema: Input should be 1"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"kind": "modell"}, "kind: Input should be 'model', 'dataset' or 'image'"),
        ({"destination": "../m"}, "destination: String should match"),
        ({"destination": ".m"}, "destination: String should match"),
        ({"name": "a/b"}, "name: String should match"),
        ({"source": ""}, "source: String should have at least 1 character"),
        ({"files": []}, "files: List should have at least 1 item"),
        ({"files": [{**GOOD["files"][0], "blake3": "12"}]}, "files.0.blake3: String should match"),  # type: ignore[index]
        ({"files": [{**GOOD["files"][0], "bytes": -1}]}, "files.0.bytes: Input should be greater than"),  # type: ignore[index]
        ({"files": [{**GOOD["files"][0], "bytes": "3"}]}, "files.0.bytes: Input should be a valid integer"),  # type: ignore[index]
        ({"files": [{**GOOD["files"][0], "sha": ""}]}, "files.0.sha: Extra inputs"),  # type: ignore[index]
        ({"files": [*GOOD["files"], *GOOD["files"]]}, "files: Value error, 1 paths are listed twice"),  # type: ignore[misc]
        (
            {"files": [*GOOD["files"], {"path": "a", "bytes": 3, "blake3": DIGEST}]},  # type: ignore[misc]
            "files: Value error, a is listed as a file and as the directory of a/one.bin",
        ),
    ],
)
def test_a_wrong_manifest_is_refused_at_its_place(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        _load(tmp_path, **changes)
    assert refusal.value.what.startswith(f"{tmp_path / 'm.yaml'}: {complaint}")


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "a/..", "", ".", "./a", "a//b", "a/", "a\0b"])
def test_paths_cannot_leave_the_directory(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"files\.0\.path: Value error, has to be a plain relative path"):
        _load(tmp_path, files=[{"path": path, "bytes": 3, "blake3": DIGEST}])


def test_the_marker_cannot_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="marker that staging writes itself"):
        _load(tmp_path, files=[{"path": ".staged.json", "bytes": 3, "blake3": DIGEST}])


def test_no_file_and_no_yaml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        load_manifest(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"bad\.yaml: not YAML: .* line 1"):
        load_manifest(tmp_path / "bad.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"empty\.yaml: the whole file: Input should be a valid"):
        load_manifest(tmp_path / "empty.yaml")


@pytest.mark.parametrize("text", ["[" * 5000, "schema: " + "1" * 5000, "a: 2001-99-99"])
def test_yaml_beyond_what_python_reads(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml: not YAML: "):
        load_manifest(tmp_path / "bad.yaml")


def test_what_is_no_regular_file_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, complaint in (
        (tmp_path / "pipe", "a pipe, not a regular file"),
        (Path("/dev/zero"), "a character device, not a regular file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(ConfigError) as refusal:
            load_manifest(path)
        assert refusal.value.what == f"{path}: {complaint}"
        assert refusal.value.action


def test_a_manifest_over_64_mib_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.touch()
    os.truncate(path, (1 << 40) + 1)
    with pytest.raises(ConfigError) as refusal:
        load_manifest(path)
    assert refusal.value.what == f"{path}: {(1 << 40) + 1} bytes, more than {64 << 20}"


def _cache(root: Path) -> Path:
    """A Hugging Face cache entry; returns its snapshot."""
    blobs, snapshot = root / "models--org--m" / "blobs", root / "models--org--m" / "snapshots" / "0a1b"
    blobs.mkdir(parents=True)
    (snapshot / "sub").mkdir(parents=True)
    (blobs / "b1").write_bytes(b"one")
    (snapshot / "one.bin").symlink_to("../../blobs/b1")
    (snapshot / "sub" / "one.bin").symlink_to("../../../blobs/b1")
    return snapshot


def test_links_of_a_hugging_face_cache_are_followed(tmp_path: Path) -> None:
    manifest = make_manifest(_cache(tmp_path))
    assert [(file.path, file.bytes, file.blake3) for file in manifest.files] == [
        ("one.bin", 3, DIGEST),
        ("sub/one.bin", 3, DIGEST),
    ]


def test_links_within_the_source_are_followed(tmp_path: Path) -> None:
    source = _source(tmp_path / "s")
    (source / "again.bin").symlink_to("a/one.bin")
    assert [file.blake3 for file in make_manifest(source).files if file.path == "again.bin"] == [DIGEST]


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("../../blobs/gone", r"bad\.bin is a link to \.\./\.\./blobs/gone, which is not there"),
        ("../../../secret", r"bad\.bin leads out of its directory, to .*/secret"),
        ("/etc", r"bad\.bin leads out of its directory, to /etc"),
        ("bad.bin", r"bad\.bin"),
    ],
)
def test_other_links_are_refused_by_name(tmp_path: Path, target: str, complaint: str) -> None:
    snapshot = _cache(tmp_path)
    (tmp_path / "secret").write_bytes(b"key")
    (snapshot / "bad.bin").symlink_to(target)
    with pytest.raises(SetupError, match=complaint):
        make_manifest(snapshot)


def test_a_linked_directory_is_refused(tmp_path: Path) -> None:
    source = _source(tmp_path / "s")
    (source / "again").symlink_to("a")
    with pytest.raises(SetupError, match=r"again leads to .*/a, which is no regular file"):
        make_manifest(source)


def test_nothing_to_describe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 files"):
        make_manifest(tmp_path)
    with pytest.raises(SetupError, match="no directory"):
        make_manifest(tmp_path / "none")
