"""Conversations of exported JSON: ChatGPT's, Claude's, Telegram's, Slack's and Signal's."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Iterable, Iterator
from typing import Any

Message = tuple[Any, str, str]  # when, who, what

_SLACK_LINK = re.compile(r"<([^<>|]*)\|([^<>]*)>")
_SLACK_BARE = re.compile(r"<((?:https?|mailto)[^<>]*|[@#!][^<>]*)>")
_FILES = ("image_asset_pointer", "audio_asset_pointer", "video_container_asset_pointer")
_NO_WORDS = (  # keys of values that are no words
    *("content_type", "type", "id", "uuid", "asset_pointer", "format", "mime_type", "language", "metadata", "url"),
    *("response_format_name", "start_timestamp", "stop_timestamp", "tool_use_id", "direction", "decoding_id"),
    *("size_bytes", "width", "height", "fovea", "tether_id", "flags", "citations"),
)


@dataclasses.dataclass
class Conversation:
    """A conversation, in the order of its messages."""

    messages: list[Message]
    title: str = ""
    began: Any = None
    summary: str = ""
    by_day: bool = False  # people write for years, and a question for a model takes an hour
    left_out: str = ""  # what of it is not read


def is_whole(value: dict[str, Any]) -> bool:
    """Return whether a JSON object is a conversation, or several, and no single message."""
    return not value.keys().isdisjoint(("mapping", "chat_messages", "messages", "chats", "left_chats", "messsages"))


def conversations_of(one: Any) -> Iterator[Conversation]:
    """Yield the conversations of a JSON value. ValueError, and what else one raises, for no conversation."""
    if isinstance(one, list):
        yield _of_people(one, "")
    elif not isinstance(one, dict):
        raise ValueError(f"{type(one).__name__} in place of a conversation")
    elif "mapping" in one:
        yield _chatgpt(one)
    elif "chat_messages" in one:
        yield _claude(one)
    elif "chats" in one or "left_chats" in one:
        for chats in (one.get("chats"), one.get("left_chats")):
            for chat in (chats or {}).get("list", ()):
                yield _of_people(chat["messages"], str(chat.get("name") or ""))
    else:
        messages = one.get("messages", one.get("messsages"))  # which a tool for Signal spells so
        if not isinstance(messages, list):
            raise ValueError("no messages")
        yield _of_people(messages, str(one.get("name") or ""))


def _chatgpt(one: dict[str, Any]) -> Conversation:
    """Return the branch that an export ends with."""
    nodes: dict[str, dict[str, Any]] = one["mapping"]
    current = one.get("current_node")
    if current not in nodes:
        parents = {node.get("parent") for node in nodes.values()}
        current = next((name for name in reversed(nodes) if name not in parents), None)
    branch: dict[str, dict[str, Any]] = {}
    while current in nodes and current not in branch:
        branch[current] = nodes[current]
        current = nodes[current].get("parent")
    files = 0
    messages: list[Message] = []
    for node in reversed(branch.values()):
        who, text, more = _chatgpt_message(node)
        messages.append((None, who, text))
        files += more
    others = sum(bool(_chatgpt_message(node)[1].strip()) for name, node in nodes.items() if name not in branch)
    left_out = [f"{files} pictures or recordings, which lie in files of their own"] if files else []
    left_out += [f"{others} messages of other branches, which were written anew"] if others else []
    return Conversation(
        messages,
        str(one.get("title") or ""),
        one.get("create_time"),
        left_out=f"has {' and '.join(left_out)}: not read" if left_out else "",
    )


def _chatgpt_message(node: dict[str, Any]) -> tuple[str, str, int]:
    """Return who said what, and how many files it has beside."""
    message = node.get("message") or {}
    author = message.get("author") or {}
    who = " ".join(filter(None, (str(author.get("role") or ""), str(author.get("name") or ""))))
    content = message.get("content") or {}
    parts = content.get("parts") or []
    files = sum(isinstance(part, dict) and part.get("content_type") in _FILES for part in parts)
    attached = (message.get("metadata") or {}).get("attachments") or []
    names = [f"(attached: {one['name']})" for one in attached if isinstance(one, dict) and one.get("name")]
    kind = content.get("content_type")
    if kind in ("thoughts", "reasoning_recap"):
        who += ", thinking"
    return who, "\n".join([*_words(content), *names]), files


def _words(value: Any) -> Iterator[str]:
    """Yield all words within a JSON value, in order, without names of kinds and the like."""
    if isinstance(value, str):
        if value.strip():
            yield value
    elif isinstance(value, list):
        for one in value:
            yield from _words(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key not in _NO_WORDS:
                yield from _words(one)


def _claude(one: dict[str, Any]) -> Conversation:
    messages: list[Message] = []
    for message in one["chat_messages"]:
        who = str(message.get("sender") or "")
        for name, text in _claude_blocks(message):
            messages.append((None, f"{who}, {name}" if name else who, text))
    summary = one.get("summary")
    return Conversation(
        messages, str(one.get("name") or ""), one.get("created_at"), summary if isinstance(summary, str) else ""
    )


def _claude_blocks(message: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the texts of a message, with what they are where it is no plain text."""
    blocks = [block for block in message.get("content") or [] if isinstance(block, dict)]
    plain = [block.get("text") or "" for block in blocks if block.get("type") == "text"]
    if not any(map(str.strip, plain)):
        yield "", str(message.get("text") or "")
    for block in blocks:
        kind = str(block.get("type") or "")
        name = {"text": "", "thinking": "thinking"}.get(
            kind, " ".join(filter(None, (kind, str(block.get("name") or ""))))
        )
        entry = {
            key: value
            for key, value in block.items()
            if key not in ("name", "signature", "summaries", "display_content")
        }
        if text := "\n".join(_words(entry)):
            yield name, text
    for attached in message.get("attachments") or []:
        yield f"attached {attached.get('file_name') or 'text'}", str(attached.get("extracted_content") or "")
    names = [str(one.get("file_name") or one.get("file_uuid") or "") for one in message.get("files") or []]
    if any(names):
        yield "", f"(attached: {', '.join(filter(None, names))})"


def _of_people(messages: Iterable[dict[str, Any]], title: str) -> Conversation:
    """Return a chat of Telegram, Slack or Signal."""
    found: list[Message] = []
    odd = 0
    for message in messages:
        try:
            envelope = message.get("envelope")
            if isinstance(envelope, dict):  # as signal-cli writes
                message = {**envelope, **(envelope.get("dataMessage") or {}), "text": _signal_text(envelope)}
            found.append((_when(message), _who(message), "\n".join(filter(None, _what(message)))))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            odd += 1
    if not any(text.strip() for _, who, text in found) or not any(who or when for when, who, _ in found):
        raise ValueError("no message")
    left_out = f"has {odd} messages of no known form: not read" if odd else ""
    return Conversation(found, title, by_day=True, left_out=left_out)


def _signal_text(envelope: dict[str, Any]) -> str:
    sent = ((envelope.get("syncMessage") or {}).get("sentMessage") or {}).get("message")
    return str((envelope.get("dataMessage") or {}).get("message") or sent or "")


def _when(message: dict[str, Any]) -> Any:
    for key in ("ts", "sent_at", "date", "date_unixtime", "timestamp", "created_at", "sentAt", "dateSent"):
        entry = message.get(key)
        if isinstance(entry, str) and re.fullmatch(r"\d+(\.\d+)?", entry):
            entry = float(entry)
        if isinstance(entry, int | float) and not isinstance(entry, bool):
            return entry / 1000 if entry > 1e11 else entry
        if isinstance(entry, str) and entry:
            return entry
    return None


def _who(message: dict[str, Any]) -> str:
    profile = message.get("user_profile")
    if isinstance(profile, dict) and (name := profile.get("real_name") or profile.get("display_name")):
        return str(name)
    keys = ("from", "sender", "actor", "sourceName", "username", "author", "user", "source", "sourceUuid", "type")
    for key in keys if "text" not in message or "ts" not in message else ("username", "user", *keys):
        entry = message.get(key)
        if isinstance(entry, dict):
            entry = entry.get("name") or entry.get("id")
        if entry and (key != "type" or entry in ("incoming", "outgoing")):
            return str(entry)
    return ""


def _what(message: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a message: its own, of what it quotes and attaches, and of what happened."""
    slack = "ts" in message
    for key in (
        "action",
        "title",
        "text",
        "body",
        "message",
        "caption",
        "forwarded_from",
        "poll",
        "members",
        "new_title",
    ):
        entry = message.get(key)
        if isinstance(entry, str):
            yield _of_slack(entry) if slack else f"forwarded from {entry}" if key == "forwarded_from" else entry
        elif isinstance(entry, list) and key != "members":
            yield "".join(str(one.get("text", "") if isinstance(one, dict) else one) for one in entry)
        elif entry:
            yield "\n".join(_words(entry))
    for key in (
        "sticker",
        "sticker_emoji",
        "file_name",
        "file",
        "quote",
        "contact_information",
        "place_name",
        "address",
    ):
        if entry := message.get(key):
            yield f"({key.replace('_', ' ')}: {', '.join(_words(entry))})"
    if slack and not str(message.get("text") or "").strip():
        yield _of_slack("\n".join(_words(message.get("blocks"))))
    for attached in message.get("attachments") or []:
        entry = attached if isinstance(attached, str) else _attached(attached)
        yield f"(attached: {_of_slack(entry) if slack else entry})" if entry else ""
    for file in message.get("files") or []:
        keys = ("title", "name", "plain_text", "preview")
        entry = ", ".join(dict.fromkeys(str(file[key]) for key in keys if isinstance(file, dict) and file.get(key)))
        yield f"(attached: {entry})" if entry else ""


def _attached(attached: dict[str, Any]) -> str:
    keys = ("pretext", "author_name", "title", "text", "fields", "footer", "fileName", "filename", "name")
    entry = [word for key in keys for word in _words(attached.get(key))]
    return "\n".join(entry) or str(attached.get("fallback") or "")


def _of_slack(text: str) -> str:
    return html.unescape(_SLACK_BARE.sub(r"\1", _SLACK_LINK.sub(r"\2 (\1)", text)))
