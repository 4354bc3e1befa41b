"""The command line: one file per verb, loaded only when it is asked for."""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import importlib
import io
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

import click

from dynamo_mlperf import __version__
from dynamo_mlperf.cli.given import refuse_empty
from dynamo_mlperf.cli.output import flush_stdout, json_text, lasting_stderr, quiet_stdout
from dynamo_mlperf.errors import DynamoMlperfError, ExitCode
from dynamo_mlperf.process.secret_words import redacted_sentence

if TYPE_CHECKING:
    from types import TracebackType

VERBS = {
    "init": "Copy example topologies and sites here; make the tiny model and data set.",
    "plan": "Show which worker runs on which node and GPU, before any job.",
    "run": "Run a topology file on this machine alone: serve, measure, judge, record.",
    "submit": "Submit a topology file to Slurm, with what the site needs.",
    "status": "Show how runs stand: phase, workers, progress, and what Slurm says.",
    "logs": "Show what the processes of a run wrote, and follow it.",
    "cancel": "End a run, and say what is left of it.",
    "job": "Run a topology file inside a Slurm job: what the batch file's first line calls.",
    "measure": "Run one test against an endpoint that is up already: performance, accuracy, compliance.",
    "search": "Find the highest rate that holds: of a topology on this machine, or with any program as the probe.",
    "rehearse": "Predict the rate of each split with simulated engines, before GPUs are booked.",
    "sweep": "Measure several splits of one allocation, each at its highest rate, and name the best.",
    "dataset": "Turn a published data set, as downloaded, into the form that runs read.",
    "profile": "Make a timing profile for rehearsals: from runs, aiconfigurator, or a data sheet.",
    "stage": "Put weights on this node's disk, verified; write manifests.",
    "judge": "Judge a test from its directory alone: ours, any LoadGen's, endpoints'.",
    "score": "Score the answers of an accuracy log against the floors of the rules.",
    "report": "Show a run, and write its HTML page.",
    "diff": "Compare two runs: topology, flags, versions, settings, results.",
    "package": "Make the tree of a submission from recorded runs.",
    "check": "Check a submission tree: our gate, then the official checker.",
    "doctor": "Check this machine: what is there, what is missing, what to do.",
    "schema": "Print every key of topology, site and system files; the rules of a round.",
}
"""Verb -> its line in `--help`; the module of the same name holds the rest."""


_SHOWN = 120
"""Characters of a path that is too long."""
_DENIED = (ExitCode.USAGE, "another path, or chmod and chown it so that this user may use it")
_NO_ROOM = (ExitCode.SETUP, "make room there, or name another place")
_BAD_DISK = (ExitCode.SETUP, "another place; ask who looks after that file system")
_OF_THE_PLACE = {
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), (ExitCode.USAGE, "another path")),
    **dict.fromkeys((errno.EACCES, errno.EPERM), _DENIED),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _NO_ROOM),
    **dict.fromkeys((errno.EROFS, errno.EIO, errno.ESTALE), _BAD_DISK),
}
"""Exit code and remedy of what is wrong with a place, whatever a verb does there: it is no bug of ours."""


class _Verbs(click.Group):
    """Imports a verb's module only when the verb is called, so that `--help` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"dynamo_mlperf.cli.{cmd_name}").command
        return refuse_empty(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0] if args else ""
        near = [] if word in VERBS else difflib.get_close_matches(word, VERBS, n=1)
        if near:
            ctx.fail(f"No such verb {word!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done (VALID), 1 a bug, 2 usage or capacity, 3 set-up, 4 serving or measurement FAILED, "
    "5 INVALID, 6 submission check failed, 130/143 interrupted/terminated.",
)
@click.version_option(__version__, prog_name="dynamo-mlperf")
def root() -> None:
    """A topology file goes in, a defensible MLPerf Inference result comes out."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every way to end has its exit code, and with `--json` an answer of its own."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    as_json = _wants_json(words)
    sys.excepthook = functools.partial(_report_bug, as_json)
    lasting_stderr()
    try:
        # Not root.main: it would take a reader that closed its pipe for a failure of ours.
        with root.make_context("dynamo-mlperf", words) as context:
            code = root.invoke(context)
        flush_stdout()
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _end(as_json, ExitCode.INTERRUPTED, "interrupted")
    except click.ClickException as problem:
        problem.show(shown := io.StringIO())
        click.echo(redacted_sentence(shown.getvalue()), nl=False, err=True)
        _end(as_json, ExitCode.USAGE, problem.format_message(), _help_of(problem))
    except DynamoMlperfError as problem:
        click.echo(f"error: {redacted_sentence(str(problem))}", err=True)
        _end(as_json, problem.exit_code, problem.what, problem.action)
    except BrokenPipeError:
        quiet_stdout()
        sys.exit(ExitCode.DONE)
    except OSError as problem:
        if problem.errno == errno.ENOSPC and problem.filename is None:
            quiet_stdout()
            click.echo("error: the answer could not be written: no space left where stdout goes", err=True)
            sys.exit(ExitCode.SETUP)
        if problem.filename is None or problem.errno not in _OF_THE_PLACE:
            raise
        code, action = _OF_THE_PLACE[problem.errno]
        what = redacted_sentence(f"{problem.strerror}: {str(problem.filename)[:_SHOWN]}")
        click.echo(f"error: {what}\n  Try: {action}", err=True)
        _end(as_json, code, what, action)
    sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def _wants_json(words: list[str]) -> bool:
    """Whether the answer is asked for as JSON; a controller that `--attach` started leaves errors to its caller."""
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own and "--within" not in own


def _help_of(problem: click.ClickException) -> str:
    context = problem.ctx if isinstance(problem, click.UsageError) else None
    return f"{context.command_path} --help" if context is not None else "dynamo-mlperf --help"


def _end(as_json: bool, code: ExitCode, what: str, action: str = "") -> NoReturn:  # noqa: FBT001 - private
    """End with this code; with `--json` what stderr said in words is the answer on stdout, too.

    No verb has answered when it ends in an error, so that there is just one JSON value to read.
    """
    if as_json:
        error = {"what": redacted_sentence(what), "action": redacted_sentence(action), "exit_code": int(code)}
        try:
            click.echo(json_text({"error": error}))
            flush_stdout()
        except OSError:  # nobody reads it, or it has no room; the exit code tells all the same
            quiet_stdout()
    sys.exit(code)


def _report_bug(as_json: bool, kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:  # noqa: FBT001 - bound in `main`
    """What Python calls for an exception that nobody caught; it then ends with 1, our code for a bug."""
    traceback.print_exception(kind, problem, trace)
    click.echo("error: this is a bug; please report the lines above with the command that you ran", err=True)
    if as_json:
        what = f"a bug: {kind.__name__}: {problem}"
        action = "please report what stderr says with the command that you ran"
        with contextlib.suppress(SystemExit):
            _end(as_json, ExitCode.BUG, what, action)
