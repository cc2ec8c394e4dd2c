"""A request sets variables of a chat template that are the template's own, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from cudaprefill.text.chat_template import ChatTemplate
from cudaprefill.text.template_variables import free_variables

THINKING = (
    "{%- set names = namespace(last='') -%}{{ bos_token }}"
    "{%- for message in messages -%}{%- set names.last = message.role -%}"
    "{{ message.content }}{% if loop.last %}{% break %}{% endif %}{%- endfor -%}"
    "{% generation %}{{ dict(a=1).a }}{% endgeneration %}"
    "{%- if not date_string is defined %}{% set date_string = strftime_now('%d') if false else '1 May' %}{% endif -%}"
    "[{{ date_string }}]"
    "{%- if add_generation_prompt %}<answer>"
    "{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{% endif -%}"
)
MESSAGES = [{"role": "user", "content": "hi"}]


def test_the_variables_are_those_that_nobody_else_gives() -> None:
    assert free_variables(THINKING) == {"enable_thinking", "date_string"}
    assert free_variables("{{ messages }}") == frozenset()


@pytest.mark.parametrize(
    ("variables", "rendered"),
    [
        ({}, "<s>hi1[1 May]<answer>"),
        ({"enable_thinking": True}, "<s>hi1[1 May]<answer>"),
        ({"enable_thinking": False}, "<s>hi1[1 May]<answer><think></think>"),
        ({"date_string": "2 May"}, "<s>hi1[2 May]<answer>"),
    ],
)
def test_the_template_sees_what_is_set(variables: dict[str, Any], rendered: str) -> None:
    template = ChatTemplate(THINKING, {"bos_token": "<s>"})
    assert template.render(MESSAGES, **template.check_variables(variables)) == rendered


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"invented": 1}, "'invented', but the model's chat template reads only date_string, enable_thinking"),
        ({"messages": []}, "has 'messages', but"),
        ({"add_generation_prompt": False}, "has 'add_generation_prompt', but"),
        ({"enable_thinking": "false"}, "enable_thinking must be true or false, got 'false'"),
        ({"enable_thinking": 0}, "enable_thinking must be true or false, got 0"),
        ({"date_string": ["x"]}, "date_string must be a boolean, a number or a string"),
        ({"date_string": None}, "date_string must be a boolean, a number or a string, got None"),
        ({"date_string": "\ud800"}, "lone surrogate"),
        ({1: 2}, "must map names to values"),
        ([], "must map names to values"),
    ],
)
def test_what_cannot_be_set_is_named(variables: Any, reason: str) -> None:
    with pytest.raises(ValueError, match="chat_template_kwargs") as refused:
        ChatTemplate(THINKING, {}).check_variables(variables)
    assert reason in str(refused.value)


@pytest.mark.parametrize("name", ["chat_template", "conversation", "tokenize", "return_dict"])
def test_a_setting_of_the_renderer_is_no_variable(name: str) -> None:
    """`chat_template` would otherwise be a template of the request's own."""
    template = ChatTemplate(f"{{{{ messages[0].content }}}}{{{{ {name} }}}}{{{{ mood }}}}", {})
    with pytest.raises(ValueError, match=f"has '{name}', but the model's chat template reads only mood"):
        template.check_variables({name: "{{ 6 * 7 }}"})
    assert template.render(MESSAGES, **template.check_variables({"mood": "!"})) == "hi!"


def test_without_a_template_nothing_is_set() -> None:
    with pytest.raises(ValueError, match="no chat template"):
        ChatTemplate(None, {}).check_variables({"enable_thinking": True})
    with pytest.raises(ValueError, match="reads none that a request sets"):
        ChatTemplate("{{ messages }}", {}).check_variables({"enable_thinking": True})
    with pytest.raises(ValueError, match="the chat template is none"):
        ChatTemplate("{% if %}", {}).check_variables({"x": True})
