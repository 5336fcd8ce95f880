"""What stands on a PDF's pages beside their text: values of forms, notes, attached files."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

from everlong.files.document import Inner, PassedOverError, line_of
from everlong.files.html import of_page

_DEEPEST = 20  # fields within fields, and lists within lists
_MOST_FILES = 10_000
_MOST_BYTES = 256 << 20  # of all attached files
_SHOWN = ("/Screen", "/Movie", "/Sound", "/RichMedia", "/3D")


def dictionary(found: Any) -> Any:
    """Return a dictionary of a PDF, whether it stands in place or elsewhere; an empty one for anything else."""
    found = found.get_object() if hasattr(found, "get_object") else found
    return found if isinstance(found, dict) else {}


def entries(found: Any) -> list[Any]:
    """Return what a list of a PDF holds, or the one object that stands in its place."""
    found = found.get_object() if hasattr(found, "get_object") else found
    if isinstance(found, list):
        return [one.get_object() if hasattr(one, "get_object") else one for one in found]
    return [] if found is None else [found]


class Fields:
    """The notes of a document's pages, and the fields of its form. `files` are those that notes have."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._told: set[int] = set()
        self.files: list[Any] = []
        self.passed_over: list[PassedOverError] = []

    def on_page(self, number: int) -> list[str]:
        """Return what was filled in and noted on a page. What cannot be read of it is passed over."""
        fields: list[str] = []
        notes: list[str] = []
        place = f"p. {number}"
        for page, note in self._notes(place, number - 1):
            try:
                kind = note.get("/Subtype")
                if kind == "/Widget":
                    fields.append(self._field(note))
                elif kind != "/Popup":
                    notes.append(_note(note, page))
                if kind == "/FileAttachment":
                    self.files.append(note.get("/FS"))
                elif kind in _SHOWN:
                    self.passed_over.append(PassedOverError(place, f"has a film, a sound or a model ({kind})"))
            except MemoryError:
                raise
            except Exception as error:  # of a file that breaks every rule, a library raises anything
                self._pass_over(f"{place}, a note", error)
        return list(filter(None, ["\n".join(filter(None, fields)), *notes]))

    def _notes(self, place: str, index: int) -> list[tuple[Any, Any]]:
        try:
            page = self._reader.pages[index]
            return [(page, dictionary(note)) for note in entries(page.get("/Annots"))]
        except MemoryError:
            raise
        except Exception as error:
            self._pass_over(f"{place}, its notes", error)
            return []

    def _pass_over(self, place: str, error: Exception) -> None:
        self.passed_over.append(PassedOverError(place, f"cannot be read: {type(error).__name__}: {error}"[:300]))

    def left(self) -> list[str]:
        """Return the fields that stand on no page."""
        found: list[str] = []
        try:
            found.extend(self._left())
        except MemoryError:
            raise
        except Exception as error:
            self._pass_over("form", error)
        return list(filter(None, found))

    def _left(self) -> Iterator[str]:
        form = dictionary(dictionary(self._reader.root_object).get("/AcroForm"))
        if "/XFA" in form:
            why = "is a form of Acrobat (XFA), of which only what stands on the pages is read: print it to a PDF"
            self.passed_over.append(PassedOverError("form", why))
        waiting = [(one, 0) for one in reversed(entries(form.get("/Fields")))]
        seen: set[int] = set()  # fields may lie within themselves
        while waiting:
            field, depth = waiting.pop()
            field = dictionary(field)
            if id(field) in seen:
                continue
            seen.add(id(field))
            kids = [one for one in map(dictionary, entries(field.get("/Kids"))) if "/T" in one and id(one) not in seen]
            if kids and depth < _DEEPEST:
                waiting += [(one, depth + 1) for one in reversed(kids)]
            else:
                yield self._field(field)

    def _field(self, field: Any) -> str:
        """Return the name and the value of a field, unless it was told before; "" where nothing was filled in."""
        chain, one = [field], field
        while "/Parent" in one and len(chain) < _DEEPEST:
            one = dictionary(one.get("/Parent"))
            chain.append(one)
        whole = next((one for one in chain if "/V" in one), field)
        if id(whole) in self._told:
            return ""
        self._told.add(id(whole))
        kind = next((one["/FT"] for one in chain if "/FT" in one), "")
        label = next((_text(one["/TU"]) for one in chain if one.get("/TU")), "")
        name = label or ".".join(_text(one["/T"]) for one in reversed(chain) if one.get("/T"))
        value = next((one["/V"] for one in chain if "/V" in one), None)
        if kind == "/Sig":
            said = dictionary(value)
            parts = (_text(said.get(part)) for part in ("/Name", "/Reason", "/Location", "/ContactInfo"))
            value = ", ".join(filter(None, parts))
        elif kind == "/Btn":
            caption = _text(dictionary(field.get("/MK")).get("/CA"))
            if "/A" in field and len(caption) > 1:  # what a button does is no value
                return caption
            state = _text(value if value is not None else field.get("/AS")).removeprefix("/")
            value = "" if state in ("", "Off") else "[x]" if state.lower() in ("yes", "on", "1") else f"[x] {state}"
        elif kind == "/Ch":
            shown = {_text(one[0]): _text(one[1]) for one in _options(chain) if isinstance(one, list) and len(one) > 1}
            value = ", ".join(shown.get(_text(one), _text(one)) for one in entries(value))
        said = _text(value).strip() or _rich(next((one["/RV"] for one in chain if "/RV" in one), ""))
        return f"{' '.join(name.split())}: {said}" if said and name else said


def _options(chain: list[Any]) -> list[Any]:
    return next((entries(one["/Opt"]) for one in chain if "/Opt" in one), [])


def _note(note: Any, page: Any) -> str:
    """Return what a note says, and who wrote it; for one that only shows text, such as a stamp, that text."""
    said = _text(note.get("/Contents")).strip() or _rich(note.get("/RC", "")) or _text(note.get("/OverlayText"))
    if not said and note.get("/Subtype") in ("/FreeText", "/Stamp"):
        shown = dictionary(dictionary(note.get("/AP")).get("/N"))
        said = page.extract_xform_text(shown).strip() if hasattr(shown, "get_data") else ""
    by = line_of(_text(note.get("/T")))
    return f"Note by {by}: {said}" if said and by and note.get("/Subtype") != "/FreeText" else said


def _rich(found: Any) -> str:
    text = _text(found)
    return of_page(text).text.strip() if text.strip() else ""


def _text(found: Any) -> str:
    """Return a text, which may be a stream."""
    found = found.get_object() if hasattr(found, "get_object") else found
    found = found.get_data() if hasattr(found, "get_data") else found
    if isinstance(found, bytes):
        for encoding in ("utf-8-sig", "utf-16", "cp1252"):
            if encoding != "utf-16" or found[:2] in (b"\xfe\xff", b"\xff\xfe"):
                try:
                    return found.decode(encoding)
                except UnicodeDecodeError:
                    continue
        return found.decode("latin-1")
    return "" if found is None or isinstance(found, dict | list) else str(found)


def files(reader: Any, more: list[Any]) -> Iterator[Inner | PassedOverError]:
    """Yield the files that a document has: in its list, as those that belong to it, and in notes (`more`)."""
    catalog = dictionary(reader.root_object)
    listed = _listed(dictionary(catalog.get("/Names")).get("/EmbeddedFiles"))
    seen: set[int] = set()
    left = _MOST_BYTES
    for about in (*listed, *entries(catalog.get("/AF")), *more):
        about = dictionary(about)
        held = dictionary(about.get("/EF"))
        stream = next((dictionary(held[key]) for key in ("/UF", "/F", "/Unix", "/DOS", "/Mac") if key in held), None)
        if stream is None or id(stream) in seen or len(seen) == _MOST_FILES:
            continue
        seen.add(id(stream))
        name = line_of(next((_text(about[key]) for key in ("/UF", "/F", "/Desc") if about.get(key)), "")) or "a file"
        try:
            data = stream.get_data()
        except MemoryError:
            raise
        except Exception as error:  # of a damaged file, a library raises anything
            yield PassedOverError(name, f"cannot be unpacked: {error}"[:300])
            continue
        left -= len(data)
        if left < 0:
            yield PassedOverError(name, f"all attached files have more than {_MOST_BYTES:,} bytes")
            return
        yield Inner(name, data, pathlib.PurePosixPath(name).suffix.lower().removeprefix("."))


def _listed(tree: Any) -> Iterator[Any]:
    """Yield what a tree of names holds."""
    waiting, seen = [dictionary(tree)], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield from entries(node.get("/Names"))[1::2]
        waiting += reversed([dictionary(kid) for kid in entries(node.get("/Kids"))])
