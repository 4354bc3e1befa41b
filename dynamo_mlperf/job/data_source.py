"""Where the data set of a file comes from, where it is not at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.catalogue import CATALOGUE_FILE
from dynamo_mlperf.benchmark.prompts import PROMPTS_FILE
from dynamo_mlperf.benchmark.rules import WITH_IMAGES

if TYPE_CHECKING:
    from dynamo_mlperf.topology.spec import Topology

_CHECKOUT = Path(__file__).resolve().parents[2]


def where_from(topology: Topology, directory: Path, base_dir: Path) -> list[str]:
    """What to do where `directory` holds no data set: first its source, then the tiny one where it would do."""
    name = topology.measure.benchmark
    wanted, tiny = (CATALOGUE_FILE, "tiny-product-catalogue") if name == WITH_IMAGES else (PROMPTS_FILE, "tiny-prompts")
    makes = "`dynamo-mlperf init --assets assets` makes"
    read = benchmark_readme(topology, base_dir)
    ways = []
    if directory.name == tiny:
        ways = [f"{makes} it"]
    elif read is not None:
        ways = [f"{read} says where it comes from and how to make it"]
    else:
        ways = [f"name a directory that holds a {wanted}"]
    if directory.name != tiny and (topology.reduced is not None or topology.engine == "mocker"):
        ways.append(f"{makes} a tiny one, assets/{tiny}")
    if not Path(topology.measure.dataset or "/").is_absolute():
        ways.append("a relative path counts from the directory where the command is run (submit, sbatch: from there)")
    return ways


def benchmark_readme(topology: Topology, base_dir: Path) -> Path | None:
    """The page that says where the benchmark's model and data come from, as seen from here; None without one."""
    read = Path("benchmarks") / topology.measure.benchmark / "README.md"
    if (base_dir / read).is_file():
        return read
    return _CHECKOUT / read if (_CHECKOUT / read).is_file() else None
