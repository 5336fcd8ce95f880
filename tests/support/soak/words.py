"""Words that tell whose a text is. Each text has a secret of its own, which no request of a reader ever names."""

from __future__ import annotations

import re
from random import Random

from support.tokenizer import byte_tokenizer

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FIRST, _MORE = "zq", 14


def word(rng: Random, letters: int) -> str:
    """Return a word without "q": a reader may join several, and they are no secret then."""
    return "".join(rng.choices(_LETTERS.replace("q", ""), k=letters))


def secret(rng: Random) -> str:
    """Return a word that `secrets_in` finds. No other word of the soak is as long."""
    return _FIRST + word(rng, _MORE)


def _as_ids(text: str) -> bytes:
    ids = byte_tokenizer()(text)["input_ids"]
    return b"".join(int(one).to_bytes(4, "little") for one in ids)


_A, _Z = _as_ids("a")[:1], _as_ids("z")[:1]
_SECRET = re.compile(
    rb"zq[a-z]{%d}|%s(?:[%s-%s]\0\0\0){%d}" % (_MORE, re.escape(_as_ids(_FIRST)), re.escape(_A), re.escape(_Z), _MORE)
)


def secrets_in(data: bytes) -> set[str]:
    """Return the secrets in bytes: as UTF-8, and as the int32 ids of the tiny model's tokenizer."""
    return {_spelled(found.group()) for found in _SECRET.finditer(data)}


def _spelled(found: bytes) -> str:
    if b"\0" not in found:
        return found.decode()
    return "".join(_LETTERS[one - _A[0]] for one in found[::4])
