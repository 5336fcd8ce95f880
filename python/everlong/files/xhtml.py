"""XHTML, which is XML, as the HTML that says the same: in HTML an element such as <title/> or <script/> has no end."""

from __future__ import annotations

import re
from typing import Any

_SPACE = "http://www.w3.org/1999/xhtml"
_DECLARATION = re.compile(r"\A\ufeff?\s*<\?xml[^>]*\?>")
_IS_XHTML = re.compile(
    r"""\A\ufeff?\s*<\?xml\s|<html\b[^>]*\sxmlns(?::\w+)?\s*=\s*["']http://www\.w3\.org/1999/xhtml"""
)
_NAMESPACES = (f' xmlns="{_SPACE}"', f" xmlns='{_SPACE}'")  # without it, lxml writes elements as HTML does
_PREFIXED = re.compile(r"<[^\W\d][\w.-]*:")
# A name for a character, which none is within CDATA and comments. Where those have no end, they go on to the page's.
_ENTITY = re.compile(
    r"<!\[CDATA\[(?:[^\]]++|\](?!\]>))*+(?:\]\]>|\Z)|<!--(?:[^-]++|-(?!->))*+(?:-->|\Z)|&([A-Za-z][A-Za-z0-9]*;)"
)
_OF_XML = ("amp;", "lt;", "gt;", "quot;", "apos;")
_EMPTY = re.compile(r"<([A-Za-z][\w:-]*)(\s(?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*)?/>")
_VOID = frozenset(
    {
        *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"),
        *("param", "frame", "basefont", "bgsound", "keygen", "image"),
    }
)
_TEXT_ALONE = {"iframe": "div", "noembed": "div", "noframes": "div", "xmp": "pre", "plaintext": "pre", "listing": "pre"}
_OTHERWISE = [f"{{*}}{name}" for name in ("script", "style", "textarea", *_TEXT_ALONE)]  # than in HTML
_HEAD = 4096  # characters in which the root element stands


def is_xhtml(page: str) -> bool:
    """Whether a page says that it is XHTML."""
    return _IS_XHTML.search(page, 0, _HEAD) is not None


def as_html(page: str) -> str | None:
    """Return XHTML as HTML; None for what is no XML. Nothing is loaded, and no entity of the page's own is resolved."""
    from lxml import etree

    bare = _DECLARATION.sub("", page, count=1).lstrip("\ufeff \t\r\n")
    for namespace in _NAMESPACES:
        bare = bare.replace(namespace, "")
    bare = _ENTITY.sub(_without_entity, bare) if "&" in bare else bare
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_comments=True, remove_pis=True
    )
    try:
        root = etree.fromstring(bare.encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError:
        return None
    prefixed = _PREFIXED.search(bare) is not None
    for element in list(root.iter(etree.Element) if prefixed else root.iter(*_OTHERWISE)):
        _as_of_html(element)
    return "<!doctype html>" + str(etree.tostring(root, method="html", encoding="unicode", with_tail=False))


def mended(page: str) -> str:
    """Return broken XHTML for a parser of HTML: elements that close themselves have an end."""
    return _EMPTY.sub(_with_end, page)


def _with_end(found: re.Match[str]) -> str:
    return found[0] if found[1].lower() in _VOID else f"<{found[1]}{found[2] or ''}></{found[1]}>"


def _without_entity(found: re.Match[str]) -> str:
    """Return a character that HTML has a name for and XML has not."""
    from html.entities import html5

    name = found[1]
    if name is None or name in _OF_XML or name not in html5:
        return found[0]
    return "".join(f"&#{ord(letter)};" for letter in html5[name])


def _as_of_html(element: Any) -> None:
    name = element.tag.rpartition("}")[2]
    if name in ("script", "style"):
        tail = element.tail
        element.clear()
        element.tail = tail
    elif name == "iframe" and element.get("srcdoc"):
        del element[:]
        element.text = ""
    elif name in _TEXT_ALONE or (name == "textarea" and len(element)):  # of which HTML takes no elements
        element.tag = _TEXT_ALONE.get(name, "pre")
        return
    if element.prefix:
        element.tag = name
