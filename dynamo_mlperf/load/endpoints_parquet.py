"""Runs in the environment of endpoints, as a program: makes the parquet file that it loads from a file of JSON lines.

`python endpoints_parquet.py ROWS.jsonl OUT.parquet`. A value under `product_image_path` names an image, whose exact
bytes go in as base64 under `product_image_base64`: no decoding, no new compression. Nothing of this package is
imported here.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROWS = 128
"""Rows that are held at a time; with images they take megabytes each."""


def _rows(source: Path) -> Iterator[list[dict[str, Any]]]:
    batch = []
    with source.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            image = row.pop("product_image_path", None)
            if image is not None:
                row["product_image_base64"] = base64.b64encode(Path(image).read_bytes()).decode()
            batch.append(row)
            if len(batch) == _ROWS:
                yield batch
                batch = []
    if batch:
        yield batch


def main(source: Path, out: Path) -> None:
    """Write `out` whole or not at all."""
    import pyarrow as pa
    from pyarrow import parquet

    beside = out.with_name(f".{out.name}.tmp")
    writer = None
    for batch in _rows(source):
        table = pa.Table.from_pylist(batch, schema=writer.schema if writer else None)
        writer = writer or parquet.ParquetWriter(beside, table.schema)
        writer.write_table(table)
    if writer is None:
        raise SystemExit(f"{source} holds no sample")
    writer.close()
    beside.replace(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
