"""Converted tokenizers, kept on disk so that only the first start pays for the conversion.

One file a tokenizer, `$XDG_CACHE_HOME/cudaprefill/tokenizers/<key>.json` (default `~/.cache`): a checksum line, then
the content. It is written beside and renamed, so a reader sees a whole file or none, and two starts at once are
harmless. What does not match its checksum is converted anew.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import os
import tempfile
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

from cudaprefill.text.tokenizer_files import TokenizerFiles, convert_tokenizer

FORMAT = 1  # of the cached content; part of the key

# The files of a folder that a tokenizer is read from.
_FOLDER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
# A GGUF file begins with its metadata, vocabulary and all, which for 260,000 tokens is some 12 MiB. Weights that fall
# into the head as well only make the key more particular.
_GGUF_HEAD_BYTES = 32 << 20

logger = logging.getLogger(__name__)


def load_tokenizer_files(
    path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None
) -> TokenizerFiles:
    """The converted tokenizer of `path`, from the cache where it is there and whole. Raises as `convert_tokenizer`."""
    path = Path(path)
    try:
        cached = (Path(cache_dir) if cache_dir else default_cache_dir()) / f"{cache_key(path)}.json"
    except RuntimeError as error:  # a user without a home, as in many containers
        logger.warning("there is no cache (%s); the next start converts the tokenizer again", error)
        return convert_tokenizer(path)
    files = _read(cached)
    if files is None:
        files = convert_tokenizer(path)
        _write(cached, files)
    return files


def default_cache_dir() -> Path:
    """Raises RuntimeError for a user without a home."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "cudaprefill" / "tokenizers"


def cache_key(path: Path) -> str:
    """Differs whenever the conversion could: by what the files hold, by the converter and by FORMAT."""
    digest = blake2b(digest_size=20)
    digest.update(f"{FORMAT} {importlib.metadata.version('transformers')}\n".encode())
    if path.is_dir():
        for name in _FOLDER_FILES:
            with contextlib.suppress(FileNotFoundError):
                content = (path / name).read_bytes()
                digest.update(f"{name} {len(content)}\n".encode() + content)
    elif path.is_file():
        digest.update(f"{path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_GGUF_HEAD_BYTES))
    return digest.hexdigest()


def _read(cached: Path) -> TokenizerFiles | None:
    try:
        checksum, content = cached.read_bytes().split(b"\n", 1)
        if checksum == _checksum(content):
            return TokenizerFiles(**json.loads(content))
        logger.warning("%s is damaged; the tokenizer is converted anew", cached)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s); the tokenizer is converted anew", cached, error)
    return None


def _write(cached: Path, files: TokenizerFiles) -> None:
    content = json.dumps(asdict(files)).encode()
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=cached.parent, prefix=cached.stem, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_checksum(content) + b"\n" + content)
            os.replace(temporary, cached)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        logger.warning("%s cannot be written (%s); the next start converts the tokenizer again", cached, error)


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=20).hexdigest().encode()
