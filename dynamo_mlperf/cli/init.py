"""`init`: example topologies, sites and manifests to start from; the tiny model and data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynamo_mlperf.cli.numbers import FiniteRange
from dynamo_mlperf.files import read_bounded, read_text, shell_word

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLE_FOLDERS = ("topologies", "slurm/sites", "slurm/systems", "staging")
_BENCHMARKS = "benchmarks"
TINY_MODEL = "tiny-qwen3-vl-moe"
TINY_CATALOGUE = "tiny-product-catalogue"
TINY_PROMPTS = "tiny-prompts"
_OWN_EXAMPLE = "for example --nodes 4 --gpus-per-node 8 --gpu h200 --model qwen3-vl-235b-a22b, as your nodes are"
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
@click.option("--nodes", type=click.IntRange(1, 10_000), help="Own cluster: nodes of one job.")
@click.option("--gpus-per-node", "gpus", type=click.IntRange(1, 64), help="Own cluster: GPUs of each node.")
@click.option(
    "--gpu-memory-gb", "gpu_gb", type=FiniteRange(min=1, max=100_000), help="Own cluster: GB of each GPU, as sold."
)
@click.option(
    "--gpu", help="Own cluster: what the GPUs are, such as h200; says their memory too, and lets one rehearse."
)
@click.option("--model", help="Own cluster: the model, such as qwen3-vl-235b-a22b, or the directory of its files.")
@click.option("--benchmark", help="Own cluster: the benchmark; left out, the model's own.")
@click.option("--scenario", help="Own cluster: Server, Interactive or Offline.  [default: Server]")
@click.option(
    "--precision",
    type=click.Choice(["bf16", "fp8", "nvfp4", "mxfp4"]),
    help="Own cluster: of the weights.  [default: as published]",
)
@click.option("--split", help="Own cluster: 4P8D, with a TP 4P2x8D1, or 16A2.  [default: half of the GPUs each]")
def command(directory: Path | None, assets: Path | None, *, only_list: bool, force: bool, **own: Any) -> None:  # noqa: ANN401 - click's values
    """Copy the example topologies, sites and manifests to DIRECTORY (default: here).

    With --assets alone nothing is copied: only the tiny model, catalogue and prompts are made, which the
    examples without a GPU use. No file of yours is overwritten without --force.

    With --nodes, --gpus-per-node, --gpu (or --gpu-memory-gb) and --model a topology file and a site file for a
    cluster of your own are written instead, at the lowest tensor_parallel at which the model loads; lines with
    FILL IN are yours to complete. What does not fit is refused as `plan` refuses it.
    """
    given = {name: value for name, value in own.items() if value is not None}
    if given:
        _own(directory or Path(), given, force=force, alone=assets is None and not only_list)
        return
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
        raise SetupError(
            f"{error.filename}: {error.strerror}", "name another directory that you can write, with room"
        ) from error
    for path in made:  # only now: a reader that goes away leaves nothing half-copied
        click.echo(path)
    if assets is None:
        _say_what_is_next(directory or Path())


def _own(directory: Path, given: dict[str, Any], *, force: bool, alone: bool) -> None:
    """Write the files for a cluster of one's own, once they are known to be whole.

    Raises:
        ConfigError: An option is missing, does not go with these, or the deployment does not fit.
        SetupError: They cannot be written.
    """
    from dynamo_mlperf.cli.init_model import model_given
    from dynamo_mlperf.cli.init_own import SITE, Own, benchmark_of, memory_gb, own_files, shipped_for
    from dynamo_mlperf.errors import ConfigError

    wanted = {
        "nodes": "--nodes N",
        "gpus": "--gpus-per-node M",
        "gpu_gb": "--gpu NAME (or --gpu-memory-gb GB)",
        "model": "--model MODEL",
    }
    given = {**({"gpu_gb": memory_gb(given["gpu"])} if "gpu" in given else {}), **given}
    if missing := [option for name, option in wanted.items() if name not in given]:
        raise ConfigError(f"a cluster of your own needs {' '.join(missing)} too", _OWN_EXAMPLE)
    if not alone:
        raise ConfigError("--list and --assets do not go with a cluster of your own", "call init twice")
    model, weights = model_given(given["model"])
    own = Own(**{**given, "model": model, "weights": weights})
    if own.model != (given["model"] if weights is None else weights.name):
        click.echo(f"model {given['model']}: taken as {own.model}, whose shape and benchmark are known", err=True)
    files, unchecked = own_files(own, directory)
    if unchecked is not None:
        click.echo(f"note: {unchecked}", err=True)
    page = f"{_BENCHMARKS}/{benchmark_of(own)}/README.md"
    files |= {page: read_text(shipped_file(page))} if shipped_file(page).is_file() else {}
    site = f"slurm/sites/{SITE}.yaml"
    kept = {name for name in (site, page) if (directory / name).is_file()}  # one for all topologies
    for name, text in files.items():
        if name not in kept and (directory / name).exists() and not (force or _has(directory / name, text.encode())):
            raise ConfigError(f"{directory / name} exists and differs", "name another directory, or --force")
    _write_own(directory, {name: text for name, text in files.items() if name not in kept})
    for name in files:
        click.echo(str(directory / name))
    if shipped := shipped_for(own, sorted(shipped_file("topologies").glob("*.yaml"))):
        what = f"shipped for this model on just these nodes: {', '.join(shipped)}"
        click.echo(f"note: {what} (`dynamo-mlperf init DIR` copies them)", err=True)
    file = f"topologies/{own.name}.yaml"
    steps = [f"dynamo-mlperf plan {file}", f"complete what says FILL IN, there and in {site}"]
    _say_steps(directory, [*steps, f"dynamo-mlperf doctor --site {site}", f"dynamo-mlperf submit {file} --site {site}"])


def _write_own(directory: Path, files: dict[str, str]) -> None:
    from dynamo_mlperf.errors import SetupError
    from dynamo_mlperf.files import write_atomic

    try:
        for name, text in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(directory / name, text)
            (directory / name).chmod(0o755 if name.startswith("topologies") else 0o644)
    except OSError as error:
        raise SetupError(
            f"{error.filename}: {error.strerror}", "name another directory that you can write, with room"
        ) from error


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
    same = {name for name in there if _has(directory / name, examples[name].read_bytes())}
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


def _has(path: Path, content: bytes) -> bool:
    """Whether a file has just this content."""
    try:
        return read_bounded(path, len(content)) == content
    except (OSError, ValueError):
        return False


def _say_what_is_next(directory: Path) -> None:
    """The commands from the copied examples to a first run."""
    _say_steps(directory, ["dynamo-mlperf init --assets assets", "dynamo-mlperf run topologies/demo.yaml"])


def _say_steps(directory: Path, steps: list[str]) -> None:
    """Steps from the directory that was written."""
    if directory.resolve() != Path.cwd():
        steps = [f"cd {shell_word(directory)}", *steps]
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
    return _has(final / MADE_BY, generator.encode())


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
