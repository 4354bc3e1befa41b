"""Workers that do not come to rest are restarted, and do not come up again: the run fails, says why, and is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.test_held_restart import IMPATIENT, others_ask
from tests.job.chain import Place, Run

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

READY_S = 60
"""What a worker that never comes up is waited for; the first time both must come within it, on a busy machine too."""
LATE = f"1 of 2 workers not ready after {READY_S} s: decode-0 on node 1 (log logs/decode-0.again-1.log)"
NOT_AT_REST = " workers did not come to rest within 2 s: "
NOT_BACK = "; restarted, not all came up again: "


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def breakable(place: Place, instead: str) -> tuple[str, Path]:
    """A site whose decode workers do something else, once there is a file; and that file, which is not there yet."""
    broken = place.root / "broken"
    script = f"""case "$*" in *"--disaggregation-mode decode"*) if [ -e {broken} ]; then {instead}; fi;; esac
exec $PYTHON "$@" """
    return str(place.site(engine_python=str(place.program("python", script)), local_path=str(place.local))), broken


def failed(run: Run) -> str:
    """Exit 4 and a FAILED verdict without a figure; the reason, which stderr has too."""
    ended, verdict = run.end(), run.verdict()
    assert (ended.status, verdict["verdict"], verdict["completed_qps"]) == (4, "FAILED", None), ended.stderr
    assert "Traceback" not in ended.stderr
    reason = str(verdict["reasons"][0]["got"])
    assert f"error: {reason}" in ended.stderr
    return reason


def test_on_held_engines_the_measurement_fails_and_the_hold_ends(place: Place) -> None:
    site, broken = breakable(place, "echo no kernel yet; exec sleep 600")
    edits = {**IMPATIENT, "timeouts": {"ready_s": READY_S}}
    with place.run(place.topology(edits), "--hold", "--site", site) as holder:
        holder.wait_for("hold_begin")
        broken.touch()
        attach = ("--attach", str(holder.paths.root), "--site", site)
        with place.run(place.topology(), *attach) as run:
            with others_ask(holder):
                holder.wait_for("workers_restarted")
            reason = failed(run)
            assert NOT_AT_REST in reason
            assert reason.endswith(NOT_BACK + LATE)
        ended = holder.end()
        log = holder.paths.log_of("decode-0.again-1")
        hint = f"  1 of 2 workers loaded; decode-0: no kernel yet (log {log}), waiting for decode-0\n"
        assert hint in ended.stderr, "where to look while it is waited for"
        assert ended.status == holder.events()[-1]["exit_code"], ended.stderr
        assert "engines are let go: workers that had to be restarted did not come up again" in ended.stderr
        holder.assert_nothing_left()
        run.assert_nothing_left()


def test_in_a_search_the_run_fails(place: Place) -> None:
    site, broken = breakable(place, "echo no such device >&2; exit 7")
    with place.run(place.topology(IMPATIENT), "--site", site) as run:
        run.wait_for_phase("search")
        broken.touch()
        with others_ask(run):
            reason = failed(run)
        assert NOT_AT_REST in reason
        assert f"{NOT_BACK}decode-0.again-1 on node 1 (localhost) ended with status 7" in reason
        assert "no such device" in reason
        assert "decode-0.again-1.log" in run.verdict()["reasons"][0]["action"]
        run.assert_nothing_left()
