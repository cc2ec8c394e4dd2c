"""This engine beside others, over the same endpoint, in one run: `python -m benchmarks.peers`."""
