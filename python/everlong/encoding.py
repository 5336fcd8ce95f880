"""A text of any length as token ids, in the RAM of a piece of it.

A fast tokenizer keeps some hundred bytes for every token of what it is given until all is done. So a long text is given
to it in windows that overlap. Tokenizers look at a few characters around a place: where two windows have the same
tokens at the same places for a while, both have those of the whole text, and the next window takes over.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

WINDOW = 1 << 16  # characters
OVERLAP = 1 << 12
_AGREED = 64  # tokens that two windows must have in common, one after the other

# id, first character and the one behind its last, of every token [n, 3]
Tokens = np.ndarray[Any, np.dtype[np.int32]]


def encode(tokenizer: Any, text: str, *, special_tokens: bool = False) -> torch.Tensor:
    """Ids [n] int64 of a text, and of nothing around it: those of `tokenizer(text, add_special_tokens=False)`.

    What spells a special token (`</s>` in a page of HTML, `<|im_end|>` in a paper on chat) is text like any other, so
    that no text can end a turn or begin one; with `special_tokens` it is that token, as in what a chat template wrote.
    """
    if getattr(tokenizer, "is_fast", False):
        tokens = encode_with_places(tokenizer, text, special_tokens=special_tokens)
        return torch.from_numpy(tokens[:, 0].astype(np.int64))
    if not special_tokens:
        tokenizer = _literal(tokenizer, text)
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


def decode_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """What token ids say, without special tokens: exactly, whatever spaces a tokenizer would tidy up for reading."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def encode_with_places(
    tokenizer: Any, text: str, *, special_tokens: bool = False, window: int = WINDOW, overlap: int = OVERLAP
) -> Tokens:
    """The same with the place of every token, [n, 3]; of a fast tokenizer."""
    if not special_tokens:
        tokenizer = _literal(tokenizer, text)
    return np.concatenate(list(_pieces(tokenizer, text, window, overlap)))


def _literal(tokenizer: Any, text: str) -> Any:
    """The tokenizer itself, or one that sees no special token in the text, where that spells one."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    special = {*getattr(tokenizer, "all_special_tokens", ()), *(str(token) for token in added if token.special)}
    if not re.search("|".join(map(re.escape, filter(None, special))) or "(?!)", text):
        return tokenizer
    literal = copy.deepcopy(tokenizer)  # other threads may be at work with the one that is given
    literal.split_special_tokens = True
    return literal


def _pieces(tokenizer: Any, text: str, window: int, overlap: int) -> Iterator[Tokens]:
    """The tokens of the text, window by window."""
    begin, end = 0, min(len(text), window + overlap)
    taken = 0  # tokens of this window that the one before gave
    tokens = _window(tokenizer, text, begin, end)
    while end < len(text):
        next_begin = _start_of_word(text, end - overlap, end)
        next_end = min(len(text), next_begin + window + overlap)
        following = _window(tokenizer, text, next_begin, next_end)
        meeting = _meeting(tokens, following, taken)
        if meeting is None:
            # What looks further than the overlap (a letter repeated without end, say) is tokenized with all behind it.
            yield _window(tokenizer, text, begin, len(text))[taken:]
            return
        mine, theirs = meeting
        yield tokens[taken:mine]
        begin, end, taken, tokens = next_begin, next_end, theirs, following
    yield tokens[taken:]


def _window(tokenizer: Any, text: str, begin: int, end: int) -> Tokens:
    # Models warn of texts that are longer than their window; that is what a memory is for.
    encoded = tokenizer(text[begin:end], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    tokens = np.empty((len(encoded["input_ids"]), 3), dtype=np.int32)
    tokens[:, 0] = encoded["input_ids"]
    tokens[:, 1:] = np.asarray(encoded["offset_mapping"], dtype=np.int32).reshape(-1, 2) + begin
    return tokens


def _start_of_word(text: str, first: int, last: int) -> int:
    """The first place in [first, last) where a word begins after a space; `first` where there is none."""
    for place in range(first, last):
        if text[place - 1].isspace() and not text[place].isspace():
            return place
    return first


def _meeting(tokens: Tokens, following: Tokens, taken: int) -> tuple[int, int] | None:
    """Indices in two windows of the first of _AGREED tokens that they have in common; None where there are no such."""
    if len(following) <= _AGREED:
        return None
    shared = int(np.searchsorted(tokens[:, 1], following[0, 1]))
    for mine in range(max(shared, taken), len(tokens) - _AGREED):
        theirs = int(np.searchsorted(following[:, 1], tokens[mine, 1]))
        if np.array_equal(tokens[mine : mine + _AGREED], following[theirs : theirs + _AGREED]):
            return mine, theirs
    return None
