"""Every byte of a staged directory read again and held against its digests: what no time stamp can tell."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import read_bounded
from dynamo_mlperf.staging.blocks import digest_written
from dynamo_mlperf.staging.manifest import MARKER, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.staging.manifest import Manifest

_READERS = 4
_SHOWN = 5


def digests_of(directory: Path, manifest: Manifest | None) -> dict[str, tuple[int, str]]:
    """Size in bytes and BLAKE3 of each file that `directory` has to hold, from the manifest or from its own marker.

    Raises:
        SetupError: There is no manifest, and the directory carries no marker with digests that agree with its name.
    """
    if manifest is not None:
        return {file.path: (file.bytes, file.blake3) for file in manifest.files}
    try:
        marker = json.loads(read_bounded(directory / MARKER))
        sizes = {path: stamp["bytes"] for path, stamp in marker["files"].items()}
        found = {path: (int(sizes[path]), str(digest)) for path, digest in marker["digests"].items()}
        agrees = digest_of(found) == marker["manifest"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SetupError(
            f"{directory} carries no marker with digests ({error!r})", "name its manifest: --manifest FILE"
        ) from error
    if not agrees:
        raise SetupError(f"{directory / MARKER} contradicts itself", "name its manifest: --manifest FILE")
    return found


def verify_full(
    directory: Path, manifest: Manifest | None = None, report: Callable[[int, int], None] | None = None
) -> int:
    """Read every file of `directory` from the disk, past the page cache where that can be, and hash it.

    Returns:
        The bytes read.

    Raises:
        SetupError: Files are missing or differ; names the first five and says how many.
    """
    wanted = digests_of(directory, manifest)
    total_bytes = sum(size for size, _ in wanted.values())
    lock, done_bytes = Lock(), 0

    def problem(item: tuple[str, tuple[int, str]]) -> str | None:
        nonlocal done_bytes
        name, (size_bytes, digest) = item
        try:
            found_bytes = (directory / name).stat().st_size
            got = digest_written(directory / name, from_device=True) if found_bytes == size_bytes else None
        except OSError as error:
            return f"{name}: {error.strerror}"
        with lock:
            done_bytes += size_bytes
            if report is not None:
                report(done_bytes, total_bytes)
        if got is None:
            return f"{name}: {found_bytes} bytes, {size_bytes} wanted"
        return None if got == digest else f"{name}: digest {got}, {digest} wanted"

    with ThreadPoolExecutor(_READERS) as pool:
        problems = [each for each in pool.map(problem, wanted.items()) if each is not None]
    if problems:
        more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
        raise SetupError(
            f"{directory}: {len(problems)} of {len(wanted)} files are not as staged: "
            f"{'; '.join(problems[:_SHOWN])}{more}",
            f"stage it anew: remove {directory / MARKER}, then dynamo-mlperf stage copy",
        )
    return total_bytes
