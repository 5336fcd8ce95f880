"""Exports of chats: ChatGPT's and Claude's conversations.json, and WhatsApp's text."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from typing import Any

from everlong.files.dates import seconds_of
from everlong.files.document import Document, Section, filled, line_of, paragraph
from everlong.files.kind import WHATSAPP
from everlong.files.plain import decoded, of_text


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield a document for each conversation; of WhatsApp's text, which is one, for each day."""
    text = decoded(data)
    if suffix != "json":
        yield from _whatsapp(text)
        return
    try:
        found = json.loads(text)
        conversations = [_conversation(one) for one in (found if isinstance(found, list) else [found])]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # a JSON of some other kind
        conversations = [of_text(text, suffix)]
    yield from (one for one in conversations if one.sections)


def _conversation(one: dict[str, Any]) -> Document:
    told = list(_chatgpt(one) if "mapping" in one else _claude(one))
    title = line_of(one.get("title") or one.get("name"))
    sections = [
        paragraph(f"{title}, message {number}" if title else f"message {number}", f"{who}: {text}")
        for number, (who, text) in enumerate(((who, text) for who, text in told if text.strip()), 1)
    ]
    return Document(filled(sections), title=title, happened=seconds_of(one.get("create_time") or one.get("created_at")))


def _chatgpt(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield who said what, along the branch that the export ends with."""
    nodes = one["mapping"]
    current: Any = one.get("current_node") or next(reversed(nodes), None)
    branch: list[dict[str, Any]] = []
    seen: set[str] = set()
    while current in nodes and current not in seen:
        seen.add(current)
        branch.append(nodes[current])
        current = nodes[current].get("parent")
    for node in reversed(branch):
        message = node.get("message") or {}
        role = (message.get("author") or {}).get("role", "")
        content = message.get("content") or {}
        parts = content.get("parts") or [content.get("text") or ""]
        if role in ("user", "assistant"):
            yield role, "\n".join(part for part in parts if isinstance(part, str))


def _claude(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for message in one["chat_messages"]:
        content = message.get("content") or []
        written = [part.get("text") or "" for part in content if part.get("type") == "text"]
        yield str(message.get("sender", "")), message.get("text") or "\n".join(written)


def _whatsapp(text: str) -> Iterator[Document]:
    lines = text.lstrip("\ufeff").splitlines()
    found = [WHATSAPP.match(line) for line in lines]
    month_first = _month_first([one for one in found if one is not None])
    day: datetime.date | None = None
    sections: list[Section] = []
    for line, one in zip(lines, found, strict=True):
        moment = None if one is None else _moment(one, month_first=month_first)
        if moment is None or one is None:
            if sections:  # a message may have several lines
                sections.append(paragraph(sections[-1].place, line))
            continue
        if moment.date() != day:
            if sections:
                yield _of_day(day, sections)
            day, sections = moment.date(), []
        sections.append(Section(f"{moment:%Y-%m-%d %H:%M}", line[one.end() :].lstrip("\u200e") + "\n"))
    if sections:
        yield _of_day(day, sections)


def _of_day(day: datetime.date | None, sections: list[Section]) -> Document:
    head = Section("", f"{day:%A, %d %B %Y}\n" if day else "")
    return Document(
        filled([head, *(Section(one.place, re.sub(r"\n+", "\n", one.text)) for one in sections)]),
        happened=seconds_of(day),
    )


def _month_first(found: list[re.Match[str]]) -> bool:
    """Tell 3/5 in March from 3/5 in May: by a number that is no month, else by a clock of twelve hours."""
    if any(int(one[1]) > 12 for one in found):
        return False
    return any(int(one[2]) > 12 for one in found) or any(one[7] for one in found)


def _moment(one: re.Match[str], *, month_first: bool) -> datetime.datetime | None:
    first, second, third, hour, minute = (int(one[number]) for number in range(1, 6))
    if first > 31:
        year, month, day = first, second, third
    else:
        year, month, day = third, *((first, second) if month_first else (second, first))
    half = (one[7] or "").lower()
    if half:
        hour = hour % 12 + (12 if half.startswith("p") else 0)
    try:
        return datetime.datetime(year + 2000 if year < 100 else year, month, day, hour, minute)
    except ValueError:
        return None
