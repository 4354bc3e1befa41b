"""A data set of ours as rows of the file that endpoints loads; its own data set class and preset make the prompts.

Columns of the image benchmark: those of endpoints' `predefined/shopify_product_catalogue` (ea332753), which it writes
when it has fetched the data set, and reads again the next time. Text prompts: `prompt`, and `system` or `messages`
where there is more than one text of the user's (its `openai_msgspec_adapter`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.catalogue import ProductSample
from dynamo_mlperf.benchmark.prompts import PromptSample
from dynamo_mlperf.load.endpoints_config import EndpointsData, catalogue_data, prompts_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.load.settings import LoadSettings

    DataSet = Sequence[ProductSample] | Sequence[PromptSample]

PARQUET_PROGRAM = Path(__file__).with_name("endpoints_parquet.py")


def data_of(samples: DataSet, settings: LoadSettings) -> EndpointsData:
    """What endpoints is told of this data set."""
    if isinstance(samples[0], ProductSample):
        return catalogue_data(settings.scenario, whole=not settings.reduced)
    return prompts_data(plain=_shapes(samples) == {("user",)})


def write_rows(samples: DataSet, count: int, path: Path) -> None:
    """The first `count` samples, one JSON object a line; an image is named, not held.

    Raises:
        OSError: The disk is full or the place cannot be written.
    """
    chosen = samples[:count]
    shapes = _shapes(chosen)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for sample in chosen:
            row = _product(sample) if isinstance(sample, ProductSample) else _prompt(sample, shapes)
            out.write(f"{json.dumps(row, ensure_ascii=False)}\n")


def _shapes(samples: DataSet) -> set[tuple[str, ...]]:
    """Who says what in the text prompts: the sequences of roles that there are."""
    return {_roles(sample) for sample in samples if isinstance(sample, PromptSample)}


def _product(sample: ProductSample) -> dict[str, Any]:
    return {
        "product_title": sample.title,
        "product_description": sample.description,
        "product_image_path": str(sample.image_path),
        "product_image_format": sample.image_media_type.removeprefix("image/").upper(),
        "potential_product_categories": json.dumps(sample.choices),
        "ground_truth_category": sample.category,
        "ground_truth_brand": sample.brand,
        "ground_truth_is_secondhand": json.dumps(sample.is_secondhand),
    }


def _roles(sample: PromptSample) -> tuple[str, ...]:
    return tuple(role for role, _text in sample.turns)


def _prompt(sample: PromptSample, shapes: set[tuple[str, ...]]) -> dict[str, Any]:
    """One row; every row of the file has the same columns, and endpoints wants a `prompt` in each."""
    texts = [text for _role, text in sample.turns]
    if shapes == {("user",)}:
        return {"prompt": texts[0]}
    if shapes == {("system", "user")}:
        return {"prompt": texts[1], "system": texts[0]}
    return {"prompt": texts[-1], "messages": sample.messages}
