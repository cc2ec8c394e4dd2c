"""Whatever is wrong with a GGUF file: it is read, or refused by this project's own errors, which name the file."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.models import UnsupportedModelError, WeightsError, load_model
from tests.models.damage import at_most_more_memory, damaged, nothing_is_left_open
from tests.models.gguf_files import write_gguf
from tests.models.tiny import tiny_model

ABSURD = [0, 1, 2, 3, 7, 31, 33, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}  # by type
STRING, ARRAY = 8, 9


def walk_header(content: bytes) -> tuple[list[tuple[int, str]], int, int]:
    """Where the numbers of the header lie and what they are in `struct`: counts, lengths, types, values, shapes.

    And where the metadata ends, and the header.
    """
    fields: list[tuple[int, str]] = []
    offset = 4

    def number(layout: str) -> int:
        nonlocal offset
        fields.append((offset, layout))
        (value,) = struct.unpack_from(f"<{layout}", content, offset)
        offset += struct.calcsize(layout)
        return value

    def string() -> None:
        nonlocal offset
        length = number("Q")
        offset += length

    def value(kind: int) -> None:
        if kind == STRING:
            string()
        elif kind == ARRAY:
            of, count = number("I"), number("Q")
            for _ in range(count):
                value(of)
        else:
            number(NUMBERS[kind])

    number("I")
    num_tensors, num_pairs = number("Q"), number("Q")
    for _ in range(num_pairs):
        string()
        value(number("I"))
    end_of_pairs = offset
    for _ in range(num_tensors):
        string()
        for _ in range(number("I")):
            number("Q")
        number("I")
        number("Q")
    return fields, end_of_pairs, offset


@dataclass
class Whole:
    """A good file, which is not to be shown."""

    content: bytes = field(repr=False)

    @cached_property
    def walked(self) -> tuple[list[tuple[int, str]], int, int]:
        return walk_header(self.content)

    @property
    def fields(self) -> list[tuple[int, str]]:
        return self.walked[0]

    def with_pair(self, key: str, value: bytes) -> bytes:
        """With one more pair of metadata, which counts instead of an earlier one; `value` begins with its type."""
        _, end_of_pairs, end = self.walked
        (num_pairs,) = struct.unpack_from("<Q", self.content, 16)
        counts = self.content[:16] + struct.pack("<Q", num_pairs + 1)
        pair = struct.pack("<Q", len(key)) + key.encode() + value
        header = counts + self.content[24:end_of_pairs] + pair + self.content[end_of_pairs:end]
        return header + bytes(-len(header) % 32) + self.content[end + -end % 32 :]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    kinds = gguf.GGMLQuantizationType
    model = tiny_model("llama", vocab_size=32, num_hidden_layers=1)
    write_gguf(path, model, {"": kinds.Q8_0, "attn_v": kinds.Q4_0, "ffn_down": kinds.F16})
    return Whole(path.read_bytes())


def refusal(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> str | None:
    """What loading such a file says; None: it is loaded."""
    path = tmp_path_factory.getbasetemp() / "a-file.gguf"
    path.write_bytes(content)
    said = None
    with at_most_more_memory(1 << 30):
        try:
            load_model(path, max_model_len=64)
        except (WeightsError, UnsupportedModelError) as error:
            said = str(error)
    nothing_is_left_open(path)
    return said


def test_the_whole_file_is_read(tmp_path_factory: pytest.TempPathFactory, whole: Whole) -> None:
    assert refusal(tmp_path_factory, whole.content) is None
    assert refusal(tmp_path_factory, whole.with_pair("general.name", struct.pack("<IQ", STRING, 0))) is None


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_numbers_of_the_header_are_absurd(
    tmp_path_factory: pytest.TempPathFactory, whole: Whole, data: st.DataObject
) -> None:
    content = bytearray(whole.content)
    for _ in range(data.draw(st.integers(1, 2))):
        offset, layout = data.draw(st.sampled_from(whole.fields))
        if layout in "fd":
            value = data.draw(st.sampled_from([float("nan"), float("inf"), -1.0, 0.0, 1e-45, 3e38]))
            struct.pack_into(f"<{layout}", content, offset, value)
        else:
            before = int.from_bytes(content[offset : offset + struct.calcsize(layout)], "little")
            value = data.draw(st.sampled_from([*ABSURD, before + 1, max(before - 1, 0), 2 * before]))
            size = struct.calcsize(layout)
            content[offset : offset + size] = (value % 256**size).to_bytes(size, "little")
    said = refusal(tmp_path_factory, bytes(content))
    assert said is None or "a-file.gguf" in said


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_bytes_are_changed_lost_and_added(
    tmp_path_factory: pytest.TempPathFactory, whole: Whole, data: st.DataObject
) -> None:
    said = refusal(tmp_path_factory, damaged(data, whole.content, head=whole.fields[-1][0]))
    assert said is None or "a-file.gguf" in said


KEYS = [
    "general.architecture",
    "general.alignment",
    "split.count",
    *(f"tokenizer.ggml.{of}_token_id" for of in ("bos", "eos", "eot")),
    *(f"llama.{of}" for of in ("block_count", "context_length", "embedding_length", "vocab_size", "expert_count")),
    *(f"llama.attention.{of}" for of in ("head_count", "head_count_kv", "key_length", "layer_norm_rms_epsilon")),
    *(f"llama.rope.{of}" for of in ("freq_base", "scaling.type", "scaling.factor", "dimension_count")),
]
NUMBER = st.one_of(
    st.sampled_from([7.0, float("nan"), float("inf"), -1.0]).map(lambda value: struct.pack("<If", 6, value)),
    st.sampled_from([-1, 0, 2**31, 2**63 - 1]).map(lambda value: struct.pack("<Iq", 11, value)),
    st.booleans().map(lambda value: struct.pack("<IB", 7, value)),
)
TEXT = st.sampled_from(["", "linear", "x" * 3000]).map(
    lambda text: struct.pack("<IQ", STRING, len(text)) + text.encode()
)
LIST = st.builds(
    lambda of, count: struct.pack("<IIQ", ARRAY, struct.unpack("<I", of[:4])[0], count) + of[4:] * count,
    NUMBER | TEXT,
    st.integers(0, 3),
)


@settings(max_examples=200, deadline=None)
@given(key=st.sampled_from(KEYS), value=NUMBER | TEXT | LIST)
def test_values_are_of_another_kind(
    tmp_path_factory: pytest.TempPathFactory, whole: Whole, key: str, value: bytes
) -> None:
    said = refusal(tmp_path_factory, whole.with_pair(key, value))
    assert said is None or "a-file.gguf" in said
