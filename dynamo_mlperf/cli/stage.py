"""`stage`: weights, data sets and images onto this node's disk, whole and verified; and the manifests for it."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynamo_mlperf.cli.numbers import SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_mlperf.site import Site
    from dynamo_mlperf.staging.copy import Report, StageResult
    from dynamo_mlperf.staging.manifest import Kind, Manifest

KINDS = ("model", "dataset", "image")
_PLAIN_LINES = 4
_MIB = 1 << 20


@click.group(name="stage")
def command() -> None:
    """Put weights, data sets and images on this node's own disk, verified; write and check manifests."""


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
    "--wait", "wait_s", type=SECONDS, default=3600.0, show_default=True, help="Longest wait for another stager, in s."
)
@click.option(
    "--evict/--no-evict",
    default=None,
    help="Remove the least recently used directories when room is short; default: what the site says.",
)
@click.option("--dry-run", is_flag=True, help="Only say what is needed and free; exit code 3 if it does not fit.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--peers", "peers_file", type=click.Path(path_type=Path), hidden=True)
@click.option("--rank", type=int, default=0, hidden=True)
@click.option("--run-dir", type=click.Path(path_type=Path), hidden=True)
def copy_command(
    manifest: Path,
    *,
    base: Path,
    root: Path | None,
    wait_s: float,
    evict: bool | None,
    peers_file: Path | None,
    rank: int,
    run_dir: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Copy what MANIFEST lists to this node, unless it is there already; print the directory.

    The directory appears only when every file has been read back and found right. Exit code 3 when the source
    differs from the manifest or the disk is full.
    """
    from dynamo_mlperf.staging.copy import stage
    from dynamo_mlperf.staging.manifest import load_manifest

    wanted = load_manifest(manifest)
    site = _site() if root is None or evict is None else None
    target = root if root is not None else Path(site.local_path if site else "")
    may_evict = evict if evict is not None else bool(site and site.evict)
    if dry_run:
        _tell_room(wanted, target, may_evict=may_evict, as_json=as_json)
        return
    notices: list[str] = []

    def notice(text: str) -> None:
        notices.append(text)
        click.echo(f"notice: {text}", err=True)

    with ExitStack() as stack:
        report = stack.enter_context(_progress(wanted.name))
        supply = None
        if peers_file is not None:
            from dynamo_mlperf.staging.peers import read_peers
            from dynamo_mlperf.staging.swarm import Swarm

            supply = stack.enter_context(Swarm(read_peers(peers_file), rank, wanted, base / wanted.source, notice))
        result = stage(
            wanted,
            base / wanted.source,
            target,
            report,
            lock_wait_s=wait_s,
            supply=supply,
            evict=may_evict,
            run_dir=run_dir,
            notice=notice,
        )
    _tell(wanted, result, notices, as_json=as_json)


def _site() -> Site:
    """The site of `$DYNAMO_MLPERF_SITE`, or the built-in one; its reader takes time to load."""
    from dynamo_mlperf.site import load_site

    return load_site(None)


def _tell(wanted: Manifest, result: StageResult, notices: list[str], *, as_json: bool) -> None:
    if as_json:
        _print_json(
            path=str(result.path),
            bytes_copied=result.bytes_copied,
            bytes_reused=result.bytes_reused,
            bytes_from_store=result.bytes_from_store,
            bytes_from_peers=result.bytes_from_peers,
            seconds=round(result.seconds, 3),
            reused=result.reused,
            notices=notices,
        )
        return
    done = "was there already" if result.reused else f"{result.bytes_copied / _MIB:.1f} MiB copied"
    click.echo(f"{wanted.name}: {done}, {result.seconds:.1f} s", err=True)
    click.echo(str(result.path))


def _tell_room(wanted: Manifest, target: Path, *, may_evict: bool, as_json: bool) -> None:
    from dynamo_mlperf.report.quantities import size
    from dynamo_mlperf.staging.copy import room_for
    from dynamo_mlperf.staging.room import fits, refusal

    room = room_for(wanted, target)
    if not fits(room, evict=may_evict):
        raise refusal(wanted, target, room, evict=may_evict)
    evictable = {path.name: size_bytes for path, size_bytes in room.evictable}
    if as_json:
        _print_json(needed_bytes=room.needed_bytes, free_bytes=room.free_bytes, evictable=evictable)
        return
    click.echo(f"{size(room.needed_bytes)} needed, {size(room.free_bytes)} free on {target}")


def _print_json(**answer: Any) -> None:  # noqa: ANN401 - anything that JSON can carry
    import json

    click.echo(json.dumps(answer))


@command.command(name="manifest", short_help="Write a manifest of a directory or file: names, sizes, digests.")
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
@click.option("--json", "as_json", is_flag=True, help="Print name, digest, files and bytes as JSON; needs -o.")
def manifest_command(
    source: Path, output: Path | None, name: str | None, kind: Kind, base: Path, *, as_json: bool
) -> None:
    """Write a manifest of SOURCE, a directory or a single file: every file with its size and digest.

    A snapshot in Hugging Face's cache works as it is: its links are followed. A single file, such as a container
    image, is listed alone.
    """
    from dynamo_mlperf.cli.output import write_output
    from dynamo_mlperf.staging.manifest import make_manifest

    if as_json and output is None:
        raise click.UsageError("--json prints about the manifest, which needs a file of its own: -o FILE")
    directory = source.parent if source.is_file() else source
    here, root = directory.absolute(), base.absolute()
    written = here.relative_to(root) if here.is_relative_to(root) else here
    with _progress(name or source.name, from_bytes=_TOLD_FROM_BYTES) as report:
        manifest = make_manifest(source, source=str(written), name=name, kind=kind, report=report)
    if output is None:
        click.echo(manifest.to_yaml(), nl=False)
        return
    write_output("-o", output, manifest.to_yaml(), "manifest.yaml")
    if as_json:
        _print_json(
            path=str(output),
            name=manifest.name,
            kind=kind,
            digest=manifest.digest,
            files=len(manifest.files),
            bytes=manifest.total_bytes,
        )
        return
    click.echo(f"{output}: {len(manifest.files)} files, {manifest.total_bytes} bytes", err=True)


@command.command(name="verify", short_help="Check that a model is whole, by its headers or byte by byte.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--full", is_flag=True, help="Read every byte from the disk and hash it; for any staged directory.")
@click.option(
    "--manifest",
    "manifest_file",
    type=click.Path(path_type=Path),
    help="With --full: hold DIRECTORY against this manifest; default: what staging noted in it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify_command(directory: Path, manifest_file: Path | None, *, full: bool, as_json: bool) -> None:
    """Check that the model in DIRECTORY is whole, by the headers of its shards.

    With --full every file of a staged directory is read from the disk and hashed. Exit code 3 when a file is
    missing, cut, changed or contradictory; warnings go to stderr.
    """
    if full or manifest_file is not None:
        from dynamo_mlperf.staging.full import verify_full
        from dynamo_mlperf.staging.manifest import load_manifest

        wanted = load_manifest(manifest_file) if manifest_file is not None else None
        with _progress(directory.name) as report:
            read_bytes = verify_full(directory, wanted, report)
        if as_json:
            _print_json(path=str(directory), complete=True, bytes_read=read_bytes, warnings=[])
            return
        click.echo(f"{directory}: complete, {read_bytes} bytes read")
        return
    from dynamo_mlperf.staging.checkpoint import verify_checkpoint

    warnings = verify_checkpoint(directory)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        _print_json(path=str(directory), complete=True, bytes_read=0, warnings=list(warnings))
        return
    click.echo(f"{directory}: complete")


_TOLD_FROM_BYTES = 1 << 30
"""Hashing less is over before anybody reads a line about it."""


@contextmanager
def _progress(name: str, *, from_bytes: int = 0) -> Iterator[Report]:
    """A bar on a terminal, a line each quarter elsewhere; both on stderr. Nothing below `from_bytes` in all."""
    if not sys.stderr.isatty():  # before rich is loaded, which takes a while
        yield _plain_report(name, from_bytes)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)


def _plain_report(name: str, from_bytes: int) -> Report:
    told = 0

    def report(done_bytes: int, total_bytes: int) -> None:
        nonlocal told
        if total_bytes < from_bytes:
            return
        quarter = done_bytes * _PLAIN_LINES // total_bytes if total_bytes else _PLAIN_LINES
        if quarter > told:
            told = quarter
            click.echo(f"{name}: {done_bytes / _MIB:.1f} of {total_bytes / _MIB:.1f} MiB", err=True)

    return report
