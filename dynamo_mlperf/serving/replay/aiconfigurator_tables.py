"""NVIDIA's aiconfigurator (0.12.0) as a program: what it says of one worker, printed as one JSON object.

Runs in a Python that has aiconfigurator; it imports nothing of ours. Arguments: MODEL SYSTEM BACKEND TENSOR_PARALLEL.
The answer holds prefill times in ms over prompt lengths, and step times in ms, one row a batch, one column a context.
"""

import importlib.metadata
import json
import logging
import os
import sys
import warnings

logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # its remarks about fallback tables are not the answer

from aiconfigurator_core.sdk import EngineHandle  # noqa: E402 - it writes while it is loaded

LONGEST = 66_000
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)


def geometric(first, last, count):
    """About `count` whole numbers from `first` to `last`, a constant factor apart."""
    steps = (last / first) ** (1.0 / (count - 1))
    return sorted({round(first * steps**step) for step in range(count)})


model, system, backend, degree = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
engine = EngineHandle.compile(model, system, backend, tp_size=degree, moe_tp_size=1, moe_ep_size=degree)
prompts = geometric(16, LONGEST, 64)
contexts = geometric(256, LONGEST, 14)
answer = {
    "version": importlib.metadata.version("aiconfigurator-core"),
    "prompts": prompts,
    "prefill_ms": [engine.predict_prefill_latency(1, tokens) for tokens in prompts],
    "batches": BATCHES,
    "contexts": contexts,
    "step_ms": [[engine.predict_decode_latency(batch, tokens, 2) for tokens in contexts] for batch in BATCHES],
}
answers.write(json.dumps(answer) + "\n")
answers.close()
