"""RTF is read in any encoding, with all that stands beside its text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from support.office_files import read

FONTS = r"{\fonttbl{\f0\fcharset0 Times;}{\f1\fcharset204 Arial Cyr;}{\f2\fcharset2 Symbol;}{\f3\fcharset128 Mincho;}}"


def rtf(body: str, head: str = "") -> bytes:
    return rf"{{\rtf1\ansi\ansicpg1252\deff0{FONTS}{head}{body}}}".encode("latin-1")


def places(body: str, head: str = "") -> list[tuple[str, str]]:
    return list(read(rtf(body, head)).places)


def spelled(text: str, font: int, code_page: str) -> str:
    """Text as a program writes it that knows a code page alone."""
    return rf"{{\f{font} " + "".join(rf"\'{byte:02x}" for byte in text.encode(code_page)) + "}"


def as_unicode(text: str) -> str:
    units = text.encode("utf-16-le")
    codes = (int.from_bytes(units[at : at + 2], "little", signed=True) for at in range(0, len(units), 2))
    return "".join(rf"\u{code}?" for code in codes)


NO_LETTERS = ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs", "Co", "Cn")
LETTERS = st.text(st.characters(exclude_categories=NO_LETTERS), min_size=1, max_size=12)
WRITTEN = [(0, "cp1252", "Größe – 5 €"), (1, "cp1251", "Привет, мир"), (3, "cp932", "契約書の表を見る ソ")]


@given(st.lists(LETTERS, min_size=1, max_size=5), st.integers(0, 2))
def test_all_letters_of_unicode_come_back(words: list[str], skipped: int) -> None:
    said = r"\tab ".join(as_unicode(word) for word in words).replace("?", "?" * skipped)
    assert read(rtf(rf"\uc{skipped} {said}\par")).text == "\t".join(words) + "\n\n"


@given(st.sampled_from(WRITTEN), st.booleans())
def test_letters_of_code_pages_come_back(one: tuple[int, str, str], in_groups: bool) -> None:
    font, code_page, text = one
    body = spelled(text, font, code_page)
    assert read(rtf(rf"{{{body}}}\par" if in_groups else rf"{body}\par")).text.strip() == text


def test_signs_of_symbol_fonts_come_back() -> None:
    assert places(r"a {\f2 a\'62}\par")[0][1] == "a αβ"


WORD = st.integers(0, 999).map(lambda number: f"w{number}")
TREES = st.recursive(WORD, lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=20)


@given(TREES)
def test_all_words_of_random_groups_come_back_in_order(tree: object) -> None:
    words: list[str] = []

    def written(one: object) -> str:
        if isinstance(one, list):
            return rf"{{\b\fs24 {''.join(map(written, one))}}}"
        words.append(str(one))
        return rf"\i {one}\i0  "

    assert read(rtf(written(tree) + r"\par")).words == words


def test_what_stands_beside_the_text_is_read_at_its_place() -> None:
    body = (
        r"{\header top\par}{\footer bottom\par}\pard\s1 Part one\par\pard The rent{\footnote\pard note words} is due"
        r"{\*\atnid A}{\*\atnauthor Ada}{\*\annotation comment words}.\par"
        r"{\field{\*\fldinst HYPERLINK x}{\fldrslt link}}"
        r"{\upr{old}{\*\ud new}}{\xe hidden entry}\par"
        r"{\shp{\*\shpinst{\sp{\sn n}{\sv v}}{\shptxt box\par}}{\shprslt{\*\do box again}}}behind\par"
        r"{\*\unknown lost}{\object{\*\objdata 0102}{\result shown}}\par"
    )
    head = r"{\stylesheet{\s0 Normal;}{\s1 heading 1;}}{\info{\title About}{\author Ann}{\creatim\yr2016\mo4\dy5}}"
    found = read(rtf(body, head))
    assert list(found.places) == [
        (
            "Part one",
            "Part one\nThe rent[1] is due.\n[1] note words\n[comment of Ada] comment words\n"
            "linknew\nbehind\nbox\nshown",
        ),
        ("page header", "top"),
        ("page footer", "bottom"),
    ]
    assert found.passed_over == {"Part one, an embedded object": "is not read"}
    (one,) = found.documents
    assert (one.title, one.author) == ("About", "Ann")
    assert one.happened is not None


def test_tables_deleted_text_and_raw_bytes() -> None:
    body = (
        r"\trowd\intbl a\cell\intbl b\par c\cell\row\trowd\intbl d\cell\intbl e\cell\row\pard kept {\deleted gone}"
        r"{\revised in}\deleted  gone\deleted0  too\par \bin6 }}}{{{behind\par"
    )
    found = read(rtf(body))
    assert list(found.places) == [("", "a | b c\nd | e\nkept in too\nbehind")]
    assert found.passed_over == {"deleted text": "is not read, 2 times"}


def test_a_file_that_is_cut_short_is_read_and_named() -> None:
    found = read(rb"{\rtf1\ansi The first {\b words")
    assert found.text == "The first words\n\n"
    assert found.passed_over == {"the end": "is missing: the file is damaged"}
