"""Only the first start converts a tokenizer, and no state of the cache does harm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cudaprefill.text import tokenizer_cache
from cudaprefill.text.tokenizer import Tokenizer
from cudaprefill.text.tokenizer_cache import cache_key, default_cache_dir, load_tokenizer_files
from cudaprefill.text.tokenizer_files import convert_tokenizer
from tests.text import made_tokenizers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made_tokenizers.write_folder(tmp_path / "model", made_tokenizers.byte_level())


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that were converted, as it happens."""
    converted: list[Path] = []
    convert = tokenizer_cache.convert_tokenizer
    monkeypatch.setattr(tokenizer_cache, "convert_tokenizer", lambda path: (converted.append(path), convert(path))[1])
    return converted


def only_file(cache: Path) -> Path:
    (cached,) = cache.iterdir()
    return cached


def test_the_second_load_converts_nothing(folder: Path, tmp_path: Path, conversions: list[Path]) -> None:
    first = load_tokenizer_files(folder, tmp_path / "cache")
    assert load_tokenizer_files(folder, tmp_path / "cache") == first
    assert conversions == [folder]


def test_loading_from_the_cache_imports_neither_torch_nor_transformers(smollm2_path: Path, smollm2_cache: Path) -> None:
    Tokenizer.load(smollm2_path, smollm2_cache)
    code = (
        "import sys; from cudaprefill.text.tokenizer import Tokenizer;"
        "assert Tokenizer.load(sys.argv[1], sys.argv[2]).encode('12') == [33, 34];"
        "assert not {'torch', 'transformers', 'gguf'} & set(sys.modules)"
    )
    source = str(Path(tokenizer_cache.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source}
    subprocess.run([sys.executable, "-c", code, smollm2_path, smollm2_cache], check=True, env=environment)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: content.replace(b"think", b"thunk", 1),
        lambda content: b"\0" * len(content),
        lambda content: b"{}",
        lambda content: content.split(b"\n", 1)[1],
    ],
)
def test_a_damaged_file_is_made_anew(
    folder: Path, tmp_path: Path, conversions: list[Path], damage: Callable[[bytes], bytes]
) -> None:
    first = load_tokenizer_files(folder, tmp_path / "cache")
    cached = only_file(tmp_path / "cache")
    whole = cached.read_bytes()
    cached.write_bytes(damage(whole))
    assert load_tokenizer_files(folder, tmp_path / "cache") == first
    assert cached.read_bytes() == whole
    assert len(conversions) == 2


def test_a_folder_in_the_place_of_the_file_costs_a_conversion_and_no_more(
    folder: Path, tmp_path: Path, conversions: list[Path]
) -> None:
    first = load_tokenizer_files(folder, tmp_path / "cache")
    cached = only_file(tmp_path / "cache")
    cached.unlink()
    cached.mkdir()
    assert load_tokenizer_files(folder, tmp_path / "cache") == first
    assert len(conversions) == 2
    assert not list((tmp_path / "cache").glob("*.tmp"))


def test_a_cache_that_cannot_be_written_is_done_without(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert load_tokenizer_files(folder, tmp_path / "file" / "cache").special_tokens["bos_token"] == "<s>"


def test_starts_at_the_same_time_do_not_disturb_each_other(folder: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(lambda _: load_tokenizer_files(folder, tmp_path / "cache"), range(8)))
    assert all(files == loaded[0] for files in loaded)
    assert only_file(tmp_path / "cache").suffix == ".json"


def test_every_change_of_the_files_is_another_tokenizer(folder: Path, tmp_path: Path) -> None:
    keys = [cache_key(folder)]
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    keys.append(cache_key(folder))
    (folder / "tokenizer_config.json").write_text("{}")
    keys.append(cache_key(folder))
    (folder / "unrelated.txt").write_text("not part of a tokenizer")
    assert cache_key(folder) == keys[-1]
    for pre in ("smollm", "gpt-2"):
        keys.append(cache_key(made_tokenizers.write_gguf(tmp_path / f"{pre}.gguf", pre)))
    assert len(set(keys)) == 5


def test_the_cache_lies_where_the_xdg_base_directories_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "cudaprefill" / "tokenizers"
    for relative in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert default_cache_dir() == tmp_path / ".cache" / "cudaprefill" / "tokenizers"


def test_a_user_without_a_home_gets_a_tokenizer_that_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert load_tokenizer_files(folder) == convert_tokenizer(folder)
