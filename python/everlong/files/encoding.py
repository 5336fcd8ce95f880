"""In which encoding a text is: what it states, UTF-8, or what its letters tell.

Nobody notes the encoding of an old text. But one that is decoded wrongly has letters that no language has so often, or
that stand in odd places. So each encoding is tried, and costs as many bits as a language would take for those letters.
"""

from __future__ import annotations

import codecs
import collections
import dataclasses
import functools
import re
import unicodedata
from collections.abc import Callable, Iterator

from everlong.files.document import NoTextError
from everlong.files.letters import ALPHABETS, HANGUL, KANA, KANJI, SIMPLIFIED, TRADITIONAL

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What is stated often names an encoding that the text's own is larger than, as browsers know.
_LARGER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}
_NO_ENCODINGS = ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined")
_SAMPLE = 1 << 14  # bytes of words that are looked at
_WORD = re.compile(rb"[\x80-\xff][\x40-\x7e\x80-\xff]*")  # from its first letter on that is not ASCII, in any encoding
_LETTERS_BEFORE = re.compile(rb"[A-Za-z]{1,32}+\Z")
_MOST_BITS = 11.5  # of a letter, on average over those that are not ASCII: a text that costs more is none
_MOST_BITS_OF_WIDE = 9.5  # where any two bytes are a letter
_SURE_BITS = 12.0  # by which it must be better than any other reading
_FIRST = 5.0  # bits that the first one of several encodings has ahead: it is the most common
_MOST_BESIDE = 15.0  # bits that the ASCII words beside may count, which may be markup
_BESIDE = 1 << 12  # bytes among which they are looked for
_ASCII_WORD = re.compile(rb"(?<![\x80-\xffA-Za-z])[A-Za-z]+(?![\x80-\xffA-Za-z])")
_RARE, _OLD = 1.0, ("iso8859", "mac", "cp7", "cp8")  # bits that Windows has ahead of older systems
_BROKEN = 24.0  # bits of bytes that an encoding does not know
_IN_WORD = 7.0  # bits, for a capital letter behind a small one, or a sign between letters
_ODD_PLACE = re.compile(
    r"[^\W\d_](?=[^\w\s\x00-\x7f’‘·״׳\u200c\u200d\u0300-\u036f\u0591-\u05c7\u0e00-\u0e7f。、，．・「」（）：！？]"
    r"[^\W\d_])"
)
_SIGNS = frozenset("«»“”‘’„‚–—…€§°©®™\u00a0·¿¡№•´×½£¥\u200e\u200f\u200c\u200d‹›µ²±¼¾¹³º")
_CJK_SIGNS = frozenset("。、，．・「」『』（）：；！？《》〈〉【】…—“”～　ー")
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\f\r\x0b\x1a\x1b"))  # that no text has often
_ESCAPES = (b"\x1b$", b"\x1b(", b"\x1b.")
_INVALID = re.compile("[\udc80-\udcff]")


@dataclasses.dataclass(frozen=True)
class Decoded:
    """A text, and how its encoding was found out."""

    text: str
    guess: str = ""  # what was not certain, in words; "" for nothing


def decoded(data: bytes, stated: str = "", *, guess: bool = True) -> Decoded:
    """Return bytes as text: by what they begin with, what is stated of them, UTF-8, or what their letters tell.

    Raises NoTextError for what no encoding makes a text of. Without `guess` raises UnicodeDecodeError where the letters
    would have to tell, which takes time and RAM.
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return _with_replaced(data, encoding, "")
    found = encoding_of(stated)
    if found:
        by_statement = _as_stated(data, found)
        if by_statement is not None:
            return by_statement
    odd = b"\0" in data or (b"\x1b" in data and any(escape in data for escape in _ESCAPES))
    text = None
    try:
        text = data.decode("utf-8")
        if not odd:
            return Decoded(text)
        refused = UnicodeDecodeError("utf-8", b"", 0, 1, "zero bytes, or escape sequences")  # which UTF-8 has, too
    except UnicodeDecodeError as error:
        refused = error
        begin = data[:_SAMPLE]
        odd = odd or len(begin.translate(None, _CONTROLS)) < 0.99 * len(begin)
    if not guess:
        raise refused
    if odd:
        wide = _without_bytes_order(data) or _by_escapes(data)
        if wide is not None:
            return wide
        if text is not None:
            return Decoded(text)
        if b"\0" in data or b"\x1b" not in data:
            raise NoTextError(_not_utf8(refused))
    return _mostly_utf8(data, refused.start) or _by_letters(data, refused)


def encoding_of(stated: str) -> str:
    """Return Python's name of the encoding that a file states; "" for none that makes text."""
    name = stated.strip().strip("\"'").lower()
    name = {"x-sjis": "cp932", "unicode-1-1-utf-8": "utf-8", "x-gbk": "gb18030"}.get(name, name)
    try:
        found = codecs.lookup(name.removeprefix("x-") if name.startswith("x-mac") else name)
        "".encode(found.name)  # some codecs make bytes of bytes
    except (LookupError, UnicodeError, ValueError):
        return ""
    return "" if found.name.replace("-", "_") in _NO_ENCODINGS else _LARGER.get(found.name, found.name)


def _as_stated(data: bytes, encoding: str) -> Decoded | None:
    """Return bytes by what is stated of them, unless they are something else for sure."""
    if not data.isascii() and encoding != "utf-8":
        try:
            as_utf8 = data.decode("utf-8")
        except UnicodeDecodeError:
            pass
        else:  # UTF-8 that is called something else is common, and anything else is seldom valid UTF-8
            text = _with_replaced(data, encoding, "")
            if not text.guess and _cost(_sample(data), encoding) < _cost(_sample(data), "utf-8"):
                return text
            return Decoded(as_utf8, f"states {encoding}, is UTF-8")
    found = _with_replaced(data, encoding, "")
    broken = found.text.count("\ufffd")
    if not found.guess or broken * 50 <= len(found.text):
        return found
    return None


def _with_replaced(data: bytes, encoding: str, guess: str) -> Decoded:
    try:
        return Decoded(_strictly(data, encoding), guess)
    except UnicodeDecodeError as error:
        text = data.decode(encoding, "replace")
        broken = f"{text.count(chr(0xFFFD)):,} characters cannot be decoded, the first at byte {error.start:,}"
        return Decoded(text, f"{guess}; {broken}" if guess else broken)


def _strictly(data: bytes, encoding: str) -> str:
    """Decode bytes. Those that Windows leaves open are control characters, as in browsers."""
    return data.decode(encoding, "everlong-c1" if encoding.startswith("cp125") else "strict")


def _c1(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("everlong-c1", _c1)


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"is not UTF-8: {error.reason} at byte {error.start:,}"


def _without_bytes_order(data: bytes) -> Decoded | None:
    """Return UTF-32 or UTF-16 that has no mark: its zero bytes stand in every second place, or in three of four."""
    sample = data[: _SAMPLE & ~3]
    if len(sample) < 4:
        return None
    zeros = [sample[place::4].count(0) * 4 / len(sample) for place in range(4)]
    few = max(zeros) < 0.2  # as of Chinese, whose letters alone tell which of their two bytes is the first
    names = {
        "utf-32-le": zeros[2] > 0.9 and zeros[3] > 0.9,
        "utf-32-be": zeros[0] > 0.9 and zeros[1] > 0.9,
        "utf-16-le": few or zeros[1] + zeros[3] >= 9 * (zeros[0] + zeros[2]),
        "utf-16-be": few or zeros[0] + zeros[2] >= 9 * (zeros[1] + zeros[3]),
    }
    for encoding, likely in names.items():
        if likely and len(data) % (4 if "32" in encoding else 2) == 0:
            try:
                text = data.decode(encoding)
            except UnicodeDecodeError:
                continue
            begin = text[:_SAMPLE]
            sure = 2 * sum(map(str.isascii, begin)) > len(begin) or _letter_bits(begin) < _MOST_BITS_OF_WIDE
            if sure and "\0" not in text:
                return Decoded(text, f"encoding found by its bytes: {encoding}")
    return None


def _by_escapes(data: bytes) -> Decoded | None:
    """Return ISO 2022 of Japan or Korea, which is ASCII with escape sequences."""
    if b"\0" in data or not data.isascii():
        return None
    for encoding in ("iso2022_jp_2", "iso2022_jp_3", "iso2022_kr"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\x1b" not in text and not text.isascii():
            return Decoded(text, f"encoding found by its escape sequences: {encoding}")
    return None


def _mostly_utf8(data: bytes, first: int) -> Decoded | None:
    """Return UTF-8 with a few bytes that are not, as where files were put together. `first`: where one is."""
    near = data[max(0, first - _SAMPLE) : first + _SAMPLE]
    if not _is_mostly_utf8(near.decode("utf-8", "surrogateescape")):
        return None
    text = data.decode("utf-8", "surrogateescape")
    if not _is_mostly_utf8(text):
        return None
    broken = len(_INVALID.findall(text))
    mended = _INVALID.sub(lambda found: bytes([ord(found[0]) - 0xDC00]).decode("cp1252", "everlong-c1"), text)
    return Decoded(mended, f"UTF-8, but {broken:,} bytes are read as windows-1252")


def _is_mostly_utf8(text: str) -> bool:
    broken = len(_INVALID.findall(text))
    return sum(not letter.isascii() for letter in text) >= 11 * broken


def _by_letters(data: bytes, refused: UnicodeDecodeError) -> Decoded:
    best, unsure = guessed(_sample(data), tuple(_ENCODINGS), beside=b"".join(_ASCII_WORD.findall(data[:_BESIDE])))
    if not best:
        raise NoTextError(_not_utf8(refused))
    note = f"encoding guessed from its letters: {_label(best)}"
    return _with_replaced(data, best, note + (f", or else {_label(unsure)}" if unsure else ""))


def guessed(
    data: bytes, encodings: tuple[str, ...], most_bits: float = _MOST_BITS, beside: bytes = b""
) -> tuple[str, str]:
    """Return in which encoding a text most likely is, and which other one is nearly as likely; "" for none.

    `encodings`: from the most common one on. `most_bits`: that a letter which is not ASCII may take on average.
    `beside`: letters of words that are ASCII, which tell something of the language, too.
    """
    ranked = sorted(
        (
            _cost(data, encoding, beside)
            + (_FIRST + 0.2 * number + _RARE * encoding.startswith(_OLD) if number else 0),
            encoding,
        )
        for number, encoding in enumerate(encodings)
    )
    bits, best = ranked[0]
    text = _decoded_sample(data, best)
    if _letter_bits(text) > most_bits:
        return "", ""
    for more, other in ranked[1:]:
        if more - bits >= _SURE_BITS:
            break
        if _decoded_sample(data, other) != text:
            return best, other
    return best, ""


def _label(encoding: str) -> str:
    return encoding.replace("cp125", "windows-125").replace("iso8859_", "iso-8859-").replace("_", "-")


def _sample(data: bytes) -> bytes:
    """Return words that are not ASCII, a line each: the others are the same in every encoding."""
    found, size = [], 0
    for word in _WORD.finditer(data):
        before = _LETTERS_BEFORE.search(data[max(0, word.start() - 32) : word.start()])
        found.append((before[0] if before else b"") + word[0][:_SAMPLE])
        size += len(found[-1])
        if size >= _SAMPLE:
            break
    return b"\n".join(found)


@functools.lru_cache(maxsize=64)
def _decoded_sample(data: bytes, encoding: str) -> str:
    return data.decode(encoding, "replace")


def _letter_bits(text: str) -> float:
    """Return what a character that is not ASCII costs on average, in the language that suits best."""
    counts = collections.Counter(letter for letter in text.lower() if not letter.isascii())
    return min((_bits(counts, bits) for _, bits in _LANGUAGES), default=0.0) / max(1, counts.total())


@functools.lru_cache(maxsize=64)
def _cost(data: bytes, encoding: str, beside: bytes = b"") -> float:
    """Return how many bits the text takes in the language that it suits best among those of the encoding."""
    text = _decoded_sample(data, encoding)
    counts = collections.Counter(text.lower())
    languages = _ENCODINGS.get(encoding) or [bits for _, bits in _LANGUAGES]
    odd = len(_ODD_PLACE.findall(text)) + sum(map(_is_capital_behind_small, text, text[1:]))
    more = _more_beside(beside)
    return min(_bits(counts, bits) + more.get(bits, 0.0) for bits in languages) + _IN_WORD * odd


@functools.lru_cache(maxsize=4)
def _more_beside(letters: bytes) -> dict[_Bits, float]:
    """Return how many bits ASCII letters cost more in a language than in the best one of those that are written so."""
    counts = collections.Counter(letters.decode("ascii").lower())
    costs = {bits: _bits(counts, bits) for bits in _LATIN}
    least = min(costs.values())
    return {bits: min(cost - least, _MOST_BESIDE) for bits, cost in costs.items()}


def _is_capital_behind_small(first: str, second: str) -> bool:
    either = not (first.isascii() and second.isascii())  # "McDonald" is no wonder
    return either and first.islower() and second.isupper()


_Bits = Callable[[str], float]


def _bits(counts: collections.Counter[str], bits: _Bits) -> float:
    return sum(count * bits(letter) for letter, count in counts.items())


def _by_alphabet(letters: str) -> _Bits:
    """Return what a letter costs in a language: the more frequent, the fewer bits."""
    # Fitted to how often the n-th letter stands in texts of alphabets with 26 to 40 letters.
    own = {letter: min(3 + 0.12 * rank + 0.0035 * rank * rank, 12.0) for rank, letter in enumerate(letters)}
    own = {**{letter: 13.0 for letter in "abcdefghijklmnopqrstuvwxyz"}, **own}
    if not letters[0].isascii():  # words of other alphabets among these
        own |= {letter: 7.0 + own[letter] / 10 for letter in "abcdefghijklmnopqrstuvwxyz"}

    def bits(letter: str) -> float:
        found = own.get(letter)
        return found if found is not None else _foreign(letter)

    return bits


def _by_characters(tiers: tuple[tuple[str, float, float], ...], rows: tuple[tuple[str, range, float], ...]) -> _Bits:
    """Return what a character costs where there are thousands.

    `tiers`: characters, most frequent first, with the bits of the first and of the last. `rows`: of an encoding, the
    first bytes of its frequent characters, and their bits.
    """
    own: dict[str, float] = {letter: 6.0 for letter in "abcdefghijklmnopqrstuvwxyz"}
    for letters, first, last in reversed(tiers):
        for rank, letter in enumerate(letters):
            own[letter] = first + (last - first) * rank / len(letters)

    def bits(letter: str) -> float:
        found = own.get(letter)
        if found is None:
            found = own[letter] = _rare(letter)
        return found

    def _rare(letter: str) -> float:
        if letter in _CJK_SIGNS:
            return 7.0
        if letter.isascii() or unicodedata.category(letter)[0] != "L":
            return _foreign(letter)
        for encoding, lead, cost in rows:
            try:
                if letter.encode(encoding)[0] in lead:
                    return cost
            except UnicodeEncodeError:
                continue
        return 20.0

    return bits


@functools.lru_cache(maxsize=4096)
def _foreign(letter: str) -> float:
    """Return what a character costs that a language does not have."""
    if letter.isascii():
        return 5.0 if letter.isprintable() or letter in "\n\r\t\f" else 16.0
    if letter == "\ufffd":
        return _BROKEN
    if letter in _SIGNS:
        return 9.0
    kind = unicodedata.category(letter)
    if kind in ("Cc", "Cn", "Co", "Cs") or letter == "¤":
        return 20.0
    return 13.0 if kind[0] == "L" else 15.0


def _encodings() -> Iterator[tuple[str, _Bits]]:
    for letters, encodings in ALPHABETS:
        bits = _by_alphabet(letters)
        yield from ((encoding, bits) for encoding in encodings)
    kanji = (("cp932", range(0x88, 0x98), 12.0), ("cp932", range(0x98, 0xFD), 16.0))
    japanese = _by_characters(((KANA, 4.5, 9.0), (_katakana(), 8.0, 9.0), (KANJI, 7.0, 10.5)), kanji)
    yield from ((encoding, japanese) for encoding in ("cp932", "euc_jp"))
    hanzi = (("gb2312", range(0xB0, 0xD8), 12.5), ("gb2312", range(0xD8, 0xF8), 16.5))
    yield "gb18030", _by_characters(((SIMPLIFIED, 5.5, 10.5),), hanzi)
    hanzi = (("big5", range(0xA4, 0xC7), 12.0), ("big5", range(0xC9, 0xFA), 16.5))
    yield "big5hkscs", _by_characters(((TRADITIONAL, 5.5, 10.5),), hanzi)
    hangul = (("euc_kr", range(0xB0, 0xC9), 11.5), ("euc_kr", range(0xCA, 0xFE), 18.0))
    korean = _by_characters(((HANGUL, 5.0, 9.5),), hangul)
    yield from ((encoding, korean) for encoding in ("cp949", "johab"))


def _katakana() -> str:
    return "".join(map(chr, range(0x30A1, 0x30F7)))


_LANGUAGES = tuple(_encodings())
_LATIN = {bits for _, bits in _LANGUAGES if bits("e") < 6}
_ENCODINGS: dict[str, list[_Bits]] = {}
for _encoding, _language in _LANGUAGES:
    _ENCODINGS.setdefault(_encoding, []).append(_language)
_ENCODINGS["cp1252"].append(_ENCODINGS["iso8859_15"][0])
