"""A question as the tokens the model reads, and where in them the question's own words stand."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from everlong.text.encoding import encode, spells_special_token

_EARLIER_ANSWER, _ANY_QUESTION = "(earlier answer)", "(question)"


@dataclasses.dataclass(frozen=True)
class Prompt:
    ids: torch.Tensor  # [n] int64
    question: slice  # the tokens of the question itself, without the chat template around it

    def without_first(self) -> Prompt:
        """Without its first token, which is none of the question's."""
        return Prompt(self.ids[1:], slice(self.question.start - 1, self.question.stop - 1))


def start_ids(tokenizer: Any) -> list[int]:
    """What the tokenizer puts before every text, its BOS as a rule, often nothing: what a stream begins with."""
    plain, whole = (list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (False, True))
    found = (first for first in range(len(whole)) if whole[first : first + len(plain)] == plain)
    return whole[: next(found, 0)]


def soft_id(tokenizer: Any) -> int:
    """The token id that stands for a vector which is no token's: one that no text spells."""
    ids = (tokenizer.unk_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((token for token in ids if token is not None), 0)


def with_start(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """`ids` as a text of its own: with `start_ids` before them, unless a chat template has put them there."""
    start = start_ids(tokenizer)
    return list(ids) if list(ids[: len(start)]) == start else [*start, *ids]


def with_template_variables(tokenizer: Any, variables: Mapping[str, Any]) -> Any:
    """The tokenizer with these variables in its chat template, whoever applies it; a call that names others has those.

    A copy, which shares all that tokenizes: the one that is given stays as it is.
    """
    if not variables or not getattr(tokenizer, "chat_template", None):
        return tokenizer
    bound = copy.copy(tokenizer)
    bound.apply_chat_template = functools.partial(tokenizer.apply_chat_template, **variables)
    return bound


def require_unicode(text: str) -> None:
    """ValueError, with the place, for a str that is no text: half of a surrogate pair, as broken decoding leaves it.

    TypeError for what is no str: bytes are the caller's to decode.
    """
    if not isinstance(text, str):
        raise TypeError(f"the text is {type(text).__name__}, expected str: open files as text, decode bytes")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text has half a surrogate pair at character {error.start:,}: decode it anew") from error


def build_prompt(
    tokenizer: Any, question: str, *, chat: bool = True, chat_template_kwargs: Mapping[str, Any] | None = None
) -> Prompt:
    """Wrap a question as a user's turn when the tokenizer has a chat template (and `chat`), else take it as it is.

    `chat_template_kwargs` are the template's own variables, such as `enable_thinking`.

    The turn is a later one of a conversation, as the template writes it: what was read stands before it, and a system
    message in between would cut the question off from that (measured: a small model then answers from itself). What
    spells a special token in it is text: a page that is pasted into a question ends no turn. In a question that is
    taken as it is, it is that token: a caller's own template may have written it.
    """
    if not isinstance(question, str):
        raise TypeError(f"the question is a {type(question).__name__}: one str works; several are asked one by one")
    require_unicode(question)
    if not question.strip():
        raise ValueError("the question is empty")
    text, before = question, 0
    is_turn = chat and bool(getattr(tokenizer, "chat_template", None))
    if is_turn:
        variables = chat_template_kwargs or {}
        text = _as_later_turn(tokenizer, question, variables)
        # The template's own words may be those of the question: it is looked for behind what stands before it.
        before = max(0, _as_later_turn(tokenizer, _ANY_QUESTION, variables).find(_ANY_QUESTION))
    # A template may trim the question; its stripped form is what can be found again.
    core = question.strip()
    start = text.find(core, before)
    end = start + len(core)
    # The template's own are tokens, the question's are text.
    if is_turn and start >= 0 and spells_special_token(tokenizer, core):
        parts = [
            encode(tokenizer, text[:start], special_tokens=True),
            encode(tokenizer, core),
            encode(tokenizer, text[end:], special_tokens=True),
        ]
        return Prompt(torch.cat(parts), slice(len(parts[0]), len(parts[0]) + len(parts[1])))
    if not getattr(tokenizer, "is_fast", False):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return Prompt(torch.tensor(ids, dtype=torch.int64, device="cpu"), slice(0, len(ids)))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    inside = [i for i, (first, last) in enumerate(offsets) if first < end and last > start and last > first]
    span = slice(inside[0], inside[-1] + 1) if start >= 0 and inside else slice(0, len(ids))
    return Prompt(torch.tensor(ids, dtype=torch.int64, device="cpu"), span)


def quoting_prompt(tokenizer: Any, quote: str) -> Prompt:
    """A quote as a question, whoever asks: as a turn, or as it is where the chat template does not take it."""
    try:
        return build_prompt(tokenizer, quote)
    except Exception:  # a template's own errors are Jinja's, of any kind
        return build_prompt(tokenizer, quote, chat=False)


def _as_later_turn(tokenizer: Any, question: str, variables: Mapping[str, Any]) -> str:
    """What the chat template puts behind an answer when a user goes on with this, to where the next answer begins."""
    turns = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": _EARLIER_ANSWER},
        {"role": "user", "content": question},
    ]
    rendered: str = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **variables)
    if _EARLIER_ANSWER not in rendered:
        raise ValueError("the chat template shows no earlier answer, which a question follows: chat=False works")
    return rendered[rendered.index(_EARLIER_ANSWER) + len(_EARLIER_ANSWER) :]
