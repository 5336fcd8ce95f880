"""E-books are read by their packages, and what is missing, damaged or encrypted in one is named."""

from __future__ import annotations

import random
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.document import Document, NoTextError, PassedOverError
from everlong.files.epub import read
from everlong.files.parsing import parse
from support.made_files import zip_of
from support.word_trees import marked_up, trees, words_in

CONTAINER = (
    '<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="{}" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
PAGE = '<?xml version="1.0" encoding="{}"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body>{}</body></html>'
XHTML = "application/xhtml+xml"


def _package(items: list[tuple[str, str]], spine: str = "", version: str = "3.0") -> str:
    """A package whose items are pairs: reference, and further attributes."""
    listed = "".join(
        f'<item id="i{n}" href="{href}" {more if "media-type" in more else f"media-type={XHTML!r} {more}"}/>'
        for n, (href, more) in enumerate(items)
    )
    spine = spine or "".join(f'<itemref idref="i{n}"/>' for n in range(len(items)))
    return (
        f'<package xmlns="http://www.idpf.org/2007/opf" version="{version}"><metadata '
        'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>A Book</dc:title><dc:creator>Ann</dc:creator>'
        f"<dc:creator>Ben</dc:creator></metadata><manifest>{listed}</manifest><spine>{spine}</spine></package>"
    )


def _chapter(words: str, encoding: str = "utf-8") -> bytes:
    return PAGE.format(encoding, f"<p>{words}</p>").encode(encoding)


def _book(items: list[tuple[str, str]], members: dict[str, bytes], spine: str = "", **more: str) -> bytes:
    made: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER.format("OPS/a.opf"),
        "OPS/a.opf": _package(items, spine),
        **members,
    }
    return zip_of(made | {name.replace("__", "/"): data for name, data in more.items()})


def _read(book: bytes) -> tuple[str, list[str]]:
    found = list(read(book, "epub"))
    text = "".join(one.text for one in found if isinstance(one, Document))
    return text, [f"{one.name}: {one}" for one in found if isinstance(one, PassedOverError)]


@pytest.mark.parametrize(
    ("href", "member"),
    [
        ("two.xhtml#start", "OPS/two.xhtml"),
        ("two.xhtml?x=1", "OPS/two.xhtml"),
        ("two%20b.xhtml", "OPS/two b.xhtml"),
        ("two%20b.xhtml", "OPS/two%20b.xhtml"),
        ("a%23b.xhtml", "OPS/a#b.xhtml"),
        ("./two.xhtml", "OPS/two.xhtml"),
        ("/OPS/two.xhtml", "OPS/two.xhtml"),
        ("../text/two.xhtml", "text/two.xhtml"),
        ("../../two.xhtml", "two.xhtml"),
        ("Two.xhtml", "OPS/two.xhtml"),
        ("text/two.xhtml", "OPS\\text\\two.xhtml"),
        ("caf\u00e9.xhtml", "OPS/cafe\u0301.xhtml"),
    ],
)
def test_a_chapter_is_found_by_however_it_is_referred_to(href: str, member: str) -> None:
    book = _book([("one.xhtml", ""), (href, "")], {"OPS/one.xhtml": _chapter("First."), member: _chapter("NEEDLE.")})
    assert _read(book) == ("First.\n\nNEEDLE.\n\n", [])


def test_the_spine_gives_the_order_and_nothing_is_left_out_or_read_twice() -> None:
    items = [
        ("one.xhtml", ""),
        ("notes.xhtml", ""),
        ("nav.xhtml", 'properties="nav"'),
        ("loose.xhtml", ""),
        ("film.mp4", 'media-type="video/mp4" fallback="i5"'),
        ("told.xhtml", ""),
        ("map.svg", 'media-type="image/svg+xml"'),
        ("cover.jpg", 'media-type="image/jpeg"'),
    ]
    order = "".join(f'<itemref idref="{name}"/>' for name in ("i0", "i4", "i6", "i0", "i7", "i99"))
    order += '<itemref idref="i1" linear="no"/>'
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><style/><title>Map</title><text>River</text></svg>'
    aside = '<aside epub:type="footnote" hidden="hidden" xmlns:epub="http://www.idpf.org/2007/ops">Note 1.</aside>'
    members = {
        "OPS/one.xhtml": PAGE.format("utf-8", f'<p>One. <img src="x.png" alt="A tower"/></p>{aside}').encode(),
        "OPS/notes.xhtml": _chapter("Notes."),
        "OPS/nav.xhtml": _chapter("<ol><li>Loose.</li><li>Where the road ends</li></ol>"),
        "OPS/loose.xhtml": _chapter("Loose."),
        "OPS/told.xhtml": _chapter("Told."),
        "OPS/map.svg": svg,
        "OPS/cover.jpg": b"\xff\xd8\xff",
    }
    text, over = _read(_book(items, members, order))
    chapters = "One. A tower Note 1. Told. Map River Notes. Loose."
    assert " ".join(text.split()) == f"{chapters} Where the road ends"  # of the contents, what no chapter says
    assert over == ["OPS/cover.jpg: is no text (image/jpeg)", "#i99: is missing in the book"]


def test_what_is_missing_damaged_or_a_picture_is_named_alone() -> None:
    items = [("one.xhtml", ""), ("gone.xhtml", ""), ("two.xhtml", ""), ("cover.xhtml", ""), ("three.xhtml", "")]
    members = {
        "OPS/one.xhtml": _chapter("First."),
        "OPS/two.xhtml": b"".join(random.Random(n).randbytes(1) for n in range(900)) + b"which is damaged",
        "OPS/cover.xhtml": PAGE.format("utf-8", '<img src="a.png"/>').encode(),
        "OPS/three.xhtml": _chapter("Third."),
    }
    book = _book(items, members)
    start = book.index(b"PK\x03\x04", book.index(b"OPS/two.xhtml"))
    book = book[: start - 20] + bytes(8) + book[start - 12 :]  # its bytes, not its entry
    text, over = _read(book)
    assert text == "First.\n\nThird.\n\n"
    assert [one.partition(":")[0] for one in over] == ["gone.xhtml", "OPS/two.xhtml", "OPS/cover.xhtml"]
    assert "missing" in over[0]
    assert "damaged" in over[1]
    assert "picture" in over[2]


@pytest.mark.parametrize("listed", [True, False])
def test_an_encrypted_book_says_so_and_fonts_do_not_count(listed: bool, tmp_path: Path) -> None:
    def encrypted(name: str, how: str) -> str:
        return (
            f'<EncryptedData><EncryptionMethod Algorithm="{how}"/><CipherData><CipherReference URI="{name}"/>'
            "</CipherData></EncryptedData>"
        )

    def protection(*parts: str) -> str:
        return f'<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container">{"".join(parts)}</encryption>'

    chapters = [(f"c{n}.xhtml", "") for n in range(3)]
    noise = {f"OPS/c{n}.xhtml": random.Random(n).randbytes(4000) for n in range(3)}
    aes = [encrypted(f"OPS/c{n}.xhtml", "http://www.w3.org/2001/04/xmlenc#aes256-cbc") for n in range(3)]
    file = tmp_path / "a.epub"
    file.write_bytes(_book(chapters, noise, **{"META-INF__encryption.xml": protection(*(aes if listed else []))}))
    with pytest.raises(NoTextError, match="encrypted"):
        parse(file)
    fonts = protection(encrypted("OPS/a.otf", "http://www.idpf.org/2008/embedding"))
    open_book = _book([("one.xhtml", "")], {"OPS/one.xhtml": _chapter("Words.")}, **{"META-INF__encryption.xml": fonts})
    assert _read(open_book) == ("Words.\n\n", [])


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("iso-8859-2", "Zażółć gęślą jaźń."),
        ("windows-1251", "Съешь ещё этих мягких французских булок."),
        ("shift_jis", "これは最初の章です。"),
        ("utf-16", "Zürich – naïve"),
    ],
)
def test_a_chapter_is_decoded_as_it_states(encoding: str, words: str) -> None:
    assert _read(_book([("one.xhtml", "")], {"OPS/one.xhtml": _chapter(words, encoding)}))[0].strip() == words


@pytest.mark.parametrize(
    ("container", "package"),
    [("<container>", "x"), (CONTAINER.format("gone.opf"), "x"), (CONTAINER.format("OPS/a.opf"), "<package>")],
)
def test_what_is_no_book_is_refused(container: str, package: str) -> None:
    with pytest.raises(NoTextError, match="no whole e-book"):
        _read(zip_of({"META-INF/container.xml": container, "OPS/a.opf": package}))


def test_authors_and_a_second_edition_are_read() -> None:
    two = CONTAINER.format("OPS/a.opf").replace("</rootfiles>", '<rootfile full-path="OPS/b.opf"/></rootfiles>')
    members: dict[str, str | bytes] = {"META-INF/container.xml": two}
    for name, items in (("a", [("one.xhtml", "")]), ("b", [("one.xhtml", ""), ("two.xhtml", "")])):
        members[f"OPS/{name}.opf"] = _package(items, version="2.0")
    members |= {"OPS/one.xhtml": _chapter("First."), "OPS/two.xhtml": _chapter("Second.")}
    (document,) = read(zip_of(members), "epub")
    assert isinstance(document, Document)
    assert (document.title, document.author, document.text) == ("A Book", "Ann, Ben", "First.\n\nSecond.\n\n")


@given(
    st.lists(st.tuples(st.text("aZ é#?%&+ü", min_size=1, max_size=6), trees(empty=True)), max_size=6),
    st.randoms(use_true_random=False),
)
def test_all_words_of_a_book_come_back_in_its_order(
    chapters: list[tuple[str, object]], shuffled: random.Random
) -> None:
    markup, words = marked_up([tree for _, tree in chapters])
    names = [f"{number}{name}.xhtml" for number, (name, _) in enumerate(chapters)]
    made = list(zip(names, markup, strict=True))
    shuffled.shuffle(made)  # members lie in any order
    members = {f"OPS/t/{name}": PAGE.format("utf-8", body).encode() for name, body in made}
    text, over = _read(_book([(urllib.parse.quote(f"t/{name}"), "") for name in names], members))
    assert words_in(text) == words
    assert all("picture" in one for one in over)
