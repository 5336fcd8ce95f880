"""A passage with ligatures is found by a question's plain letters, and is given back as it was read."""

from __future__ import annotations

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import everlong
from support import tiny_model

FACTS = [
    ("The offprint of the affidavit is filed in the fifth office.", "affidavit office"),
    ("The chief of staff certified that the coffin had been confiscated.", "confiscated coffin"),
    ("The firefly reflects in the raffia basket of the buffet.", "firefly raffia buffet"),
    ("The magnificent flagship fled to the offing on the first.", "magnificent flagship"),
]
OTHERS = [f"On day {n} nothing was said of it, and the weather by the river was as before." for n in range(60)]
LIGATURES = (("ffi", "\ufb03"), ("ffl", "\ufb04"), ("ff", "\ufb00"), ("fi", "\ufb01"), ("fl", "\ufb02"))


def _set_in_type(text: str) -> str:
    for letters, ligature in LIGATURES:
        text = text.replace(letters, ligature)
    return text


def _tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Words of some letters as tokens, as larger models have them, over single bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([*OTHERS, *(fact for fact, _ in FACTS), *(_set_in_type(f) for f, _ in FACTS)], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    return _tokenizer()


def _memory(tokenizer: transformers.PreTrainedTokenizerFast, facts: list[str]) -> everlong.MemoryModel:
    config = everlong.MemoryConfig().changed(search={"index": ("lexical",)})
    model = tiny_model(vocab_size=len(tokenizer), max_position_embeddings=16384)
    mm = everlong.MemoryModel(model, tokenizer, None, config)
    paragraphs = list(OTHERS)
    for number, fact in enumerate(facts):
        paragraphs.insert(10 * number + 5, fact)
    mm.read("\n\n".join(paragraphs), source="book")
    return mm


def test_plain_letters_find_ligatures(tokenizer: transformers.PreTrainedTokenizerFast) -> None:
    with _memory(tokenizer, [_set_in_type(fact) for fact, _ in FACTS]) as mm:
        for fact, question in FACTS:
            assert _set_in_type(fact) in mm.find(question, k=1)[0].text


def test_a_memory_without_ligatures_is_searched_by_the_question_alone(
    tokenizer: transformers.PreTrainedTokenizerFast,
) -> None:
    with _memory(tokenizer, [fact for fact, _ in FACTS]) as mm:
        for fact, question in FACTS:
            prompt = mm._answering.prompt(question, False, None)
            asked = mm.searcher.tap(prompt).token_ids.tolist()
            assert asked == prompt.ids[prompt.question].tolist()
            assert fact in mm.find(question, k=1)[0].text


def test_a_long_question_is_lengthened_by_few_spellings_of_its_last_words(
    tokenizer: transformers.PreTrainedTokenizerFast,
) -> None:
    with _memory(tokenizer, [_set_in_type(fact) for fact, _ in FACTS]) as mm:
        for many in ("affidavit office " * 2, " ".join(f"office{n} firefly{n}" for n in range(300))):
            question = f"{many} confiscated coffin"
            prompt = mm._answering.prompt(question, False, None)
            longer = mm.searcher._with_other_spellings(prompt)
            assert 0 < len(longer.ids) - len(prompt.ids) < 600
            assert longer.ids.tolist()[-len(prompt.ids) :] == prompt.ids.tolist()
            added = tokenizer.decode(longer.ids[: len(longer.ids) - len(prompt.ids)])
            assert "con\ufb01scated" in added
            assert "co\ufb03n" in added
