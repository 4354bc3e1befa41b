"""What lies in a run directory: its performance, accuracy and compliance tests, and what describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import yaml

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import MOST_TOPOLOGY_BYTES, RunPaths, read_json, read_text, strict_json
from dynamo_mlperf.load.audit import COMPLIANCE_TESTS
from dynamo_mlperf.load.endpoints_results import CONFIG, SUMMARY
from dynamo_mlperf.load.endpoints_run import RECORD as ENDPOINTS_RECORD
from dynamo_mlperf.load.endpoints_run import read_record as read_endpoints
from dynamo_mlperf.load.logs import DETAIL
from dynamo_mlperf.load.spec import MeasureSpec, read_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dynamo_mlperf.load.settings import LoadSettings

Client = Literal["loadgen", "endpoints"]

PERFORMANCE, ACCURACY = "performance", "accuracy"
ENDPOINTS: Client = "endpoints"
RESULT, SPEC = "result.json", "measure.json"
ACCURACY_RESULTS = "accuracy/accuracy_results.json"
ENDPOINT = "endpoint.json"

_MOST_BYTES = 64 * 2**20
"""No record of ours is larger."""


@dataclass(frozen=True)
class Run:
    """One run directory."""

    root: Path

    @property
    def name(self) -> str:
        """What people call it."""
        return str(self.root)

    @cached_property
    def topology_text(self) -> str:
        """The topology file; empty for a run of `measure`, which has none."""
        return _text(RunPaths(self.root).topology, MOST_TOPOLOGY_BYTES)

    @cached_property
    def topology(self) -> dict[str, Any]:
        """The topology file's content; empty where there is none."""
        try:
            value = yaml.safe_load(self.topology_text) or {}
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise unreadable(RunPaths(self.root).topology, error) from error
        return _mapping(RunPaths(self.root).topology, value)

    @cached_property
    def endpoint(self) -> dict[str, Any]:
        """Where a run of `measure` sent its requests: `urls`, `model`; empty for a run with a topology."""
        return self.record(ENDPOINT)

    @cached_property
    def versions(self) -> dict[str, Any]:
        """`versions.json`; empty where there is none."""
        return self.record("versions.json")

    @cached_property
    def plan(self) -> dict[str, Any]:
        """`plan.json`; empty where there is none."""
        return self.record("plan.json")

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """`verdict.json`; empty where there is none."""
        return self.record("verdict.json")

    @property
    def commit(self) -> str:
        """The commit of this package that made the run; empty where it is not known."""
        return str(self.versions.get("commit") or "")

    def record(self, name: str) -> dict[str, Any]:
        """The JSON object in the file called `name`; empty where there is none.

        Raises:
            ConfigError: It is none.
        """
        return read_record(self.root / name)

    def commands(self) -> Iterator[dict[str, Any]]:
        """Every process as it was started: `argv` is a list, `env` an object.

        Raises:
            ConfigError: The record holds something else, or cannot be read.
        """
        path = RunPaths(self.root).commands
        for line in _text(path, _MOST_BYTES).splitlines():
            try:
                command = _mapping(path, strict_json(line))
            except (ValueError, RecursionError) as error:
                raise unreadable(path, error) from error
            if not isinstance(command.get("argv"), list) or not isinstance(command.get("env", {}), dict):
                raise ConfigError(f"{path} has a process that names no command line", "copy the run directory again")
            yield command


@dataclass(frozen=True)
class TestRecord:
    """One test that a run directory holds.

    Attributes:
        run: Where.
        name: performance, accuracy, or a compliance test such as TEST06.
        client: The load client that made it.
        directory: Its logs.
        benchmark: Name in the submission tree, as recorded.
        scenario: Offline, Server or Interactive, as recorded.
        result: Its `result.json`; of a performance test the run's verdict.
    """

    run: Run
    name: str
    client: Client
    directory: Path
    benchmark: str
    scenario: str
    result: dict[str, Any] = field(repr=False)

    @property
    def what(self) -> str:
        """The test for people."""
        return f"{self.benchmark} {self.scenario} {self.name}"

    @cached_property
    def spec(self) -> MeasureSpec | None:
        """What LoadGen's process was asked for; None where endpoints made the test.

        Raises:
            ConfigError: It is missing or cannot be read.
        """
        if self.client == ENDPOINTS:
            return None
        return read_spec((self.run.root if self.name == PERFORMANCE else self.directory) / SPEC)

    @cached_property
    def settings(self) -> LoadSettings:
        """The settings that were asked for.

        Raises:
            ConfigError: Their record is missing or cannot be read.
            MeasureError: The same of a run of endpoints.
        """
        return read_endpoints(self.run.root / ENDPOINTS_RECORD).settings if self.spec is None else self.spec.settings


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty where there is no such file.

    Raises:
        ConfigError: It holds something else, or cannot be read.
    """
    try:
        if not path.exists():
            return {}
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} is no record of ours", "copy the run directory again")
        return _mapping(path, read_json(path))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from error


def _text(path: Path, most_bytes: int) -> str:
    """The text in `path`; empty where there is no such file.

    Raises:
        ConfigError: It is no file, too long, or cannot be read.
    """
    try:
        return read_text(path, most_bytes)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def _mapping(path: Path, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no object", "copy the run directory again")
    return value


def unreadable(path: Path, error: Exception) -> ConfigError:
    """The error for a record that cannot be read."""
    return ConfigError(f"{path} cannot be read: {error}", "copy the run directory again")


def accuracy_results(record: TestRecord) -> Path:
    """Where endpoints' scores of an accuracy test lie: its own folder has them at the root or one below."""
    below = record.directory / ACCURACY_RESULTS
    return below if below.is_file() else record.directory / below.name


def tests_of(root: Path) -> list[TestRecord]:
    """All tests in the run directory `root`.

    Raises:
        ConfigError: It holds none, or records that cannot be read.
    """
    run = Run(root)
    try:
        found = list(_tests(run))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise unreadable(root, error) from error
    if not found:
        raise ConfigError(
            f"{root} holds no test: no loadgen/{DETAIL}, no endpoints/{SUMMARY}, no accuracy/{RESULT}",
            "name the run directory of a run that measured",
        )
    return found


def _tests(run: Run) -> Iterator[TestRecord]:
    # A run that failed may have left no logs: its verdict then is what is to be told of it.
    if (run.root / "loadgen" / DETAIL).is_file() or run.verdict.get("verdict") == "FAILED":
        yield _record(run, PERFORMANCE, "loadgen", run.root / "loadgen", run.verdict)
    if (run.root / ENDPOINTS / SUMMARY).is_file():
        yield _record(run, PERFORMANCE, ENDPOINTS, run.root / ENDPOINTS, run.verdict)
    if (run.root / ENDPOINTS / ACCURACY_RESULTS).is_file():
        yield _record(run, ACCURACY, ENDPOINTS, run.root / ENDPOINTS, run.record(f"{ENDPOINTS}/{ACCURACY}/{RESULT}"))
    for name in (ACCURACY, *COMPLIANCE_TESTS):
        directory = run.root / name
        if (directory / DETAIL).is_file() or ((directory / RESULT).is_file() and not (directory / CONFIG).is_file()):
            yield _record(run, name, "loadgen", directory, run.record(f"{name}/{RESULT}"))
        elif (directory / ACCURACY_RESULTS).is_file():
            yield _record(run, name, ENDPOINTS, directory, run.record(f"{name}/{RESULT}"))


def _record(run: Run, name: str, client: Client, directory: Path, result: dict[str, Any]) -> TestRecord:
    asked = (
        (run.root / ENDPOINTS_RECORD)
        if client == ENDPOINTS
        else (run.root if name == PERFORMANCE else directory) / SPEC
    )
    settings = read_record(asked).get("settings") or {}
    measured = run.topology.get("measure") or {}

    def said(key: str) -> str:
        return str(result.get(key) or settings.get(key) or run.verdict.get(key) or measured.get(key) or "unknown")

    return TestRecord(run, name, client, directory, said("benchmark"), said("scenario"), result)
