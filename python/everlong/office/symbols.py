"""Characters of Office's symbol fonts, as Unicode has them."""

from __future__ import annotations

from typing import Final

_GREEK = "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ"
_SYMBOL = {
    **{0x41 + at: letter for at, letter in enumerate(_GREEK)},
    **{0x61 + at: letter for at, letter in enumerate("αβχδεφγηιϕκλμνοπθρστυϖωξψζ")},
    **{0x22: "∀", 0x24: "∃", 0x27: "∋", 0x2A: "∗", 0x2D: "−", 0x40: "≅", 0x5C: "∴", 0x5E: "⊥", 0x7E: "∼", 0xA0: "€"},
    **dict(enumerate("ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…", 0xA1)),
    **dict(enumerate("ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊", 0xC0)),
    **{0xE1: "⟨", 0xE5: "∑", 0xF1: "⟩", 0xF2: "∫"},
}
_WINGDINGS = {
    **{0x28: "☎", 0x2A: "✉", 0x4A: "☺", 0x4C: "☹", 0x6C: "●", 0x6E: "■", 0x6F: "□", 0x71: "❑", 0x75: "◆", 0x76: "❖"},
    **{0x9F: "•", 0xA7: "▪", 0xA8: "◻", 0xD8: "➢", 0xDF: "←", 0xE0: "→", 0xE1: "↑", 0xE2: "↓", 0xE8: "➔", 0xF0: "⇨"},
    **{0xFB: "✗", 0xFC: "✓", 0xFD: "☒", 0xFE: "☑"},
}
_FONTS: Final = {"symbol": _SYMBOL, "wingdings": _WINGDINGS}


def symbol(code: int, font: str) -> str:
    """Return the character of a font's code; what is unknown stays as the font has it."""
    if not 0 < code < 0x110000:
        return ""
    return _FONTS.get(font.lower(), {}).get(code & 0xFF if 0xF000 <= code <= 0xF0FF else code, chr(code))
