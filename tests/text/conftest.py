from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from cudaprefill.models import default_model_path
from cudaprefill.text.tokenizer import Tokenizer
from tests.text import made_tokenizers

settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    try:
        return default_model_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path, smollm2_cache: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_path, smollm2_cache)


@pytest.fixture(scope="session")
def smollm2_of_transformers(smollm2_path: Path) -> Any:
    """As transformers alone makes it of the GGUF file, which is right for text without digits."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    return Tokenizer(made_tokenizers.files(made_tokenizers.byte_fallback()))


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(made_tokenizers.files(made_tokenizers.byte_level()))
