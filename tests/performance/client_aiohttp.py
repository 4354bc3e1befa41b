"""The usual way, to compare with: aiohttp on uvloop, a task per request, JSON of every chunk.

`python -m tests.performance.client_aiohttp DIRECTORY` reads `load.json` there and writes `ttft_ms.json`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

_SEED = 7


async def _one(session: aiohttp.ClientSession, url: str, prompt: str, tokens: int, scheduled_s: float) -> float:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first_s = 0.0
    async with session.post(url, json=body) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(line[6:])
            if not first_s and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                first_s = time.monotonic()
    return (first_s - scheduled_s) * 1000


async def _run(load: dict[str, Any]) -> list[float]:
    url = f"http://127.0.0.1:{load['port']}/v1/chat/completions"
    tokens = load["tokens"]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        if load["qps"] is None:
            places = asyncio.Semaphore(load["in_flight"])

            async def in_turn(prompt: str) -> float:
                async with places:
                    return await _one(session, url, prompt, tokens, time.monotonic())

            return list(await asyncio.gather(*map(in_turn, load["prompts"])))
        draw = random.Random(_SEED)
        due_s = time.monotonic()
        tasks = []
        for prompt in load["prompts"]:
            due_s += draw.expovariate(load["qps"])
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            tasks.append(asyncio.create_task(_one(session, url, prompt, tokens, due_s)))
        return list(await asyncio.gather(*tasks))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    times_ms = uvloop.run(_run(json.loads((directory / "load.json").read_text())))
    (directory / "ttft_ms.json").write_text(json.dumps(times_ms))
