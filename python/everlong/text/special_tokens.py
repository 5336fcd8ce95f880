"""Which tokens act on a model by what they are: special ones, and those that the chat template writes.

A text may spell them. `text/encoding.py` then encodes them as plain text. A token that is merely added, such as a word
of a trade, acts only where the template writes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# Turns that a template is tried with. Their content spells nothing.
_ASKED = {"role": "user", "content": "?"}
_CALL = {"type": "function", "id": "a", "function": {"name": "f", "arguments": {}}}
_TOOL = {"role": "tool", "name": "f", "tool_call_id": "a", "content": "?"}
_WITHOUT_ANSWERS = ([_ASKED], [{"role": "system", "content": "?"}, _ASKED], [_ASKED, _TOOL, _ASKED])
_WITH_ANSWERS = (
    [_ASKED, {"role": "assistant", "content": "?"}, _ASKED],
    [_ASKED, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, _TOOL, _ASKED],
)
# What a template looks for in the words of a message: 'a' of content.split('a'), and of 'a' in content.
_LOOKS_FOR = re.compile(r"""\w\(\s*['"]([^'"]*)|['"]([^'"]*)['"]\s+(?:not\s+)?in\b""")


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """The tokens of one tokenizer that act, by what they are called."""

    ids: Mapping[str, int]  # of all
    own: frozenset[str]  # merely added ones that a model writes within its answers, such as <think>
    unknown: int | None  # id of a special token that stands for any text that the tokenizer does not know

    @functools.cached_property
    def words(self) -> re.Pattern[str]:
        """What finds them in a text, the longest first."""
        return words_in(self.ids)

    @functools.cached_property
    def _ids(self) -> npt.NDArray[np.int64]:
        return np.array([token for token in self.ids.values() if token != self.unknown], dtype=np.int64)

    def spelled(self, text: str, ids: npt.ArrayLike) -> bool:
        """Return whether the text, which became these ids, spells any of them."""
        # Ids tell more than the text: a tokenizer may rewrite it, and see a token in what was none.
        unknown = any(token == self.unknown and word in text for word, token in self.ids.items())
        return unknown or bool(np.isin(np.asarray(ids, dtype=np.int64), self._ids).any())

    def counts(self, ids: npt.ArrayLike) -> dict[str, int]:
        """Return how often each one stands among ids, without those that do not. The unknown token counts as text."""
        kinds, counts = np.unique(np.asarray(ids, dtype=np.int64), return_counts=True)
        there = dict(zip(kinds.tolist(), counts.tolist(), strict=True))
        return {word: there[token] for word, token in self.ids.items() if token in there and token != self.unknown}


def special_tokens(tokenizer: Any) -> SpecialTokens:
    """Return the tokens of a tokenizer, as it stands now, that act."""
    template = getattr(tokenizer, "chat_template", None)
    templates = tuple(template.values()) if isinstance(template, Mapping) else template
    stands = (len(tokenizer), tuple(getattr(tokenizer, "all_special_ids", ())), templates)
    with _finding:
        before, found = _known.get(tokenizer, (None, None))
    if found is None or before != stands:
        found = _found(tokenizer)
        with _finding:
            _known[tokenizer] = stands, found
    return found


# How the tokenizer stood, and its tokens
_known: weakref.WeakKeyDictionary[Any, tuple[Any, SpecialTokens]] = weakref.WeakKeyDictionary()
_finding = threading.Lock()


def words_in(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds any of these words, the longest first. Without words it finds nothing."""
    longest = sorted(filter(None, words), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest)) or "(?!)")


def _found(tokenizer: Any) -> SpecialTokens:
    added = {str(token): (index, token.special) for index, token in _added(tokenizer).items()}
    names = zip(getattr(tokenizer, "all_special_tokens", ()), getattr(tokenizer, "all_special_ids", ()), strict=True)
    special = {word: index for word, index in names if word}
    special |= {word: index for word, (index, is_special) in added.items() if is_special and word}
    merely = {word: index for word, (index, _) in added.items() if word not in special and not word.isspace()}
    if not merely or not getattr(tokenizer, "chat_template", None):
        return SpecialTokens(special, frozenset(), getattr(tokenizer, "unk_token_id", None))
    source = _sources(tokenizer)
    looked_for = "\0".join(call or member for call, member in _LOOKS_FOR.findall(source))
    asked, answered = (_trials(tokenizer, turns) for turns in (_WITHOUT_ANSWERS, _WITH_ANSWERS))
    said = set(getattr(tokenizer, "chat_control_tokens", None) or ())  # as transformers has them named
    wrote = "\0".join((source, asked, answered))
    found_ids = {word: index for word, index in merely.items() if word in wrote or word in said}
    own = {word for word in found_ids if word not in asked and (word not in answered or word in looked_for)}
    return SpecialTokens(special | found_ids, frozenset(own), getattr(tokenizer, "unk_token_id", None))


def _added(tokenizer: Any) -> dict[int, Any]:
    """Return tokens by id, beside those that a tokenizer learned; none where it does not tell."""
    found: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    return found


def _sources(tokenizer: Any) -> str:
    """Return the templates as they are written; a tokenizer may have several."""
    template = tokenizer.chat_template
    return "\0".join(template.values()) if isinstance(template, Mapping) else str(template)


def _trials(tokenizer: Any, conversations: tuple[list[Any], ...]) -> str:
    """Return what the template makes of conversations. It may put a token together, as '<|' + role + '|>'."""
    made: list[str] = []
    for turns in conversations:
        with contextlib.suppress(Exception):  # a template's own errors are Jinja's, of any kind
            made.append(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False))
    return "\0".join(made)
