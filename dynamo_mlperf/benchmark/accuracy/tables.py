"""Rows of published tables: Parquet by pyarrow, pandas pickles by our own reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dynamo_mlperf.benchmark.accuracy.frame_pickle import read_frame
from dynamo_mlperf.errors import ConfigError

PARQUET = (".parquet",)
PICKLES = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz")

_BATCH_ROWS = 64
Row = dict[str, Any]


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is one of ours to read."""
    return path.name.endswith((*PARQUET, *PICKLES))


def read_rows(path: Path, wanted: Sequence[str]) -> tuple[int, Iterator[Row]]:
    """The rows of a table in their order, with those of the `wanted` columns that it has.

    Returns:
        How many rows there are, and the rows.

    Raises:
        ConfigError: It cannot be read, or is no such table.
    """
    if path.name.endswith(PICKLES):
        columns = read_frame(path, wanted)
        rows = min((len(column) for column in columns.values()), default=0)
        return rows, (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    if not path.name.endswith(PARQUET):
        raise ConfigError(f"{path}: no table", f"name a file that ends in {', '.join((*PARQUET, *PICKLES))}")
    return _parquet(path, wanted)


def _parquet(path: Path, wanted: Sequence[str]) -> tuple[int, Iterator[Row]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            f"{path}: Parquet needs the package pyarrow, which is not installed",
            "pip install 'dynamo-mlperf[accuracy]'",
        ) from error
    try:
        file = parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: {error}", "download it again (a Git LFS pointer is no Parquet file)") from error
    names = [name for name in wanted if name in file.schema_arrow.names]

    def rows() -> Iterator[Row]:
        try:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=names):
                yield from batch.to_pylist()
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            raise ConfigError(f"{path}: {error}", "download it again") from error

    return int(file.metadata.num_rows), rows()
