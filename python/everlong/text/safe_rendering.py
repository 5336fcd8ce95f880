"""A rendered conversation as token ids in which no message acts: only the chat template's own tokens do.

A message is found in what the template rendered, or by marks around what it spells, where the template rewrites it.
Whether that was enough is counted: the same conversation, with nothing to spell in it, has as many tokens that act.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from everlong.errors import ControlTokenError
from everlong.text.encoding import encode
from everlong.text.messages import Message
from everlong.text.special_tokens import special_tokens, words_in

Place = tuple[int, int]  # characters [first, last)
Render = Callable[[Sequence[Message], Mapping[str, Any]], str]
_SAID_BY_OTHERS = ("tools", "documents")  # variables of a template that hold texts


class RenderedConversation:
    """A conversation, and how its chat template renders it."""

    def __init__(self, tokenizer: Any, render: Render, turns: Sequence[Message], variables: Mapping[str, Any]) -> None:
        self._tokenizer, self._render = tokenizer, render
        self._special = special_tokens(tokenizer)
        self._turns = turns
        self._messages_of = {name: value for name, value in variables.items() if name in _SAID_BY_OTHERS}
        self._text = render(turns, {})

    @property
    def text(self) -> str:
        return self._text

    def ids(self, places: Sequence[Place | None], question: slice) -> tuple[torch.Tensor, slice] | None:
        """Return token ids [n], and which of them are those of `question`, which are characters of the text.

        `places` are those of each turn's words in the text. None where the text, taken as a whole, is right already.
        ControlTokenError where nothing keeps a message from acting.
        """
        silent = self._rendered(self._silent)
        if silent == self._text:
            return None
        allowed = self._counts(silent)
        found: dict[str, int] = {}
        for as_text in self._ways(places):
            if as_text:
                ids, span = _in_pieces(self._tokenizer, self._text, as_text, question)
            else:
                ids, span = encode(self._tokenizer, self._text, special_tokens=True), slice(0, 0)
            found = self._special.counts(ids)
            if all(count <= allowed.get(word, 0) for word, count in found.items()):
                return (ids, span) if as_text else None
        word = next(word for word, count in found.items() if count > allowed.get(word, 0))
        raise ControlTokenError(
            f"the words of a message would act as the chat template's {word!r}: the template rewrites them, so they "
            "cannot be kept apart from its own. Take it out of the message, or render the prompt and give it with "
            "chat=False"
        )

    def _counts(self, text: str) -> dict[str, int]:
        return self._special.counts(encode(self._tokenizer, text, special_tokens=True))

    def _ways(self, places: Sequence[Place | None]) -> Iterator[list[Place]]:
        """Yield places where the text is taken as words alone: first whole messages, then what is found by marks."""
        spelling = [self._spells(turn) for turn in self._turns]
        yield [
            inner
            for turn, place, spells in zip(self._turns, places, spelling, strict=True)
            if spells and place is not None
            for inner in _split_around(self._text, place, self._own(turn))
        ]
        if (marked := self._marked()) is not None:
            yield marked

    def _own(self, turn: Message | None) -> re.Pattern[str]:
        """Return what finds tokens that a message may have: those of a model's own answers."""
        return words_in(self._special.own if turn is not None and turn["role"] == "assistant" else ())

    def _escaped(self, turn: Message | None) -> re.Pattern[str]:
        answer = turn is not None and turn["role"] == "assistant"
        return words_in(word for word in self._special.ids if not (answer and word in self._special.own))

    def _spells(self, turn: Message) -> bool:
        others = "".join(self._own(turn).split(turn["content"]))
        return self._special.spelled(others, encode(self._tokenizer, others, special_tokens=True))

    def _rendered(self, change: Callable[[Message | None, str], str]) -> str:
        """Render the conversation with all that it says changed."""
        turns = [_each(turn, functools.partial(change, turn)) for turn in self._turns]
        return self._render(turns, _each(self._messages_of, functools.partial(change, None)))

    def _silent(self, turn: Message | None, text: str) -> str:
        """Return the text with as many words, and nothing in it that could become a control token."""
        edges = {edge for word in self._special.ids for edge in (word[0], word[-1])}
        edges = {edge for edge in edges if not edge.isalnum() and not edge.isspace()}
        harmless = str.maketrans(dict.fromkeys(edges, "x"))
        own = self._own(turn)
        pieces = [self._escaped(turn).sub("x", piece).translate(harmless) for piece in own.split(text)]
        # What a tokenizer rewrites may still be seen as one.
        pieces = ["x" if self._counts(piece) else piece for piece in pieces]
        between = own.findall(text)
        return "".join(piece + word for piece, word in itertools.zip_longest(pieces, between, fillvalue=""))

    def _marked(self) -> list[Place] | None:
        """Return where what the messages spell stands in the text; None where the template does not take the marks."""
        mark = next(f"zq{number}" for number in itertools.count() if f"zq{number}" not in self._text)
        spelled = {word for turn in self._turns for word in self._escaped(turn).findall(_joined(turn))}
        spelled |= set(self._special.words.findall(_joined(self._messages_of)))

        def places(words: set[str]) -> list[Place] | None:
            def marking(turn: Message | None, text: str) -> str:
                own = self._special.own if turn is not None and turn["role"] == "assistant" else ()
                return words_in(words.difference(own)).sub(lambda word: f"{mark}a{word[0]}{mark}b", text)

            found, text = _unmarked(self._rendered(marking), mark)
            return found if text == self._text else None

        if (found := places(spelled)) is None:
            # A template may look for one of them, and take a message apart there. The others are marked.
            found = places({word for word in spelled if places({word}) is not None})
        return None if found is None else self._stretches(found)

    def _stretches(self, spelled: Sequence[Place]) -> list[Place]:
        """Return the text around each of these places, up to the next token that acts by right."""
        ends = [0, len(self._text)]
        for token in self._special.words.finditer(self._text):
            if not _inside(token.span(), spelled):
                ends += token.span()
        found = []
        for first, last in itertools.pairwise(sorted(ends)):
            at = bisect.bisect_left(spelled, (first, first))
            words = self._text[first:last]
            if words.strip() and at < len(spelled) and spelled[at][1] <= last:
                found.append((last - len(words.lstrip()), first + len(words.rstrip())))
        return found


def _unmarked(marked: str, mark: str) -> tuple[list[Place], str]:
    """Return the places between marks in the text that is left without them, and that text."""
    places: list[Place] = []
    kept: list[str] = []
    begin = length = 0
    for piece in re.split(f"({mark}[ab])", marked):
        if piece == f"{mark}a":
            begin = length
        elif piece == f"{mark}b":
            places.append((begin, length))
        else:
            kept.append(piece)
            length += len(piece)
    return places, "".join(kept)


def _inside(place: Place, places: Sequence[Place]) -> bool:
    """Return whether a place is inside one of others, which are in order and apart."""
    at = bisect.bisect_right(places, (place[0], sys.maxsize)) - 1
    return at >= 0 and place[1] <= places[at][1]


def _split_around(text: str, place: Place, own: re.Pattern[str]) -> list[Place]:
    """Return what a place has beside the words that may act there."""
    ends = [place[0], *(end for word in own.finditer(text, *place) for end in word.span()), place[1]]
    return [(first, last) for first, last in zip(ends[::2], ends[1::2], strict=True) if first < last]


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with every text in it changed. Keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each(one, change) for key, one in value.items()}
    return [_each(one, change) for one in value] if isinstance(value, list | tuple) else value


def _joined(value: Any) -> str:
    """Return every text in a value, one after the other."""
    if isinstance(value, str):
        return value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return "\0".join(map(_joined, inner))


def _in_pieces(tokenizer: Any, text: str, as_text: Sequence[Place], question: slice) -> tuple[torch.Tensor, slice]:
    """Tokenize a text without tokens that act in these places, which are in order. `question` are characters of it."""
    ids: list[torch.Tensor] = []
    cuts = sorted({0, len(text), question.start, question.stop, *(end for place in as_text for end in place)})
    span = slice(0, 0)
    count = 0
    for begin, end in itertools.pairwise(cuts):
        plain = _inside((begin, end), as_text)
        piece = encode(tokenizer, text[begin:end], special_tokens=not plain)
        if begin == question.start:
            span = slice(count, count + len(piece))
        elif begin < question.stop and begin > question.start:
            span = slice(span.start, count + len(piece))
        ids.append(piece)
        count += len(piece)
    return torch.cat(ids), span
