"""Published data sets, as downloaded, into data sets of ours: prompts or catalogue, truth, tests of code, provenance.

A data set of ours appears under its name only when it is whole. `dataset.json` in it says what it was made of, with
digests. gpt-oss-120b has three: the performance samples in the directory itself, those of the accuracy test in
`accuracy/` and those of TEST07 in `compliance/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dynamo_mlperf.benchmark.accuracy.answers import Progress
from dynamo_mlperf.benchmark.accuracy.code_problems import write_code_tests
from dynamo_mlperf.benchmark.accuracy.published import PUBLISHED, Sample, sample_of
from dynamo_mlperf.benchmark.accuracy.reference_prompt import reference_wording
from dynamo_mlperf.benchmark.accuracy.tables import is_table, read_rows
from dynamo_mlperf.benchmark.accuracy.truth import TRUTH_FILE
from dynamo_mlperf.benchmark.catalogue import CATALOGUE_FILE, media_type
from dynamo_mlperf.benchmark.prompts import PROMPTS_FILE
from dynamo_mlperf.benchmark.rules import WITH_IMAGES, Benchmark
from dynamo_mlperf.benchmark.wording import WORDING_FILE
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import digest_file, open_regular, write_json

PROVENANCE = "dataset.json"

PARTS: Mapping[str, str] = MappingProxyType({"performance": "", "accuracy": "accuracy", "compliance": "compliance"})
"""Parts of a data set, and the directory of each within it."""

COMPLIANCE_SAMPLES = 990
"""Samples of TEST07 (mlcommons/inference b66003e1, `compliance/TEST07/gpt-oss-120b/audit.config`)."""

_IN_PARTS = "gpt-oss-120b"
_SPLITS = ("train", "test")
_PRODUCT_COLUMNS = (
    "product_title", "product_description", "product_image", "ground_truth_category", "ground_truth_brand",
    "ground_truth_is_secondhand", "potential_product_categories",
)  # fmt: skip
_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Request:
    """What is to be made.

    Attributes:
        rules: The benchmark.
        source: What was downloaded: a file, or a directory of files.
        out: The directory to make.
        part: Which part `source` is; empty where file names tell.
        any_size: Whether other numbers of samples than the rules' are taken, for trials.
        livecodebench: Directory of LiveCodeBench's published files; None = no tests of code.
        reference: Checkout of mlcommons/inference that has the wording of prompts; None = this project's words.
    """

    rules: Benchmark
    source: Path
    out: Path
    part: str = ""
    any_size: bool = False
    livecodebench: Path | None = None
    reference: Path | None = None


@dataclass
class Made:
    """One part that was made.

    Attributes:
        part: Its name.
        samples: How many samples.
        subsets: Samples by published subset, where they are told apart.
        efforts: How much the model is told to reason, as found in the prompts.
        questions: Ids of questions that are answered in code.
        with_tests: How many of those have tests.
    """

    part: str
    samples: int = 0
    subsets: Counter[str] = field(default_factory=Counter)
    efforts: set[str] = field(default_factory=set)
    questions: set[str] = field(default_factory=set)
    with_tests: int = 0


def make_data_set(request: Request, progress: Progress) -> list[Made]:
    """Make a data set of ours.

    Raises:
        ConfigError: The source is not what was published for the benchmark, or `out` holds such a part already.
        OSError: The disk is full, or `out` cannot be written.
    """
    sources = _sources(request)
    for part in sources:
        taken = request.out / PARTS[part] / PROVENANCE
        if taken.exists():
            raise ConfigError(f"{taken.parent} holds a data set already", "name another directory: --out")
    making = request.out.with_name(f".{request.out.name}.{os.getpid()}.making")
    try:
        made = [_make_part(request, part, files, making / PARTS[part], progress) for part, files in sources.items()]
        _publish(making, request.out)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return made


def _publish(making: Path, out: Path) -> None:
    """Move what was made to its place; provenance goes last, so that nothing half-moved looks whole."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        making.rename(out)
        return
    for entry in sorted(making.iterdir(), key=lambda path: path.name == PROVENANCE):
        target = out / entry.name
        if entry.is_dir() and target.is_dir():
            shutil.rmtree(target)
        entry.rename(target)


# -- which files make which part --


def _sources(request: Request) -> dict[str, list[Path]]:
    source, name = request.source, request.rules.name
    if source.is_file():
        files = [source]
    elif source.is_dir():
        files = sorted(path for path in source.rglob("*") if is_table(path) and path.is_file())
    else:
        raise ConfigError(f"there is no {source}", "name what you downloaded: a file or a directory")
    if not files:
        raise ConfigError(f"{source}: no Parquet file and no pickle", "name the directory of the downloaded data set")
    if name == WITH_IMAGES:
        return {"performance": _by_split(files)}
    if request.part:
        return {request.part: _only_one(files)}
    if name == _IN_PARTS:
        return _by_name(files)
    return {"performance": _only_one([path for path in files if "calibration" not in path.name] or files)}


def _only_one(files: Sequence[Path]) -> list[Path]:
    if len(files) > 1:
        shown = ", ".join(path.name for path in files[:5])
        raise ConfigError(f"{len(files)} tables where one is wanted: {shown}", "name the one file")
    return list(files)


def _by_split(files: Sequence[Path]) -> list[Path]:
    """Shards in the order in which the data set counts: split by split, then by name."""
    ordered = [path for split in _SPLITS for path in files if path.name.startswith(f"{split}-")]
    odd = [path.name for path in files if path not in ordered]
    if odd and len(files) > 1:
        raise ConfigError(
            f"{odd[0]} is of no split that is known ({', '.join(_SPLITS)})", "name the downloaded data/ directory"
        )
    return ordered or list(files)


def _by_name(files: Sequence[Path]) -> dict[str, list[Path]]:
    """gpt-oss-120b's tables by their published names."""
    parts: dict[str, list[Path]] = {}
    for path in files:
        if path.name.startswith("perf_eval"):
            part = "performance"
        elif path.name.startswith("acc_eval"):
            part = "compliance" if "compliance" in path.name else "accuracy"
        else:
            raise ConfigError(
                f"which part {path.name} is cannot be told by its name", f"say it: --part {'|'.join(PARTS)}"
            )
        parts.setdefault(part, []).append(path)
    return {part: _only_one(parts[part]) for part in PARTS if part in parts}


# -- one part --


def _make_part(request: Request, part: str, files: list[Path], target: Path, progress: Progress) -> Made:
    target.mkdir(parents=True, exist_ok=True)
    made = Made(part)
    if request.rules.name == WITH_IMAGES:
        if request.reference is not None:
            write_json(target / WORDING_FILE, reference_wording(request.reference).to_json())
        _write_products(files, target, made, progress)
    else:
        _write_samples(request, files[0], target, made, progress)
    _check_size(request, made)
    if request.livecodebench is not None and made.questions:
        made.with_tests = write_code_tests(request.livecodebench, made.questions, target, progress)
    write_json(target / PROVENANCE, _provenance(request, made, files, target))
    return made


def _write_samples(request: Request, file: Path, target: Path, made: Made, progress: Progress) -> None:
    name = request.rules.name
    _check_digest(request, file)
    total, rows = read_rows(file, PUBLISHED[name].columns)
    needs_truth = made.part != "performance" or request.rules.name != _IN_PARTS
    with (target / PROMPTS_FILE).open("w", encoding="utf-8") as prompts, _truth_file(target, needs_truth) as truths:
        for number, row in enumerate(rows):
            sample = sample_of(name, row, f"{file}, row {number}")
            messages = [{"role": role, "content": text} for role, text in sample.turns]
            prompts.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
            if needs_truth:
                truths.write(_truth_line(sample, made, f"{file}, row {number}"))
            if sample.effort:
                made.efforts.add(sample.effort)
            made.samples += 1
            progress(made.samples, total)


def _truth_file(target: Path, wanted: bool) -> Any:  # noqa: ANN401, FBT001 - a text file, or nothing like one
    return (target / TRUTH_FILE if wanted else Path(os.devnull)).open("w", encoding="utf-8")


def _truth_line(sample: Sample, made: Made, where: str) -> str:
    if sample.truth is None:
        raise ConfigError(f"{where}: no column 'dataset', so no right answer", "name the table of the accuracy test")
    made.subsets[sample.truth.subset] += 1
    if "livecodebench" in sample.truth.subset:
        made.questions.add(sample.truth.answer)
    return json.dumps({"subset": sample.truth.subset, "answer": sample.truth.answer}, ensure_ascii=False) + "\n"


def _write_products(files: list[Path], target: Path, made: Made, progress: Progress) -> None:
    (target / "images").mkdir(exist_ok=True)
    tables = [(file, *read_rows(file, _PRODUCT_COLUMNS)) for file in files]
    total = sum(count for _, count, _ in tables)
    with (target / CATALOGUE_FILE).open("w", encoding="utf-8") as lines:
        for file, _, rows in tables:
            for number, row in enumerate(rows):
                name = f"images/{made.samples:05d}"
                (target / name).write_bytes(_image(row, f"{file}, row {number}"))
                lines.write(json.dumps({**row, "product_image": name}, ensure_ascii=False) + "\n")
                made.samples += 1
                progress(made.samples, total)


def _image(row: Mapping[str, Any], where: str) -> bytes:
    missing = [column for column in _PRODUCT_COLUMNS if column not in row]
    if missing:
        raise ConfigError(f"{where}: no column {missing[0]!r}", "name the published data set")
    held = row["product_image"]
    image = held.get("bytes") if isinstance(held, Mapping) else held
    if not isinstance(image, bytes) or media_type(image) is None:
        raise ConfigError(f"{where}: product_image holds no image", "name the published data set, images inside")
    return image


# -- checks and provenance --


def wanted_samples(rules: Benchmark, part: str) -> set[int]:
    """How many samples a part may have by the rules; qwen3-vl-235b-a22b's Interactive has a data set of its own."""
    if part == "compliance":
        return {COMPLIANCE_SAMPLES}
    counts = rules.accuracy_sample_count if part == "accuracy" else rules.performance_sample_count
    return set(counts.values())


def _check_size(request: Request, made: Made) -> None:
    wanted = wanted_samples(request.rules, made.part)
    if made.samples not in wanted and not request.any_size:
        raise ConfigError(
            f"{request.source}: {made.samples} samples, and {request.rules.name} ({made.part}) has "
            f"{' or '.join(str(count) for count in sorted(wanted))}",
            "name the published data set, all splits; --any-size for a trial",
        )


def _check_digest(request: Request, file: Path) -> None:
    known = PUBLISHED[request.rules.name].sha256.get(file.name)
    if known is None or request.any_size:
        return
    digest = _sha256(file)
    if digest != known:
        raise ConfigError(
            f"{file} has SHA-256 {digest}, and the published file of that name {known}", "download it again"
        )


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(file) as source:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _provenance(request: Request, made: Made, files: Sequence[Path], target: Path) -> dict[str, Any]:
    return {
        "benchmark": request.rules.name,
        "part": made.part,
        "samples": made.samples,
        "samples_by_the_rules": sorted(wanted_samples(request.rules, made.part)),
        "subsets": dict(sorted(made.subsets.items())),
        "reasoning_effort": sorted(made.efforts),
        "code_questions": len(made.questions),
        "code_questions_with_tests": made.with_tests,
        "made_of": [{"file": path.name, "bytes": path.stat().st_size, "sha256": _sha256(path)} for path in files],
        "files": {path.name: digest_file(path) for path in _own_files(target)},
    }


def _own_files(target: Path) -> Iterator[Path]:
    return (
        target / name for name in (PROMPTS_FILE, TRUTH_FILE, CATALOGUE_FILE, WORDING_FILE) if (target / name).is_file()
    )
