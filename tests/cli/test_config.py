"""Settings are checked where they enter, with their name and value."""

from __future__ import annotations

import pytest

from cudaprefill.cli.engine_flags import engine_config
from cudaprefill.cli.main import build_parser
from cudaprefill.config import EngineConfig, format_bytes, parse_bytes, parse_count


@pytest.mark.parametrize(
    ("text", "count"), [("8192", 8192), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("2M", 2 * 2**20), ("0", 0)]
)
def test_counts_are_read_as_vllm_reads_them(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "-1", "8kk", "k", "1.0001k", "0x10", "1e3", "nan"])
def test_a_count_that_is_none_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="got"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2**31), ("1G", 2**30), ("512MB", 512 * 10**6), ("100", 100), ("1.5 GiB", 3 * 2**29)]
)
def test_memory_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_memory_for_a_person() -> None:
    assert [format_bytes(count) for count in (10, 754974, 2**31)] == ["10 B", "737.3 KiB", "2.0 GiB"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("dtype", "int4"),
        ("linear_math", "int4"),
        ("device", "tpu"),
        ("block_size", 17),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", float("nan")),
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", True),
        ("max_model_len", 1),
        ("kv_cache_memory", -5),
        ("threads", 1.5),
        ("max_num_queued_reqs", -1),
        ("max_num_batched_tokens", 10**12),
        ("max_num_seqs", 2**31),
        ("threads", 100_000),
        ("block_size", 16.0),
        ("gpu_memory_utilization", "0.9"),
        ("enable_prefix_caching", "no"),
        ("enforce_eager", 1),
        ("device", 0),
        ("model", 7),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{setting}.*{value}"):
        EngineConfig(**{setting: value})  # type: ignore[arg-type]


def test_the_baseline_line_of_vllm_is_understood() -> None:
    flags = (
        "--model M --block-size 16 --enable-prefix-caching --max-num-batched-tokens 8K --gpu-memory-utilization 0.90"
    )
    config = engine_config(build_parser().parse_args(["info", *flags.split()]))
    assert (config.model, config.block_size, config.enable_prefix_caching) == ("M", 16, True)
    assert (config.max_num_batched_tokens, config.gpu_memory_utilization) == (8192, 0.90)


def test_prefix_caching_can_be_turned_off() -> None:
    assert not engine_config(build_parser().parse_args(["info", "--no-enable-prefix-caching"])).enable_prefix_caching


def test_cuda_graphs_can_be_turned_off() -> None:
    assert not engine_config(build_parser().parse_args(["info"])).enforce_eager
    assert engine_config(build_parser().parse_args(["info", "--enforce-eager"])).enforce_eager
