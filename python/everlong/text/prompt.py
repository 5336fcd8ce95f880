"""A question as the tokens the model reads, and where in them the question's own words stand."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from everlong.text.encoding import encode
from everlong.text.messages import Message, with_system_in_turn
from everlong.text.safe_rendering import Place, RenderedConversation

_EARLIER_ANSWER = "(earlier answer)"


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A question as token ids, and where its own words stand."""

    ids: torch.Tensor  # [n] int64
    question: slice  # the tokens of the question itself, without the chat template around it
    # What was said right before, where the question goes on from it (text/follow_up.py): a search heeds it.
    before: torch.Tensor | None = None  # [m] int64

    def without_first(self) -> Prompt:
        """Return it without its first token, which is not one of the question's."""
        question = slice(self.question.start - 1, self.question.stop - 1)
        return dataclasses.replace(self, ids=self.ids[1:], question=question)

    def behind(self, ids: torch.Tensor) -> Prompt:
        """Return it with ids [m] right before the question."""
        first, last = self.question.start, self.question.stop
        question = slice(first + len(ids), last + len(ids))
        return dataclasses.replace(self, ids=torch.cat([self.ids[:first], ids, self.ids[first:]]), question=question)


def start_ids(tokenizer: Any) -> list[int]:
    """Return what the tokenizer puts before every text: usually its BOS, often nothing. A stream begins with it."""
    plain, whole = (list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (False, True))
    found = (first for first in range(len(whole)) if whole[first : first + len(plain)] == plain)
    return whole[: next(found, 0)]


def soft_id(tokenizer: Any) -> int:
    """Return the token id that stands for a vector which is no token's: one that no text spells."""
    ids = (tokenizer.unk_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((token for token in ids if token is not None), 0)


def opening_ids(tokenizer: Any) -> list[int]:
    """Return what a conversation begins with: the chat template's tokens before the first words of a user.

    Without a template it is what begins every text, or else `soft_id`.
    """
    opening: list[int] = []
    if getattr(tokenizer, "chat_template", None):
        with contextlib.suppress(Exception):  # a template's own errors are Jinja's, of any kind
            prompt = build_prompt(tokenizer, "?", first=True)
            opening = prompt.ids[: prompt.question.start].tolist()
    return opening or start_ids(tokenizer) or [soft_id(tokenizer)]


def with_start(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Return `ids` as a text of its own: after `start_ids`, unless a chat template has put them there."""
    start = start_ids(tokenizer)
    return list(ids) if list(ids[: len(start)]) == start else [*start, *ids]


def passage_ids(tokenizer: Any, passage: str, question: str) -> list[int]:
    """Return passage and question as a text of its own: one user's turn, where there is a chat template."""
    text = f"{passage.strip()}\n\n{question}"
    if getattr(tokenizer, "chat_template", None):
        return with_start(tokenizer, build_prompt(tokenizer, text, first=True).ids.tolist())
    return with_start(tokenizer, encode(tokenizer, text).tolist())


def with_template_variables(tokenizer: Any, variables: Mapping[str, Any]) -> Any:
    """Return the tokenizer with these variables in its chat template. Variables that a call names go before them.

    It is a copy that shares all that tokenizes. The given one stays as it is.
    """
    if not variables or not getattr(tokenizer, "chat_template", None):
        return tokenizer
    bound = copy.copy(tokenizer)
    bound.apply_chat_template = functools.partial(tokenizer.apply_chat_template, **variables)
    return bound


def require_unicode(text: str) -> None:
    """Raise ValueError, with the place, for a str with half of a surrogate pair, as broken decoding leaves it.

    TypeError for what is no str: bytes are the caller's to decode.
    """
    if not isinstance(text, str):
        raise TypeError(f"the text is {type(text).__name__}, expected str: open files as text, decode bytes")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text has half a surrogate pair at character {error.start:,}: decode it anew") from error


def build_prompt(
    tokenizer: Any,
    question: str | Sequence[Message],
    *,
    first: bool = False,
    chat: bool = True,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Prompt:
    """Wrap a question as a user's turn where the tokenizer has a chat template (and `chat`); else take it as it is.

    A question may be messages, as `asked_of` returns them. Then all of them are in the prompt, and the last one's words
    are the question's. ValueError for messages without a chat template for them. `chat_template_kwargs` are the
    template's own variables, such as `enable_thinking`.

    With `first` the prompt begins a conversation, as `apply_chat_template` renders it. Otherwise it is a later turn, as
    the template writes it. What was read stands before it. The template's own system message is left out in between,
    because it would cut the question off from the text. (Measured: a small model then answers from itself.) A given
    system message that the template has no place for stands at the beginning of the user's turn.

    What spells a token that acts (text/special_tokens.py) in a message is text: a page that is pasted into a question
    ends no turn. Within an assistant's message a model's own tokens stay, such as <think>, unless they are special.
    ControlTokenError where a template rewrites a message so that this cannot be kept up. In a question that is taken as
    it is, it is that token, because a caller's own template may have written it.
    """
    turns = _turns(question)
    core = turns[-1]["content"].strip()
    if chat and getattr(tokenizer, "chat_template", None):
        bound = getattr(tokenizer.apply_chat_template, "keywords", {})  # by with_template_variables
        variables = {**bound, **(chat_template_kwargs or {})}
        if variables.get("chat_template"):  # another one, which may write other tokens
            tokenizer = copy.copy(tokenizer)
            tokenizer.chat_template = variables["chat_template"]
        said, places = _rendered(tokenizer, turns, variables, first=first)
        text = said.text
        # A message may begin with the system's words: the question ends it.
        start, end = (places[-1][1] - len(core), places[-1][1]) if places[-1] is not None else (-1, -1)
        rendered = said.ids(places, slice(max(start, 0), end if start >= 0 else len(text)))
        if rendered is not None:
            return Prompt(*rendered)
    elif not isinstance(question, str):
        raise ValueError("messages and system= need a chat template: the tokenizer has none, or chat=False forbids it")
    else:
        text = question
        start = text.find(core)
        end = start + len(core)
    if not getattr(tokenizer, "is_fast", False):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return Prompt(torch.tensor(ids, dtype=torch.int64, device="cpu"), slice(0, len(ids)))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    inside = [i for i, (begin, stop) in enumerate(offsets) if begin < end and stop > start and stop > begin]
    span = slice(inside[0], inside[-1] + 1) if start >= 0 and inside else slice(0, len(ids))
    return Prompt(torch.tensor(ids, dtype=torch.int64, device="cpu"), span)


def quoting_prompt(tokenizer: Any, quote: str) -> Prompt:
    """Make a prompt of a quote, as a turn, or its words alone where the chat template does not take it."""
    try:
        return build_prompt(tokenizer, quote)
    except Exception:  # a template's own errors are Jinja's, of any kind
        require_unicode(quote)
        ids = encode(tokenizer, quote)
        return Prompt(ids, slice(0, len(ids)))


def _turns(question: str | Sequence[Message]) -> list[Message]:
    if isinstance(question, str):
        turns: list[Message] = [{"role": "user", "content": question}]
    elif all(isinstance(turn, Mapping) for turn in question):
        turns = list(question)
    else:
        raise TypeError(f"the question is a {type(question).__name__}: expected one str; ask several one by one")
    for turn in turns:
        require_unicode(turn["content"])
    if not turns[-1]["content"].strip():
        raise ValueError("the question is empty")
    return turns


def _rendered(
    tokenizer: Any, turns: list[Message], variables: Mapping[str, Any], *, first: bool
) -> tuple[RenderedConversation, list[Place | None]]:
    """Render turns by the template. Return them, and where each one's stripped content stands in the text, or None."""

    def render(turns: Sequence[Message], extra: Mapping[str, Any] = types.MappingProxyType({})) -> str:
        return (_as_first_turns if first else _as_later_turns)(tokenizer, turns, {**variables, **extra})

    if turns[0]["role"] == "system":
        try:
            with_marks = _marked(render, turns)
        except Exception:  # a template's own errors are Jinja's, of any kind
            with_marks = ""
        if _mark(0) not in with_marks:
            turns = with_system_in_turn(turns)
    rendered, with_marks = RenderedConversation(tokenizer, render, turns, variables), _marked(render, turns)
    text = rendered.text
    # A template's words may also be those of a message. So each content is looked for after what stands before it.
    places: list[Place | None] = []
    at = seen = 0
    for number, turn in enumerate(turns):
        core, mark = turn["content"].strip(), _mark(number)
        marked = with_marks.find(mark, seen)
        start = text.find(core, at + max(0, marked - seen))
        if start < 0:
            places.append(None)
            continue
        at = start + len(core)
        seen = marked + len(mark) if marked >= 0 else seen
        places.append((start, at))
    return rendered, places


def _marked(render: Callable[[Sequence[Message]], str], turns: Sequence[Message]) -> str:
    """Return what the template makes of the same turns with a mark in place of each content."""
    return render([{**turn, "content": _mark(number)} for number, turn in enumerate(turns)])


def _mark(number: int) -> str:
    return f"(turn {number})"


def _as_first_turns(tokenizer: Any, turns: Sequence[Message], variables: Mapping[str, Any]) -> str:
    """Return a conversation's beginning as the chat template writes it, up to where the answer begins."""
    text: str = tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True, **variables)
    return text


def _as_later_turns(tokenizer: Any, turns: Sequence[Message], variables: Mapping[str, Any]) -> str:
    """Return what the chat template puts after an answer when a conversation goes on, up to the next answer."""
    before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _EARLIER_ANSWER}]
    rendered = _as_first_turns(tokenizer, [*before, *turns], variables)
    if _EARLIER_ANSWER not in rendered:
        raise ValueError("the chat template renders no answer before a question: chat=False works")
    return rendered[rendered.index(_EARLIER_ANSWER) + len(_EARLIER_ANSWER) :]
