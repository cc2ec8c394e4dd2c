"""From a request, and the turn that it goes on from, to the messages and the token ids of its prompt."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cudaprefill.protocol.codec import ProtocolError
from cudaprefill.protocol.responses import InputMessage, Response, ResponseBody
from cudaprefill.server.responses.store import StoredTurn
from cudaprefill.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Turn:
    """A turn that is about to run.

    messages: the conversation up to here, without instructions.
    variables: what this turn hands to the chat template.
    known, num_known, known_variables: as in StoredTurn, of the turn before.
    """

    messages: tuple[dict[str, str], ...]
    instructions: str | None
    variables: dict[str, Any]
    prompt_token_ids: list[int]
    known: array[int]
    num_known: int
    known_variables: Mapping[str, Any]

    def answered(self, response: Response, token_ids: list[int], stop_reason: int | str | None) -> StoredTurn:
        """With the answer behind it.

        token_ids: all that the model gave; stop_reason: as the engine says, the token or the string that ended it.
        """
        messages = (*self.messages, {"role": "assistant", "content": response.output_text})
        if isinstance(stop_reason, str):  # the tokens say more than the text does
            return StoredTurn(response, messages, self.instructions)
        ended_by_token = response.status == "completed"
        kept = token_ids[:-1] if ended_by_token else token_ids
        known = array("i", self.prompt_token_ids)
        known.extend(kept)
        return StoredTurn(response, messages, self.instructions, known, len(messages), self.variables)

    def prepared(self, response: Response) -> StoredTurn:
        """Without an answer, as `generate: false` leaves it."""
        return StoredTurn(response, self.messages, self.instructions, self.known, self.num_known, self.known_variables)


def take_turn(tokenizer: Tokenizer, body: ResponseBody, previous: StoredTurn | None) -> Turn:
    """Renders and tokenizes: work for a thread. Raises ValueError saying what is wrong with the messages or variables.

    The prompt begins with the very tokens of the turn before wherever the template and equal instructions allow it, so
    that all their KV is found again.
    """
    earlier = () if previous is None else previous.messages
    messages = (*earlier, *_messages(body))
    instructions = body.instructions or None
    prepares = body.generate is False
    nothing_new = body.input is None and (not earlier or earlier[-1]["role"] == "assistant")
    if nothing_new and not (prepares and instructions):
        raise ProtocolError("input is missing", "input")
    variables = tokenizer.chat_template.check_variables(body.chat_template_kwargs or {})
    system = [] if instructions is None else [{"role": "system", "content": instructions}]
    if previous is not None and previous.num_known and previous.instructions == instructions:
        known, num_known, known_variables = previous.known_token_ids, previous.num_known, previous.known_variables
        token_ids = tokenizer.encode_next_turn(
            [*system, *messages],
            answer=len(system) + num_known - 1,
            known_token_ids=known,
            known_variables=known_variables,
            add_generation_prompt=not prepares,
            variables=variables,
        )
    else:
        known, num_known, known_variables = array("i"), 0, {}
        token_ids = tokenizer.encode_chat([*system, *messages], add_generation_prompt=not prepares, **variables)
    return Turn(messages, instructions, variables, token_ids, known, num_known, known_variables)


def _messages(body: ResponseBody) -> list[dict[str, str]]:
    if body.input is None:
        return []
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}]
    return [{"role": message.role, "content": _text(message)} for message in body.input]


def _text(message: InputMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content)
