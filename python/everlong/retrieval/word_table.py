"""Which words a tokenizer's ids spell, for the search by words (cpp/index/include/everlong/index/word_table.h).

A word goes on from token to token as long as letters and digits do. Capitals do not count, nor whether a space stands
before it. A character of a script that sets no spaces between words, or of one beyond U+0800, is a word of its own
wherever the tokenizer cuts there.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import everlong._core as _core

_LAST_OF_ALPHABETS = 0x800  # its characters have two bytes of UTF-8 or fewer
_FIRST_OF_THREE_BYTES = 0xE0  # begins a character beyond that
_CUT = "\ufffd"  # stands for a character of which a piece has only some bytes
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"  # what SentencePiece writes for it
_CONTINUES = "##"  # what WordPiece writes before a piece that goes on

_tables: weakref.WeakKeyDictionary[Any, _core.WordTable | None] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def word_table(tokenizer: Any) -> _core.WordTable | None:
    """Return the table of a tokenizer, made once; None where it does not tell what its ids say."""
    with _making:
        try:
            if tokenizer not in _tables:
                _tables[tokenizer] = _made(tokenizer)
            return _tables[tokenizer]
        except TypeError:  # it has no hash, or allows no weak reference
            return _made(tokenizer)


def rarest_words(
    core: _core.Memory, token_ids: npt.NDArray[np.int32], weights: npt.NDArray[np.float32], most: int
) -> npt.NDArray[np.int64]:
    """Return the places of at most `most` token ids, ascending: those of the words whose rarest token weighs most.

    token_ids and weights [n]. Without a table of words each token is one.
    """
    table = core.index.words()
    starts = range(len(token_ids)) if table is None else [first for _, first, _ in table.words(token_ids)]
    words = np.split(np.arange(len(token_ids)), [start for start in starts if start > 0])
    words = sorted((word for word in words if len(word)), key=lambda word: -float(weights[word].max()))
    chosen: list[int] = []
    for word in words:
        if len(chosen) + len(word) <= most:
            chosen += word.tolist()
        elif not chosen:  # one that is longer by itself: its rarest tokens
            chosen += word[np.argsort(-weights[word], kind="stable")[:most]].tolist()
    return np.sort(np.asarray(chosen, dtype=np.int64))


def _made(tokenizer: Any) -> _core.WordTable | None:
    if not getattr(tokenizer, "is_fast", False):
        return None
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = set(tokenizer.all_special_ids)
    by_bytes = "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)
    text_of: Callable[[str], bytes] = _text_by_bytes if by_bytes else _text_of
    by_continuing = not by_bytes and sum(name is not None and name.startswith(_CONTINUES) for name in names) > 1
    texts, begins, ends = [], [], []
    for token, name in enumerate(names):
        text = b"" if name is None or token in special else text_of(name)
        goes_on = by_continuing and name is not None and name.startswith(_CONTINUES)
        texts.append(_folded(text.removeprefix(_CONTINUES.encode()) if goes_on else text))
        begins.append(goes_on if by_continuing else _within(text[:4], first=True))
        ends.append(_within(text[-4:], first=False))
    return _core.WordTable(texts, begins, ends)


def _text_of(name: str) -> bytes:
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(_SPACE, " ").encode()


def _text_by_bytes(name: str) -> bytes:
    """Return what a piece of a tokenizer over bytes says. An added token says its name."""
    return bytes(map(_BYTES.__getitem__, name)) if all(one in _BYTES for one in name) else name.encode()


def _byte_characters() -> dict[str, int]:
    """Return the byte of each character that GPT-2's tokenizer, and those like it, write bytes as."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _byte_characters()


def _folded(text: bytes) -> bytes:
    try:
        return text.decode().casefold().strip().encode()
    except UnicodeDecodeError:  # a part of a character
        return text.strip()


def _within(text: bytes, *, first: bool) -> bool:
    """Return whether a word goes on at the first, or else at the last, character of a piece."""
    if not text:
        return False
    if first:
        # A byte in the middle of a character goes on with it, and one that begins a character of two bytes is a letter.
        if text[0] >= 0x80:
            return text[0] < _FIRST_OF_THREE_BYTES
        return chr(text[0]).isalnum()
    character = text.decode(errors="replace")[-1]
    if character == _CUT:
        return True
    return character.isalnum() and ord(character) < _LAST_OF_ALPHABETS
