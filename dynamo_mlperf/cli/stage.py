"""`stage`: weights, data sets and images onto this node's disk, whole and verified; and the manifests for it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_mlperf.staging.copy import Report
    from dynamo_mlperf.staging.manifest import Kind

KINDS = ("model", "dataset", "image")
_PLAIN_LINES = 4
_MIB = 1 << 20


@click.group(name="stage")
def command() -> None:
    """Put weights on this node's own disk, verified; write and check manifests."""


@command.command(name="copy", short_help="Copy what a manifest lists to this node, unless it is there.")
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Directory that the manifest's source is relative to; default: the working directory.",
)
@click.option(
    "--to",
    "root",
    type=click.Path(path_type=Path),
    help="Directory on this node's disk; default: the local_path of $DYNAMO_MLPERF_SITE, or the built-in one.",
)
@click.option(
    "--wait", "wait_s", type=float, default=3600.0, show_default=True, help="Longest wait for another stager, in s."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def copy_command(manifest: Path, base: Path, root: Path | None, wait_s: float, *, as_json: bool) -> None:
    """Copy what MANIFEST lists to this node, unless it is there already; print the directory.

    The directory appears only when every file has been read back and found right. Exit code 3 when the source
    differs from the manifest or the disk is full.
    """
    import json

    from dynamo_mlperf.site import load_site
    from dynamo_mlperf.staging.copy import stage
    from dynamo_mlperf.staging.manifest import load_manifest

    wanted = load_manifest(manifest)
    target = root if root is not None else Path(load_site(None).local_path)
    with _progress(wanted.name) as report:
        result = stage(wanted, base / wanted.source, target, report, lock_wait_s=wait_s)
    if as_json:
        answer = {
            "path": str(result.path),
            "bytes_copied": result.bytes_copied,
            "bytes_reused": result.bytes_reused,
            "seconds": round(result.seconds, 3),
            "reused": result.reused,
        }
        click.echo(json.dumps(answer))
        return
    done = "was there already" if result.reused else f"{result.bytes_copied / _MIB:.1f} MiB copied"
    click.echo(f"{wanted.name}: {done}, {result.seconds:.1f} s", err=True)
    click.echo(str(result.path))


@command.command(name="manifest", short_help="Write a manifest of a directory: files, sizes, digests.")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; default: stdout.")
@click.option("--name", help="Name of the manifest and of the directory on the node; default: SOURCE's own name.")
@click.option("--kind", type=click.Choice(KINDS), default="model", show_default=True, help="What SOURCE holds.")
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Write the source relative to this directory if it lies below; default: the working directory.",
)
def manifest_command(source: Path, output: Path | None, name: str | None, kind: Kind, base: Path) -> None:
    """Write a manifest of the directory SOURCE: every file with its size and digest.

    A snapshot in Hugging Face's cache works as it is: its links are followed.
    """
    from dynamo_mlperf.files import write_atomic
    from dynamo_mlperf.staging.manifest import make_manifest

    here, root = source.absolute(), base.absolute()
    written = here.relative_to(root) if here.is_relative_to(root) else here
    manifest = make_manifest(source, source=str(written), name=name, kind=kind)
    if output is None:
        click.echo(manifest.to_yaml(), nl=False)
        return
    write_atomic(output, manifest.to_yaml())
    click.echo(f"{output}: {len(manifest.files)} files, {manifest.total_bytes} bytes", err=True)


@command.command(name="verify", short_help="Check that a model is whole, by the headers of its shards.")
@click.argument("directory", type=click.Path(path_type=Path))
def verify_command(directory: Path) -> None:
    """Check that the model in DIRECTORY is whole, by the headers of its shards.

    Exit code 3 when a file is missing, cut or contradictory; warnings go to stderr.
    """
    from dynamo_mlperf.staging.checkpoint import verify_checkpoint

    for warning in verify_checkpoint(directory):
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{directory}: complete")


@contextmanager
def _progress(name: str) -> Iterator[Report]:
    """A bar on a terminal, a line each quarter elsewhere; both on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _plain_report(name)
        return
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)


def _plain_report(name: str) -> Report:
    told = 0

    def report(done_bytes: int, total_bytes: int) -> None:
        nonlocal told
        quarter = done_bytes * _PLAIN_LINES // total_bytes if total_bytes else _PLAIN_LINES
        if quarter > told:
            told = quarter
            click.echo(f"{name}: {done_bytes / _MIB:.1f} of {total_bytes / _MIB:.1f} MiB", err=True)

    return report
