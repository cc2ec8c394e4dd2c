"""The tests for a GPU need little else: a machine that is lent for them may have no package registry."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRESENT = {
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "safetensors",
    "jinja2",
    "pytest",
    "cmake",
    "ninja",
    "pybind11",
}
IMPORT_NAMES = {
    "pytest-timeout": "pytest_timeout",
    "opentelemetry-sdk": "opentelemetry",
    "jsonschema-rs": "jsonschema_rs",
}

COLLECT = """
import sys
import pytest

sys.modules.update(dict.fromkeys(sys.argv[1].split()))  # whoever imports one of them does not find it
sys.exit(pytest.main(["-q", "--collect-only", "-m", "gpu", "tests/cuda"]))
"""


def test_the_gpu_tests_are_found_where_most_packages_are_missing():
    listed = [
        line for name in ("requirements.txt", "requirements-dev.txt") for line in (ROOT / name).read_text().split("\n")
    ]
    names = {re.split("[=;<> ]", line)[0] for line in listed if line and not line.startswith("#")}
    assert names > PRESENT
    missing = {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names - PRESENT} - {"pydantic", "setuptools"}
    command = [sys.executable, "-c", COLLECT, " ".join(sorted(missing))]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    left_out = re.findall(r"^SKIPPED \[1\] tests/cuda/(\w+)\.py", run.stdout, re.M)
    # Hypothesis on a real device, and adapters that their own library trains; the others are of the emulated device.
    assert set(left_out) <= {
        "test_attention_properties",
        "test_lora_on_cuda",
        "test_hopper",
        "test_hopper_decode",
        "test_hopper_mixed",
    }
    assert "tests/cuda/test_ops_on_cuda.py::" in run.stdout
