"""Text to token ids and back."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend

from cudaprefill.text.chat_template import ChatTemplate, Message, check_messages, check_unicode
from cudaprefill.text.control_tokens import ControlTokens
from cudaprefill.text.tokenizer_cache import load_tokenizer_files
from cudaprefill.text.tokenizer_files import TokenizerFiles

# Nothing is gained by more threads for one text, and a process that has used them is warned whenever it forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizer:
    """The tokenizer of a model and its chat template. Safe to use from several threads.

    vocab_size: tokens it knows; the model's embedding may have more rows.
    bos_token_id, eos_token_id: None where the model has none.
    control_token_ids: the tokens marked as special.
    byte_token_ids: of a vocabulary with byte fallback, the 256 tokens <0x00> .. <0xFF>; else empty.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self.backend = Backend.from_str(files.backend)
        self.backend.no_truncation()
        self.backend.no_padding()
        self.chat_template = ChatTemplate(files.chat_template, files.special_tokens)
        self.vocab_size: int = self.backend.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = self._id_of(files.special_tokens.get("bos_token"))
        self.eos_token_id = self._id_of(files.special_tokens.get("eos_token"))
        self._control_tokens = ControlTokens(self.backend)
        self.control_token_ids: frozenset[int] = self._control_tokens.ids
        self.byte_token_ids = self._find_byte_tokens()
        self._letter = self._id_of("a")
        self._adds_bos = self.bos_token_id is not None and self.backend.encode("").ids[:1] == [self.bos_token_id]

    @classmethod
    def load(cls, path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> Tokenizer:
        """Of a Hugging Face folder or a GGUF file; seconds the first time, a fraction of one from the cache.

        Raises ValueError with the path and the reason where there is none or where it cannot be read rightly.
        """
        return cls(load_tokenizer_files(path, cache_dir))

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_control_tokens: bool = True) -> list[int]:
        """The token ids of a prompt.

        add_special_tokens: add what the tokenizer puts around a prompt, as a rule BOS; a prompt that begins with BOS
            already keeps that one.
        parse_control_tokens: read the spelling of a control token ("<|im_end|>") as that token, else as text.
        Raises ValueError for lone surrogates.
        """
        check_unicode("text", text)
        backend = self.backend if parse_control_tokens else self._backend_without_control_tokens
        # Unlike encode, the batch call lets go of the interpreter's lock: a long text stalls no other thread.
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        if add_special_tokens and self._adds_bos and ids[:2] == [self.bos_token_id, self.bos_token_id]:
            del ids[0]
        return ids

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: object,
    ) -> list[int]:
        """The token ids of a chat, rendered by the model's template; `variables` are handed to the template.

        Control tokens come from the template alone, never from messages. BOS is the template's to write.
        Raises ValueError saying which message, or what about the template, is wrong.
        """
        checked = check_messages(messages)
        guarded = self._control_tokens.guard(checked)
        guarded_variables = self._control_tokens.guard(variables)
        rendered = self.chat_template.render(
            guarded,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **guarded_variables,
        )
        if guarded == checked and guarded_variables == variables:
            return self.encode(rendered, add_special_tokens=False)
        text = self._control_tokens.respell(rendered)
        return self.encode(text, add_special_tokens=False, parse_control_tokens=False)

    def encode_next_turn(
        self,
        messages: Sequence[Message],
        *,
        answer: int,
        known_token_ids: Sequence[int],
        known_variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a chat that goes on, beginning with those that its prefix was computed with.

        answer: `messages[answer]` is what a model said last; what comes behind it is new.
        known_token_ids: of the chat up to and with that answer, without the token that ended it. A model does not
            always write text the way a tokenizer would, so encoding the text again might find little in the prefix
            cache.
        known_variables: what the template was handed when that answer was opened; `variables`: what it is handed now.

        Where the template writes an answer in another way than it opens one, or does not close it with a control
        token (at which tokenizers start anew), the whole chat is encoded as by `encode_chat`, and as there ValueError
        is raised.
        """
        checked = check_messages(messages)
        guarded = self._control_tokens.guard(checked)
        given = dict(variables or {})
        seam = f"\ue004{secrets.token_hex(8)}\ue005"
        opened = self.chat_template.render(
            guarded[:answer], add_generation_prompt=True, **self._control_tokens.guard(dict(known_variables or {}))
        )
        marked = [*guarded[:answer], {**guarded[answer], "content": seam}, *guarded[answer + 1 :]]
        rendered = self.chat_template.render(
            marked, add_generation_prompt=add_generation_prompt, **self._control_tokens.guard(given)
        )
        before, _, behind = rendered.partition(seam)
        behind = self._control_tokens.respell(behind)
        if before == opened and seam not in behind and self._control_tokens.begins_with_control_token(behind):
            return [*known_token_ids, *self.encode(behind, add_special_tokens=False, parse_control_tokens=False)]
        return self.encode_chat(messages, add_generation_prompt=add_generation_prompt, **given)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids that the tokenizer does not know are left out."""
        text: str = self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token_id: int) -> str:
        """The text of one token within a text, as log-probabilities show it: with the space it begins with."""
        if self._letter is None:
            return self.decode([token_id], skip_special_tokens=False)
        # The first token of a text may lose its space, so another one goes in front.
        return self.decode([self._letter, token_id], skip_special_tokens=False)[1:]

    @cached_property
    def _backend_without_control_tokens(self) -> Backend:
        return self._control_tokens.respelled_backend(self.backend)

    def _id_of(self, token: str | None) -> int | None:
        token_id: int | None = None if token is None else self.backend.token_to_id(token)
        return token_id

    def _find_byte_tokens(self) -> frozenset[int]:
        ids = [self._id_of(f"<0x{byte:02X}>") for byte in range(256)]
        letter = ids[ord("A")]
        if letter is None or self.decode([letter]) != "A":
            return frozenset()
        return frozenset(token_id for token_id in ids if token_id is not None)
