"""The record directory: what is kept, what resumes, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.tuning.probe_command import STREAM
from dynamo_mlperf.tuning.probes import Final, Probe, ProbeRecord, Sample
from dynamo_mlperf.tuning.records import RecordDirectory, check_probes

PROBE = Probe(40.0, 600.0, 600.0, must_finish=False, purpose="first probe")
SETTINGS = {"command": ["probe"], "tolerance": 0.01}
LINE = '{"t_s": 5, "issued": 200, "completed": 190, "over_limit": {"ttft": 1}}\n'


@pytest.fixture
def records(tmp_path: Path) -> RecordDirectory:
    """An empty record directory."""
    return RecordDirectory(tmp_path / "search", SETTINGS)


def _again(records: RecordDirectory) -> RecordDirectory:
    records.close()
    return RecordDirectory(records.root, SETTINGS)


def test_probes_come_back_as_they_were(records: RecordDirectory) -> None:
    samples = (Sample(5.0, 200, 190, {"ttft": 1}), Sample(10.0, 400, 390, {"ttft": 1}, {"ttft": 2}, {"ttft": 9}))
    final = Final(valid=True, n=24_000, over={"ttft": 9}, seconds=600.0, percentiles={"p99": 1.2})
    stopped = ProbeRecord(40.0, 600.0, samples, "too low", None, 0.0, 12.5, "first probe", generated=24_064)
    complete = ProbeRecord(41.0, 600.0, samples, "complete", final, 12.5, 601.0, "to confirm")
    for record in (stopped, complete):
        records.keep(records.new_folder(PROBE), record)
    assert sorted(path.name for path in records.root.glob("probe-*")) == ["probe-001", "probe-002"]
    assert _again(records).history() == (stopped, complete)


def test_a_probe_that_was_cut_off_counts_as_far_as_it_was_written(records: RecordDirectory) -> None:
    folder = records.new_folder(PROBE)
    (folder / STREAM).write_text(LINE + LINE.replace("5,", "10,", 1) + '{"t_s": 15, "iss')
    (record,) = _again(records).history()
    assert (record.ended, record.rate, record.cost_s, len(record.samples)) == ("interrupted", 40.0, 10.0, 2)
    assert _again(records).history() == (record,)
    assert json.loads((folder / "record.json").read_text())["ended"] == "interrupted"


def test_a_cut_off_probe_of_our_own_client_may_have_taken_a_claim_back(records: RecordDirectory) -> None:
    folder = records.new_folder(PROBE)
    flying = LINE.strip()[:-1] + ', "over_in_flight": {"ttft": 3}}\n'
    (folder / STREAM).write_text(flying + LINE.replace("5,", "10,", 1))
    (record,) = _again(records).history()
    assert [sample.over_of("ttft") for sample in record.samples] == [4, 1]


def test_one_without_a_line_and_one_at_fault_do_not_count(records: RecordDirectory) -> None:
    records.new_folder(PROBE)
    records.keep_fault(records.new_folder(PROBE), "it hangs")
    assert _again(records).history() == ()
    assert records.new_folder(PROBE).name == "probe-003"


def test_what_serves_dies_and_what_it_may_have_spoilt_does_not_count(records: RecordDirectory) -> None:
    """Before a probe's first line everything has answered, so only what came later can have been spoilt."""
    good = ProbeRecord(40.0, 600.0, (Sample(5.0, 200, 190, {"ttft": 1}),), "too low")
    for _ in range(2):
        records.keep(records.new_folder(PROBE), good)
    under_way = records.new_folder(PROBE)
    (under_way / STREAM).write_text(LINE)
    records.distrust(under_way, "decode-3 is no longer listed")
    again = _again(records)
    assert again.history() == (good, good)
    assert json.loads((under_way / "fault.json").read_text()) == {"fault": "decode-3 is no longer listed"}
    last = again.new_folder(PROBE)
    again.keep(last, good)
    again.distrust(again.new_folder(PROBE), "decode-3: /metrics no answer in 10 s")
    assert _again(again).history() == (good, good)
    assert (last / "distrusted.json").exists(), "kept for people"
    again = _again(again)
    again.distrust(again.new_folder(PROBE), "prefill-0 was killed by SIGKILL")
    assert _again(again).history() == (good, good), "those of an earlier search had all answered at this one's begin"


def test_another_search_is_refused(records: RecordDirectory) -> None:
    records.close()
    with pytest.raises(ConfigError, match=r"other settings: tolerance 0\.01 there, 0\.02 now"):
        RecordDirectory(records.root, {**SETTINGS, "tolerance": 0.02})
    RecordDirectory(records.root, SETTINGS).close()


def test_two_searches_at_once_are_refused(records: RecordDirectory) -> None:
    with pytest.raises(ConfigError, match="another search is using"):
        RecordDirectory(records.root, SETTINGS)


def test_what_is_no_record_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        RecordDirectory(tmp_path / "file", SETTINGS)
    (tmp_path / "other" / "probe-001").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"no search\.json"):
        RecordDirectory(tmp_path / "other", SETTINGS)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "search.json").write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        RecordDirectory(tmp_path / "broken", SETTINGS)
    (tmp_path / "broken" / "search.json").write_text('{"model": 1, "model": 2}')
    with pytest.raises(ConfigError, match=r'search\.json holds the key "model" twice'):
        RecordDirectory(tmp_path / "broken", SETTINGS)


@pytest.mark.parametrize(
    "damage",
    [
        {"rate": "x"},
        {"rate": 0},
        {"samples": [1]},
        {"samples": [[5.0, 200, -190, {}]]},
        {"final": {"n": 3}},
        {"more": 1},
        {"cost_s": None},
    ],
)
def test_an_edited_record_is_no_ground_for_an_answer(records: RecordDirectory, damage: dict[str, object]) -> None:
    folder = records.new_folder(PROBE)
    records.keep(folder, ProbeRecord(40.0, 600.0, (Sample(5.0, 200, 190, {"ttft": 1}),), "too low"))
    path = folder / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(ConfigError, match=r"record\.json is not as a search wrote it"):
        _again(records).history()
    with pytest.raises(ConfigError, match=r"record\.json is not as a search wrote it") as refused:
        check_probes(records.root)
    assert refused.value.action == f"remove {folder}: the search then goes on without that probe"
    shutil.rmtree(folder)
    check_probes(records.root)
    assert _again(records).history() == ()


@pytest.mark.parametrize("name", ["plan.json", STREAM])
def test_a_cut_probe_that_cannot_go_on_is_refused_before_anything_starts(records: RecordDirectory, name: str) -> None:
    folder = records.new_folder(PROBE)
    (folder / STREAM).write_text(LINE)
    check_probes(records.root)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(ConfigError, match=f"{name}: Is a directory") as refused:
        check_probes(records.root)
    assert refused.value.action == f"remove {folder}: the search then goes on without that probe"
    (folder / "fault.json").write_text("{}")
    check_probes(records.root)


def test_an_edited_plan_is_refused_and_what_is_no_probe_is_left_alone(records: RecordDirectory) -> None:
    folder = records.new_folder(PROBE)
    (folder / STREAM).write_text(LINE)
    (records.root / "probe-notes").mkdir()
    (records.root / "probe-999").touch()
    assert len(records.history()) == 1
    assert records.new_folder(PROBE).name == "probe-002"
    (folder / "record.json").unlink()
    (folder / "plan.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"plan\.json is not as"):
        _again(records).history()


def test_a_record_that_cannot_be_written_is_named(records: RecordDirectory) -> None:
    folder = records.new_folder(PROBE)
    (folder / "fault.json").mkdir()
    with pytest.raises(SetupError, match=r"fault\.json cannot be written") as caught:
        records.keep_fault(folder, "it hangs")
    assert "resumes" in caught.value.action


def test_records_are_as_old_as_they_are_by_the_clock(records: RecordDirectory) -> None:
    """A search that is resumed the next day does not take what it saw for what is."""
    folder = records.new_folder(PROBE)
    records.keep(folder, ProbeRecord(41.0, 600.0, (Sample(5.0, 200, 190, {"ttft": 1}),), "too low", cost_s=20.0))
    assert _again(records).history()[0].begin_s == 0.0
    before = time.time() - 86_400.0
    os.utime(folder / "record.json", (before, before))
    assert _again(records).history()[0].begin_s == pytest.approx(-7200.0, abs=30.0)
