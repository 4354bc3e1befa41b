"""LoadGen's logs: tolerant of what surrounds them, strict about what is cut or garbled."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.load.logs import DETAIL, generated_queries, read_logs

GOLDEN = Path(__file__).parent / "golden"
VALID = (GOLDEN / "interactive_valid_detail.txt").read_text()
ACCURACY = (GOLDEN / "offline_accuracy_detail.txt").read_text()
ERROR = (
    ':::MLLOG {"key": "error_runtime", "value": "something went wrong", "time_ms": 1.0, "namespace": "n", '
    '"event_type": "POINT_IN_TIME", "metadata": {"is_error": true, "is_warning": false}}\n'
)


def _write(directory: Path, text: str) -> Path:
    (directory / DETAIL).write_text(text)
    return directory


def test_values_of_a_real_run(tmp_path: Path) -> None:
    log = read_logs(_write(tmp_path, VALID))
    assert (log.validity, log.error_count, log.errors, log.audit_config_applied) == ("VALID", 0, (), False)
    assert log.effective["effective_target_latency_ns"] == 1_500_000_000
    assert log.effective["effective_qsl_rng_seed"] == 2085463073848966840
    assert log.values["generated_query_count"] == 80
    assert log.results["result_query_count"] == 80


def test_throughput_that_loadgen_gets_wrong_is_no_result(tmp_path: Path) -> None:
    wrong = VALID.replace('"result_query_count"', '"result_token_throughput"', 1)
    assert "result_token_throughput" not in read_logs(_write(tmp_path, wrong)).results


def test_accuracy_run_has_no_result(tmp_path: Path) -> None:
    assert read_logs(_write(tmp_path, ACCURACY)).validity is None


def test_other_lines_are_passed_over(tmp_path: Path) -> None:
    noise = "\nsome program said this\n" + VALID.replace("\n", "\n\n") + "and that {\n"
    assert read_logs(_write(tmp_path, noise)) == read_logs(_write(tmp_path, VALID))


def test_errors_are_counted_although_the_result_is_valid(tmp_path: Path) -> None:
    log = read_logs(_write(tmp_path, VALID + ERROR * 3))
    assert (log.validity, log.error_count, log.errors[0]) == ("VALID", 3, "error_runtime: something went wrong")
    counted = VALID.replace('{"key": "num_errors", "value": 0', '{"key": "num_errors", "value": 7')
    assert read_logs(_write(tmp_path, counted)).error_count == 7


def test_audit_notice_is_seen(tmp_path: Path) -> None:
    notice = ERROR.replace("something went wrong", "Found Audit Config file (audit.config).")
    warning = notice.replace('"is_error": true, "is_warning": false', '"is_error": false, "is_warning": true')
    log = read_logs(_write(tmp_path, VALID + warning))
    assert (log.audit_config_applied, log.error_count) == (True, 0)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_cut_log_is_no_log(tmp_path: Path, share: float) -> None:
    with pytest.raises(MeasureError, match=r"cut or garbled|did not end|no settings|did not start"):
        read_logs(_write(tmp_path, VALID[: int(len(VALID) * share)]))


def test_log_that_stops_between_lines(tmp_path: Path) -> None:
    lines = VALID.splitlines(keepends=True)
    with pytest.raises(MeasureError, match="did not end"):
        read_logs(_write(tmp_path, "".join(lines[:-1])))
    with pytest.raises(MeasureError, match="did not start"):
        read_logs(_write(tmp_path, "".join(lines[:3])))


@pytest.mark.parametrize("text", ["", "no log at all\n"])
def test_empty_log(tmp_path: Path, text: str) -> None:
    with pytest.raises(MeasureError, match="did not start"):
        read_logs(_write(tmp_path, text))


def test_garbage_names_its_line(tmp_path: Path) -> None:
    lines = VALID.splitlines()
    lines[4] = ":::MLLOG {nonsense"
    with pytest.raises(MeasureError, match="at line 5"):
        read_logs(_write(tmp_path, "\n".join(lines)))


def test_missing_log(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=r"cannot be read.*\n  Try: copy the directory again"):
        read_logs(tmp_path)
    (tmp_path / DETAIL).write_bytes(b"\xff\xfe")
    with pytest.raises(MeasureError, match="cannot be read"):
        read_logs(tmp_path)


def test_generated_queries_of_a_growing_log(tmp_path: Path) -> None:
    path = tmp_path / DETAIL
    assert generated_queries(path) is None
    for at in range(0, len(VALID), 1000):
        path.write_text(VALID[:at])
        assert generated_queries(path) in (None, 80)
    path.write_text(VALID)
    assert generated_queries(path) == 80
    path.write_text(ACCURACY)
    assert generated_queries(path) == 64
