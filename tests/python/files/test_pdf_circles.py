"""Objects of a PDF that lie within themselves are read once, within the time of a file."""

from __future__ import annotations

from pathlib import Path

from everlong.files import parsing

CONTENT = "BT /F1 12 Tf 72 700 Td (found) Tj ET"
AGAIN = " ".join(f"/X{number} 6 0 R" for number in range(12))
FIELD = f"<</T(field)/V(value)/Kids[{'6 0 R ' * 12}]>>"
FORM = f"<</Subtype/Form/Length 0/Resources<</XObject<<{AGAIN}>>>>>>stream\n\nendstream"


def read(tmp_path: Path, last: str, catalog: str = "", shown: str = "") -> str:
    """The text of a page; the last object is number 6."""
    page = f"/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>/XObject<<{shown}>>>>"
    objects = (
        f"<</Type/Catalog/Pages 2 0 R{catalog}>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        f"<</Type/Page/Parent 2 0 R{page}>>",
        f"<</Length {len(CONTENT)}>>stream\n{CONTENT}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        last,
    )
    data, places = "%PDF-1.4\n", list[int]()
    for number, one in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{one}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    data += f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer<</Root 1 0 R/Size {size}>>\n"
    file = tmp_path / "file.pdf"
    file.write_bytes(f"{data}startxref\n{data.index('xref')}\n%%EOF".encode())
    (found,) = parsing.parse(file, parsing.Limits(seconds=30)).documents
    return found.text


def test_forms_that_show_themselves(tmp_path: Path) -> None:
    assert read(tmp_path, FORM, shown=AGAIN).split() == ["found"]


def test_fields_that_lie_within_themselves(tmp_path: Path) -> None:
    assert read(tmp_path, FIELD, catalog="/AcroForm<</Fields[6 0 R]>>").split() == ["found", "field:", "value"]
