"""Start-up of CPU engine processes only: three adjustments that a machine with few cores and no CUDA needs.

It reaches an engine through PYTHONPATH, which the CPU engine's command sets and no GPU engine's does.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time

_PROGRESS_THREAD_DELAY_US = 1000
_YIELD_S = 0.0005
_kept: list[object] = []


class _NixlSource(importlib.machinery.SourceFileLoader):
    """NIXL 1.4.1 polls without pause in its progress thread, so each idle engine burns a core; a delay ends that."""

    def get_code(self, fullname: str):
        source = self.get_data(self.path)
        patched = source.replace(b"pthrDelay = 0", b"pthrDelay = %d" % _PROGRESS_THREAD_DELAY_US)
        if patched == source:
            raise ImportError(f"{self.path} no longer sets pthrDelay = 0: this adjustment does not fit this NIXL")
        return compile(patched, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path=None, target=None):
        if fullname == "nixl_cu12._api":
            found = importlib.machinery.PathFinder.find_spec(fullname, path)
            if found is None or found.origin is None:
                return None
            return importlib.util.spec_from_file_location(
                fullname, found.origin, loader=_NixlSource(fullname, found.origin)
            )
        if fullname == "torchvision":
            _declare_torchvision_operators()
        return None


def _declare_torchvision_operators() -> None:
    """The index's torchvision is a CUDA build; beside a CPU torch it fails unless its operators are declared."""
    if _kept:
        return
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for signature in ("nms", "qnms"):
        library.define(f"{signature}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)


sys.meta_path.insert(0, _Finder())
# vLLM's shared-memory broadcast spins on sched_yield: with more processes than cores it starves whom it waits for.
os.sched_yield = lambda: time.sleep(_YIELD_S)
# Engines outnumber cores here: pinning them would stack them on the same one.
os.sched_setaffinity = lambda *_: None
