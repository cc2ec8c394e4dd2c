"""What llama.cpp gives each token of some windows of token ids; run with the Python that has llama-cpp-python.

    python llama_cpp_logprobs.py MODEL.gguf THREADS < windows.json > answer.json

Reads a list of lists of token ids. Writes, for each window and each of its tokens but the first, the token's
log-probability and the most likely token instead.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from llama_cpp import Llama


def main() -> None:
    windows = json.load(sys.stdin)
    longest, threads = max(map(len, windows)), int(sys.argv[2])
    model = Llama(
        sys.argv[1],
        n_ctx=longest,
        n_batch=longest,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=True,
        verbose=False,
    )
    answer = []
    for window in windows:
        model.reset()
        model.eval(window)
        logits = model.scores[: len(window) - 1].astype(np.float64)
        greatest = logits.max(axis=1, keepdims=True)
        sums = np.log(np.exp(logits - greatest).sum(axis=1)) + greatest[:, 0]
        chosen = logits[np.arange(len(logits)), window[1:]]
        answer.append({"logprobs": (chosen - sums).tolist(), "best": logits.argmax(axis=1).tolist()})
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
