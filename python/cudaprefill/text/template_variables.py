"""The variables of a chat template that a request may set: enable_thinking of Qwen3, date_string of Llama 3, ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudaprefill.sampling_params import show

# What everybody else gives a template: the messages, their frame, special tokens, and functions of transformers.
_OTHERS = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
        *("additional_special_tokens", "raise_exception", "strftime_now"),
    }
)
# Templates compare these with true and false: of any other value they would take no notice.
_SWITCHES = frozenset({"enable_thinking", "thinking"})


def free_variables(source: str) -> frozenset[str]:
    """Names that a template reads and a request may set. Raises jinja2.TemplateError for what is no template."""
    from jinja2 import Environment, meta, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        """{% generation %} of transformers, which marks what an assistant has said."""

        tags = {"generation"}  # noqa: RUF012  (as jinja2 has it)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = Environment(extensions=[Generation, "jinja2.ext.loopcontrols"])
    return frozenset(meta.find_undeclared_variables(environment.parse(source))) - _OTHERS


def check_variables(given: Mapping[str, Any], free: frozenset[str]) -> None:
    """Raises ValueError for a variable that is not `free` to be set, and for a value that no template is made for."""
    for name, value in given.items():
        if name not in free:
            of_template = f"only {', '.join(sorted(free))}" if free else "none that a request sets"
            raise ValueError(
                f"chat_template_kwargs has {show(name)}, but the model's chat template reads {of_template}"
            )
        if name in _SWITCHES and not isinstance(value, bool):
            raise ValueError(f"chat_template_kwargs: {name} must be true or false, got {show(value)}")
        if not isinstance(value, (bool, int, float, str)):
            raise ValueError(f"chat_template_kwargs: {name} must be a boolean, a number or a string, got {show(value)}")
