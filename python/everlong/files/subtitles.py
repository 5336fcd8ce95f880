"""Subtitles, SRT and WebVTT: a section a cue, by the time it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from everlong.files.document import Document, NoTextError, Section, cleaned, filled
from everlong.files.plain import decoded

_TIMES = re.compile(r"^\s*((?:\d+:)?\d{1,2}:\d{2})[.,]\d{1,3}\s*-->\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}")
_MARKUP = re.compile(r"<[^>\n]*>|\{\\[^}\n]*\}")


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield all that is said, a line a cue."""
    sections = []
    for block in re.split(r"\n[ \t]*\n", decoded(data).strip()):
        lines = block.split("\n")
        times = next(((n, found) for n, line in enumerate(lines) if (found := _TIMES.match(line))), None)
        if times is not None:
            number, found = times
            said = " ".join(_MARKUP.sub("", cleaned(line)).strip() for line in lines[number + 1 :]).strip()
            sections.append(Section(found[1], said + "\n" if said else ""))
    if not sections:
        raise NoTextError("has no cue: expected lines such as 00:01:02,000 --> 00:01:04,000")
    yield Document(filled(sections))
