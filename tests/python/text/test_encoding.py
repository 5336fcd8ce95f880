"""Long texts are tokenized in windows, and nobody can tell."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from everlong.data import shipped_books
from everlong.text import encoding
from everlong.text.encoding import TextEncoder, decode_text, encode, encode_with_places
from support import byte_tokenizer
from support.examples import examples

BOOK = shipped_books()[0].text[:60_000]
WINDOW, OVERLAP = 4096, 1024


def _trained(tokenizer: Tokenizer, trainer: Any) -> transformers.PreTrainedTokenizerFast:
    tokenizer.train_from_iterator([BOOK], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _byte_level() -> transformers.PreTrainedTokenizerFast:
    """As GPT-2, Llama 3 and SmolLM2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False))


def _metaspace() -> transformers.PreTrainedTokenizerFast:
    """As Llama 2 and Gemma: a space before the text, merges across all of it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=2000, special_tokens=["<unk>"], show_progress=False))


def _unigram() -> transformers.PreTrainedTokenizerFast:
    """As T5 and XLM."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return _trained(
        tokenizer,
        trainers.UnigramTrainer(vocab_size=1000, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False),
    )


TOKENIZERS = {make.__name__: make for make in (byte_tokenizer, _byte_level, _metaspace, _unigram)}


@pytest.fixture(scope="module", params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


def in_windows(tokenizer: Any, text: str, window: int = WINDOW) -> list[tuple[int, int, int]]:
    return [tuple(token) for token in encode_with_places(tokenizer, text, window=window, overlap=OVERLAP).tolist()]


def whole(tokenizer: Any, text: str) -> list[tuple[int, int, int]]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return [(i, *place) for i, place in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)]


def test_a_book_in_windows_has_the_tokens_of_the_whole(tokenizer: Any) -> None:
    assert in_windows(tokenizer, BOOK) == whole(tokenizer, BOOK)
    long = BOOK * 3
    assert encode(tokenizer, long).tolist() == tokenizer(long, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        " ",
        "a" * 30_000,
        " " * 30_000,
        "\n\n\n" * 9_000,
        "the " * 9_000,
        "0123456789" * 3_000,
        "\u00e9\u4e2d\U0001f600 " * 6_000,
        "word" * 2_000 + " " + "other words " * 2_000,
    ],
    ids=lambda text: repr(text[:6]),
)
def test_texts_without_an_end_to_their_words(tokenizer: Any, text: str) -> None:
    assert in_windows(tokenizer, text) == whole(tokenizer, text)


@given(
    pieces=st.lists(
        st.one_of(
            st.text(max_size=40),
            st.integers(0, len(BOOK) - 900).map(lambda first: BOOK[first : first + 900]),
            st.builds(lambda letter, times: letter * times, st.characters(codec="utf-8"), st.integers(1, 700)),
        ),
        max_size=12,
    ),
    window=st.integers(300, 1500),
)
@examples(60)
def test_any_text_in_windows_of_any_size(tokenizer: Any, pieces: list[str], window: int) -> None:
    text = "".join(pieces)
    assert in_windows(tokenizer, text, window) == whole(tokenizer, text)


@pytest.mark.slow
@given(cuts=st.lists(st.integers(0, 60_000), max_size=40), letter=st.integers(0, 60_000))
@examples(25)
def test_a_text_in_pieces_has_the_tokens_of_the_whole(tokenizer: Any, cuts: list[int], letter: int) -> None:
    places = sorted({0, *cuts, *range(letter, min(letter + 200, 60_000)), 60_000})
    encoder = TextEncoder(tokenizer)
    ids = [encoder.add(BOOK[first:last]) for first, last in itertools.pairwise(places)]
    ids.append(encoder.end())
    assert torch.cat(ids).tolist() == tokenizer(BOOK, add_special_tokens=False)["input_ids"]
    # The next text begins anew.
    assert torch.cat([encoder.add("a word"), encoder.end()]).tolist() == encode(tokenizer, "a word").tolist()


def test_pieces_are_tokenized_as_they_come() -> None:
    """A source without an end is read all the same, and no more of it waits than the windows need."""
    encoder, tokenizer = TextEncoder(_byte_level()), _byte_level()
    given, text = [], ""
    for first in range(0, 60_000, 500):
        text += BOOK[first : first + 500]
        given += encoder.add(BOOK[first : first + 500]).tolist()
        assert len(text) - len(decode_text(tokenizer, given)) < 2 * (encoding.WINDOW + encoding.OVERLAP)
    assert len(given) > 10_000


def test_a_tokenizer_without_places_has_the_pieces_at_the_end() -> None:
    encoder = TextEncoder(transformers.ByT5Tokenizer())
    text = "Stra\u00dfe \u4e2d"
    ids = torch.cat([*(encoder.add(letter) for letter in text), encoder.end()]).tolist()
    assert ids == list(transformers.ByT5Tokenizer()(text, add_special_tokens=False)["input_ids"])


def test_spaces_stay_as_they_were_read() -> None:
    """Tidied text would be no quote, and the pieces of an answer, each decoded with more behind it, would not fit."""
    text = "Stay here , he said . Do n't go !"
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((f"\u2581{word}", -1.0) for word in text.split())], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tidy = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=True)
    ids = encode(tidy, text).tolist()
    assert tidy.decode(ids) == "Stay here, he said. Don't go!"
    assert decode_text(tidy, ids) == text
    begins = [decode_text(tidy, ids[:count]) for count in range(len(ids) + 1)]
    assert all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(begins))


WITH_SPECIAL_TOKENS = "a <s>struck</s> word<|im_end|>\n<|im_start|>system\n" + BOOK[:9000] + "</s>\n" + BOOK[:9000]


def byte_level_with_special_tokens() -> transformers.PreTrainedTokenizerFast:
    tokenizer = _byte_level()
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|im_end|>"})
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer", [byte_level_with_special_tokens(), transformers.ByT5Tokenizer()], ids=["fast", "python"]
)
def test_what_spells_a_special_token_is_text_unless_it_is_asked_for(tokenizer: Any) -> None:
    text = WITH_SPECIAL_TOKENS
    as_tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert set(as_tokens) & set(tokenizer.all_special_ids)
    literal = encode(tokenizer, text).tolist()
    assert not set(literal) & set(tokenizer.all_special_ids)
    assert decode_text(tokenizer, literal) == text
    assert encode(tokenizer, text, special_tokens=True).tolist() == as_tokens
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == as_tokens  # the caller's own stays as it was


def test_windows_of_a_text_that_spells_special_tokens() -> None:
    tokenizer = byte_level_with_special_tokens()
    literal = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, split_special_tokens=True
    )
    assert in_windows(tokenizer, WITH_SPECIAL_TOKENS) == whole(literal, WITH_SPECIAL_TOKENS)


@pytest.mark.parametrize("stretch", [("-" * 200 + "\n") * 200, (" " * 300 + "\n") * 100, "a" * 30_000])
def test_tokens_are_given_again_behind_what_looks_far(stretch: str) -> None:
    tokenizer = _byte_level()
    text = BOOK[:20_000] + stretch + BOOK
    encoder = TextEncoder(tokenizer)
    given = torch.cat([encoder.add(text[first : first + 1000]) for first in range(0, len(text), 1000)])
    assert len(given) > 0.6 * len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert torch.cat([given, encoder.end()]).tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_the_copy_that_sees_no_special_tokens_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, copies = byte_level_with_special_tokens(), []
    whole = encoding.own_tokenizer

    def copied(thing: Any) -> Any:
        copies.append(thing)
        return whole(thing)

    monkeypatch.setattr(encoding, "own_tokenizer", copied)
    for _ in range(5):
        encode(tokenizer, "a</s>b")
    assert copies == [tokenizer]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<new>"]})
    assert decode_text(tokenizer, encode(tokenizer, "a<new>b").tolist()) == "a<new>b"
