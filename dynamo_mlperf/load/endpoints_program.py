"""MLCommons endpoints as a program of another environment: its Python, its version, and how to get it.

It needs Python 3.12 and is in no package registry (github.com/mlcommons/endpoints), so the site file names the Python
of an environment that has it (`endpoints_python`), and it runs there as a program.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.process.command import inherited_environment
from dynamo_mlperf.process.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Mapping

MODULE = "inference_endpoint.main"
_PACKAGE = "inference-endpoint"
_COMMIT, _UNKNOWN = f"{_PACKAGE} commit", "not recorded by its installation"
_REPOSITORY = "https://github.com/mlcommons/endpoints"
_ANSWER_S = 600.0
"""Its imports come from a shared file system the first time; 35 s were seen on two busy cores with a local one."""
_ASK = (
    "import importlib.metadata as m, json\n"
    "from inference_endpoint.utils.version import get_version_info\n"
    f"files = m.distribution({_PACKAGE!r})\n"
    "print(json.dumps({**get_version_info(), 'direct_url': files.read_text('direct_url.json')}))"
)


@dataclass(frozen=True)
class EndpointsRelease:
    """What a round takes.

    Attributes:
        version: The package's version.
        commits: Commits of the repository whose results are known; the first is the one to install.
    """

    version: str
    commits: tuple[str, ...]


RELEASES: Mapping[str, EndpointsRelease] = {
    "v6.1": EndpointsRelease(
        "0.1.0",
        (
            "ea3327530376fef63d706f4105612e17c2c80a8d",  # the one whose files are judged here
            "598dbfde68ebfa42256762ebb60fd4da227b813c",  # what published recipes of the round pin
        ),
    )
}


@dataclass(frozen=True)
class EndpointsVersion:
    """What is installed.

    Attributes:
        version: The package's version.
        commit: The commit that it was installed from, whole or its beginning; empty where the installation does not
            say.
    """

    version: str
    commit: str

    def as_versions(self) -> dict[str, str]:
        """For `versions.json`."""
        return {_PACKAGE: self.version, _COMMIT: self.commit or _UNKNOWN}


def recorded_version(versions: Mapping[str, str]) -> EndpointsVersion:
    """What `as_versions` wrote."""
    commit = versions.get(_COMMIT, _UNKNOWN)
    return EndpointsVersion(versions.get(_PACKAGE, ""), "" if commit == _UNKNOWN else commit)


def way_to_get_it(round_name: str) -> str:
    """How to install what the round takes."""
    commit = RELEASES[round_name].commits[0]
    return (
        f"python3.12 -m venv endpoints && endpoints/bin/pip install git+{_REPOSITORY}@{commit}, then write "
        "endpoints_python: /PATH/TO/endpoints/bin/python into the site file"
    )


def python_of(endpoints_python: str | None, round_name: str) -> str:
    """The Python that the site names.

    Raises:
        ConfigError: It names none, or none that is there; says how to get it.
    """
    if endpoints_python is None:
        what = "measure.client is endpoints, and the site file names no environment that has it (endpoints_python)"
        raise ConfigError(what, way_to_get_it(round_name))
    if not Path(endpoints_python).exists():
        raise ConfigError(f"endpoints_python: there is no {endpoints_python}", way_to_get_it(round_name))
    return endpoints_python


def installed_version(python: str, round_name: str) -> EndpointsVersion:
    """Which endpoints that Python has.

    Raises:
        SetupError: It has none, or cannot be run.
    """
    done = run_program([python, "-c", _ASK], timeout_s=_ANSWER_S, env=program_environment())
    if done.status:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.status}"])[-1]
        raise SetupError(f"{python} cannot import MLCommons endpoints: {last}", way_to_get_it(round_name))
    try:
        told = json.loads(done.stdout)
        return EndpointsVersion(str(told["version"]), _commit(told))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SetupError(
            f"{python} does not say which endpoints it has ({type(error).__name__}: {error})", way_to_get_it(round_name)
        ) from error


def _commit(told: Mapping[str, Any]) -> str:
    """The commit by pip's record of a git address (PEP 610), else by the checkout that it is run from."""
    source = json.loads(told.get("direct_url") or "{}")
    return str(source.get("vcs_info", {}).get("commit_id") or told.get("git_sha") or "")


def check_version(found: EndpointsVersion, round_name: str) -> str:
    """Hold an installation against what the round takes.

    Returns:
        What could not be checked, for people; empty where all was.

    Raises:
        SetupError: It is another one.
    """
    wanted = RELEASES[round_name]
    if found.version != wanted.version:
        raise SetupError(
            f"endpoints is {found.version}, and round {round_name} takes {wanted.version}", way_to_get_it(round_name)
        )
    if not found.commit:
        return "the commit of endpoints: its installation does not record it (installed from a git address it does)"
    if not any(known.startswith(found.commit) for known in wanted.commits):
        known = " or ".join(commit[:8] for commit in wanted.commits)
        what = f"endpoints is of commit {found.commit[:12]}, and the results of round {round_name} come from {known}"
        raise SetupError(what, way_to_get_it(round_name))
    return ""


def program_environment() -> dict[str, str]:
    """What the client and its processes get: nothing is fetched from a hub, neither data nor tokenizer."""
    return {
        **inherited_environment(),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def check_config(python: str, config: Path, round_name: str) -> None:
    """Have endpoints check a configuration by its own schema.

    Raises:
        ConfigError: It refuses it; says why in its words.
    """
    argv = [python, "-m", MODULE, "validate-yaml", "--config", str(config)]
    done = run_program(argv, timeout_s=_ANSWER_S, env=program_environment())
    if done.status:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.status}"]
        raise ConfigError(
            f"endpoints refuses {config}: {said[-1]}", f"{shlex.join(argv)}; is it what {round_name} takes?"
        )
