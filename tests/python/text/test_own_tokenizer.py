"""A tokenizer of one's own: the same as the other, which it does not change."""

from __future__ import annotations

import itertools
import string
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, pre_tokenizers

from everlong.text.own_tokenizer import own_tokenizer

TEXT = "The vault's code is 7391.\n\tNaïve café, 東京."


@pytest.fixture
def tokenizer() -> Any:
    """One over bytes and all pairs of letters, which keeps the tables that it was made from."""
    merges = list(itertools.product(string.ascii_letters, repeat=2))
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges), "<|endoftext|>"]
    return transformers.Qwen2Tokenizer(vocab={word: i for i, word in enumerate(words)}, merges=merges)


def test_a_copy_says_and_reads_the_same(tokenizer: Any) -> None:
    own = own_tokenizer(tokenizer)
    ids = tokenizer(TEXT)["input_ids"]
    assert own(TEXT)["input_ids"] == ids
    assert own.decode(ids) == tokenizer.decode(ids)
    assert own.get_vocab() == tokenizer.get_vocab()


def test_what_a_copy_takes_on_does_not_reach_the_other(tokenizer: Any) -> None:
    before = tokenizer(TEXT)["input_ids"], len(tokenizer), tokenizer.all_special_tokens
    own = own_tokenizer(tokenizer)
    own.add_tokens([AddedToken("vault")])
    own.add_special_tokens({"additional_special_tokens": ["<|mine|>"]})
    assert len(own(TEXT, truncation=True, max_length=3)["input_ids"]) == 3
    assert (tokenizer(TEXT)["input_ids"], len(tokenizer), tokenizer.all_special_tokens) == before
    assert len(own) == len(tokenizer) + 2


def test_large_tables_are_shared(tokenizer: Any) -> None:
    """A copy of them would be most of the time that a memory takes to open."""
    own = own_tokenizer(tokenizer)
    large = {name for name, value in vars(tokenizer).items() if isinstance(value, dict | list) and len(value) > 1_000}
    assert large
    assert all(vars(own)[name] is vars(tokenizer)[name] for name in large)
    assert own._tokenizer is not tokenizer._tokenizer
