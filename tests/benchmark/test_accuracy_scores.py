"""Scores of each benchmark on made answers, the lines that the checker parses, and what falls short of the rules."""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
from pathlib import Path

import pytest
from rouge_score.rouge_scorer import RougeScorer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dynamo_mlperf.benchmark.accuracy.rouge import common_in_order, rouge_of
from dynamo_mlperf.benchmark.accuracy.scores import Scores, plain_number
from dynamo_mlperf.benchmark.accuracy.scoring import score_accuracy_log
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError, MeasureError
from tests.benchmark.accuracy_logs import write_code_tests, write_log, write_texts, write_truth

PNG = b"\x89PNG\r\n\x1a\n"

# The checker's patterns (mlcommons/inference b66003e1, submission_checker/constants.py, ACC_PATTERN).
PATTERNS = {
    "F1_HIERARCHICAL": r'\{.*"f1":\s*([\d\.]+).*\}',
    "exact_match": r".*'exact_match':\s([\d.]+).*",
    "TOKENS_PER_SAMPLE": r".*'tokens_per_sample':\s([\d.]+).*",
    "ROUGE1": r".*'rouge1':\s+'?([\d.]+)'?.*",
    "ROUGE2": r".*'rouge2':\s+'?([\d.]+)'?.*",
    "ROUGEL": r".*'rougeL':\s+'?([\d.]+)'?.*",
}


def parsed(scores: Scores) -> dict[str, float]:
    """What the checker reads of accuracy.txt: the metrics, and that the last line is the hash."""
    lines = scores.text().splitlines()
    assert lines[-1] == f"hash={scores.log_sha256}"
    assert re.match(r"^hash=([\w\d]+)$", lines[-1])
    found = {
        name: re.match(pattern, line) for line in lines for name, pattern in PATTERNS.items() if re.match(pattern, line)
    }
    return {name: float(match[1]) for name, match in found.items() if match}


def product(category: str, **more: object) -> str:
    return json.dumps({"category": category, "brand": "x", "is_secondhand": False, **more})


def write_catalogue(directory: Path, categories: list[str]) -> None:
    (directory / "i.png").write_bytes(PNG)
    rows = [
        {
            "product_title": "t",
            "product_description": None,
            "product_image": "i.png",
            "ground_truth_category": category,
            "ground_truth_brand": "b",
            "ground_truth_is_secondhand": False,
            "potential_product_categories": [category],
        }
        for category in categories
    ]
    (directory / "catalogue.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def test_hierarchical_f1_counts_common_levels_over_all_answers(tmp_path: Path) -> None:
    write_catalogue(tmp_path, ["A > B > C", "Café > 茶", "A > B", "A > B", "X", "A > B"])
    texts = [
        product("A > B > D > E"),  # 2 of 4 answered, 3 true
        product(" Café  >  茶 "),  # blanks at the ends of levels do not count: 2 of 2, 2
        product("a > B"),  # the first level differs: 0 of 2, 2
        "```json\n" + product("A > B") + "\n```",  # no JSON: as a wrong path of 2, 2
        product("X", extra=1),  # a key too many: 1, 1
        product("A", is_secondhand="yes"),  # 1 of 1, 2
    ]
    scores = score_accuracy_log("qwen3-vl-235b-a22b", write_texts(tmp_path, texts), tmp_path)
    # shared 2+2+0+0+0+1 = 5, answered 4+2+2+2+1+1 = 12, true 3+2+2+2+1+2 = 12
    assert scores.metrics == {"F1_HIERARCHICAL": pytest.approx(5 / 12)}
    assert scores.details["unreadable_answers"] == 2
    assert parsed(scores) == scores.metrics
    assert [short.wanted for short in scores.shortfalls(benchmark("qwen3-vl-235b-a22b"), "Interactive")] == [
        ">= 0.779922"
    ]


def test_all_empty_answers_score_nothing(tmp_path: Path) -> None:
    write_catalogue(tmp_path, ["A > B", "C"])
    scores = score_accuracy_log("qwen3-vl-235b-a22b", write_log(tmp_path, [(1, b"", None), (0, b"", None)]), tmp_path)
    assert parsed(scores) == {"F1_HIERARCHICAL": 0.0}


def test_gpt_oss_sums_right_answers_over_repeats(tmp_path: Path) -> None:
    rows = [
        ("aime25", "70"),
        ("aime25", "5"),
        ("gpqa_diamond", "B"),
        ("livecodebench_v6", "q1"),
        ("livecodebench_v6", "q1"),
    ]
    write_truth(tmp_path, rows)
    write_code_tests(tmp_path, "q1", inputs=["3 4\n", "1 1\n"], outputs=["7\n", "2"])
    texts = [
        r"\boxed{070}",
        "Answer: 6",
        "<|channel|>analysis<|message|>Answer: A<|end|><|channel|>final<|message|>**B**<|return|>",
        "```python\nprint(sum(map(int, input().split())))\n```",
        "```python\nprint(7)\n```",
    ]
    log = write_texts(tmp_path, texts, tokens=100)
    scores = score_accuracy_log("gpt-oss-120b", log, tmp_path, workers=2)
    # (1/8 + 1/5 + 1/3) / (2/8 + 1/5 + 2/3) = 0.6583.. / 1.1167.. = 58.955 %
    assert scores.metrics == {"exact_match": 58.955, "TOKENS_PER_SAMPLE": 100.0}
    assert parsed(scores) == scores.metrics
    assert scores.details["code_that_failed"] == ["q1: test 1: wrong answer"]
    unscored = score_accuracy_log("gpt-oss-120b", log, tmp_path, run_code=False)
    assert (unscored.not_scored, parsed(unscored)) == ({"livecodebench_v6": 2}, {"TOKENS_PER_SAMPLE": 100.0})
    assert [short.text() for short in unscored.shortfalls(benchmark("gpt-oss-120b"), "Offline")] == [
        "exact_match: wanted >= 82.2987, got no score: 2 answers were not scored"
    ]


def test_deepseek_counts_five_subsets_alike(tmp_path: Path) -> None:
    write_truth(
        tmp_path,
        [
            ("math500", r"\frac{1}{2}"),
            ("aime1983", "70"),
            ("gpqa", "B"),
            ("mmlu_pro", "J"),
            ("livecodebench", "q2"),
            ("math500", "1"),
            ("gpqa", ""),
        ],
    )
    write_code_tests(tmp_path, "q2", fn_name="add", inputs=["1\n2"], outputs=["3"])
    code = "```python\nclass Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b\n```"
    texts = [r"\boxed{0.5}", "Answer: 70", "B", "I take J", code, r"\boxed{2}", "Answer: A"]
    scores = score_accuracy_log("deepseek-r1", write_texts(tmp_path, texts, tokens=4000), tmp_path, workers=1)
    right = {subset: counts["right"] for subset, counts in scores.details["subsets"].items()}
    assert right == {"aime1983": 1, "gpqa": 0, "livecodebench": 1, "math500": 1, "mmlu_pro": 1}
    assert scores.metrics["exact_match"] == pytest.approx(400 / 7)
    assert parsed(scores) == pytest.approx(dict(scores.metrics))


def test_rouge_is_rouge_scores_own_to_the_bit() -> None:
    """Few words in many orders, so that they repeat and cross; answers of none, of one and of 300 words."""
    theirs = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    chance = random.Random(7)
    vocabulary = ("cats", "cat", "running", "run", "a", "The", "naïve", "don't", "x-ray", "9", "--", "organisation")

    def text() -> str:
        return " ".join(chance.choices(vocabulary[: chance.randint(1, 12)], k=chance.choice((0, 1, 2, 5, 40, 65, 300))))

    pairs = [(text(), text()) for _ in range(120)]
    expected = [tuple(score.fmeasure for score in theirs.score(*pair).values()) for pair in pairs]
    assert rouge_of(pairs) == expected
    assert len(set(expected)) > 50
    assert common_in_order("abcbdab", "bdcaba") == len("bcba")


def test_rouge_is_the_mean_f_measure_in_percent(tmp_path: Path) -> None:
    pairs = [("The cats sat", "the cat sat."), ("a b c d", "a c"), ("words", "")]
    # stems agree: 1, 1, 1. Two of four words in order, no pair of them: 2*1*0.5/1.5, 0, the same. Nothing: 0, 0, 0.
    assert rouge_of(pairs) == [(1.0, 1.0, 1.0), (pytest.approx(2 / 3), 0.0, pytest.approx(2 / 3)), (0.0, 0.0, 0.0)]
    write_truth(tmp_path, [("open_orca", truth) for truth, _ in pairs])
    scores = score_accuracy_log(
        "llama2-70b-99.9", write_texts(tmp_path, [answer for _, answer in pairs]), tmp_path, workers=2
    )
    assert scores.metrics == {"ROUGE1": 55.5556, "ROUGE2": 33.3333, "ROUGEL": 55.5556, "TOKENS_PER_SAMPLE": 10.0}
    assert parsed(scores) == scores.metrics
    short = {one.metric: one.wanted for one in scores.shortfalls(benchmark("llama2-70b-99.9"), "Server")}
    assert short == {"TOKENS_PER_SAMPLE": ">= 265.005"}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["</s>"])
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.mark.parametrize(("letter", "token_bytes"), [("i", 4), ("q", 8)])
def test_token_ids_are_decoded_and_counted(tmp_path: Path, tokenizer: Path, letter: str, token_bytes: int) -> None:
    write_truth(tmp_path, [("gpqa", "C")])
    ids = [*Tokenizer.from_file(str(tokenizer)).encode("é Answer: C").ids, 256]
    log = write_log(tmp_path, [(0, struct.pack(f"<{len(ids)}{letter}", *ids), len(ids))])
    scores = score_accuracy_log("deepseek-r1", log, tmp_path, tokenizer.parent, token_bytes=token_bytes)
    assert scores.metrics == {"exact_match": 100.0, "TOKENS_PER_SAMPLE": 13.0}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"abc", "3 bytes, no multiple of 4"),
        (b"text that is none of ids", "which no vocabulary holds"),
        (struct.pack("<5q", 1, 2, 3, 4, 5), "8 bytes long"),
    ],
)
def test_what_cannot_be_token_ids_is_refused(tmp_path: Path, tokenizer: Path, data: bytes, told: str) -> None:
    write_truth(tmp_path, [("gpqa", "C")])
    with pytest.raises(MeasureError, match=told):
        score_accuracy_log("deepseek-r1", write_log(tmp_path, [(0, data, 1)]), tmp_path, tokenizer)
    with pytest.raises(ConfigError, match="no such file"):
        score_accuracy_log("deepseek-r1", write_log(tmp_path, [(0, data, 1)]), tmp_path, tmp_path / "none")


def test_a_subset_that_nobody_can_score_is_refused(tmp_path: Path) -> None:
    write_truth(tmp_path, [("riddles", "C")])
    with pytest.raises(ConfigError, match="'riddles'"):
        score_accuracy_log("deepseek-r1", write_texts(tmp_path, ["C"]), tmp_path)
    with pytest.raises(ConfigError, match="dynamo-mlperf dataset"):
        score_accuracy_log("deepseek-r1", write_texts(tmp_path, ["C"]), tmp_path / "none")


def test_numbers_are_printed_as_the_checker_reads_them() -> None:
    assert [plain_number(value) for value in (44.4312, 1e-05, 80.0, 100 / 3)] == [
        "44.4312",
        "0.000010000000",
        "80.0",
        "33.333333333333336",
    ]


def test_floors_and_bounds_are_met_at_their_very_value() -> None:
    log = hashlib.sha256(b"").hexdigest()
    met = {"ROUGE1": 44.3867688, "ROUGE2": 22.0131648, "ROUGEL": 28.5875838, "TOKENS_PER_SAMPLE": 323.895}
    rules = benchmark("llama2-70b-99.9")
    assert Scores("llama2-70b-99.9", 1, met, log).shortfalls(rules, "Offline") == ()
    for name, value in met.items():
        step = 1e-4 if name == "TOKENS_PER_SAMPLE" else -1e-7
        missed = Scores("llama2-70b-99.9", 1, {**met, name: value + step}, log).shortfalls(rules, "Offline")
        assert [short.metric for short in missed] == [name]
    with pytest.raises(ConfigError, match="has no Interactive scenario"):
        Scores("x", 1, {}, log).shortfalls(benchmark("qwen3-vl-235b-a22b", "v6.0"), "Interactive")
