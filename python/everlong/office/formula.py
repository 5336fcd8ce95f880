"""Formulas of Office, as a line of text."""

from __future__ import annotations

from typing import Any

from everlong.office.package import attribute, child_at, children, local

_SILENT = ("rPr", "ctrlPr", "del", "moveFrom", "delText", "instrText")


def formula_text(element: Any) -> str:
    """Return what a formula says, with its fractions, powers and roots."""
    name = local(element.tag)
    if name == "t":
        return element.text or ""
    if name in _SILENT or name.endswith("Pr"):
        return ""
    make = _MADE.get(name)
    return make(element) if make is not None else "".join(map(formula_text, element))


def _part(element: Any, name: str) -> str:
    found = child_at(element, name)
    return "" if found is None else formula_text(found)


def _operand(text: str) -> str:
    return text if len(text) < 2 or text.isalnum() else f"({text})"


def _fraction(element: Any) -> str:
    return f"{_operand(_part(element, 'num'))}/{_operand(_part(element, 'den'))}"


def _scripts(element: Any) -> str:
    sub, sup = _part(element, "sub"), _part(element, "sup")
    return _part(element, "e") + (f"_{_operand(sub)}" if sub else "") + (f"^{_operand(sup)}" if sup else "")


def _root(element: Any) -> str:
    return f"{_part(element, 'deg')}√{_operand(_part(element, 'e'))}"


def _sum(element: Any) -> str:
    sub, sup = _part(element, "sub"), _part(element, "sup")
    limits = (f"_{_operand(sub)}" if sub else "") + (f"^{_operand(sup)}" if sup else "")
    return f"{_sign(element, 'naryPr', 'chr', '∫')}{limits} {_part(element, 'e')}"


def _brackets(element: Any) -> str:
    inner = _sign(element, "dPr", "sepChr", "|").join(map(formula_text, children(element, "e")))
    return f"{_sign(element, 'dPr', 'begChr', '(')}{inner}{_sign(element, 'dPr', 'endChr', ')')}"


def _function(element: Any) -> str:
    return f"{_part(element, 'fName')} {_part(element, 'e')}"


def _matrix(element: Any) -> str:
    rows = (", ".join(map(formula_text, children(row, "e"))) for row in children(element, "mr"))
    return f"[{'; '.join(rows)}]"


def _lines(element: Any) -> str:
    return "; ".join(map(formula_text, children(element, "e")))


def _sign(element: Any, properties: str, name: str, otherwise: str) -> str:
    found = child_at(element, properties, name)
    return otherwise if found is None else attribute(found, "val") or ""


_MADE = {
    **dict.fromkeys(("sSup", "sSub", "sSubSup"), _scripts),
    **{"f": _fraction, "rad": _root, "nary": _sum, "d": _brackets, "func": _function, "m": _matrix, "eqArr": _lines},
}
