"""Jupyter notebooks of every version: a section a cell, with what it put out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from everlong.files.document import Document, NoTextError, PassedOverError, Section, filled, line_of, paragraph
from everlong.files.html import of_page
from everlong.files.plain import decoded

# What terminals take as colours, titles and links: ESC [ ... letter, ESC ] ... BEL, or ESC and one more.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_PLACEHOLDER = re.compile(r"\s*<[^<>\n]*(?:\bobject\b| at 0x)[^<>\n]*>\s*")  # Python's name of what is shown elsewise
_LONGEST_PLACEHOLDER = 1000  # characters
# Forms of an output, as version 4 and older ones name them, in the order in which they are read.
_FORMS = (
    *("text/plain", "text", "text/markdown", "markdown", "text/html", "html", "text/latex", "latex", "data"),
    *("image/svg+xml", "svg", "application/json", "json", "application/geo+json"),
)
_MARKUP = ("text/html", "html", "image/svg+xml", "svg")
_PICTURES = ("image/", "audio/", "video/", "png", "jpeg", "pdf", "application/pdf")
_UNTOLD = ("application/", "javascript")
_OWN = ("output_type", "metadata", "prompt_number", "execution_count", "name", "stream", "ename", "evalue", "traceback")


def read(data: bytes, suffix: str) -> Iterator[Document | PassedOverError]:
    """Yield the notebook. A cell that is none is passed over, and so are pictures."""
    try:
        found = json.loads(decoded(data))
    except (ValueError, RecursionError) as error:
        raise NoTextError(f"is no notebook: {error}") from None
    cells = list(_cells(found))
    if not cells and not (isinstance(found, dict) and isinstance(found.get("cells", found.get("worksheets")), list)):
        raise NoTextError("is no notebook: it has no cells")
    sections: list[Section] = []
    for number, cell in enumerate(cells, 1):
        place, pieces = f"cell {number}", []
        for told in _cell(place, cell):
            if isinstance(told, PassedOverError):
                yield told
            else:
                pieces.append(told)
        sections.append(paragraph(place, "\n".join(one.rstrip("\n") for one in pieces if one.strip())))
    about = found.get("metadata")
    about = about if isinstance(about, dict) else {}
    title, authors = about.get("title") or about.get("name"), about.get("authors")
    named = [one.get("name") for one in authors if isinstance(one, dict)] if isinstance(authors, list) else []
    if whole := filled(sections):
        yield Document(
            whole,
            title=line_of(title) if isinstance(title, str) else "",
            author=line_of(", ".join(one for one in named if isinstance(one, str))),
        )


def _cells(found: Any) -> Iterator[Any]:
    """Yield the cells: those of the notebook, and of its worksheets, as it had them up to version 3."""
    if isinstance(found, dict):
        if isinstance(found.get("cells"), list):
            yield from found["cells"]
        if isinstance(found.get("worksheets"), list):
            for sheet in found["worksheets"]:
                yield from _cells(sheet)


def _cell(place: str, cell: Any) -> Iterator[str | PassedOverError]:
    """Yield what a cell says, and then what it put out."""
    if not isinstance(cell, dict):
        yield PassedOverError(place, "is no cell")
        return
    for name in ("source", "input", "code", "text"):  # as versions named it
        if cell.get(name):
            yield _joined(cell[name])
    attached = cell.get("attachments")
    for name in attached if isinstance(attached, dict) else ():
        yield PassedOverError(f"{place}, {line_of(name)}", "is an attachment: only its name is read")
    outputs = cell.get("outputs")
    for number, output in enumerate(outputs if isinstance(outputs, list) else [outputs] if outputs else (), 1):
        yield from _output(f"{place}, output {number}", output)


def _output(place: str, output: Any) -> Iterator[str | PassedOverError]:
    """Yield what an output says in the first of its forms that says something; name its pictures."""
    if not isinstance(output, dict):
        yield PassedOverError(place, "is no output")
        return
    if "ename" in output or "evalue" in output or "traceback" in output:
        yield _error(output)
    data = output.get("data")
    forms = output if not isinstance(data, dict) else {**output, **data, "data": None}
    forms = {name: one for name, one in forms.items() if one and name not in _OWN}
    told = ""
    for form in sorted(forms, key=_rank):
        text = _text_of_form(form, forms[form])
        if text.strip() and (not told or not _is_placeholder(text)):
            told = text
            if not _is_placeholder(told):
                break
    yield told
    for form in forms:
        if form.startswith(_PICTURES) and form not in _MARKUP:
            yield PassedOverError(place, f"is a picture, or a film: {line_of(form)}")
        elif form.startswith(_UNTOLD) and not told:
            yield PassedOverError(place, f"is shown by a program: {line_of(form)}")


def _is_placeholder(text: str) -> bool:
    return len(text) <= _LONGEST_PLACEHOLDER and _PLACEHOLDER.fullmatch(text) is not None


def _rank(form: str) -> int:
    """Return after how many others a form of an output is read."""
    return _FORMS.index(form) if form in _FORMS else len(_FORMS)


def _text_of_form(form: str, value: Any) -> str:
    """Return what a form of an output says in words; "" for what is for a program alone."""
    if form in _MARKUP:
        return of_page(_joined(value)).text.rstrip()
    if form not in _FORMS and not form.startswith("text/"):
        return ""
    if isinstance(value, dict) or (isinstance(value, list) and not all(isinstance(one, str) for one in value)):
        return json.dumps(value, ensure_ascii=False)
    return _joined(value)


def _error(output: dict[str, Any]) -> str:
    """Return a traceback, below the name of the error and its message where those do not stand in it."""
    trace = output.get("traceback")
    told = "\n".join(_joined(line) for line in trace) if isinstance(trace, list) else _joined(trace)
    name, message = _joined(output.get("ename")), _joined(output.get("evalue"))
    if name in told and message in told:
        return told
    return "\n".join(filter(None, (": ".join(filter(None, (name, message))), told)))


def _joined(lines: Any) -> str:
    """Return a text, which may stand in lines, without what colours it on a terminal."""
    text = "".join(map(str, lines)) if isinstance(lines, list) else str("" if lines is None else lines)
    return _TERMINAL.sub("", text) if "\x1b" in text else text
