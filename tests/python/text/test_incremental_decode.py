"""An answer's text as it comes: exactly what all of its tokens say, and each token is decoded a few times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

import everlong
from everlong.text.encoding import decode_text, encode, incremental_decode
from support import TINY_MEMORY, byte_tokenizer, tiny_model
from support.examples import examples

TEXT = (
    "Do n't go, he said !\n\n  It is 5\u00a0\u20ac, na\u00efve \u4e2d\u6587 \U0001f600\u200d\U0001f600. "
    "\ufffd <|x|> <0x41>\t'' it 's"
)


def fast(tokenizer: Tokenizer, **names: str) -> transformers.PreTrainedTokenizerFast:
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|x|>", **names)


def bytes_alone() -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|x|>"]})
    return tokenizer


def bytes_in_pairs() -> Any:
    """Byte-level BPE whose tokens end and begin within letters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a, b in itertools.product("\u00e4\u00b8\u0143\u00f0\u0141\u013a\u0122\u0120te", repeat=2)]
    words = [*alphabet, *dict.fromkeys(a + b for a, b in pairs)]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return fast(tokenizer)


def llama() -> Any:
    """As Llama 2: a space before the text, and bytes of letters that it does not know."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"Dontgheaid", "\u2581go", "\u2581D", "na"]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return fast(tokenizer)


def metaspace() -> Any:
    letters = sorted({*TEXT.replace(" ", "\u2581"), "\u2581"})
    tokenizer = Tokenizer(
        models.Unigram([("<unk>", 0.0), *((letter, -1.0) for letter in letters), ("\u2581go", -0.5)], 0)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return fast(tokenizer)


def word_pieces() -> Any:
    """As BERT, whose decoder tidies spaces up."""
    words = [
        "[UNK]",
        *",.!'?",
        "do",
        "not",
        "n",
        "##'",
        "##t",
        "##o",
        "g",
        "he",
        "it",
        "s",
        "##s",
        "'s",
        "n't",
        "'m",
        "I",
    ]
    tokenizer = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return fast(tokenizer, unk_token="[UNK]")


def ends_of_words() -> Any:
    """As GPT-1: the last letters of a word bear its end."""
    words = [*"abc", *(f"{letter}</w>" for letter in "abc"), "ab", "ab</w>"]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, [], end_of_word_suffix="</w>"))
    tokenizer.decoder = decoders.BPEDecoder()
    return fast(tokenizer)


KINDS = (bytes_alone, bytes_in_pairs, llama, metaspace, word_pieces, ends_of_words, transformers.ByT5Tokenizer)


@pytest.fixture(scope="module", params=KINDS, ids=lambda make: make.__name__)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_a_text_comes_in_pieces_of_whole_letters(tokenizer: Any) -> None:
    for text in (TEXT, TEXT * 5, "go" * 90, "\n" * 90, " " * 90, "\U0001f600" * 30):
        ids = encode(tokenizer, text).tolist()
        pieces = list(incremental_decode(tokenizer, ids))
        assert "".join(pieces) == decode_text(tokenizer, ids)


@given(drawn=st.data())
@examples(150)
def test_pieces_of_any_tokens_are_what_all_of_them_say(tokenizer: Any, drawn: st.DataObject) -> None:
    runs = st.lists(st.integers(0, len(tokenizer) - 1), max_size=6)
    ids = [
        token
        for run, times in drawn.draw(st.lists(st.tuples(runs, st.integers(1, 30)), max_size=6))
        for token in run * times
    ]
    said: list[str] = []
    for piece in incremental_decode(tokenizer, ids):
        assert piece
        said.append(piece)
    assert "".join(said) == decode_text(tokenizer, ids)


@given(st.lists(st.sampled_from([0x0A, 0x41, 0xE4, 0xB8, 0xAD, 0xF0, 0x9F, 0x98, 0x80, 0xFF, None]), max_size=80))
@examples(150)
def test_bytes_that_are_no_letter_spoil_their_run_and_no_more(bytes_: list[int | None]) -> None:
    tokenizer = llama()
    ids = [tokenizer.convert_tokens_to_ids("\u2581go" if byte is None else f"<0x{byte:02X}>") for byte in bytes_]
    assert "".join(incremental_decode(tokenizer, ids)) == decode_text(tokenizer, ids)


class Counting:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.decoded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *given: Any, **how: Any) -> Any:
        return self._tokenizer(*given, **how)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def decode(self, ids: list[int], **how: Any) -> str:
        self.decoded += len(ids)
        return str(self._tokenizer.decode(ids, **how))


@pytest.mark.parametrize("unit", ["Don't go, he said. ", "\n", " ", "\u4e2d", "<|x|>", "<think>", "o", "s"])
def test_a_long_answer_costs_as_much_a_token_as_a_short_one(tokenizer: Any, unit: str) -> None:
    ids = (encode(tokenizer, unit * 1000, special_tokens=True).tolist() or [0])[:3000]
    for count in (300, len(ids)):
        counting = Counting(tokenizer)
        "".join(incremental_decode(counting, ids[:count]))
        assert counting.decoded <= 20 * count + 100


def test_letters_that_never_end_cost_no_more() -> None:
    for tokenizer in (bytes_alone(), llama()):
        stray = encode(tokenizer, "\u4e2d").tolist()[-1]
        counting = Counting(tokenizer)
        said = "".join(incremental_decode(counting, [stray] * 3000))
        assert said == "\ufffd" * 3000
        assert counting.decoded <= 20 * 3000


def test_what_is_sure_is_said_at_once() -> None:
    tokenizer = bytes_alone()

    def ids() -> Iterator[int]:
        for token in encode(tokenizer, "a\u00e9b").tolist():
            asked.append(token)
            yield token

    asked: list[int] = []
    came = [(piece, len(asked)) for piece in incremental_decode(tokenizer, ids())]
    assert came == [("a", 1), ("\u00e9", 3), ("b", 4)]


def test_a_streamed_answer_decodes_each_token_a_few_times() -> None:
    counting = Counting(byte_tokenizer())
    with everlong.MemoryModel(tiny_model(), counting, None, TINY_MEMORY) as mm:
        mm.read("The keeper of the lamp.")
        before = counting.decoded
        pieces = list(mm.stream("Who?", max_new_tokens=400, suppress_tokens=[256], recall=False))
        assert counting.decoded - before <= 20 * 400 + 100
        assert "".join(pieces)
