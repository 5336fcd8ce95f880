"""Encodes a text of any length, at once or in pieces, as token ids, in the RAM that a piece of it takes.

A fast tokenizer keeps some hundred bytes for every token of its text until all is done. So a long text is given to it
in windows that overlap. Tokenizers look at a few characters around a place. Where two windows have the same tokens at
the same places for a while, both have those of the whole text, and the next window takes over.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import re
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, models
from tokenizers.decoders import DecodeStream

from everlong.text.own_tokenizer import own_tokenizer
from everlong.text.special_tokens import SpecialTokens, special_tokens

WINDOW = 1 << 12  # characters
OVERLAP = 1 << 11
_TAKEN_AT_ONCE = 1 << 16  # characters of a long piece; what waits is copied for every window
_AGREED = 64  # tokens that two windows must have in common, one after the other

# id, first character, and one past the last, of every token [n, 3]
Tokens = np.ndarray[Any, np.dtype[np.int32]]


def encode(tokenizer: Any, text: str, *, special_tokens: bool = False) -> torch.Tensor:
    """Return ids [n] int64 of a text alone: those of `tokenizer(text, add_special_tokens=False)`.

    What spells a special token, or another that the chat template writes (`</s>` in a page of HTML, `<|im_end|>` in a
    paper on chat), is ordinary text. So no text can end a turn or begin one. With `special_tokens` it is that token, as
    in what a chat template wrote.
    """
    encoder = TextEncoder(tokenizer, special_tokens=special_tokens)
    return torch.cat([encoder.add(text), encoder.end()])


def decode_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return what token ids say, without special tokens. Spaces stay exact, even those that a tokenizer tidies up."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def count_decoded_characters(tokenizer: Any, ids: Sequence[int], text: str) -> Callable[[int], int]:
    """Return a function: how many characters of `text`, which ids say, the first n of them say.

    A character of several tokens is said by the last of them.
    """
    if getattr(tokenizer, "is_fast", False):
        stream = DecodeStream(skip_special_tokens=True)
        pieces = [stream.step(tokenizer.backend_tokenizer, token) or "" for token in ids]
        said = "".join(pieces)
        if text.startswith(said) and not text[len(said) :].strip("\ufffd"):
            return [0, *itertools.accumulate(map(len, pieces))].__getitem__
    return lambda count: len(decode_text(tokenizer, ids[:count]).rstrip("\ufffd"))


def token_at(decoded_characters: Callable[[int], int], tokens: int, character: int) -> int:
    """Return the token, of so many, that a character begins in; `count_decoded_characters` counts for it."""
    count = bisect.bisect_left(range(tokens + 1), character, key=decoded_characters)
    return count if decoded_characters(count) == character else count - 1


def encode_with_places(
    tokenizer: Any, text: str, *, special_tokens: bool = False, window: int = WINDOW, overlap: int = OVERLAP
) -> Tokens:
    """Return the same with the place of every token, [n, 3], from a fast tokenizer."""
    windows = _Windows(tokenizer, window, overlap, special_tokens=special_tokens)
    return np.concatenate([windows.add(text), windows.end()])


class TextEncoder:
    """Encodes a text in pieces, wherever it was cut. The ids, joined, are `encode` of the whole text.

    Ids are returned as soon as what follows cannot change them: some ten thousand characters wait for more. A tokenizer
    that is not fast gives no places, and gets the whole text at its end. Not thread-safe.
    """

    def __init__(self, tokenizer: Any, *, special_tokens: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        fast = getattr(tokenizer, "is_fast", False)
        self._windows = _Windows(tokenizer, WINDOW, OVERLAP, special_tokens=special_tokens) if fast else None
        self._pieces: list[str] = []
        # Of the ids that were returned last, [n]: their first characters, counted from the text's beginning. Where the
        # tokenizer is not fast they are guessed, as if all tokens were of one length.
        self.begins = _NO_TOKENS[:, 1]

    def add(self, piece: str) -> torch.Tensor:
        """Add a piece. Return ids [n] int64 that are certain now."""
        if self._windows is not None:
            return self._ids(self._windows.add(piece))
        self._pieces.append(piece)
        return torch.zeros(0, dtype=torch.int64, device="cpu")

    def end(self) -> torch.Tensor:
        """End the text. Return ids [n] int64 of the rest. The next piece begins another text."""
        if self._windows is not None:
            return self._ids(self._windows.end())
        text, self._pieces = "".join(self._pieces), []
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if not self._special_tokens and special_tokens(self._tokenizer).spelled(text, ids):
            ids = _literal(self._tokenizer)(text, add_special_tokens=False, verbose=False)["input_ids"]
        self.begins = np.linspace(0, len(text), len(ids), endpoint=False).astype(np.int32)
        return torch.tensor(ids, dtype=torch.int64, device="cpu")

    def _ids(self, tokens: Tokens) -> torch.Tensor:
        self.begins = tokens[:, 1]
        return torch.from_numpy(tokens[:, 0].astype(np.int64))


class _Windows:
    """A text's tokens from windows over it. Places count from the first character of all that was added."""

    def __init__(self, tokenizer: Any, window: int, overlap: int, *, special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._window = window
        self._overlap = overlap
        self._special_tokens = special_tokens
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._text, self._begin = "", 0  # from the current window's first character, and its place
        self._waiting: list[str] = []  # pieces after it
        self._length = 0  # of both
        self._tokens: Tokens | None = None  # of the current window
        self._taken = 0  # how many of these the window before gave
        self._size = self._window + self._overlap  # of the current window, in characters

    def add(self, piece: str) -> Tokens:
        found = [_NO_TOKENS]
        for first in range(0, len(piece), _TAKEN_AT_ONCE):
            self._waiting.append(piece[first : first + _TAKEN_AT_ONCE])
            self._length += len(self._waiting[-1])
            # The next window begins within the overlap, and must lie in the text as a whole.
            while self._length >= self._size + self._window + self._overlap:
                found.append(self._step())
        return np.concatenate(found)

    def end(self) -> Tokens:
        found = []
        while self._length > self._size:
            found.append(self._step())
        if self._tokens is None:
            self._gather()
            self._tokens = self._encode(self._text, self._begin)
        found.append(self._tokens[self._taken :])
        self._begin_anew()
        return np.concatenate(found)

    def _step(self) -> Tokens:
        """Return the current window's tokens up to where the next one takes over."""
        self._gather()
        end = self._size
        if self._tokens is None:
            self._tokens = self._encode(self._text[:end], self._begin)
        behind = _start_of_word(self._text, end - self._overlap, end)
        size = self._window + self._overlap
        following = self._encode(self._text[behind : behind + size], self._begin + behind)
        meeting = _meeting(self._tokens, following, self._taken)
        if meeting is None:
            # Tokens that depend on more than the overlap (a letter repeated without end, say) get more text after them.
            self._size = min(2 * self._size, self._length)
            self._tokens = self._encode(self._text[: self._size], self._begin)
            return _NO_TOKENS
        mine, theirs = meeting
        settled = self._tokens[self._taken : mine]
        self._text, self._begin, self._length = self._text[behind:], self._begin + behind, self._length - behind
        self._tokens, self._taken, self._size = following, theirs, size
        return settled

    def _gather(self) -> None:
        self._text = "".join([self._text, *self._waiting])
        self._waiting = []

    def _encode(self, text: str, begin: int) -> Tokens:
        # Models warn of texts that are longer than their window; a memory is there for these.
        how = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
        encoded = self._tokenizer(text, **how)
        if not self._special_tokens and special_tokens(self._tokenizer).spelled(text, encoded["input_ids"]):
            encoded = _literal(self._tokenizer)(text, **how)
        tokens = np.empty((len(encoded["input_ids"]), 3), dtype=np.int32)
        tokens[:, 0] = encoded["input_ids"]
        tokens[:, 1:] = np.asarray(encoded["offset_mapping"], dtype=np.int32).reshape(-1, 2) + begin
        return tokens


_NO_TOKENS: Tokens = np.zeros((0, 3), dtype=np.int32)


def _literal(tokenizer: Any) -> Any:
    """Return a copy of the tokenizer that sees none of its tokens that act in a text."""
    # A copy, because other threads may use the tokenizer. It costs a tenth of a second, and is kept.
    special = special_tokens(tokenizer)
    with _copying:
        seen, literal = _literals.get(tokenizer, (None, None))
        if literal is None or seen is not special:
            literal = own_tokenizer(tokenizer)
            literal.split_special_tokens = True
            if getattr(literal, "is_fast", False):  # it splits special tokens alone: the others are special in the copy
                tokens = [AddedToken(word, special=True, normalized=False) for word in special.ids]
                literal.backend_tokenizer.add_special_tokens(tokens)
                _take_out(literal.backend_tokenizer, {word for word, i in special.ids.items() if i != special.unknown})
            _literals[tokenizer] = special, literal
    return literal


def _take_out(tokenizer: Tokenizer, words: set[str]) -> None:
    """Rename words of a model that finds whole words of its vocabulary in a text. No text has the new names."""
    if isinstance(tokenizer.model, models.BPE):  # it puts words together, and none of these
        return
    alone = {"version": "1.0", "added_tokens": [], "model": json.loads(tokenizer.to_str())["model"]}
    vocabulary = alone["model"]["vocab"]
    listed = isinstance(vocabulary, list)
    renamed = (
        (f"{word}\uffff" if word in words else word, what)
        for word, what in (vocabulary if listed else vocabulary.items())
    )
    alone["model"]["vocab"] = list(renamed) if listed else dict(renamed)
    tokenizer.model = Tokenizer.from_str(json.dumps(alone)).model


# The tokens that it does not see, and the copy
_literals: weakref.WeakKeyDictionary[Any, tuple[SpecialTokens, Any]] = weakref.WeakKeyDictionary()
_copying = threading.Lock()


def _start_of_word(text: str, first: int, last: int) -> int:
    """Return the first place in [first, last) where a word begins after a space; `first` where there is none."""
    for place in range(first, last):
        if text[place - 1].isspace() and not text[place].isspace():
            return place
    return first


def _meeting(tokens: Tokens, following: Tokens, taken: int) -> tuple[int, int] | None:
    """Return indices in two windows of the first of _AGREED tokens that both have; None where there are none."""
    if len(following) <= _AGREED:
        return None
    shared = int(np.searchsorted(tokens[:, 1], following[0, 1]))
    for mine in range(max(shared, taken), len(tokens) - _AGREED):
        theirs = int(np.searchsorted(following[:, 1], tokens[mine, 1]))
        if np.array_equal(tokens[mine : mine + _AGREED], following[theirs : theirs + _AGREED]):
            return mine, theirs
    return None


def incremental_decode(tokenizer: Any, answer: Iterable[int]) -> Generator[str]:
    """Yield the text of token ids as they come, piece by piece. Together the pieces are `decode_text` of all ids.

    Only the newest tokens are decoded, with some before them that tell how they are written.
    """
    with contextlib.closing(incremental_decode_in_steps(tokenizer, answer)) as steps:
        yield from filter(None, steps)


def incremental_decode_in_steps(tokenizer: Any, answer: Iterable[int | None]) -> Generator[str]:
    """Do as `spoken`, with a piece for each item: an empty one where that says nothing yet. None says nothing."""
    special = set(getattr(tokenizer, "all_special_ids", ()))
    tokens: list[int] = []  # the newest
    text = given = ""  # what these say, and what of that was yielded
    most = 2 * _BEFORE
    for token in answer:
        piece = ""
        silent = token is None or (token in special and not decode_text(tokenizer, [token]))
        if token is not None and not silent:
            tokens.append(token)
            # A run of byte tokens is read as a whole: one that is no UTF-8 makes all of it unreadable.
            silent = _is_byte(tokenizer, token)
        if not silent:
            text = decode_text(tokenizer, tokens)
            sure = text.removesuffix("\ufffd")  # a character of several tokens, until its last one is there
            if len(sure) > len(given) and sure.startswith(given):
                piece, given = sure[len(given) :], sure
            if len(tokens) >= most:
                tokens, text, given = _newest(tokenizer, tokens, text, given)
                most = 2 * max(len(tokens), _BEFORE)
        yield piece
    rest = decode_text(tokenizer, tokens)[len(given) :]
    if rest:
        yield rest


_BEFORE = 8  # tokens; a character has at most four, and the first of a text may be written in another way
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def _is_byte(tokenizer: Any, token: int) -> bool:
    """Return whether it is one of the tokens that SentencePiece has for bytes of letters that it does not know."""
    convert = getattr(tokenizer, "convert_ids_to_tokens", None)
    return convert is not None and _BYTE.fullmatch(convert(token) or "") is not None


def _newest(tokenizer: Any, tokens: list[int], text: str, emitted: str) -> tuple[list[int], str, str]:
    """Return the newest tokens alone, with what they say and what of it was emitted; all, where they say another thing.

    They say the same if the later half of them does. The first half may begin within a letter or a word.
    """
    kept = tokens[-_BEFORE:]
    alone = decode_text(tokenizer, kept)
    waiting = len(text) - len(emitted)
    for half in range(_BEFORE // 2, 0, -1):
        before = decode_text(tokenizer, kept[:half])
        behind = alone[len(before) :]
        if alone.startswith(before) and text.endswith(behind) and len(behind) > waiting:
            return kept, alone, alone[: len(alone) - waiting]
    return tokens, text, emitted
