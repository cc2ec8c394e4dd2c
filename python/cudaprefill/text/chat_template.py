"""Renders a chat with the model's own template, by transformers' rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import signature
from typing import Any

from cudaprefill.sampling_params import show
from cudaprefill.text.template_variables import check_variables, free_variables

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

Message = Mapping[str, Any]  # {"role": ..., "content": a string or a list of {"type": "text", "text": ...}, ...}


def template_engine() -> Any:
    """The class that renders chats. The first call imports it, which takes 0.3 s."""
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    return PreTrainedTokenizerBase


class ChatTemplate:
    """A Jinja template and the special tokens it may write.

    Raises ValueError saying what is wrong, with the template or with the messages.
    """

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: object,
    ) -> str:
        """The chat as one string. `variables` are handed to the template."""
        try:
            rendered: str = self._renderer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **variables,
            )
        except Exception as error:  # a template is a program; whatever it raises is about these messages
            raise ValueError(f"the chat template does not take these messages: {error}") from error
        return rendered

    def check_variables(self, variables: object) -> dict[str, Any]:
        """What a request sets of the template's own variables. Raises ValueError naming what cannot be set."""
        if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
            raise ValueError(f"chat_template_kwargs must map names to values, got {show(variables)}")
        if variables:
            check_variables(variables, self._free_variables)
            for value in variables.values():
                if isinstance(value, str):
                    check_unicode("chat_template_kwargs", value)
        return dict(variables)

    @cached_property
    def _free_variables(self) -> frozenset[str]:
        from jinja2 import TemplateError

        settings = signature(self._renderer.apply_chat_template).parameters.keys()  # it would take them for its own
        try:
            return free_variables(self._require_source()) - settings
        except TemplateError as error:
            raise ValueError(f"the chat template is none: {error}") from error

    def _require_source(self) -> str:
        if self.source is None:
            raise ValueError("the model has no chat template; use generate with a prompt instead of chat")
        return self.source

    @cached_property
    def _renderer(self) -> Any:
        source = self._require_source()
        return template_engine()(chat_template=source, **self._special_tokens)


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Messages as templates want them: every content one string (text parts are joined by line ends).

    Raises ValueError naming the message and what is wrong with it.
    """
    if not isinstance(messages, (list, tuple)):
        raise ValueError(f"messages must be a list, got {type(messages).__name__}")
    if not messages:
        raise ValueError("messages must not be empty")
    return [_check_message(f"messages[{number}]", message) for number, message in enumerate(messages)]


def check_unicode(name: str, text: str) -> None:
    """Raises ValueError naming the place where `text` has half of a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be valid Unicode, but character {error.start} is a lone surrogate") from None


def _check_message(name: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError(f"{name} must be a dict with role and content, got {type(message).__name__}")
    for field in ("role", "content"):
        if field not in message:
            raise ValueError(f"{name} has no {field}")
    role = message["role"]
    if role not in ROLES:
        raise ValueError(f"{name}: role must be one of {', '.join(ROLES)}, got {show(role)}")
    return {**message, "content": _content(f"{name}: content", message["content"])}


def _content(name: str, content: object) -> str:
    if isinstance(content, str):
        check_unicode(name, content)
        return content
    if not isinstance(content, (list, tuple)):
        raise ValueError(f"{name} must be a string or a list of text parts, got {type(content).__name__}")
    texts = []
    for number, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"{name}[{number}] must be {{'type': 'text', 'text': ...}}, got {show(part)}")
        check_unicode(f"{name}[{number}]", part["text"])
        texts.append(part["text"])
    return "\n".join(texts)
