"""Made data sets of the real sizes, with truth: `python -m tests.fakes.made_data BENCHMARK DIRECTORY`.

What they hold is nonsense, the same at each call; what counts is their form and their size. Every prompt begins with
`sample NUMBER of SET`, by which the oracle that knows the truth (`truth_oracle`) finds its answer. `--share 0.01` makes
a hundredth of each.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.benchmark.tiny_catalogue import png
from dynamo_mlperf.benchmark.tiny_vocabulary import CATEGORIES

TEST07_SAMPLES = 990
SETS = {"": "performance", "accuracy": "accuracy", "compliance": "compliance"}
"""Folder below the data set -> the set's name in its prompts."""

_WORDS = (
    "river",
    "stone",
    "window",
    "garden",
    "bridge",
    "market",
    "winter",
    "letter",
    "engine",
    "harbour",
    "candle",
    "forest",
    "signal",
    "mirror",
    "copper",
    "valley",
    "ladder",
    "meadow",
    "pocket",
    "silver",
    "thunder",
    "basket",
    "lantern",
    "orchard",
    "pencil",
    "quarry",
    "ribbon",
    "saddle",
    "temple",
    "velvet",
    "walnut",
    "anchor",
)
_QUESTIONS = 10
"""Questions of code, each asked so often that there are enough of them."""


def words(seed: str, count: int) -> str:
    """So many words, the same for the same seed."""
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


def _truth_of(benchmark_name: str, number: int, code: int) -> dict[str, str]:
    """Subset and right answer of a sample; the first `code` samples ask for code."""
    if benchmark_name == "llama2-70b-99.9":
        return {"subset": "open_orca", "answer": words(f"llama2 {number}", 40)}
    names = {"gpt-oss-120b": ("livecodebench_v6", "aime25", "gpqa_diamond", "gpqa_diamond", "gpqa_diamond")}
    code_name, number_name, choice_name, many_name, expression_name = names.get(
        benchmark_name, ("livecodebench", "aime1983", "gpqa", "mmlu_pro", "math500")
    )
    if number < code:
        return {"subset": code_name, "answer": f"made_{number % _QUESTIONS}"}
    kind = number % 20
    if kind < 2:
        return {"subset": number_name, "answer": str(number * 37 % 1000)}
    if kind == 2 and expression_name == "math500":
        return {"subset": expression_name, "answer": str(number % 89)}
    return {"subset": many_name if kind > 10 else choice_name, "answer": "ABCD"[number * 7 % 4]}


def _write_lines(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with path.open("w") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")


def _write_text_set(benchmark_name: str, directory: Path, name: str, samples: int, *, truth: bool, code: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    prompts = ({"prompt": f"sample {n} of {name}: {words(f'{name} {n}', 12)}"} for n in range(samples))
    _write_lines(directory / "prompts.jsonl", prompts)
    if truth:
        _write_lines(directory / "truth.jsonl", (_truth_of(benchmark_name, n, code) for n in range(samples)))
    if truth and code:
        (directory / "code_tests").mkdir(exist_ok=True)
        for number in range(_QUESTIONS):
            tests = {"fn_name": None, "inputs": ["3\n", "40\n"], "outputs": [f"{3 + number}\n", f"{40 + number}\n"]}
            (directory / "code_tests" / f"made_{number}.json").write_text(json.dumps(tests))


def _write_catalogue(directory: Path, name: str, samples: int) -> None:
    (directory / "images").mkdir(parents=True, exist_ok=True)
    for number in range(8):
        pixels = np.full((32, 32, 3), 30 * number, np.uint8)
        (directory / "images" / f"{number}.png").write_bytes(png(pixels))

    def products() -> Iterator[dict[str, Any]]:
        for number in range(samples):
            path = CATEGORIES[number * 3 % len(CATEGORIES)]
            choices = [CATEGORIES[(number * 3 + 5 * step) % len(CATEGORIES)] for step in range(4)]
            yield {
                "product_title": f"sample {number} of {name}: {words(f'{name} {number}', 4)}",
                "product_description": words(f"about {name} {number}", 8),
                "product_image": f"images/{number % 8}.png",
                "potential_product_categories": sorted(" > ".join(choice) for choice in choices),
                "ground_truth_category": " > ".join(path),
                "ground_truth_brand": _WORDS[number % len(_WORDS)],
                "ground_truth_is_secondhand": number % 4 == 0,
            }

    _write_lines(directory / "catalogue.jsonl", products())


def write_made_data(benchmark_name: str, directory: Path, *, share: float = 1.0, interactive: bool = False) -> None:
    """Write all data sets of a benchmark.

    Args:
        benchmark_name: As the rules name it.
        directory: Takes them; made where it is not there.
        share: Of the real number of samples.
        interactive: For qwen3-vl, whose Interactive scenario has a data set of its own.
    """
    rules = benchmark(benchmark_name)
    scenario = "Interactive" if interactive else "Offline"

    def size(samples: int) -> int:
        return max(1, round(share * samples))

    samples = size(rules.performance_sample_count[scenario])
    if benchmark_name == "qwen3-vl-235b-a22b":
        _write_catalogue(directory, "performance", samples)
        return
    apart = rules.accuracy_sample_count[scenario] != rules.performance_sample_count[scenario]
    code = 0 if benchmark_name == "llama2-70b-99.9" else min(30, samples // 8)
    _write_text_set(benchmark_name, directory, "performance", samples, truth=not apart, code=code)
    if apart:
        accuracy = size(rules.accuracy_sample_count[scenario])
        _write_text_set(benchmark_name, directory / "accuracy", "accuracy", accuracy, truth=True, code=code)
        compliance = size(TEST07_SAMPLES)
        _write_text_set(benchmark_name, directory / "compliance", "compliance", compliance, truth=True, code=0)


def main() -> None:
    """Write one benchmark's data sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--interactive", action="store_true", help="qwen3-vl: its 8,000 samples of Interactive")
    options = parser.parse_args()
    write_made_data(options.benchmark, options.directory, share=options.share, interactive=options.interactive)


if __name__ == "__main__":
    main()
