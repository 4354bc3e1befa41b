"""An oracle that knows the truth of a made data set and answers right as often as it is told to.

`python -m tests.fakes.truth_oracle DATA_SET --benchmark llama2-70b-99.9 --right 0.9 --port 0` prints
`listening on PORT`. In tests: `with TruthOracle(Knowledge(...)) as oracle: ... oracle.port`.

For rehearsals of whole submissions: an answer comes in two pieces, its first token and the rest, whatever number of
tokens its usage tells, so that sixty requests a second cost a tenth of a core. Which samples are answered right, and
how long each answer is, depends on the sample alone. `--rate` lets so many answers end per second, as a system of that
throughput would in Offline.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.fakes import oracle
from tests.fakes.made_data import SETS, words

if TYPE_CHECKING:
    from types import TracebackType

_NAMED = re.compile(rb"sample (\d+) of ([a-z]+)")
_WITHIN_BYTES = 4096
_PIECES = 2
_SPREAD = 0.3
"""Answers are up to this share longer or shorter than their mean."""

TOKENS = {
    "gpt-oss-120b": {"performance": 1278, "accuracy": 6000, "compliance": 3000},
    "deepseek-r1": {"performance": 3886},
    "llama2-70b-99.9": {"performance": 294},
    "qwen3-vl-235b-a22b": {"performance": 43},
}
"""Mean output tokens by benchmark and set: within what the rules allow."""


@dataclass(frozen=True)
class Knowledge:
    """What the oracle knows and how it behaves.

    Attributes:
        data_set: Directory of the data set, with truth.
        benchmark: As the rules name it.
        model: The model name that it lists.
        right: Share of the samples that are answered right.
        tokens: Mean output tokens by set; those of the benchmark where it names none.
        ttft_ms: Time to the first token in milliseconds.
        decode_ms: Time from the first token to the end.
        rate: Most answers that end per second; 0 = no bound.
        eos: Id of the last token of an answer.
        repeats_eos: Samples whose answer ends with that token twice.
    """

    data_set: Path
    benchmark: str
    model: str = "m"
    right: float = 0.9
    tokens: dict[str, int] = field(default_factory=dict)
    ttft_ms: float = 20.0
    decode_ms: float = 100.0
    rate: float = 0.0
    eos: int = 2
    repeats_eos: frozenset[int] = frozenset()

    def count(self, name: str, sample: int) -> int:
        """Tokens of the answer to a sample, the same at each call."""
        mean = self.tokens.get(name) or TOKENS[self.benchmark].get(name, 100)
        if mean < 10:
            return mean
        return round(mean * (1 + _SPREAD * (2 * (sample * 0.6180339887 % 1.0) - 1)))

    def answers_right(self, name: str, sample: int) -> bool:
        """Whether this sample is answered right."""
        return random.Random(f"{name} {sample}").random() < self.right


class Answers:
    """The texts, right and wrong ones."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self._truth: dict[str, list[dict[str, Any]]] = {}
        for folder, name in SETS.items():
            for file in ("truth.jsonl", "catalogue.jsonl"):
                path = known.data_set / folder / file
                if path.exists():
                    self._truth[name] = [json.loads(line) for line in path.read_text().splitlines()]

    def text(self, name: str, sample: int) -> str:
        """The answer to a sample; of a set without truth, some words."""
        rows = self._truth.get(name)
        if rows is None or sample >= len(rows):
            return words(f"answer {name} {sample}", 8)
        row, right = rows[sample], self._known.answers_right(name, sample)
        if "ground_truth_category" in row:
            return _of_product(row, right=right)
        return _of_question(row["subset"], row["answer"], right=right)


def _of_product(row: dict[str, Any], *, right: bool) -> str:
    category = row["ground_truth_category"] if right else "Nothing > Of > This"
    return json.dumps(
        {
            "category": category,
            "brand": row["ground_truth_brand"],
            "is_secondhand": row["ground_truth_is_secondhand"],
        }
    )


def _of_question(subset: str, answer: str, *, right: bool) -> str:
    if subset == "open_orca":
        told = answer.split()
        return " ".join(told if right else reversed(told[: len(told) // 3]))
    if "livecodebench" in subset:
        more = int(answer.rpartition("_")[2]) if right else -1
        return f"```python\nprint(int(input()) + {more})\n```"
    if "aime" in subset or "math" in subset:
        return f"It is \\boxed{{{answer if right else int(answer) + 1}}}."
    return f"Answer: {answer if right else 'ABCD'[('ABCD'.index(answer) + 1) % 4]}"


class _TruthStream(oracle._Stream):
    """An answer in two pieces that tells of many tokens."""

    __slots__ = ("count", "ids", "text")

    def __init__(self, connection: oracle._Connection, script: oracle.Script, fault: str, arrived_ns: int) -> None:
        super().__init__(connection, script, fault, arrived_ns)
        self.count = 0
        self.text = ""
        self.ids: list[int] = []


class _TruthServer(oracle._Server):
    """The oracle with answers of its own."""

    def __init__(self, known: Knowledge, port: int = 0) -> None:
        super().__init__(oracle.Script(ttft_ms=known.ttft_ms, tpot_ms=known.decode_ms, tokens=_PIECES), port)
        self.model = known.model
        self._known = known
        self._answers = Answers(known)
        self._last_end_ns = 0

    def _stream_of(
        self, connection: oracle._Connection, request: bytes | bytearray, script: oracle.Script, fault: str
    ) -> oracle._Stream:
        stream = _TruthStream(connection, script, fault, time.monotonic_ns())
        named = _NAMED.search(request, 0, _WITHIN_BYTES)
        name, sample = (named.group(2).decode(), int(named.group(1))) if named else ("", 0)
        stream.sample = sample
        stream.count = self._known.count(name, sample)
        stream.text = self._answers.text(name, sample)
        if b'"completion_token_ids"' in request or b'"return_token_ids"' in request:
            stream.with_ids = True
            stream.ids = self._ids(sample, stream.count)
        if self._known.rate:
            step_ns = int(1e9 / self._known.rate)
            self._last_end_ns = max(stream.due_ns(1), self._last_end_ns + step_ns)
            stream.tpot_ns = self._last_end_ns - stream.arrived_ns - stream.ttft_ns
        return stream

    def _ids(self, sample: int, count: int) -> list[int]:
        ends = 2 if sample in self._known.repeats_eos else 1
        return [*range(oracle.FIRST_TOKEN_ID, oracle.FIRST_TOKEN_ID + count - ends), *[self._known.eos] * ends]

    def _text(self, stream: oracle._Stream) -> str:
        assert isinstance(stream, _TruthStream)
        return stream.text

    def _usage_of(self, stream: oracle._Stream) -> bytes:
        assert isinstance(stream, _TruthStream)
        return oracle._chunk(oracle._usage(self.script.prompt_tokens, stream.count))

    def _tokens(self, stream: oracle._Stream, count: int) -> bytes:
        assert isinstance(stream, _TruthStream)
        half = max(1, len(stream.text) // 2)
        texts = (stream.text[:half], stream.text[half:])
        ids = (stream.ids[:1], stream.ids[1:])
        pieces = []
        for piece in range(stream.sent, count):
            if stream.with_ids and ids[piece]:
                delta = oracle._delta(texts[piece], nvext={"completion_token_ids": ids[piece]})
            else:
                delta = oracle._delta(texts[piece])
            pieces.append(oracle._chunk(delta))
        return b"".join(pieces)


class TruthOracle:
    """The server in a thread of this process; a context manager."""

    def __init__(self, known: Knowledge) -> None:
        self._server = _TruthServer(known)
        self.port = self._server.port
        self._thread = threading.Thread(target=self._server.serve, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._server.stop()
        self._thread.join()

    def stats(self) -> oracle.Stats:
        """The counts so far."""
        return self._server.stats


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_set", type=Path)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="m")
    parser.add_argument("--right", type=float, default=0.9)
    parser.add_argument("--ttft-ms", type=float, default=20.0)
    parser.add_argument("--decode-ms", type=float, default=100.0)
    parser.add_argument("--rate", type=float, default=0.0, help="most answers that end per second; 0 = no bound")
    parser.add_argument("--eos", type=int, default=2)
    options = parser.parse_args()
    known = Knowledge(
        data_set=options.data_set,
        benchmark=options.benchmark,
        model=options.model,
        right=options.right,
        ttft_ms=options.ttft_ms,
        decode_ms=options.decode_ms,
        rate=options.rate,
        eos=options.eos,
    )
    server = _TruthServer(known, options.port)
    print(f"listening on {server.port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()


if __name__ == "__main__":
    main()
