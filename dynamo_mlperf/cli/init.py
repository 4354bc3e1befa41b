"""`init`: example topologies, sites and manifests to start from; the tiny model and data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLE_FOLDERS = ("topologies", "slurm/sites", "slurm/systems", "staging")
_BENCHMARKS = "benchmarks"
TINY_MODEL = "tiny-qwen3-vl-moe"
TINY_CATALOGUE = "tiny-product-catalogue"
TINY_PROMPTS = "tiny-prompts"
MADE_BY = ".made-by"
"""Names the generator that made an asset, by digest; an asset of another generator is made anew."""

_PACKAGE = Path(__file__).resolve().parent.parent


@click.command(name="init")
@click.argument("directory", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--list", "only_list", is_flag=True, help="List the examples; write nothing.")
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False),
    help="Make the tiny model, catalogue and prompts there.",
)
@click.option("--force", is_flag=True, help="Overwrite files that differ from the examples.")
def command(directory: Path | None, assets: Path | None, *, only_list: bool, force: bool) -> None:
    """Copy the example topologies, sites and manifests to DIRECTORY (default: here).

    With --assets alone nothing is copied: only the tiny model, catalogue and prompts are made, which the
    examples without a GPU use. No file of yours is overwritten without --force.
    """
    if only_list:
        for name in _examples():
            click.echo(name)
        return
    from dynamo_mlperf.errors import SetupError

    made: list[str] = []
    try:
        if directory is not None or assets is None:
            made += _copy_examples(directory or Path(), force=force)
        if assets is not None:
            made += _make_assets(assets, force=force)
    except OSError as error:
        raise SetupError(f"{error.filename}: {error.strerror}", "name a directory that you can write") from error
    for path in made:  # only now: a reader that goes away leaves nothing half-copied
        click.echo(path)
    if assets is None:
        _say_what_is_next(directory or Path())


def _shipped_root() -> Path:
    """Where the examples lie: in an installed package below `shipped`, in a checkout beside the package."""
    shipped = _PACKAGE / "shipped"
    return shipped if shipped.is_dir() else _PACKAGE.parent


def shipped_file(name: str) -> Path:
    """An example by its name, such as `topologies/demo.yaml`."""
    return _shipped_root() / name


def _examples() -> dict[str, Path]:
    """Example files by their path relative to the directory they are copied to."""
    root = _shipped_root()
    found = [path for folder in EXAMPLE_FOLDERS for path in sorted((root / folder).glob("*.yaml"))]
    found += sorted((root / "slurm" / "systems").glob("*.md"))
    found += sorted((root / _BENCHMARKS).rglob("README.md"))
    return {path.relative_to(root).as_posix(): path for path in found}


def _copy_examples(directory: Path, *, force: bool) -> list[str]:
    """Copy what is not there yet; returns what was copied."""
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.files import write_atomic

    examples = _examples()
    there = {name for name in examples if (directory / name).exists() or (directory / name).is_symlink()}
    same = {
        name
        for name in there
        if (directory / name).is_file() and (directory / name).read_bytes() == examples[name].read_bytes()
    }
    different = sorted(there - same)
    if different and not force:
        raise ConfigError(
            f"{len(different)} files in {directory.absolute()} differ from the examples: {', '.join(different)}",
            "name an empty directory, or overwrite them with --force",
        )
    copied = [name for name in examples if name not in same]
    for name in copied:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, examples[name].read_bytes())
        target.chmod(examples[name].stat().st_mode & 0o777)
    click.echo(f"{len(copied)} examples copied, {len(same)} were there already", err=True)
    return [str(directory / name) for name in copied]


def _say_what_is_next(directory: Path) -> None:
    """The commands from the copied examples to a first run."""
    import shlex

    steps = [] if directory.resolve() == Path.cwd() else [f"cd {shlex.quote(str(directory))}"]
    steps += ["dynamo-mlperf init --assets assets", "dynamo-mlperf run topologies/demo.yaml"]
    click.echo("Next:\n" + "\n".join(f"  {step}" for step in steps), err=True)


def _make_assets(assets: Path, *, force: bool) -> list[str]:
    """Make what is not there yet; returns where they lie."""
    from dynamo_mlperf.benchmark.tiny_catalogue import write_tiny_catalogue
    from dynamo_mlperf.benchmark.tiny_model import write_tiny_model
    from dynamo_mlperf.benchmark.tiny_prompts import write_tiny_prompts

    writers = {TINY_MODEL: write_tiny_model, TINY_CATALOGUE: write_tiny_catalogue, TINY_PROMPTS: write_tiny_prompts}
    for name, write in writers.items():
        _make(assets / name, write, force=force)
    return [str(assets / name) for name in writers]


def _generator() -> str:
    """Digest of the source text that makes the assets."""
    from blake3 import blake3

    sources = sorted((_PACKAGE / "benchmark").glob("tiny_*.py"))
    return blake3(b"".join(source.read_bytes() for source in sources)).hexdigest()


def _is_made(final: Path, generator: str) -> bool:
    marker = final / MADE_BY
    return marker.is_file() and marker.read_text() == generator


def _make(final: Path, write: Callable[[Path], None], *, force: bool) -> None:
    """Write an asset beside its place, then rename it there; do nothing if this generator made it already."""
    import tempfile

    from dynamo_mlperf.errors import ConfigError

    generator = _generator()
    if _is_made(final, generator):
        click.echo(f"{final.name}: there already", err=True)
        return
    if final.exists() and not (final / MADE_BY).is_file() and any(final.iterdir()) and not force:
        raise ConfigError(
            f"{final} holds files that dynamo-mlperf did not make", "name another directory, or overwrite with --force"
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as beside:
        made = Path(beside) / "made"
        write(made)
        (made / MADE_BY).write_text(generator)
        try:
            if final.exists():
                final.rename(Path(beside) / "old")
            made.rename(final)
        except OSError:  # another process has made the same one meanwhile, or the place is not ours to write
            if not _is_made(final, generator):
                raise
    click.echo(f"{final.name}: made", err=True)
