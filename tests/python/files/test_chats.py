"""Exports of chats: every message is read, of every version and country, and an odd conversation costs itself alone."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.content import documents_in
from everlong.files.document import Document, PassedOverError
from everlong.files.kind import kind_of
from everlong.files.parsing import parse
from support.examples import examples


def read(value: Any, suffix: str = "json") -> tuple[list[Document], dict[str, str]]:
    text = value if isinstance(value, str) else json.dumps(value)
    found = list(documents_in(text.encode(), suffix))
    over = {one.name: str(one) for one in found if isinstance(one, PassedOverError)}
    return [one for one in found if isinstance(one, Document)], over


def text_of(value: Any) -> str:
    return "".join(one.text for one in read(value)[0])


def chatgpt(*messages: tuple[str, Any], **more: Any) -> dict[str, Any]:
    """A conversation of which each message answers the one before."""
    mapping: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None}}
    for number, (role, content) in enumerate(messages):
        made = content if isinstance(content, dict) else {"content_type": "text", "parts": [content]}
        message = {"author": {"role": role}, "content": made}
        mapping[f"m{number}"] = {"message": message, "parent": f"m{number - 1}" if number else "root"}
    return {"title": "Rent", "create_time": 1.7e9, "mapping": mapping, "current_node": f"m{len(messages) - 1}", **more}


CLAUDE = {
    "uuid": "1",
    "name": "Rent",
    "summary": "",
    "created_at": "2024-03-05T10:00:00Z",
    "chat_messages": [{"sender": "human", "text": "What is due?"}, {"sender": "assistant", "text": "The rent."}],
}


@pytest.mark.parametrize(
    "content",
    [
        {"content_type": "text", "parts": ["", "needle"]},
        {"content_type": "multimodal_text", "parts": [{"content_type": "audio_transcription", "text": "needle"}]},
        {"content_type": "multimodal_text", "parts": [{"content_type": "image_asset_pointer"}, "needle"]},
        {"content_type": "code", "language": "python", "text": "needle = 5"},
        {"content_type": "execution_output", "text": "needle"},
        {"content_type": "tether_quote", "url": "x", "title": "needle", "text": "words"},
        {"content_type": "tether_browsing_display", "result": "needle", "summary": None},
        {"content_type": "user_editable_context", "user_profile": "needle", "user_instructions": ""},
        {
            "content_type": "thoughts",
            "thoughts": [{"summary": "s", "content": "needle"}],
            "source_analysis_msg_id": "1",
        },
        {"content_type": "reasoning_recap", "content": "needle"},
        {"content_type": "kind of tomorrow", "answer": {"lines": ["needle"]}},
    ],
)
def test_all_contents_of_chatgpt_are_read(content: dict[str, Any]) -> None:
    documents, over = read([chatgpt(("user", content), ("assistant", "words"))])
    assert "needle" in documents[0].text
    assert documents[0].sections[-1].text == "assistant: words\n\n"
    pictures = "image_asset_pointer" in json.dumps(content)
    assert over == (
        {"Rent": "has 1 pictures or recordings, which lie in files of their own: not read"} if pictures else {}
    )


def test_other_branches_of_chatgpt_are_named() -> None:
    one = chatgpt(("user", "first"), ("assistant", "second"))
    one["mapping"]["old"] = {
        "message": {"author": {"role": "user"}, "content": {"parts": ["old words"]}},
        "parent": "root",
    }
    documents, over = read([one])
    assert "old words" not in documents[0].text
    assert over == {"Rent": "has 1 messages of other branches, which were written anew: not read"}
    one["current_node"] = "not there"
    del one["mapping"]["old"]
    assert "second" in text_of([one])


def test_blocks_and_attachments_of_claude_are_read() -> None:
    blocks = [
        {"type": "thinking", "thinking": "a thought"},
        {"type": "text", "text": "It says May."},
        {"type": "tool_use", "name": "artifacts", "input": {"id": "x", "title": "Plan", "content": "an artifact"}},
        {"type": "tool_result", "name": "search", "content": [{"type": "text", "text": "a result"}]},
    ]
    attached = [{"file_name": "a.txt", "file_type": "txt", "extracted_content": "a pasted text"}]
    messages = [
        {"sender": "human", "text": "What?", "content": [], "attachments": attached, "files": [{"file_name": "p.png"}]},
        {"sender": "assistant", "text": "This block is not supported.", "content": blocks},
    ]
    (document,), over = read([{**CLAUDE, "summary": "About rent. " * 2000, "chat_messages": messages}])
    for words in (
        "human: What?",
        "a pasted text",
        "p.png",
        "a thought",
        "assistant: It says May.",
        "an artifact",
        "a result",
    ):
        assert words in document.text
    assert "not supported" not in document.text
    assert document.text.startswith("Summary: About rent.")
    assert over == {}


def test_an_odd_conversation_is_passed_over_alone() -> None:
    odd = [{"title": "Odd", "mapping": None}, {"title": "Other"}, 7, {"name": "Third", "chat_messages": [8]}]
    documents, over = read([chatgpt(("user", "words")), *odd, CLAUDE])
    assert [one.title for one in documents] == ["Rent", "Rent"]
    assert sorted(over) == ["Odd", "Other", "Third", "conversation 4"] or len(over) == 4
    cut = json.dumps([chatgpt(("user", "words")), CLAUDE])[:-40]
    documents, over = read(cut)
    assert len(documents) == 1
    assert list(over) == ["conversation 2"]
    documents, over = read([{"mapping": 7}])  # JSON of another kind is its own text
    assert documents[0].text == '[{"mapping": 7}]'


TELEGRAM = {
    "name": "Bob",
    "type": "personal_chat",
    "id": 1,
    "messages": [
        {
            "id": 1,
            "type": "service",
            "date": "2024-03-05T14:00:00",
            "actor": "Ada",
            "action": "create_group",
            "title": "Trip",
        },
        {"id": 2, "type": "message", "date": "2024-03-05T14:02:11", "from": "Ada", "text": "plain words"},
        {
            "id": 3,
            "type": "message",
            "date": "2024-03-06T14:02:11",
            "from": "Bob",
            "text": ["see ", {"type": "link", "text": "https://x.org"}, " now"],
            "file": "files/a.pdf",
        },
        {
            "id": 4,
            "type": "message",
            "date": "2024-03-06T15:00:00",
            "from": "Bob",
            "text": "",
            "poll": {"question": "When?"},
        },
    ],
}
SLACK = [
    {
        "type": "message",
        "user": "U1",
        "user_profile": {"real_name": "Ada"},
        "text": "a &amp; <https://x.org|page>",
        "ts": "1709647331.000100",
    },
    {
        "type": "message",
        "subtype": "bot_message",
        "username": "robot",
        "text": "",
        "ts": "1709647332.000100",
        "attachments": [{"title": "Build", "text": "failed"}],
        "files": [{"name": "log.txt"}],
    },
]
SIGNAL_LINES = (
    '{"date": "2024-03-05T14:02:11", "sender": "Ada", "body": "plain words", "quote": "", "attachments": []}\n'
    '{"date": "2024-03-06T14:02:11", "sender": "Me", "body": "more", "quote": "old", '
    '"attachments": [{"name": "a.jpg"}]}\n'
)
SIGNAL_CLI = (
    '{"envelope": {"sourceName": "Ada", "timestamp": 1709647331000, "dataMessage": {"message": "plain words"}}}\n'
)
SIGNAL_TABLE = {
    "messages": [{"conversationId": "x", "sent_at": 1709647331000, "type": "incoming", "body": "plain words"}]
}


def test_chats_of_telegram_slack_and_signal() -> None:
    first, second = read(TELEGRAM)[0]
    assert first.text == "Tuesday, 05 March 2024\nAda: create_group\nTrip\nAda: plain words\n"
    assert [section.place for section in first.sections] == ["", "2024-03-05 14:00", "2024-03-05 14:02"]
    assert "Bob: see https://x.org now\n(file: files/a.pdf)\nBob: When?\n" in second.text
    assert first.title == "Bob"
    assert text_of({"about": "x", "chats": {"list": [TELEGRAM]}}) == first.text + second.text
    (slack,) = read(SLACK)[0]
    assert "Ada: a & page (https://x.org)\nrobot: (attached: Build\nfailed)\n(attached: log.txt)\n" in slack.text
    assert "Ada: plain words\n" in text_of(SIGNAL_LINES)
    assert "Me: more\n(quote: old)\n(attached: a.jpg)\n" in text_of(SIGNAL_LINES)
    assert "Ada: plain words\n" in text_of(SIGNAL_CLI)
    assert "incoming: plain words\n" in text_of(SIGNAL_TABLE)


WHATSAPP = [
    "[05.03.24, {h}:02:11] {said}",
    "[05.03.24, {h}:02:11]\u200e {said}",
    "05/03/2024, {h}:02 - {said}",
    "5.3.2024 klo {h}.02 - {said}",
    "2024-03-05 {h} h 02 - {said}",
    "[2024-03-05 {h}:02:11] {said}",
    "05-03-2024 {h}:02 - {said}",
    "[2024/3/5 下午{t}:02:11] {said}",
    "5/3/2567 {h}:02 - {said}",
    "[2024. 3. 5. 오후 {t}:02:11] {said}",
    "2024년 3월 5일 오후 {t}:02, {said}",
    "24. 3. 5. 오후 {t}:02 - {said}",
    "2024. 03. 05. {h}:02 - {said}",
    "{h}:02, 05/03/2024 - {said}",
    "05.03.24, {h}:02:11: {said}",
    "5.03.24 г., {h}:02 - {said}",
    "5/3/24, {t}:02\u202fp.\u00a0m. - {said}",
    "5/3/24, {t}:02 μ.μ. - {said}",
    "\u200e[3/5/24, {t}:02:11\u202fPM] {said}",
    "3/5/24, {t}:02 PM - {said}",
    "2024-03-05, {t}:02 p.m. - {said}",
]


@pytest.mark.parametrize("form", WHATSAPP)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_whatsapp_of_many_countries(form: str, ends: str) -> None:
    said = [
        "Ada: one\ngoes on\n\nover lines",
        "Messages are encrypted.",
        "\u200eBob: <attached: a.jpg>",
        "Ada: 5/3 is ours",
    ]
    text = "\n".join(form.format(h=14 + n, t=2 + n, said=one) for n, one in enumerate(said))
    assert kind_of(text.encode(), "txt") == "chats"
    (document,), over = read(text.replace("\n", ends), "txt")
    assert document.text == (
        "Tuesday, 05 March 2024\nAda: one\ngoes on\nover lines\n"
        "Messages are encrypted.\nBob: <attached: a.jpg>\nAda: 5/3 is ours\n"
    )
    assert [section.place for section in document.sections[1:]] == [f"2024-03-05 {14 + n}:02" for n in range(4)]
    assert over == {}


def test_digits_of_other_scripts() -> None:
    text = "[٥\u200f/٣\u200f/٢٠٢٤, ٢:٠٢:١١ م] Ada: one\n[٦\u200f/٣\u200f/٢٠٢٤, ٢:٠٢:١١ م] Bob: two\n"
    documents, _ = read(text, "txt")
    assert [one.sections[-1].place for one in documents] == ["2024-03-05 14:02", "2024-03-06 14:02"]


@examples(30)
@given(
    st.lists(st.datetimes(datetime.datetime(2012, 1, 1), datetime.datetime(2025, 1, 1)), min_size=30, max_size=60),
    st.sampled_from(["%d/%m/%y, %H:%M - ", "%m/%d/%y, %I:%M %p - ", "[%d.%m.%Y, %H:%M:%S] ", "[%Y-%m-%d, %H:%M:%S] "]),
)
def test_days_and_months_are_told_apart(moments: list[datetime.datetime], form: str) -> None:
    moments = sorted(moments)
    text = "".join(f"{moment.strftime(form)}Ada: w{number}\n" for number, moment in enumerate(moments))
    documents, _ = read(text, "txt")
    places = [section.place for one in documents for section in one.sections if section.place]
    if any(moment.day > 12 for moment in moments):
        assert places == [f"{moment:%Y-%m-%d %H:%M}" for moment in moments]
    said = " ".join(one.text for one in documents).split()
    assert [word for word in said if word.startswith("w")] == [f"w{number}" for number in range(len(moments))]


@pytest.mark.parametrize(
    "line",
    [
        "[2024-03-05 14:0{n}:11] ERROR: disk full",
        "2024-03-05 14:0{n}:11 - root - INFO: started",
        "2024-03-05 14:0{n}:11,123 - root - words",
        "05.03.2024 14:0{n} - met nobody",
    ],
)
def test_a_log_is_no_chat(line: str) -> None:
    text = "\n".join(line.format(n=n) for n in range(9))
    assert kind_of(text.encode(), "txt") == "plain"
    assert read(text, "txt")[0][0].text == text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_chats_behind_a_mark(encoding: str, tmp_path: Path) -> None:
    for name, text in (
        ("a.json", json.dumps([CLAUDE])),
        ("a.txt", "5/3/24, 14:02 - Ada: one\n5/3/24, 14:03 - Bob: two\n"),
    ):
        (tmp_path / name).write_bytes(text.encode(encoding))
        assert parse(tmp_path / name).documents[0].sections[-1].place
