"""PDFs written object by object, so that a test knows all that they hold."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
PICTURE = b"q 612 0 0 792 0 0 cm /Im1 Do Q"  # content of a page that shows a picture alone


def stream(data: bytes, more: bytes = b"", *, packed: bool = False) -> bytes:
    """A stream with further entries; `packed` by Flate."""
    if packed:
        data, more = zlib.compress(data), more + b" /Filter /FlateDecode"
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), more, data)


def lines(*texts: str | bytes) -> bytes:
    """Content of a page that shows lines of text."""
    said = [text.encode("cp1252") if isinstance(text, str) else text for text in texts]
    shown = (one.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)") for one in said)
    return b"BT /F1 12 Tf 72 720 Td 14 TL " + b" ".join(b"(%s) Tj T*" % one for one in shown) + b" ET"


def pdf(
    pages: Sequence[bytes | tuple[bytes, bytes]],
    more: Mapping[int, bytes] | None = None,
    *,
    catalog: bytes = b"",
    font: bytes = FONT,
    pixels: int = 1000,
) -> bytes:
    """A PDF of pages, each a stream, or a stream and further entries; page n is object 8 + 2n. `more`: from 500 on."""
    objects = {1: b"<< /Type /Catalog /Pages 2 0 R %s >>" % catalog, 3: font}
    side = b"/Width %d /Height %d" % (pixels, pixels)
    objects[4] = stream(
        b"\0" * 8, b"/Type /XObject /Subtype /Image /ColorSpace /DeviceGray /BitsPerComponent 1 " + side
    )
    for number, page in enumerate(pages):
        content, entries = page if isinstance(page, tuple) else (page, b"")
        drawn = b"/XObject << /Im1 4 0 R >>" if PICTURE in content else b""
        objects[10 + 2 * number] = (
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> %s >> "
            b"/Contents %d 0 R %s >>" % (drawn, 11 + 2 * number, entries)
        )
        objects[11 + 2 * number] = content
    kids = b" ".join(b"%d 0 R" % (10 + 2 * number) for number in range(len(pages)))
    objects[2] = b"<< /Type /Pages /Kids [ %s ] /Count %d >>" % (kids, len(pages))
    objects |= more or {}
    out, at = bytearray(b"%PDF-1.7\n"), {}
    for number, body in sorted(objects.items()):
        at[number] = len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    begin, most = len(out), max(objects) + 1
    rows = (b"%010d 00000 n \n" % at[n] if n in at else b"0000000000 65535 f \n" for n in range(most))
    out += b"xref\n0 %d\n%s" % (most, b"".join(rows))
    out += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (most, begin)
    return bytes(out)
