"""A rehearsal has the form of a submission and says everywhere that it is none; each mark alone is enough."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.submission import marks
from dynamo_mlperf.submission.finding import RefusedError
from dynamo_mlperf.submission.gate import check_tree
from dynamo_mlperf.submission.package import PackageRequest, package
from tests.submission.made_runs import description, make_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCENARIOS = ("Offline", "Interactive")


@pytest.fixture
def rehearsal(tree_of: Callable[..., Path]) -> Path:
    return tree_of(*SCENARIOS, rehearsal=True, engine="mocker")


def findings(tree: Path) -> list[str]:
    return [finding.text() for finding in check_tree(tree, "v6.1").findings]


def as_somebody(tree: Path) -> Path:
    """The tree with the folder renamed and every note rewritten: what is left are its records and its digests."""
    root = (tree / "closed" / "REHEARSAL").rename(tree / "closed" / "ACME")
    for path in [*root.rglob("*.json"), *root.rglob("*.md"), *root.rglob("*.conf"), *root.rglob("*.txt")]:
        if path.name.startswith("mlperf_log_") or "record" in path.parts:
            continue
        text = path.read_text()
        text = re.sub(rf"^{re.escape(marks.LINE)}\n", "", text, flags=re.MULTILINE)
        path.write_text(text.replace(marks.NOTE, "measured").replace("REHEARSAL", "ACME"))
    return root


def test_the_form_passes_and_the_submission_does_not(rehearsal: Path) -> None:
    assert check_tree(rehearsal, "v6.1", rehearsal=True).findings == ()
    said = findings(rehearsal)
    for where in (
        "/closed/REHEARSAL: submitter", "systems/two-nodes.json: what the file says", "calibration.md: what the file",
        "Offline/README.md: what", "Offline/user.conf: what", "Offline/measurements.json: what",
        "accuracy/accuracy.txt: what", "TEST06/verify_accuracy.txt: what", "src/deepseek-r1/README.md: what",
        "package.json: what", "record.json: what the record says: wanted official, got class of the performance test",
        "got class of the result: rehearsal", "got engine: mocker", "got proof of disaggregation: routing only",
    ):  # fmt: skip
        assert any(where in line for line in said), where
    system = json.loads((rehearsal / "closed/REHEARSAL/systems/two-nodes.json").read_text())
    assert system["submitter"] == "REHEARSAL"
    assert system["sw_notes"].startswith("REHEARSAL: simulated engines")


def test_renamed_and_rewritten_it_is_refused_for_its_records(rehearsal: Path) -> None:
    root = as_somebody(rehearsal)
    said = findings(rehearsal)
    assert not any("what the file says" in line for line in said), "the notes are all rewritten"
    assert any("got class of the result: rehearsal" in line for line in said)
    assert any("evidence: wanted as packaged, got changed since" in line for line in said)
    for path in root.glob("results/*/*/*/record/record.json"):
        value = json.loads(path.read_text())
        value["class"], value["tests"] = (
            "official",
            {name: {"class": "official", "verdict": "VALID"} for name in value["tests"]},
        )
        path.write_text(json.dumps(value))
    assert any("got engine: mocker" in line for line in findings(rehearsal))
    for path in root.glob("results/*/*/*/record"):
        shutil.rmtree(path)
    (root / "documentation" / "package.json").unlink()
    assert any(
        "wanted the record, got none, though the tree is one that package made" in line for line in findings(rehearsal)
    )


MARKED = (
    "systems/two-nodes.json",
    "documentation/calibration.md",
    "src/deepseek-r1/README.md",
    *(
        f"results/two-nodes/deepseek-r1/Offline/{name}"
        for name in (
            "README.md",
            "user.conf",
            "measurements.json",
            "accuracy/accuracy.txt",
            "TEST06/verify_accuracy.txt",
        )
    ),
)


@pytest.mark.parametrize("name", MARKED)
def test_each_mark_alone_is_enough(rehearsal: Path, tmp_path: Path, name: str) -> None:
    """All records, digests and other marks are gone, and the sources too: one file still says it."""
    kept = rehearsal / "closed" / "REHEARSAL" / name
    text = kept.read_text()
    root = as_somebody(rehearsal)
    for path in [*root.glob("results/*/*/*/record"), root / "src/dynamo_mlperf"]:
        shutil.rmtree(path)
    (root / "documentation" / "package.json").unlink()
    for path in [*root.glob("results/*/*/*/README.md"), *root.glob("src/*/README.md")]:
        path.write_text("# Ours\n")
    assert findings(rehearsal) == [], "nothing is left that says what it is: who forges all of it has forged it"
    (root / name).write_text(text)
    assert any(
        f"{name}: what the file says: wanted a measurement, got REHEARSAL" in line for line in findings(rehearsal)
    )


def test_endpoints_name_the_run_in_their_own_configuration(tree_of: Callable[..., Path]) -> None:
    tree = tree_of(*SCENARIOS, rehearsal=True, engine="mocker", benchmark="qwen3-vl-235b-a22b", client="endpoints")
    as_somebody(tree)
    assert any("config.yaml: what the file says: wanted a measurement, got" in line for line in findings(tree))


def test_rehearsals_and_measurements_do_not_mix(tmp_path: Path) -> None:
    real = tuple(make_run(tmp_path / name, scenario=name) for name in SCENARIOS)
    made = tuple(make_run(tmp_path / f"m{name}", scenario=name, engine="mocker") for name in SCENARIOS)
    system = description(tmp_path)

    def ask(runs: tuple[Path, ...], submitter: str, *, rehearsal: bool) -> PackageRequest:
        return PackageRequest(runs, system, submitter, tmp_path / "tree", rehearsal)

    with pytest.raises(RefusedError, match="class official, got rehearsal"):
        package(ask((real[0], made[1]), "ACME", rehearsal=False))
    with pytest.raises(RefusedError, match="class rehearsal, got official"):
        package(ask((real[0], made[1]), "REHEARSAL", rehearsal=True))
    with pytest.raises(ConfigError, match="a rehearsal is not ACME's"):
        package(ask(made, "ACME", rehearsal=True))
    with pytest.raises(ConfigError, match="the submitter Rehearsal is for rehearsals"):
        package(ask(real, "Rehearsal", rehearsal=False))
    assert package(ask(made, "REHEARSAL", rehearsal=True)).changed
