"""Where a run's records may be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.record import new_run_directory


@pytest.mark.parametrize("name", ["runs/a-1", "ü ☃ 東京", "with space", "a" * 200])
def test_a_new_directory_may_have_any_name_that_people_can_read(tmp_path: Path, name: str) -> None:
    assert new_run_directory(tmp_path / name) == tmp_path / name
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["no-utf-8-\udcff", "a\nb", "\x1b[31mred", "tab\t", "\x7f"])
def test_a_name_that_loadgen_or_a_table_cannot_take_is_refused(tmp_path: Path, name: str) -> None:
    for place in (tmp_path / name, tmp_path / name / "run"):
        with pytest.raises(ConfigError, match="is a control character, or no UTF-8") as refused:
            new_run_directory(place)
        assert refused.value.what.isprintable()
        assert "--run-dir" in refused.value.action


def test_a_directory_that_is_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "none")
    assert new_run_directory(tmp_path / "link") == tmp_path / "none"
    (tmp_path / "none").mkdir()
    for place in (tmp_path, tmp_path / "link"):
        with pytest.raises(ConfigError, match="exists: results of two runs would mix"):
            new_run_directory(place)
