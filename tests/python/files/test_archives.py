"""Archives: one member in a bad way costs itself alone, and a name is in whatever encoding its system writes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.content import documents_in
from everlong.files.document import Document, PassedOverError, UnreadableFileError
from support.examples import examples
from support.made_files import zip_of


def read(data: bytes, suffix: str = "zip") -> tuple[dict[str, str], dict[str, str]]:
    found = list(documents_in(data, suffix))
    over = {one.name: str(one) for one in found if isinstance(one, PassedOverError)}
    return {one.name: one.text for one in found if isinstance(one, Document)}, over


def tar_of(members: dict[str, bytes], form: int = tarfile.PAX_FORMAT, encoding: str = "utf-8") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, encoding=encoding) as archive:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return out.getvalue()


def renamed(new: bytes, *, extra: bytes = b"") -> bytes:
    """A zip of one member whose name is these bytes, without a flag that says in which encoding."""
    out = io.BytesIO()
    about = zipfile.ZipInfo("x" * len(new))
    about.extra = extra
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(about, "words")
    return out.getvalue().replace(b"x" * len(new), new)


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("合同.txt", "gbk"),
        ("契約書.txt", "cp932"),
        ("договор.txt", "cp866"),
        ("Mietvertrag für Müller.txt", "utf-8"),
        ("Mietvertrag für Müller.txt", "cp437"),
        ("Élève à la forêt.txt", "cp850"),
        ("계약서 사본.txt", "cp949"),
        ("notes.txt", "ascii"),
    ],
)
def test_names_without_a_flag(name: str, encoding: str) -> None:
    assert read(renamed(name.encode(encoding)))[0] == {name: "words"}


def test_names_with_a_flag_or_a_field() -> None:
    assert read(zip_of({"合同/Müller.txt": "words"}))[0] == {"合同/Müller.txt": "words"}
    old, new = b"M?ller.txt", "Müller.txt".encode()
    field = struct.pack("<HHBL", 0x7075, 5 + len(new), 1, zlib.crc32(old)) + new
    assert read(renamed(old, extra=field))[0] == {"Müller.txt": "words"}
    stale = struct.pack("<HHBL", 0x7075, 5 + len(new), 1, 7) + new  # of a name that was changed since
    assert read(renamed(old, extra=stale))[0] == {"M?ller.txt": "words"}
    for form, encoding in ((tarfile.PAX_FORMAT, "utf-8"), (tarfile.GNU_FORMAT, "utf-8"), (tarfile.GNU_FORMAT, "cp866")):
        assert read(tar_of({"договор.txt": b"words"}, form, encoding), "tar")[0] == {"договор.txt": "words"}


@examples(30)
@given(
    st.dictionaries(
        st.from_regex(r"\A[a-z]{1,8}(/[a-zé]{1,8}){0,2}\.(txt|md)\Z"), st.from_regex(r"\A[a-z ]{0,30}[a-z]\Z")
    )
)
def test_every_member_comes_back(members: dict[str, str]) -> None:
    members = {"first.txt": "words", **members}
    assert read(zip_of(members))[0] == members
    data = tar_of({name: text.encode() for name, text in members.items()})
    for packed in (data, gzip.compress(data), bz2.compress(data), lzma.compress(data, preset=0)):
        assert read(packed, "other")[0] == members


def test_odd_members_cost_themselves_alone() -> None:
    data = bytearray(zip_of({"a.txt": "First words. " * 50, "b.txt": "Second. " * 50, "c.png": b"\x89PNG", ".": "dot"}))
    data[data.find(b"a.txt") + 8] ^= 0xFF
    texts, over = read(bytes(data))
    assert texts["b.txt"].startswith("Second.")
    assert set(over) == {"a.txt", "c.png"}
    secret = bytearray(zip_of({"a.txt": "First words.", "b.txt": "Second."}))
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        secret[secret.find(mark) + flags] |= 1
    assert read(bytes(secret)) == ({"b.txt": "Second."}, {"a.txt": "is encrypted: unpack it with its password"})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        link = zipfile.ZipInfo("link.txt")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("b.txt", "Second.")
    assert read(out.getvalue()) == ({"b.txt": "Second."}, {"link.txt": "is a link"})


def test_two_members_of_one_name_are_both_read() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", "first")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.txt", "second")
    assert [one.text for one in documents_in(out.getvalue(), "zip") if isinstance(one, Document)] == ["first", "second"]


def test_a_damaged_tar_is_read_up_to_the_damage() -> None:
    data = tar_of({"a.txt": b"First. " * 200, "b.txt": b"Second. " * 200, "c.txt": b"Third. " * 200})
    texts, over = read(data[:2500], "tar")
    assert list(texts) == ["a.txt"]
    assert over
    packed = gzip.compress(tar_of({f"{n}.txt": zlib.compress(bytes([n]) * 99) + b"x" * 999 for n in range(40)}))
    with pytest.raises(UnreadableFileError):
        read(packed[:15], "gz")
    letter = gzip.compress(b"".join(b"line %d\n" % number for number in range(9999)), mtime=0)
    texts, over = read(letter[: len(letter) // 2], "gz")
    assert texts["content"].startswith("line 0\nline 1\n")
    assert "cut short" in over["content"]


def test_one_compressed_file_bears_its_name() -> None:
    out = io.BytesIO()
    with gzip.GzipFile("notes.md", "wb", fileobj=out) as file:
        file.write(b"# Rivers\nwords")
    (found,) = documents_in(out.getvalue() + gzip.compress(b"\nmore"), "gz")
    assert isinstance(found, Document)
    assert (found.name, found.text) == ("notes.md", "# Rivers\nwords\nmore")
    assert found.sections[0].place == "Rivers"


@pytest.mark.parametrize(
    "bomb",
    [
        lambda: zip_of({"zeros.txt": b"0" * (300 << 20)}),
        lambda: gzip.compress(b"0" * (300 << 20), 1),
        lambda: lzma.compress(b"0" * (300 << 20), preset=0),
        lambda: zip_of({f"{number}.txt": "" for number in range(10_001)}),
        lambda: tar_of({"a.txt": b"words"}).replace(b"00000000005\0", b"77777777777\0"),
    ],
)
@pytest.mark.slow
def test_what_unpacks_to_too_much_is_refused(bomb: object) -> None:
    assert callable(bomb)
    with pytest.raises(UnreadableFileError, match=r"unpacks to|members|no whole archive"):
        read(bomb(), "other")
