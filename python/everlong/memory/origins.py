"""Tags that tell texts of one name apart: where each came from, and what it says.

Both are kept with every block as tags of everlong's own. So they last, move and go as the block does, whatever the
format of the store. Users see neither among a block's tags.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence

import everlong._core as _core
from everlong.graph.reserved_tags import unreadable_in as unreadable_in  # for the command line, too
from everlong.graph.reserved_tags import user_tags
from everlong.paths import from_home

_OWN = _core.OWN_TAG
_ORIGIN = f"{_OWN}origin="
_TEXT = f"{_OWN}text="
_CONTENT = f"{_OWN}content="  # of the file of a folder that is kept in step with the memory
_SPELLED_BYTE = re.compile(r"\\udc[89a-f][0-9a-f]")
_SPELLED_PART = re.compile(r"\\\\|\\u(dc[89a-f][0-9a-f])")
TAGGED_BY_MODEL = f"{_OWN}tagged=model"  # among the tags of a block that the model was asked about


def origin_of(place: str | os.PathLike[str]) -> str:
    """Return an origin as it is kept: a path from the root of the file system, a name as it is."""
    return place if isinstance(place, str) else spelled(os.fspath(from_home(place).resolve()))


def spelled(path: str) -> str:
    """Return a path as text. No two paths have one spelling.

    Bytes of a name that are no UTF-8 are spelled out. There, and in a name that looks like that, a backslash is two.
    """
    return "/".join(map(_spelled_name, path.split("/")))


def unspelled(origin: str) -> str:
    """Return the path that has this spelling, as Python's functions take it."""
    names = origin.split("/")
    return "/".join(_SPELLED_PART.sub(_byte_of, name) if _SPELLED_BYTE.search(name) else name for name in names)


def _spelled_name(name: str) -> str:
    if name.isascii() and not _SPELLED_BYTE.search(name):
        return name
    out = name.encode("utf-8", "backslashreplace").decode()
    return name.replace("\\", r"\\").encode("utf-8", "backslashreplace").decode() if _SPELLED_BYTE.search(out) else out


def _byte_of(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else "\\"


def origin_tag(origin: str) -> str:
    """Return the tag for an origin."""
    return _ORIGIN + origin


def happened_tag(seconds: float) -> str:
    """Return the tag for when a block's events happened, in seconds since 1970."""
    return f"{_core.HAPPENED_TAG}{seconds!r}"


def key_tag(phrase: str) -> str:
    """Return the tag for what a tagger says of a block."""
    return _core.KEY_TAG + phrase


def text_tag(
    pieces: Iterable[str],
    source: str,
    origin: str,
    tags: Sequence[str],
    *,
    special_tokens: bool,
    happened: float | None = None,
) -> str | None:
    """Return the tag of a text as it is read, under its names; None where its pieces are still being made."""
    if not isinstance(pieces, list | tuple) or not all(isinstance(piece, str) for piece in pieces):
        return None
    names = [source, origin, sorted(tags), special_tokens, *([] if happened is None else [happened])]
    digest = hashlib.sha256(json.dumps(names).encode())
    for piece in pieces:
        digest.update(piece.encode("utf-8", "surrogatepass"))
    return _TEXT + digest.hexdigest()[:32]


def text_in(tags: Iterable[str]) -> str:
    """Return the digest of the text that a block is of, the newest; "" for a block without one."""
    return _newest(tags, _TEXT)


def require_users(tags: Iterable[str]) -> None:
    """Raise ValueError for a tag that is everlong's own."""
    for tag in tags:
        if tag.startswith(_OWN):
            raise ValueError(f"the tag {tag!r}: what begins with {_OWN} is everlong's own")


def split_reserved_tags(tags: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return the user's tags of a block, with those of everlong's own that cannot be read; and its origin, or ""."""
    listed = list(tags)
    return user_tags(listed) + unreadable_in(listed), next(reversed(origins_in(listed)), "")


def origins_in(tags: Iterable[str]) -> list[str]:
    """Return where a block's text stood, the newest place last: a file may have been moved since it was read."""
    return [tag.removeprefix(_ORIGIN) for tag in tags if tag.startswith(_ORIGIN)]


def content_tag(digest: str) -> str:
    """Return the tag for the content of a synced file."""
    return _CONTENT + digest


def content_in(tags: Iterable[str]) -> str:
    """Return the digest of the synced file that a block is of; "" for any other block.

    The newest one is the last: a block stays where the file changed behind it.
    """
    return _newest(tags, _CONTENT)


def _newest(tags: Iterable[str], kind: str) -> str:
    """Return what the last of the tags of a kind says; "" without one."""
    return next((tag.removeprefix(kind) for tag in reversed(list(tags)) if tag.startswith(kind)), "")


def without_older(tags: Iterable[str]) -> list[str]:
    """Return a block's tags without digests that a newer one replaced: of its file, and of the text that it is of."""
    listed = list(tags)
    newest = {kind: at for at, tag in enumerate(listed) for kind in (_CONTENT, _TEXT) if tag.startswith(kind)}
    return [tag for at, tag in enumerate(listed) if not tag.startswith((_CONTENT, _TEXT)) or at in newest.values()]
