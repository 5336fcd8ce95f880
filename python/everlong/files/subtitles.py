"""Subtitles: SubRip, WebVTT, YouTube's SBV and Advanced SubStation: a section a cue, by the time it is shown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from everlong.files.document import Document, NoTextError, PassedOverError, Section, cleaned, filled, line_of
from everlong.files.plain import decoded_with_details

_TIME = r"((?:\d+:)?\d{1,2}:\d{2})(?:[.,:]\d{1,3})?"
_TIMES = re.compile(rf"^\s*{_TIME}\s*-->\s*{_TIME}(?:\s|$)|^{_TIME},{_TIME}\s*$")
_VOICE = re.compile(r"<v(?:\.[^<>\s]*)?[ \t]++([^<>]*)>")
_MARKUP = re.compile(
    r"</?[ibus](?:\.[^<>\s]*)?\s*>|</?(?:c|v|ruby|em|strong|span|font|lang)(?:[.\s][^<>]*)?>|<(?:\d+:)?\d+:\d+[.,]\d+>"
    r"|\{\\[^{}]*\}|\{[A-Za-z]:[^{}]*\}|\{/?[ibus]\}",
    re.I,
)
_BREAK = re.compile(r"<br\s*/?>", re.I)
_READING = re.compile(r"<rt(?:\.[^<>\s]*)?>(.*?)(?:</rt>|(?=</ruby>)|\Z)", re.S)
_REFERENCE = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
_ASS = re.compile(r"^(?:\[Script Info\]|\[Events\]|Dialogue:)", re.I | re.M)
_ASS_TIME = re.compile(r"\s*(\d+:\d{1,2}:\d{2})")
_DRAWING = re.compile(r"\{(?=[^{}]*\})[^{}]*\\p[1-9][^{}]*\}[^{}]*")
_BRACES = re.compile(r"\{([^{}]*)\}")
_FIELDS = ("layer", "start", "end", "style", "name", "marginl", "marginr", "marginv", "effect", "text")


def read(data: bytes, suffix: str) -> Iterator[Document | PassedOverError]:
    """Yield all that is said, a line a cue, behind who says it where a cue names one."""
    text, details = decoded_with_details(data)
    reader = _AssReader() if _ASS.search(text[: 1 << 16]) and "-->" not in text[: 1 << 12] else _CueReader()
    sections = filled(reader.sections(text))
    if not reader.cues:
        raise NoTextError("has no cue: expected lines such as 00:01:02,000 --> 00:01:04,000")
    yield Document(sections, title=reader.title, details=details)
    for what, count in reader.silent.items():
        yield PassedOverError(what, f"is not shown: {count:,} of them" if count > 1 else "is not shown")


class _CueReader:
    """Reads what has a line of times above each cue."""

    def __init__(self) -> None:
        self.title = ""
        self.cues = 0
        self.silent: dict[str, int] = {}

    def sections(self, text: str) -> Iterator[Section]:
        lines = cleaned(text).lstrip("\ufeff").split("\n")
        if lines[0].startswith("WEBVTT"):
            lines = self._without_head(lines)
        place, spoken, number = "", list[str](), 0
        for at, line in enumerate(lines):
            times = _TIMES.match(line) if ":" in line[:16] else None
            if times is None:
                spoken.append(line)
                continue
            if spoken and (named := self._number_of(lines, at, number)) is not None:
                spoken.pop()  # a cue's own number, or name, which is not shown
                number = named
            yield _cue(place, spoken)
            place, spoken = times[1] or times[3], []
            self.cues += 1
        yield _cue(place, spoken)

    def _without_head(self, lines: list[str]) -> list[str]:
        """Return WebVTT without its head, and without blocks that are no cues."""
        self.title = line_of(lines[0].removeprefix("WEBVTT").lstrip(" \t-–—:"))
        kept: list[str] = []
        skipping, behind_blank = True, True
        for line in lines[1:]:
            if not line.strip():
                skipping, behind_blank = False, True
            elif behind_blank and (block := re.match(r"(NOTE|STYLE|REGION)(?:\s|$)", line)):
                skipping, behind_blank = True, False
                if block[1] == "NOTE":
                    self.silent["NOTE"] = self.silent.get("NOTE", 0) + 1
            elif "-->" in line:
                skipping, behind_blank = False, False
            else:
                behind_blank = False
            if not skipping:
                kept.append(line)
        return kept

    def _number_of(self, lines: list[str], at: int, before: int) -> int | None:
        """Return the number above a line of times, where it is one and no text; 0 for another name."""
        above = lines[at - 1].strip()
        first = at < 2 or not lines[at - 2].strip()
        if above.isdecimal() and len(above) < 10 and (first or int(above) == before + 1):
            return int(above)
        if above and first and not re.search(r"\s", above) and re.search(r"\d", above):
            return before  # as a transcript's "3fa85f64/12-0"
        return None


def _cue(place: str, lines: list[str]) -> Section:
    spoken = " ".join(_without_markup("\n".join(lines)).split())
    return Section(place, spoken + "\n" if spoken else "")


def _without_markup(text: str) -> str:
    if "<" in text:
        text = _VOICE.sub(lambda found: f" {' '.join(found[1].split())}: " if found[1].strip() else "", text)
        text = _READING.sub(r"(\1)", _BREAK.sub(" ", text)) if "<rt" in text or "<br" in text.lower() else text
    if "<" in text or "{" in text:
        text = _MARKUP.sub("", text)
    return _REFERENCE.sub(lambda found: html.unescape(found[0]), text) if "&" in text else text


class _AssReader:
    """Reads Advanced SubStation: a line an event, its fields between commas."""

    def __init__(self) -> None:
        self.title = ""
        self.cues = 0
        self.silent: dict[str, int] = {}

    def sections(self, text: str) -> Iterator[Section]:
        fields: tuple[str, ...] = _FIELDS
        block = ""
        for line in cleaned(text).lstrip("\ufeff").split("\n"):
            if line.startswith("[") and line.rstrip().endswith("]"):
                block = line.strip().strip("[]").lower()
                if block in ("fonts", "graphics"):
                    self._hide(line.strip())
                continue
            kind, colon, rest = line.partition(":")
            kind = kind.strip().lower()
            if not colon:
                continue
            if block == "script info" and kind == "title":
                self.title = line_of(rest)
            elif kind == "format" and block not in ("v4+ styles", "v4 styles", "v4 styles+"):
                fields = tuple(name.strip().lower() for name in rest.split(","))
            elif kind == "comment":
                self._hide("Comment")
            elif kind == "dialogue":
                self.cues += 1
                yield self._event(dict(zip(fields, rest.split(",", len(fields) - 1), strict=False)))

    def _event(self, event: dict[str, str]) -> Section:
        start = _ASS_TIME.match(event.get("start", ""))
        spoken = _DRAWING.sub(" ", event.get("text", ""))
        for found in _BRACES.finditer(spoken):
            if found[1].strip() and "\\" not in found[1]:
                self._hide("comment in braces")
        spoken = _BRACES.sub("", spoken).replace("\\N", " ").replace("\\n", " ").replace("\\h", " ")
        spoken = " ".join(spoken.split())
        who = line_of(event.get("name", event.get("actor", "")))
        line = f"{who}: {spoken}\n" if who and spoken else f"{spoken}\n" if spoken else ""
        return Section(start[1] if start else "", line)

    def _hide(self, what: str) -> None:
        self.silent[what] = self.silent.get(what, 0) + 1
