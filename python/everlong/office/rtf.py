"""RTF: its text under its headings, with notes, comments and text boxes behind their paragraph.

Headers and footers of pages are the last sections. Deleted text is not read, and named, and so are embedded objects.
"""

from __future__ import annotations

import codecs
import dataclasses
import re
from collections.abc import Iterator

from everlong.files.dates import seconds_of
from everlong.files.document import Document, PassedOverError, line_of
from everlong.office.outline import Block, Outline
from everlong.office.symbols import symbol

_TOKENS = re.compile(
    r"\\(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})? ?|\\'(?P<hex>[0-9a-fA-F]{2})|\\(?P<sign>.)|(?P<brace>[{}])"
    r"|(?P<text>[^\\{}\r\n]+)|[\r\n]+|\\",
    re.S,
)
_SILENT = frozenset(  # groups without text of the document
    {
        *("fonttbl", "colortbl", "stylesheet", "info", "pict", "nonshppict", "shprslt", "sp", "fldinst", "xe", "tc"),
        *("rxe", "txe", "bkmkstart", "bkmkend", "revtbl", "filetbl", "listtable", "listoverridetable", "objclass"),
        *("objname", "template", "operator", "atnid", "atnref", "atndate", "atntime", "atnparent", "objdata", "ffl"),
    }
)
# Groups that a reader may leave out, by their mark, and that have text.
_READ_ALL_THE_SAME = ("shpinst", "annotation", "atnauthor", "ud", "moMath", "moMathPara", "mmath", "do", "shptxt")
_SAID = {
    **dict.fromkeys(("par", "sect", "page", "column", "row", "nestrow"), "\n"),
    **{"line": "\n", "softline": "\n", "tab": "\t", "cell": " | ", "nestcell": " | ", "bullet": "•", "emdash": "—"},
    **{"endash": "–", "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”"},
    **dict.fromkeys(("emspace", "enspace", "qmspace"), " "),
}
_SIGNS = {"~": "\xa0", "_": "-", "{": "{", "}": "}", "\\": "\\", "\n": "\n", "\r": "\n"}
_CODE_PAGES = {
    **{77: "mac_roman", 78: "cp932", 79: "cp950", 80: "cp949", 81: "mac_arabic", 83: "mac_greek", 84: "mac_cyrillic"},
    **{128: "cp932", 129: "cp949", 130: "johab", 134: "gbk", 136: "cp950", 161: "cp1253", 162: "cp1254", 163: "cp1258"},
    **{177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250", 254: "cp437"},
    **{255: "cp850", 85: "mac_turkish", 88: "mac_latin2", 89: "mac_latin2", 82: "cp1255"},
}
_OF_THE_FILE = {"ansi": "cp1252", "mac": "mac_roman", "pc": "cp437", "pca": "cp850"}
_SYMBOLS = 2  # the charset of fonts that have signs in place of letters
_MOMENT = ("yr", "mo", "dy", "hr", "min")


class _Text:
    """A stretch of text on its own: the document's, a note's, a header's."""

    def __init__(self, outline: Outline | None = None) -> None:
        self._outline = outline
        self.blocks: list[Block] = []
        self.line: list[str] = []
        self.behind: list[tuple[str, _Text]] = []

    def end_paragraph(self, *, heading: bool = False) -> None:
        """End a paragraph, and put what hangs on it behind it."""
        text = "".join(self.line)
        text = text.removesuffix(" | ") if text.strip(" |") else ""
        found = [Block(text, heading=heading and bool(text.strip()))]
        for head, note in self.behind:
            if note_text := note.text():
                found.append(Block(f"{head} {note_text}".strip()))
        self.line, self.behind = [], []
        self._put(found)

    def _put(self, blocks: list[Block]) -> None:
        if self._outline is not None:
            self._outline.add(blocks)
        else:
            self.blocks += blocks

    def text(self) -> str:
        """Return all of it."""
        if self.line or self.behind:
            self.end_paragraph()
        return "\n".join(block.text for block in self.blocks if block.text.strip()).strip()


@dataclasses.dataclass
class _State:
    """What holds within a group."""

    to: _Text
    silent: str = ""  # why nothing of it is read
    skipped: int = 1  # letters behind one of Unicode, for programs that know none
    font: str = ""
    deleted: bool = False
    in_table: bool = False
    style: str = ""
    level: bool = False  # of a heading
    name: str = ""  # of the group: its first word
    skip_next: bool = False  # the next group within it says the same in another way


def read(data: bytes, suffix: str) -> Iterator[Document | PassedOverError]:
    """Yield the document."""
    outline = Outline()
    reader = _Reader(outline)
    reader.run(data.decode("latin-1"))
    for kind in ("header", "footer"):
        outline.begin(f"page {kind}")
        told = dict.fromkeys(text.text() for name, text in reader.pages if name.startswith(kind))
        outline.add(Block(text) for text in told if text)
    about = {name: "".join(text.line) for name, text in reader.about.items()}
    happened = seconds_of("{:04}-{:02}-{:02}T{:02}:{:02}".format(*reader.moment)) if reader.moment[0] else None
    yield Document(
        outline.sections(), title=line_of(about["title"]), author=line_of(about["author"]), happened=happened
    )
    yield from outline.passed_over()
    if reader.cut_short:
        yield PassedOverError("the end", "is missing: the file is damaged")


class _Reader:
    """Goes through the words of a file once."""

    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._main = _Text(outline)
        self._state = _State(self._main)
        self._stack: list[_State] = []
        self._fonts: dict[str, tuple[int, str]] = {}  # charset and name
        self._headings: set[str] = set()
        self._code_page = "cp1252"
        self._bytes = bytearray()
        self._left_to_skip = 0
        self._first = False  # of a group
        self._optional = False
        self._marks = 0
        self._author = _Text()
        self._gone = False
        self._style_name: list[str] = []
        self.about = {"title": _Text(), "author": _Text()}
        self.pages: list[tuple[str, _Text]] = []
        self.moment = [0, 1, 1, 0, 0]
        self.cut_short = False

    def run(self, text: str) -> None:
        """Read a file, given as its bytes."""
        at = 0
        while at < len(text) and (found := _TOKENS.match(text, at)) is not None:
            at = found.end()
            kind = found.lastgroup
            if kind == "text":
                self._letters(found[0].encode("latin-1"))
            elif kind == "hex":
                self._letters(bytes.fromhex(found["hex"]))
            elif kind == "brace":
                self._flush()
                self._left_to_skip = 0
                if found[0] == "{":
                    self._open()
                elif self._close():
                    break
            elif kind == "sign":
                self._sign(found["sign"])
            elif found["word"]:
                number = int(found["number"]) if found["number"] else None
                if found["word"] == "bin":
                    at += max(0, number or 0)
                else:
                    self._word(found["word"], number)
        else:
            self.cut_short = True
        self._flush()
        self._main.end_paragraph()

    def _open(self) -> None:
        self._stack.append(self._state)
        self._state = dataclasses.replace(self._state, name="", skip_next=False)
        if self._stack[-1].skip_next:
            self._stack[-1].skip_next = False
            self._state.silent = "said twice"
        self._first, self._optional = True, False

    def _close(self) -> bool:
        """End a group. Return whether it was the file's."""
        if self._style_name and self._state.name in ("stylesheet", "style"):
            self._end_style()
        self._gone &= self._state.deleted
        if self._stack:
            self._state = self._stack.pop()
        return not self._stack

    def _letters(self, letters: bytes) -> None:
        """Take letters of the code page."""
        self._first = False
        if self._left_to_skip:
            skipped = min(self._left_to_skip, len(letters))
            self._left_to_skip -= skipped
            letters = letters[skipped:]
        self._bytes += letters

    def _flush(self) -> None:
        """Turn the letters so far into text."""
        if not self._bytes:
            return
        charset, name = self._fonts.get(self._state.font, (0, ""))
        if charset == _SYMBOLS and not self._state.silent:
            text = "".join(symbol(0xF000 | one, name) if one > 0x20 else chr(one) for one in self._bytes)
        else:
            text = self._bytes.decode(_CODE_PAGES.get(charset, self._code_page), "replace")
        self._bytes.clear()
        self._say(text)

    def _say(self, text: str) -> None:
        state = self._state
        if state.silent in ("fonttbl", "stylesheet"):
            self._describe(text)
        elif state.silent:
            return
        elif state.deleted:
            if text.strip() and not self._gone:
                self._gone = True
                self._outline.leave_out("deleted text")
        else:
            self._gone = False
            state.to.line.append(text)

    def _describe(self, text: str) -> None:
        """Take the name of a font or of a style."""
        if self._state.silent == "fonttbl":
            charset, before = self._fonts.get(self._state.font, (0, ""))
            self._fonts[self._state.font] = charset, (before + text).partition(";")[0].strip()
        else:
            self._style_name.append(text)
            if ";" in text:
                self._end_style()

    def _end_style(self) -> None:
        name = "".join(self._style_name).strip().lower()
        if name.startswith(("heading", "title")) or self._state.level:
            self._headings.add(self._state.style)
        self._style_name.clear()

    def _sign(self, sign: str) -> None:
        self._flush()
        if self._left_to_skip:
            self._left_to_skip -= 1
        elif sign == "*" and self._first:
            self._optional = True
        elif sign in "\r\n":
            self._end_paragraph()
        elif sign in _SIGNS:
            self._say(_SIGNS[sign])

    def _word(self, word: str, number: int | None) -> None:
        self._flush()
        first, optional = self._first, self._optional
        self._first = self._optional = False
        if first:
            self._state.name = word
            self._begin(word, optional)
        if word == "u":
            code = (number or 0) % 0x10000
            charset, font = self._fonts.get(self._state.font, (0, ""))
            self._say(symbol(code, font) if charset == _SYMBOLS else chr(code))
            self._left_to_skip = self._state.skipped
        elif self._left_to_skip:
            self._left_to_skip -= 1
        elif word in _SAID:
            self._emit(word)
        else:
            self._set(word, number)

    def _begin(self, word: str, optional: bool) -> None:
        """Begin a group by its first word."""
        state = self._state
        inside = state.silent
        if inside == "info":
            if word in self.about:
                state.silent, state.to = "", self.about[word]
        elif inside:
            return
        elif word in _SILENT or (optional and word not in _READ_ALL_THE_SAME) or re.fullmatch(r"m\w+(Pr|Pict)", word):
            state.silent = word
            if word == "objdata":
                self._outline.leave_out("an embedded object")
        elif word == "upr":
            state.skip_next = True
        elif word in ("footnote", "annotation", "shptxt", "dptxbxtext"):
            note, head = _Text(), ""
            if word == "footnote":
                self._marks += 1
                head = f"[{self._marks}]"
                state.to.line.append(head)
            elif word == "annotation":
                author = "".join(self._author.line).strip()
                head = f"[comment of {author}]" if author else "[comment]"
                self._author.line.clear()
            state.to.behind.append((head, note))
            self._start(note)
        elif word == "atnauthor":
            state.to = self._author
        elif re.fullmatch(r"(header|footer)[lrf]?", word):
            note = _Text()
            self.pages.append((word, note))
            self._start(note)

    def _start(self, text: _Text) -> None:
        state = self._state
        state.to, state.in_table, state.style, state.level, state.deleted = text, False, "", False, False

    def _emit(self, word: str) -> None:
        state = self._state
        if state.silent or state.deleted:
            return
        if _SAID[word] != "\n" or word in ("line", "softline"):
            self._say(_SAID[word])
        elif word == "par" and state.in_table:
            self._say(" ")
        else:
            self._end_paragraph()

    def _end_paragraph(self) -> None:
        state = self._state
        if not state.silent and not state.deleted:
            state.to.end_paragraph(heading=not state.in_table and (state.level or state.style in self._headings))

    def _set(self, word: str, number: int | None) -> None:
        """Take a word that says how text is to be read."""
        state = self._state
        if word == "uc":
            state.skipped = max(0, number or 0)
        elif word in ("f", "deff"):
            state.font = str(number or 0)
        elif word == "fcharset":
            self._fonts[state.font] = number or 0, self._fonts.get(state.font, (0, ""))[1]
        elif word in ("s", "cs", "ds", "ts"):
            state.style = f"{word}{number or 0}"
        elif word == "outlinelevel":
            state.level = (number or 0) < 9
        elif word == "pard":
            state.in_table, state.style, state.level = False, "", False
        elif word == "intbl":
            state.in_table = True
        elif word in ("deleted", "mvf"):
            state.deleted = number != 0
        elif word == "plain":
            state.deleted = False
        elif word in _OF_THE_FILE:
            self._code_page = _OF_THE_FILE[word]
        elif word == "ansicpg" and number:
            self._code_page = _known({65001: "utf-8", 10000: "mac_roman"}.get(number, f"cp{number}"))
        elif word in _MOMENT and self._stack and self._state.name == "creatim":
            self.moment[_MOMENT.index(word)] = number or 0


def _known(code_page: str) -> str:
    try:
        return codecs.lookup(code_page).name
    except LookupError:
        return "cp1252"
