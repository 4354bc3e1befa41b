"""Published data sets, in small files of the same schema, become data sets of ours."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import shutil
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from dynamo_mlperf.benchmark.accuracy.convert import Made, Request, make_data_set
from dynamo_mlperf.benchmark.accuracy.truth import Truth, load_truth
from dynamo_mlperf.benchmark.catalogue import load_catalogue, messages
from dynamo_mlperf.benchmark.prompts import load_prompts
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError

FRAMES = Path(__file__).parent / "frames"
"""Data frames pickled by pandas 1.5.3 (with gzip) and 2.2.3."""

PNG = b"\x89PNG\r\n\x1a\n"
HARMONY = (
    "<|start|>system<|message|>You are ChatGPT.\nReasoning: high\n# Valid channels: final<|end|>"
    "<|start|>developer<|message|># Instructions\n\nBe exact.<|end|><|start|>user<|message|>{}<|end|><|start|>assistant"
)


def make(name: str, source: Path, out: Path, **more: Any) -> list[Made]:
    more.setdefault("any_size", True)
    return make_data_set(Request(benchmark(name), source, out, **more), lambda _done, _total: None)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path)


def product(title: str, image: bytes = PNG) -> dict[str, Any]:
    return {
        "product_title": title,
        "product_description": None,
        "product_image": {"bytes": image, "path": "x.png"},
        "ground_truth_category": "A > B",
        "ground_truth_brand": "é",
        "ground_truth_is_secondhand": False,
        "potential_product_categories": ["A > B", "C"],
    }


def test_products_keep_their_order_over_splits_and_shards_and_their_images(tmp_path: Path) -> None:
    data = tmp_path / "download" / "data"
    write_parquet(data / "test-00000-of-00001.parquet", [product("four")])
    write_parquet(data / "train-00001-of-00002.parquet", [product("three", b"\xff\xd8\xffjpeg")])
    write_parquet(data / "train-00000-of-00002.parquet", [product("one"), product("two")])
    (made,) = make("qwen3-vl-235b-a22b", tmp_path / "download", tmp_path / "out")
    catalogue = load_catalogue(tmp_path / "out")
    assert made.samples == 4
    assert [sample.title for sample in catalogue] == ["one", "two", "three", "four"]
    assert catalogue[2].image_bytes == b"\xff\xd8\xffjpeg"
    assert (catalogue[0].category, catalogue[0].choices, catalogue[0].brand) == ("A > B", ("A > B", "C"), "é")


TASK = """
class Shop:
    @staticmethod
    def formulate_loaded_sample(sample, *, guided=False):
        image = f"data:{sample['product_image']};base64,"
        return [
            {"content": f'''Say what it is, as
{json.dumps(ProductMetadata.model_json_schema(), indent=2)}
'''},
            {"content": f"{sample['product_title']}: {sample['product_description']}! {sample['potential_product_categories']}"},
        ]
"""
SCHEMA = '''
class ProductMetadata(Base):
    """An answer."""

    category: str
    """Where it belongs,
    all levels."""

    is_secondhand: bool
    """Used?"""
'''
SHOWN = """Say what it is, as
{
  "additionalProperties": false,
  "description": "An answer.",
  "properties": {
    "category": {
      "description": "Where it belongs,\\nall levels.",
      "title": "Category",
      "type": "string"
    },
    "is_secondhand": {
      "description": "Used?",
      "title": "Is Secondhand",
      "type": "boolean"
    }
  },
  "required": [
    "category",
    "is_secondhand"
  ],
  "title": "ProductMetadata",
  "type": "object"
}
"""


def test_the_wording_of_prompts_comes_from_the_reference(tmp_path: Path) -> None:
    package = tmp_path / "inference" / "multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl"
    package.mkdir(parents=True)
    (package / "task.py").write_text(TASK)
    (package / "schema.py").write_text(SCHEMA)
    write_parquet(tmp_path / "train-0.parquet", [product("{one}")])
    make("qwen3-vl-235b-a22b", tmp_path / "train-0.parquet", tmp_path / "out", reference=tmp_path / "inference")
    system, user = messages(load_catalogue(tmp_path / "out")[0])
    assert system["content"] == SHOWN
    assert user["content"][0]["text"] == "{one}: None! ['A > B', 'C']"
    (tmp_path / "out" / "prompt.json").write_text('{"system": "x", "user": ["product_title"]}')
    with pytest.raises(ConfigError, match="no wording with product_title, product_description"):
        load_catalogue(tmp_path / "out")
    (package / "task.py").write_text("x = 1")
    with pytest.raises(ConfigError, match="not where it was at b66003e1"):
        make("qwen3-vl-235b-a22b", tmp_path / "train-0.parquet", tmp_path / "two", reference=tmp_path / "inference")


def test_a_pickled_frame_of_five_subsets_is_read_without_pandas(tmp_path: Path) -> None:
    (made,) = make("deepseek-r1", FRAMES / "deepseek-pandas-2.2.pkl", tmp_path / "out")
    assert load_truth(tmp_path / "out") == (
        Truth("math500", r"\frac{1}{2}"),
        Truth("aime1983", "70"),
        Truth("gpqa", "B"),
        Truth("mmlu_pro", "J"),
        Truth("livecodebench", "q_1"),
        Truth("gpqa", ""),
    )
    assert load_prompts(tmp_path / "out")[1].turns == (("user", "An integer, please. é"),)
    assert (made.questions, made.with_tests) == ({"q_1"}, 0)


def test_whole_floats_are_integers_and_missing_answers_are_empty(tmp_path: Path) -> None:
    rows = [{"text_input": "?", "dataset": "aime1983", "ground_truth": right} for right in (70.0, 0.5, None)]
    write_parquet(tmp_path / "some.parquet", rows)
    make("deepseek-r1", tmp_path / "some.parquet", tmp_path / "out")
    assert [truth.answer for truth in load_truth(tmp_path / "out")] == ["70", "0.5", ""]


def test_openorca_keeps_system_prompts_and_right_answers(tmp_path: Path) -> None:
    source = tmp_path / "open_orca_gpt4_tokenized_llama.sampled_24576.pkl.gz"
    shutil.copy(FRAMES / "openorca-pandas-1.5.pkl.gz", source)
    make("llama2-70b-99.9", source, tmp_path / "out")
    assert [sample.turns for sample in load_prompts(tmp_path / "out")] == [
        (("user", "How?"),),
        (("system", "You are brief."), ("user", "Why?")),
        (("system", "You are kind."), ("user", "Who?")),
    ]
    assert [truth.answer for truth in load_truth(tmp_path / "out")] == [
        "By bus.",
        "Because it rains.",
        "Nobody “special”.",
    ]
    named = tmp_path / source.name.removesuffix(".gz")
    shutil.copy(source, named)
    with pytest.raises(ConfigError, match=r"has SHA-256 .*, and the published file of that name b64e66e5"):
        make("llama2-70b-99.9", named, tmp_path / "other", any_size=False)


def test_gpt_oss_has_three_parts(tmp_path: Path) -> None:
    source = tmp_path / "download"
    write_parquet(source / "perf" / "perf_eval_ref.parquet", [{"prompt": "fast?", "input_tokens": [1, 2]}])
    rows = [
        {"text_input": HARMONY.format("An integer?\n"), "dataset": "AIME25", "ground_truth": "70"},
        {"text_input": HARMONY.format("Code?"), "dataset": "livecodebench_v6", "ground_truth": "abc_1"},
    ]
    write_parquet(source / "acc" / "acc_eval_ref.parquet", rows)
    gpqa = [{"prompt": "Which?", "dataset": "gpqa_diamond", "ground_truth": "B"}]
    write_parquet(source / "acc" / "acc_eval_compliance_gpqa.parquet", gpqa)
    made = make("gpt-oss-120b", source, tmp_path / "out")
    assert [(part.part, part.samples) for part in made] == [("performance", 1), ("accuracy", 2), ("compliance", 1)]
    prompts = load_prompts(tmp_path / "out" / "accuracy")
    assert prompts[0].turns == (("system", "Be exact."), ("user", "An integer?\n"))
    assert load_truth(tmp_path / "out" / "accuracy")[0] == Truth("aime25", "70")
    assert load_truth(tmp_path / "out" / "compliance") == (Truth("gpqa_diamond", "B"),)
    assert not (tmp_path / "out" / "truth.jsonl").exists()
    provenance = json.loads((tmp_path / "out" / "accuracy" / "dataset.json").read_text())
    table = (source / "acc" / "acc_eval_ref.parquet").read_bytes()
    assert provenance["made_of"][0]["sha256"] == hashlib.sha256(table).hexdigest()
    assert (provenance["reasoning_effort"], provenance["samples"]) == (["high"], 2)


def test_parts_can_be_added_one_by_one_but_not_twice(tmp_path: Path) -> None:
    write_parquet(tmp_path / "some.parquet", [{"prompt": "?", "dataset": "aime25", "ground_truth": "70"}])
    with pytest.raises(ConfigError, match="cannot be told by its name"):
        make("gpt-oss-120b", tmp_path / "some.parquet", tmp_path / "out")
    make("gpt-oss-120b", tmp_path / "some.parquet", tmp_path / "out", part="performance")
    make("gpt-oss-120b", tmp_path / "some.parquet", tmp_path / "out", part="accuracy")
    assert len(load_truth(tmp_path / "out" / "accuracy")) == 1
    with pytest.raises(ConfigError, match="holds a data set already"):
        make("gpt-oss-120b", tmp_path / "some.parquet", tmp_path / "out", part="accuracy")


def problem(question: str, *, packed: bool) -> str:
    private = json.dumps([{"input": "2", "output": "4", "testtype": "functional"}])
    if packed:
        private = base64.b64encode(zlib.compress(pickle.dumps(private))).decode()
    public = json.dumps([{"input": "1", "output": "2", "testtype": "functional"}])
    metadata = json.dumps({"func_name": "double"})
    row = {"question_id": question, "public_test_cases": public, "private_test_cases": private, "metadata": metadata}
    return json.dumps(row) + "\n"


@pytest.mark.parametrize("packed", [True, False])
def test_code_tests_come_from_livecodebench(tmp_path: Path, *, packed: bool) -> None:
    (tmp_path / "test.jsonl").write_text(problem("other", packed=packed) + problem("q_1", packed=packed))
    (made,) = make("deepseek-r1", FRAMES / "deepseek-pandas-2.2.pkl", tmp_path / "out", livecodebench=tmp_path)
    assert made.with_tests == 1
    tests = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out" / "code_tests").iterdir()}
    assert tests == {"q_1.json": {"fn_name": "double", "inputs": ["1", "2"], "outputs": ["2", "4"]}}


class _Harm:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path("/nonexistent/never"),)  # type: ignore[return-value]


def test_pickles_are_never_run(tmp_path: Path) -> None:
    harm = pickle.dumps(_Harm())
    (tmp_path / "harm.pkl").write_bytes(harm)
    with pytest.raises(ConfigError, match=r"asks for pathlib.* which no data frame needs"):
        make("deepseek-r1", tmp_path / "harm.pkl", tmp_path / "out")
    private = base64.b64encode(zlib.compress(harm)).decode()
    row = {**json.loads(problem("q_1", packed=False)), "private_test_cases": private}
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=r"asks for pathlib"):
        make("deepseek-r1", FRAMES / "deepseek-pandas-2.2.pkl", tmp_path / "out", livecodebench=tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.pkl", b"", "no pickle that can be read"),
        ("a.pkl", b"\x80\x04N.", "of no pandas data frame"),
        ("a.pkl", (FRAMES / "deepseek-pandas-2.2.pkl").read_bytes()[:300], "no pickle that can be read"),
        ("a.pkl.gz", b"\x1f\x8b junk", "a.pkl.gz"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\n", "download it again"),
        ("a.csv", b"x", "no table"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        make("deepseek-r1", tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_counts_are_held_against_the_rules(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"6 samples, and deepseek-r1 .* has 4388"):
        make("deepseek-r1", FRAMES / "deepseek-pandas-2.2.pkl", tmp_path / "out", any_size=False)
    assert list(tmp_path.iterdir()) == []
    write_parquet(tmp_path / "bad.parquet", [{"dataset": "gpqa", "ground_truth": "A"}])
    with pytest.raises(ConfigError, match="no column 'text_input'"):
        make("deepseek-r1", tmp_path / "bad.parquet", tmp_path / "out")
