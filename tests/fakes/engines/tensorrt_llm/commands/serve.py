"""A `trtllm-serve` without an engine: takes the real one's flags, answers its paths, streams eight words.

Refuses what the real one refuses: an unknown flag, an options file that is not there or lets KV blocks be reused.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

WORDS = ("one", " two", " three", " four", " five", " six", " seven", " eight")


class Handler(BaseHTTPRequestHandler):
    """One connection; each request names the model that the server serves."""

    protocol_version = "HTTP/1.1"
    model = ""

    def do_GET(self) -> None:
        """Health, models, metrics."""
        listing = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
        pages = {"/health": "", "/v1/models": json.dumps(listing), "/metrics": "[]"}
        page = pages.get(self.path)
        self._answer(200 if page is not None else 404, (page or "").encode(), "application/json")

    def do_POST(self) -> None:
        """A chat completion, streamed."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] != self.model:
            self._answer(404, b'{"error": "no such model"}', "application/json")
            return
        events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in WORDS]
        events[-1]["choices"][0]["finish_reason"] = "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": len(WORDS), "total_tokens": 10 + len(WORDS)}
        events.append({"choices": [], "usage": usage})
        stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self._answer(200, stream.encode(), "text/event-stream")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The real one logs requests only when asked."""


@click.group()
def main() -> None:
    """Commands."""


@main.command()
@click.argument("model")
@click.option("--served_model_name")
@click.option("--host", required=True)
@click.option("--port", type=int, required=True)
@click.option("--backend", type=click.Choice(["pytorch"]))
@click.option("--tp_size", type=int, default=1)
@click.option("--ep_size", type=int)
@click.option("--max_batch_size", type=int)
@click.option("--max_num_tokens", type=int)
@click.option("--max_seq_len", type=int)
@click.option("--num_postprocess_workers", type=int)
@click.option("--trust_remote_code", is_flag=True)
@click.option("--config", type=click.Path(exists=True, path_type=Path), required=True)
def serve(model: str, served_model_name: str, host: str, port: int, config: Path, **_others: object) -> None:
    """Serve."""
    options = json.loads(config.read_text())
    if options["kv_cache_config"]["enable_block_reuse"] or not Path(model).is_dir():
        sys.exit("refused")
    handler = type("Served", (Handler,), {"model": served_model_name})
    ThreadingHTTPServer((host, port), handler).serve_forever()


if __name__ == "__main__":
    main()
