"""Where the sentences of a text stand. Code, tables and headings stay whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import sentencex

Place = tuple[int, int]  # characters [first, last)

TURN = re.compile(r"\n(?=[^\W\d_][\w .'-]{0,30}: )")  # of a dialogue: the line behind it begins with who speaks

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*(\w?)")
_ROW = re.compile(r"[^\n]*\||[ \t]*\S[^\t\n]*\t|[ \t]*[+=-]{2,}[+=-][ \t+=-]*$")  # of a table
_INDENTED = re.compile(r"(?: {4}|\t)[ \t]*\S")
_LIKE_CODE = re.compile(r"[={}();<>\[\]]")
_INITIAL = re.compile(r"\b[^\W\d_a-zA-Z]\.\s*$")  # the splitter knows those of Latin letters
_HEADING = re.compile(r"#{1,6} \S")


def sentences(text: str) -> list[Place]:
    """Return each sentence's place, in order, without blank space around it. None overlap, and all words are in one.

    The rules are those of English, with the full stops of all scripts. An item of a list is a sentence, too. None goes
    on where somebody else speaks.
    """
    places = []
    for first, last in _pieces(text):
        piece = text[first:last]
        if stripped := piece.strip():
            begin = first + len(piece) - len(piece.lstrip())
            places.append((begin, begin + len(stripped)))
    return places


def _pieces(text: str) -> Iterator[Place]:
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    prose = at = number = 0  # characters where prose began, and where the line of that number begins
    while number < len(lines):
        behind = max(number + 1, end := _end_of_whole(lines, number))
        after = at + sum(map(len, lines[number:behind]))
        if end > number:
            yield from _of_prose(text, prose, at)
            yield at, after
            prose = after
        number, at = behind, after
    yield from _of_prose(text, prose, len(text))


def _end_of_whole(lines: Sequence[str], number: int) -> int:
    """Return the line behind what stays whole from this line on; `number` where nothing does."""
    if fence := _FENCE.match(lines[number]):
        closing = (n for n in range(number + 1, len(lines)) if lines[n].strip() == fence[1])
        # Without an end it is open where it names a language. Else it may as well end code from before the text.
        return next(closing, len(lines) - 1 if fence[2] else number) + 1
    end = _run(_ROW, lines, number)
    if end - number >= 2:
        return end
    if number == 0 or not lines[number - 1].strip():
        end = _run(_INDENTED, lines, number)
        if 2 * sum(bool(_LIKE_CODE.search(line)) for line in lines[number:end]) > end - number:
            return end
    return number + bool(_HEADING.match(lines[number]))


def _run(kind: re.Pattern[str], lines: Sequence[str], number: int) -> int:
    """Return the line behind those of a kind."""
    return next((n for n in range(number, len(lines)) if not kind.match(lines[n])), len(lines))


def _of_prose(text: str, first: int, last: int) -> Iterator[Place]:
    """Yield sentences in [first, last). What goes on in lower case, or behind an initial, is no new one."""
    for turn in TURN.finditer(text, first, last):
        yield from _of_turn(text, first, turn.end())
        first = turn.end()
    yield from _of_turn(text, first, last)


def _of_turn(text: str, first: int, last: int) -> Iterator[Place]:
    begin = end = first
    for found in sentencex.get_sentence_boundaries("en", text[first:last]):
        at = first + found["start_index"]
        before = text[begin:at].rstrip(" ")
        goes_on = before.endswith(".") and bool(text[at : at + 1].islower() or _INITIAL.search(before))
        if end > begin and not goes_on:
            yield begin, end
            begin = at
        end = first + found["end_index"]
    if end > begin:
        yield begin, end
