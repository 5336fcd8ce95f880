"""Mail is read as the tree that it is: every word of every part comes back, or the part is named."""

from __future__ import annotations

import base64
import email.policy
import mailbox as standard_mailbox
import re
from email.message import EmailMessage
from email.mime.base import MIMEBase
from email.mime.message import MIMEMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.content import documents_in
from everlong.files.document import Document, PassedOverError

HEAD = b"From: ada@example.org\nTo: bob@example.org\nSubject: Lease\nDate: Tue, 05 Mar 2024 10:00:00 +0000\n"
PICTURE = b"\x89PNG\r\n\x1a\n"


def read(data: bytes, suffix: str = "eml") -> tuple[dict[str, str], dict[str, str]]:
    """The texts by their names, and what is passed over."""
    found = list(documents_in(data, suffix))
    over = {one.name: str(one) for one in found if isinstance(one, PassedOverError)}
    return {one.name: one.text for one in found if isinstance(one, Document)}, over


def details(data: bytes) -> tuple[str, ...]:
    (found,) = documents_in(data, "eml")
    assert isinstance(found, Document)
    return found.details


def with_heads(message: MIMEBase, subject: str = "Lease") -> MIMEBase:
    message["From"], message["To"], message["Subject"] = "ada@example.org", "bob@example.org", subject
    return message


class Tree:
    """A mail of random parts, and the words that stand in it."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.pictures = 0

    def word(self) -> str:
        self.words.append(f"w{len(self.words)}é")
        return self.words[-1]

    def part(self, data: st.DataObject, depth: int) -> MIMEBase:
        kinds = [
            "plain",
            "html",
            "named",
            "picture",
            "bytes",
            *(["mixed", "related", "alternative", "mail"] if depth else []),
        ]
        kind = data.draw(st.sampled_from(kinds))
        charset = data.draw(st.sampled_from(["utf-8", "iso-8859-1", "utf-16"]))
        if kind == "plain":
            return MIMEText(f"plain {self.word()}\n", "plain", charset)
        if kind == "html":
            return MIMEText(f"<p>page <b>{self.word()}</b></p>", "html", charset)
        if kind == "named":
            made: MIMEBase = MIMEText(f"file {self.word()}", "plain", charset)
            made.add_header("Content-Disposition", "attachment", filename="note.md")
            return made
        if kind in ("picture", "bytes"):
            made = MIMEBase(*(("image", "png") if kind == "picture" else ("application", "octet-stream")))
            content = PICTURE if kind == "picture" else f"bytes {self.word()}".encode()
            self.pictures += kind == "picture"
            made.set_payload(base64.encodebytes(content).decode())
            made["Content-Transfer-Encoding"] = "base64"
            return made
        if kind == "mail":
            return MIMEMessage(with_heads(self.part(data, depth - 1), f"inner {self.word()}"))
        if kind == "alternative":
            made, word = MIMEMultipart("alternative"), self.word()
            made.attach(MIMEText(data.draw(st.sampled_from([f"form {word}", "  "])), "plain", charset))
            made.attach(MIMEText(f"<p>form {word}</p>", "html", charset))
            return made
        made = MIMEMultipart(kind)
        for _ in range(data.draw(st.integers(1, 3))):
            made.attach(self.part(data, depth - 1))
        return made


@given(st.data())
def test_every_word_of_a_random_tree_comes_back_once(data: st.DataObject) -> None:
    tree = Tree()
    top = with_heads(tree.part(data, 3), f"top {tree.word()}")
    texts, over = {}, []
    for number, one in enumerate(documents_in(top.as_bytes(), "eml")):
        if isinstance(one, Document):
            texts[number] = one.text
        else:
            over.append(one)
    found = re.findall(r"w\d+é", " ".join(texts.values()))
    assert sorted(found) == sorted(tree.words)
    assert [str(one) for one in over] == ["holds no text: it is a picture"] * tree.pictures


def test_text_behind_an_attachment_is_read_in_order() -> None:
    out = with_heads(MIMEMultipart("mixed"))
    picture = EmailMessage()
    picture.set_content(PICTURE, maintype="image", subtype="png", disposition="inline", filename="plan.png")
    for part in (MIMEText("first words"), picture, MIMEText("second words"), MIMEText("<p>third</p>", "html")):
        out.attach(part)
    texts, over = read(out.as_bytes())
    assert texts[""].split("\n\n")[1:4] == ["first words", "second words", "third"]
    assert over == {"plan.png": "holds no text: it is a picture"}


def test_forwarded_messages_are_documents_of_their_own() -> None:
    inner = EmailMessage()
    inner["Subject"], inner["Date"] = "Inner", "Mon, 02 Mar 2009 10:00:00 +0000"
    inner.set_content("inner words")
    inner.add_attachment(b"attached words", maintype="application", subtype="octet-stream", filename="a.txt")
    wrapped = MIMEBase("message", "rfc822")
    wrapped.set_payload(base64.encodebytes(bytes(inner)).decode())
    wrapped["Content-Transfer-Encoding"] = "base64"  # which is against the rules, and done
    out = with_heads(MIMEMultipart("digest"))
    for part in (MIMEMessage(inner), wrapped):
        out.attach(part)
    found = [one for one in documents_in(out.as_bytes(), "eml") if isinstance(one, Document)]
    names = ["", *(f"forwarded message {n}{file}" for n in (1, 2) for file in ("", ", a.txt"))]
    assert [one.name for one in found] == names
    assert "inner words" in found[1].text
    assert found[1].happened == found[3].happened == 1235988000.0
    assert found[1].sections[0].place == "Inner"


@pytest.mark.parametrize(
    ("plain", "page", "wanted"),
    [
        ("The plain form of it.", "<p>The form of a page.</p>", "The plain form of it."),
        (" \n\u00a0", "<p>The form of a page.</p>", "The form of a page."),
        ("See it in a browser.", "<p>" + "words " * 40, "words words"),
    ],
)
def test_one_form_of_a_text_is_read(plain: str, page: str, wanted: str) -> None:
    out = with_heads(MIMEMultipart("alternative"))
    out.attach(MIMEText(plain))
    related = MIMEMultipart("related")
    related.attach(MIMEText(page, "html"))
    related.attach(MIMEText("p {}", "css"))
    out.attach(related)
    out.attach(MIMEText("BEGIN:VCALENDAR\nSUMMARY:a meeting\nEND:VCALENDAR\n", "calendar"))
    texts, over = read(out.as_bytes())
    assert wanted in texts.pop("")
    assert ["a meeting" in text for text in texts.values()] == [True]
    assert over == {}


def test_headers_are_decoded_whatever_they_break() -> None:
    long = ", ".join(f"person{n}@example.org" for n in range(30))
    lines = [
        b"From: =?UTF-8?B?w4lsb8Ov?= =?utf-8?b?c2U=?= <e@x.org>",
        b"To: " + long.encode(),
        b"Subject: =?utf-8?q?K=C3?= =?utf-8?q?=BCche_und?= Gr\xfc\xdfe aus der K\xfcche",
        b"Cc: =?no-such-charset?q?b=FCb?=, =?utf-8?b?broken",
        b"Date: someday",
    ]
    texts, _ = read(b"\r\n".join(lines) + b"\r\n\r\nwords\r\n")
    head = texts[""].split("\n\n")[0].split("\n")
    assert head[0] == "From: Éloïse <e@x.org>"
    assert head[1] == f"To: {long}"
    assert head[2] == "Cc: büb, =?utf-8?b?broken"
    assert head[4] == "Subject: Küche undGrüße aus der Küche" or head[4] == "Subject: Küche und Grüße aus der Küche"


@pytest.mark.parametrize(
    ("charset", "encoding"),
    [
        ("us-ascii", "utf-8"),
        ("iso-8859-1", "cp1252"),
        ("iso-8859-1", "utf-8"),
        ("no-such", "cp1252"),
        ("gb2312", "gb18030"),
    ],
)
def test_a_wrong_charset_is_mended(charset: str, encoding: str) -> None:
    words = "這裏写著鎔化，請看" if "gb" in charset else "The café’s owner – he said “naïve” to us"
    head = HEAD + f"Content-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: 8bit\n\n".encode()
    texts, _ = read(head + words.encode(encoding))
    assert words in texts[""]


def test_damage_is_named_and_the_rest_is_read() -> None:
    encoded = base64.encodebytes(b"words of a letter " * 20)
    damaged = HEAD + b"Content-Transfer-Encoding: base64\n\n"
    texts, _ = read(damaged + encoded[:200] + b"\n--- footer\n")
    assert texts[""].count("words of a letter") >= 7
    assert details(damaged + encoded[:200]) == ("part 1: its base64 is damaged",)
    assert details(damaged + encoded) == ()
    quoted = HEAD + b"Content-Transfer-Encoding: quoted-printable\n\na=C3=A9=\nb =ZZ end\n"
    texts, _ = read(quoted)
    assert "aéb =ZZ end" in texts[""]
    assert details(quoted) == ("part 1: its quoted-printable is damaged",)
    assert details(HEAD + b"Content-Transfer-Encoding: x-odd\n\nwords") == (
        "part 1: its transfer encoding is unknown: x-odd",
    )


def test_flowed_lines_are_joined() -> None:
    text = b"A paragraph that \ngoes on.\n From here\n> quoted \n> on\n-- \nAda\n"
    texts, _ = read(HEAD + b"Content-Type: text/plain; format=flowed\n\n" + text)
    assert texts[""].split("\n\n", 1)[1].strip().split("\n") == [
        "A paragraph that goes on.",
        "From here",
        "> quoted on",
        "--",
        "Ada",
    ]
    texts, _ = read(HEAD + b'Content-Type: text/plain; format=flowed; delsp="yes"\n\nwo \nrds\n')
    assert "words" in texts[""]


def test_what_is_encrypted_or_signed_is_named() -> None:
    signed = with_heads(MIMEMultipart("signed"))
    signed.attach(MIMEText("signed words"))
    signed.attach(MIMEBase("application", "pgp-signature"))
    texts, over = read(signed.as_bytes())
    assert "signed words" in texts[""]
    assert over == {"signature": "holds no text: it is a signature"}
    encrypted = with_heads(MIMEMultipart("encrypted"))
    encrypted.attach(MIMEBase("application", "pgp-encrypted"))
    encrypted.attach(MIMEBase("application", "octet-stream"))
    wrapped = with_heads(MIMEBase("application", "pkcs7-mime"))
    inline = HEAD + b"\nbefore\n-----BEGIN PGP MESSAGE-----\n\nabc\n-----END PGP MESSAGE-----\nbehind\n"
    for data, name in (
        (encrypted.as_bytes(), "encrypted part"),
        (wrapped.as_bytes(), "encrypted part"),
        (inline, "encrypted text"),
    ):
        texts, over = read(data)
        assert list(over) == [name]
    assert "behind" in texts[""]
    assert "abc" not in texts[""]


BOX = b"""From ada@example.org Tue Mar  5 10:00:00 2024
Subject: Trip
Content-Length: 3

Dear Bob,

From Lisbon we went south, as we had in the spring of 2019
and at 10:30 stayed. >From is no quote here.
>From there: quoted.
{0}
Subject: Re: Trip

Thanks!
"""


@pytest.mark.parametrize(
    "line",
    [
        "\nFrom bob@example.org Tue Mar  5 11:00:00 2024",
        "From bob@example.org Tue Mar  5 11:00:00 2024",
        "\nFrom 1234@xxx Tue Mar 05 11:00:00 +0000 2024",
        "\nFrom bob Tue Mar  5 11:00 CET 2024 remote from host",
        "\nFrom - Tue, 05 Mar 2024 11:00:00 +0000",
        "\nFrom MAILER-DAEMON",
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_mailbox_is_cut_where_messages_begin(line: str, ends: str) -> None:
    data = BOX.decode().replace("{0}", line).replace("\n", ends).encode()
    texts, over = read(data, "mbox")
    assert list(texts) == ["message 1", "message 2"]
    assert over == {}
    assert "and at 10:30 stayed. >From is no quote here.\nFrom there: quoted." in texts["message 1"]
    assert texts["message 2"].endswith("Thanks!\n\n")


@given(
    st.lists(
        st.lists(st.sampled_from(["From me", ">From you", "words", "", "From: x", "From 2019"])), min_size=1, max_size=4
    )
)
def test_a_mailbox_of_the_standard_library_comes_back(bodies: list[list[str]]) -> None:
    box = b""
    for number, lines in enumerate(bodies):
        message = EmailMessage(policy=email.policy.compat32)
        message["Subject"] = f"s{number}"
        message.set_payload("\n".join([*lines, f"end{number}"]) + "\n")
        made = standard_mailbox.mboxMessage(message)
        made.set_from("ada@example.org", (2024, 3, 5, 10, 0, 0, 1, 65, 0))
        box += f"From {made.get_from()}\n".encode() + re.sub(rb"(?m)^(>*From )", rb">\1", made.as_bytes()) + b"\n"
    texts, over = read(box, "mbox")
    assert over == {}
    for (number, lines), text in zip(enumerate(bodies), texts.values(), strict=True):
        body = text.removeprefix(f"Subject: s{number}\n\n").strip("\n")
        assert body == "\n".join([*lines, f"end{number}"]).strip("\n")


def test_other_files_of_mail(tmp_path: Path) -> None:
    letter = HEAD + b"\nplain words\n"
    assert (
        "plain words"
        in read(str(len(letter)).encode() + b"\n" + letter + b"<?xml version='1.0'?><plist/>", "emlx")[0][""]
    )
    assert "plist" not in read(str(len(letter)).encode() + b"\n" + letter + b"<plist/>", "emlx")[0][""]
    for suffix in ("", "host:2,s", "other"):  # of a Maildir
        assert read(letter, suffix)[0][""].startswith("From: ada@example.org") or suffix == "other"
    for encoding in ("utf-16", "utf-8-sig"):
        assert "plain words" in read(letter.decode().encode(encoding))[0][""]
    page = MIMEMultipart("related")
    page["Subject"], page["From"] = "A page", "<Saved by Blink>"
    page.attach(MIMEText("<html><head><title>A page</title></head><body><h1>Rivers</h1>words</body></html>", "html"))
    picture = MIMEBase("image", "png")
    picture["Content-Location"] = "https://example.org/pictures/map.png"
    picture.set_payload(base64.encodebytes(PICTURE).decode())
    picture["Content-Transfer-Encoding"] = "base64"
    page.attach(picture)
    texts, over = read(page.as_bytes(), "mhtml")
    assert "Rivers" in texts[""]
    assert list(over) == ["map.png"]


def test_parts_that_lie_too_deep_are_named() -> None:
    inner: MIMEBase = with_heads(MIMEText("innermost"))
    for _ in range(60):
        outer = with_heads(MIMEMultipart("mixed"))
        outer.attach(MIMEText("words"))
        outer.attach(MIMEMessage(inner))
        inner = outer
    texts, over = read(inner.as_bytes())
    assert len(texts) == 51
    assert "50 messages deep" in "".join(over.values())


def test_what_a_page_hides_is_named() -> None:
    texts, over = read(
        HEAD + b"Content-Type: text/html\n\n<div style='display:none'>A sly preview</div><p>The lease</p>"
    )
    assert "The lease" in texts[""]
    assert "sly" not in texts[""]
    assert over == {"part 1, hidden text": "is not shown: 3 words"}


def test_messages_of_other_kinds_are_read_with_their_bodies() -> None:
    texts, _ = read(HEAD + b"Content-Type: message/http\n\nHost: shop.example.org\n\nThe order is late.\n")
    assert "Host: shop.example.org" in texts[""]
    assert texts[""].count("The order is late.") == 1


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_mail_is_told_from_a_note_though_both_are_called_txt(newline: bytes) -> None:
    body = base64.b64encode(b"The lease ends in May.").decode()
    mail = HEAD + f"MIME-Version: 1.0\nContent-Transfer-Encoding: base64\n\n{body}\n".encode()
    assert read(mail.replace(b"\n", newline), "txt")[0][""].count("The lease ends in May.") == 1
    note = b"To: Ada\nFrom: Bob\n\nMIME-Version: 1.0 is in every mail. Content-Type: too.\n"
    assert read(note.replace(b"\n", newline), "txt")[0][""].split() == note.decode().split()
