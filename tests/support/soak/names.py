"""Whose keys they are, and names that a service must bear: of its own files, of parts of its paths, and worse."""

from __future__ import annotations

from everlong.service_data.keys import Key, hash_of

MEMORIES = (
    *("files", "spool", "order.json", "responses.sqlite3", "a.b", "sources", "export", "alone", "M-_9", "x" * 64),
    *("removed-alone-1", "0"),
)
FILES = (
    *("order.json", "responses.sqlite3", "responses.sqlite3-wal", "service.sqlite3", "text.txt", "audit.log", "..."),
    *("%2e%2e", "%2e%2e%2forder.json", "a b;$(id) & 'c'.md", "-rf", "CON", "名前 ünïcødé 🜁.txt", "a.tar.gz"),
    *("y" * 196 + ".txt", "é" * 100, "frame.safetensors", "text.txt.json", "a?b#c.txt", "order.json.new", "~", "..a"),
)
NO_FILES = ("..", ".", " ", "a/b", "../../order.json", "a\\b", "z" * 201, "a\nb", "a\0b", "é" * 101)
NO_TEXTS = (b"SQLite format 3\0", b"\x89PNG\r\n\x1a\n")  # what a file begins with that is none


def _key(name: str, memories: tuple[str, ...], *, write: bool = True) -> Key:
    """Return a key whose secret is its name."""
    return Key(name, hash_of(name), memories, write=write)


KEYS = (
    _key("root", ("*",)),
    _key("ada", MEMORIES[:6]),
    _key("bob", MEMORIES[3:9]),
    _key("cam", MEMORIES[6:]),
    _key("eve", (MEMORIES[0], MEMORIES[11], MEMORIES[5])),
    _key("guest", MEMORIES[:8], write=False),
)
