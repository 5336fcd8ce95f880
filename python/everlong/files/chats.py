"""Exports of chats: of ChatGPT, Claude, Telegram, Slack and Signal as JSON, and WhatsApp's text."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from everlong.files import chat_json
from everlong.files.chat_json import Conversation
from everlong.files.chat_lines import head_of, moments_of
from everlong.files.dates import seconds_of
from everlong.files.document import Document, NoTextError, PassedOverError, Section, cleaned, filled, line_of, paragraph
from everlong.files.plain import decoded_with_details, of_text

_MARKS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_EMPTY_LINES = re.compile("\n\n+")
_BETWEEN = re.compile(r"[\s,]*")


def read(data: bytes, suffix: str) -> Iterator[Document | PassedOverError]:
    """Yield a document for each conversation; of a chat between people, for each day."""
    text, details = decoded_with_details(data)
    if suffix != "json":
        yield from (dataclasses.replace(one, details=details) for one in _of_lines(text))
        return
    documents = 0
    passed_over: list[PassedOverError] = []
    for number, one in enumerate(_items(text), 1):
        found = _read_item(one, number)
        for document in found:
            if isinstance(document, PassedOverError):
                passed_over.append(document)
            elif document.sections:
                documents += 1
                yield dataclasses.replace(document, details=details)
    if documents:
        yield from passed_over
    else:  # a JSON of some other kind
        yield dataclasses.replace(of_text(text, suffix), details=details)


def _items(text: str) -> Iterator[Any]:
    """Yield what a list holds, or the values behind one another: in place of what is broken, a ValueError."""
    decoder = json.JSONDecoder()
    text = text.lstrip("\ufeff")
    begin = _end_of_space(text, 0)
    listed = text.startswith("[", begin)
    at = begin + listed
    values: list[Any] = []
    count = 0
    while (at := _end_of_space(text, at)) < len(text) and not (listed and text[at] == "]"):
        try:
            value, at = decoder.raw_decode(text, at)
            count += 1
        except (ValueError, RecursionError) as error:
            value = NoTextError(f"is broken, and what is behind it is not read: {str(error)[:100]}")
            at = len(text)
        if not isinstance(value, dict) or chat_json.is_whole(value):
            yield value
        else:
            values.append(value)
    if len(values) < count:  # odd ones among conversations
        yield from values
    elif values:  # messages of one
        yield values


def _end_of_space(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _read_item(one: Any, number: int) -> Iterator[Document | PassedOverError]:
    name = f"conversation {number}"
    if isinstance(one, NoTextError):
        yield PassedOverError(name, str(one))
        return
    if isinstance(one, dict):
        title = one.get("title") or one.get("name")
        name = line_of(title) if isinstance(title, str) and title.strip() else name
    try:
        for found in chat_json.conversations_of(one):
            yield from _by_day(found) if found.by_day else [_whole(found)]
            if found.left_out:
                yield PassedOverError(found.title or name, found.left_out)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        yield PassedOverError(name, f"is no conversation: {type(error).__name__}: {str(error)[:100]}")


def _whole(found: Conversation) -> Document:
    title = line_of(found.title)
    messages = [(who, text) for _, who, text in found.messages if text.strip()]
    sections = [
        paragraph(f"{title}, message {number}" if title else f"message {number}", f"{who}: {text}")
        for number, (who, text) in enumerate(messages, 1)
    ]
    about = [paragraph(title, f"Summary: {found.summary}")] if found.summary.strip() else []
    return Document(filled([*about, *sections]), title=title, happened=seconds_of(found.began))


def _by_day(found: Conversation) -> Iterator[Document]:
    timed_texts = []
    for when, who, text in found.messages:
        seconds = seconds_of(when)
        moment = None if seconds is None else datetime.datetime.fromtimestamp(seconds)
        timed_texts.append((moment, f"{who}: {text}" if who else text))
    for document in _days(timed_texts):
        yield dataclasses.replace(document, title=line_of(found.title))


def _of_lines(text: str) -> Iterator[Document]:
    messages: list[list[str]] = [[]]  # of lines; first what stands before any message
    heads = []
    for line in text.lstrip("\ufeff").split("\n"):
        head = head_of(line)
        if head is not None:
            heads.append(head)
            messages.append([])
        messages[-1].append(line if head is None else head.message)
    whole = ("\n".join(lines) for lines in messages)
    timed_texts = [(text if text.isascii() else _MARKS.sub("", text)).strip() for text in whole]
    moments: list[datetime.datetime | None] = [None, *moments_of(heads)]
    yield from _days(zip(moments, timed_texts, strict=True))


def _days(timed_texts: Iterable[tuple[datetime.datetime | None, str]]) -> Iterator[Document]:
    """Yield a document for each day. What has no time belongs to what stands before it."""
    day: datetime.date | None = None
    timed = []
    for moment, text in timed_texts:
        day = day if moment is None else moment.date()
        if text.strip():
            timed.append((day, moment, text))
    for one, messages in itertools.groupby(timed, key=lambda message: message[0]):
        head = [] if one is None else [Section("", f"{one:%A, %d %B %Y}\n")]
        sections = (
            Section(
                "" if moment is None else moment.isoformat(" ", "minutes"), _EMPTY_LINES.sub("\n", cleaned(text)) + "\n"
            )
            for _, moment, text in messages
        )
        yield Document(filled([*head, *sections]), happened=seconds_of(one))
