"""A text's encoding is found: by what is stated, by UTF-8, or by its letters; a guess is said."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from everlong.files.document import NoTextError
from everlong.files.encoding import decoded, encoding_of
from everlong.files.parsing import parse

RUSSIAN = "Мы встретились на вокзале утром, когда ещё шёл снег; поезд опоздал почти на час, и все замёрзли."
CZECH = "Ráno jsme se sešli na nádraží, když ještě padal sníh; vlak měl téměř hodinu zpoždění a všichni mrzli."
POLISH = "Rano spotkaliśmy się na dworcu, gdy jeszcze padał śnieg; pociąg spóźnił się prawie godzinę i wszyscy zmarzli."
FRENCH = (
    "Le matin nous nous sommes retrouvés à la gare, où il neigeait déjà très fort; le train était en retard, hélas."
)
GERMAN = (
    "Am Morgen trafen wir uns am Bahnhof, es schneite längst; der Zug verspätete sich, und wir froren fürchterlich."
)
JAPANESE = "朝、駅で会いました。まだ雪が降っていて、電車は一時間近く遅れました。みんな寒かったです。"
TEXTS = [
    (FRENCH, "cp1252"),
    (FRENCH, "mac_roman"),
    (GERMAN, "cp1252"),
    (GERMAN, "cp850"),
    ("Por la mañana nos vimos en la estación; aún nevaba y el tren llegó tarde, ¿quién lo esperaba así?", "cp1252"),
    ("De manhã nos encontrámos na estação; ainda nevava, não havia ninguém e o comboio atrasou-se muito.", "cp1252"),
    ("På morgonen möttes vi på stationen; det snöade ännu och tåget kom nästan en timme för sent.", "cp1252"),
    ("Om morgenen mødtes vi på stationen; det sneede stadig, og toget var næsten en time forsinket.", "cp1252"),
    ("Aamulla tapasimme asemalla; yhä satoi lunta ja juna myöhästyi melkein tunnin, kaikkia paleli tänään.", "cp1252"),
    (POLISH, "cp1250"),
    (POLISH, "iso8859_2"),
    (POLISH, "cp852"),
    (CZECH, "cp1250"),
    (CZECH, "iso8859_2"),
    (
        "Reggel a pályaudvaron találkoztunk; még esett a hó, és a vonat majdnem egy órát késett, fáztunk erősen.",
        "cp1250",
    ),
    (
        "Ujutro smo se našli na kolodvoru; još je padao snijeg, a vlak je kasnio gotovo čitav sat, žešće smrznut.",
        "cp1250",
    ),
    ("Ryte susitikome stotyje; dar snigo, o traukinys vėlavo beveik valandą, visi labai sušalome į žiemą.", "cp1257"),
    (RUSSIAN, "cp1251"),
    (RUSSIAN, "koi8_r"),
    (RUSSIAN, "cp866"),
    (RUSSIAN, "iso8859_5"),
    (RUSSIAN, "mac_cyrillic"),
    ("Вранці ми зустрілися на вокзалі, коли ще йшов сніг; потяг запізнився майже на годину, і всі змерзли.", "koi8_u"),
    ("Το πρωί συναντηθήκαμε στον σταθμό, ενώ ακόμη χιόνιζε· το τρένο άργησε σχεδόν μία ώρα.", "cp1253"),
    ("Sabah istasyonda buluştuk; hâlâ kar yağıyordu ve tren neredeyse bir saat geç kaldı, hepimiz üşüdük.", "cp1254"),
    ("בבוקר נפגשנו בתחנה כשעוד ירד שלג; הרכבת איחרה כמעט שעה וכולם קפאו מקור.", "cp1255"),
    ("التقينا صباحا في المحطة وكان الثلج ما زال يتساقط؛ وتأخر القطار قرابة الساعة.", "cp1256"),
    ("ตอนเช้าเราพบกันที่สถานี หิมะยังตกอยู่ และรถไฟมาช้าเกือบหนึ่งชั่วโมง", "cp874"),
    (JAPANESE, "cp932"),
    (JAPANESE, "euc_jp"),
    (JAPANESE, "iso2022_jp"),
    ("早上我们在车站见面，当时还在下雪；火车晚了将近一个小时，大家都很冷。", "gb18030"),
    ("早上我們在車站見面，當時還在下雪；火車晚了將近一個小時，大家都很冷。", "big5"),
    ("아침에 우리는 역에서 만났다. 아직 눈이 오고 있었고 기차는 거의 한 시간 늦었다.", "cp949"),
]


@pytest.mark.parametrize("repeated", [1, 40])
@pytest.mark.parametrize(("text", "encoding"), TEXTS)
def test_letters_tell_the_encoding(text: str, encoding: str, repeated: int) -> None:
    text = " ".join([text] * repeated)
    found = decoded(text.encode(encoding))
    assert found.text == text
    assert "encoding" in found.guess


def test_short_texts_are_seldom_wrong() -> None:
    """Stretches of some 40 bytes, at random places; those of Windows' encodings, which are most old files."""
    drawn = random.Random(7)
    wrong = []
    for text, encoding in TEXTS:
        if not encoding.startswith("cp125"):
            continue
        for _ in range(20):
            begin = drawn.randrange(len(text) - 40)
            part = text[begin : begin + 40]
            if not part.isascii() and decoded(part.encode(encoding)).text != part:
                wrong.append((encoding, part))
    assert len(wrong) < 24  # of 340 and more


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", [GERMAN, RUSSIAN, JAPANESE, "name\tage\nAda\t36\n"])
def test_wide_letters_without_a_mark(text: str, encoding: str) -> None:
    found = decoded(text.encode(encoding))
    assert found.text == text
    assert found.guess == f"encoding found by its bytes: {encoding}"


@given(
    st.text(st.characters(blacklist_categories=("Cs", "Cc"))),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]),
)
def test_what_begins_with_a_mark_or_is_utf8_is_no_guess(text: str, encoding: str) -> None:
    assume(not text.startswith("\ufeff"))
    found = decoded(text.encode(encoding))
    assert (found.text, found.guess) == (text, "")


@pytest.mark.parametrize(
    ("stated", "data", "text"),
    [
        ("iso-8859-1", b"\x93caf\xe9\x94 \x80 5", "“café” € 5"),  # as browsers read it
        ("us-ascii", "“café”".encode("cp1252"), "“café”"),
        ("latin1", "Zürich – “café”".encode(), "Zürich – “café”"),  # UTF-8 that is called something else
        ("gb2312", "联通".encode("gb18030"), "联通"),  # which is valid UTF-8, too
        ("shift_jis", "①株".encode("cp932"), "①株"),
        ("iso-2022-jp", JAPANESE.encode("iso2022_jp"), JAPANESE),
        ("utf-7", "Grüße".encode("utf-7"), "Grüße"),
        ("koi8-r", RUSSIAN.encode("koi8_r"), RUSSIAN),
        ("no-such", RUSSIAN.encode("koi8_r"), RUSSIAN),
        ("utf-8", RUSSIAN.encode("cp1251"), RUSSIAN),
        ("base64", b"words", "words"),
        ("cp1252", b"a\x81b", "a\x81b"),
    ],
)
def test_what_is_stated(stated: str, data: bytes, text: str) -> None:
    assert decoded(data, stated).text == text


def test_names_of_encodings() -> None:
    names = ("", "none", "rot13", "idna", "undefined", "unicode_escape", "\0", "x" * 1000)
    assert [encoding_of(name) for name in names] == [""] * len(names)
    assert encoding_of(' "UTF-8" ') == "utf-8"
    assert encoding_of("X-SJIS") == "cp932"


def test_a_few_bytes_that_are_wrong_are_read_and_named() -> None:
    mixed = ("Zürich, Málaga, Kraków, 東京. " * 20).encode()
    found = decoded(mixed + b"M\xfcnchen \x93a\x94\n" + mixed)
    assert found.text.count("東京") == 40
    assert "München “a”" in found.text
    assert found.guess == "UTF-8, but 3 bytes are read as windows-1252"
    found = decoded(JAPANESE.encode("cp932") * 20 + b"\x81\x01", "shift_jis")
    assert JAPANESE in found.text
    assert "1 characters cannot be decoded" in found.guess


@pytest.mark.parametrize(
    "data", [bytes(range(256)) * 40, random.Random(3).randbytes(5000), b"\x01\x02\xff\x03" * 99, b"\xff\0" * 40]
)
def test_noise_is_no_text(data: bytes) -> None:
    with pytest.raises(NoTextError, match="is not UTF-8"):
        decoded(data)


def test_nothing_is_guessed_where_it_may_not() -> None:
    for data in (GERMAN.encode("cp1252"), GERMAN.encode("utf-16-le"), JAPANESE.encode("iso2022_jp")):
        with pytest.raises(UnicodeDecodeError):
            decoded(data, guess=False)
    assert decoded(GERMAN.encode(), guess=False).text == GERMAN


def test_a_guess_is_said_in_the_details(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_bytes(FRENCH.encode("cp1252"))
    (document,) = parse(tmp_path / "note.txt").documents
    assert document.text == FRENCH
    assert document.details == ("encoding guessed from its letters: windows-1252",)
    (tmp_path / "plain.txt").write_text(FRENCH)
    assert parse(tmp_path / "plain.txt").documents[0].details == ()
