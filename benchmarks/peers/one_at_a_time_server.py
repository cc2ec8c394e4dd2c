"""OpenAI's completions endpoint before an engine that has no server of its own, one request at a time.

Run with the Python that has the engine; needs nothing else:

    python one_at_a_time_server.py llama.cpp|transformers --model PATH --port N [--threads N]

The engine lives in this process; a request that comes while another runs waits for it. Text is left out of the events,
for the client counts tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONTEXT = 8192

Generate = Callable[[list[int]], Generator[int, None, None]]  # greedy tokens without end


def llama_cpp(path: str, threads: int) -> Generate:
    """Keeps the KV of the last request, as the package does by itself: an equal beginning is not computed again."""
    from llama_cpp import Llama

    model = Llama(path, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False)
    return lambda prompt: model.generate(prompt, temp=0.0)


def transformers(path: str, threads: int) -> Generate:
    """A forward pass for the prompt and one a token, in float32; nothing is kept of a request."""
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def generate(prompt: list[int]) -> Generator[int, None, None]:
        cache, tokens = DynamicCache(config=model.config), prompt
        while True:
            with torch.inference_mode():
                output = model(torch.tensor([tokens]), past_key_values=cache, logits_to_keep=1)
            tokens = [int(output.logits[0, -1].argmax())]
            yield tokens[0]

    return generate


ENGINES = {"llama.cpp": llama_cpp, "transformers": transformers}


def make_handler(generate: Generate, name: str) -> type[BaseHTTPRequestHandler]:
    engine_is_free = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._begin("application/json")
            self.wfile.write(json.dumps({"object": "list", "data": [{"id": name, "object": "model"}]}).encode())

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            # Closed before the next request may begin: until then it has its memory.
            with engine_is_free, contextlib.closing(generate(request["prompt"])) as tokens:
                self._begin("text/event-stream")
                for count in range(1, request["max_tokens"] + 1):
                    next(tokens)
                    self._send({"choices": [{"index": 0, "text": ""}]}, len(request["prompt"]), count)
            self.wfile.write(b"data: [DONE]\n\n")

        def _begin(self, content_type: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()

        def _send(self, event: dict[str, Any], num_prompt_tokens: int, num_tokens: int) -> None:
            event["usage"] = {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    return Handler


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # connections that may come at once; the standard library's 5 resets the others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--model", required=True, help="what the engine reads: a GGUF file or a folder")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    flags = parser.parse_args()
    handler = make_handler(ENGINES[flags.engine](flags.model, flags.threads), flags.engine)
    Server(("127.0.0.1", flags.port), handler).serve_forever()


if __name__ == "__main__":
    main()
