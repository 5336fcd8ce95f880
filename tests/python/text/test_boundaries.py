"""Where blocks end: sentences, paragraphs, turns, signals, from text to the catalog."""

from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import everlong
from everlong.text.boundaries import TextBoundaries
from everlong.text.control import RETRIEVE, SUMMARIZE, add_control_tokens
from support import SMALL, byte_tokenizer, random_text, tiny_model


def find(text: str, previous: str = "") -> list[tuple[int, str]]:
    tokenizer = byte_tokenizer()
    before = tokenizer(previous)["input_ids"][-1] if previous else None
    return TextBoundaries(tokenizer).find(torch.tensor(tokenizer(text)["input_ids"]), before)


def test_sentences_and_paragraphs() -> None:
    assert find("One. Two!\n\nThree") == [(4, "sentence"), (9, "sentence"), (11, "paragraph")]
    assert find("a line\nanother line\n") == []
    assert find("\nnext", previous="\n") == [(1, "paragraph")]
    assert find("\nnext", previous="a") == []


def test_real_tokens_end_a_paragraph_as_one_token_or_as_two() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {
        symbol: index for index, symbol in enumerate(["so", ".", "\u010a\u010a", "\u010a", '."', "\u0120no", "?)"])
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="so"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    found = TextBoundaries(fast).find(torch.tensor([0, 1, 2, 5, 4, 3, 3, 0, 6]))
    assert found == [(2, "sentence"), (3, "paragraph"), (5, "sentence"), (7, "paragraph"), (9, "sentence")]


@given(st.text(alphabet="a.\n !", min_size=1, max_size=60), st.integers(1, 59))
def test_boundaries_do_not_depend_on_chunks(text: str, cut: int) -> None:
    tokenizer = byte_tokenizer()
    ids = torch.tensor(tokenizer(text)["input_ids"])
    boundaries = TextBoundaries(tokenizer)
    first, rest = ids[:cut], ids[cut:]
    found = boundaries.find(first)
    if len(rest) > 0:
        found += [(offset + len(first), kind) for offset, kind in boundaries.find(rest, int(first[-1]))]
    assert found == boundaries.find(ids)


def test_blocks_end_with_paragraphs() -> None:
    paragraph = "x" * 55 + ".\n\n"  # 58 tokens; L_max of SMALL is 128, its last eighth begins at 112
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(paragraph * 10)
        ends = [block.span[1] for block in mm.memory.blocks()]
    assert ends == [116, 232, 348, 464, 580]


def test_a_conversation_is_cut_by_its_turns() -> None:
    config = SMALL.changed(archive={"least_tokens": 20})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        for _ in range(3):
            mm.generate(random_text(30), max_new_tokens=10)
        mm.frame.end_of_text()
        blocks = mm.memory.blocks()
        turns = [
            (begin, end) for first in (0, 40, 80) for begin, end in ((first, first + 30), (first + 30, first + 40))
        ]
        assert [block.span for block in blocks] == turns  # what was asked, what was said
        assert [block.role for block in blocks] == ["asked", "said"] * 3


def controlled() -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerFast, dict[str, int]]:
    model, tokenizer = tiny_model(), byte_tokenizer()
    ids = add_control_tokens(model, tokenizer)
    assert add_control_tokens(model, tokenizer) == ids
    assert model.get_input_embeddings().num_embeddings == len(tokenizer) == 259
    return model, tokenizer, ids


def test_a_summarize_token_ends_the_block() -> None:
    model, tokenizer, _ = controlled()
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        mm.read(f"{random_text(79)}{SUMMARIZE}{random_text(20)}{SUMMARIZE}{random_text(30)}", special_tokens=True)
        # The second comes too soon after the first.
        assert [block.span for block in mm.memory.blocks()] == [(0, 80), (80, 131)]


class Says(transformers.LogitsProcessor):
    """Makes the model say `token` as its word number `at`."""

    def __init__(self, token: int, at: int, prompt: int) -> None:
        self.token, self.length = token, prompt + at

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == self.length:
            scores = torch.full_like(scores, -torch.inf)
            scores[:, self.token] = 0.0
        return scores


@pytest.mark.parametrize("policy", ["signal", "prompt"])
def test_a_retrieve_token_recalls_where_the_policy_heeds_it(policy: str) -> None:
    model, tokenizer, ids = controlled()
    config = SMALL.changed(search={"index": ("lexical",)}, answer={"policy": policy, "protect_tokens": 0})
    question = random_text(40)[:24]
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        mm.read(random_text(2000))
        says = transformers.LogitsProcessorList([Says(ids[RETRIEVE], 3, len(question))])
        mm.generate(question, max_new_tokens=8, logits_processor=says, remember=True)
        recalls = [event for event in mm.frame.os.trace() if event["what"] == "recall"]
        signals = [event for event in mm.frame.os.trace() if event["what"] == "retrieve signal"]
        assert len(signals) == 1
        assert len(recalls) == 1
        assert (recalls[0]["stream_position"] == signals[0]["stream_position"]) == (policy == "signal")
        assert mm.last_recalled[0].span[0] == 0


def test_a_signal_by_call() -> None:
    config = SMALL.changed(search={"index": ("lexical",)}, answer={"policy": ("prompt", "signal"), "protect_tokens": 0})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(2000))
        mm.generate(random_text(24), max_new_tokens=4)
        restored = sum(event["what"] == "restore" for event in mm.frame.os.trace())
        mm.signal("retrieve")
        assert sum(event["what"] == "restore" for event in mm.frame.os.trace()) == restored + 1
        with pytest.raises(ValueError, match="expected"):
            mm.signal("nap")  # type: ignore[arg-type]  # no signal of that name
        assert mm.generate(random_text(24), max_new_tokens=4).tokens == 4


def test_periodic_recall_by_the_newest_tokens() -> None:
    config = SMALL.changed(
        search={"index": ("lexical",)}, answer={"policy": "periodic", "periodic_every": 16, "protect_tokens": 4}
    )
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(2000))
        mm.generate(random_text(24), max_new_tokens=40)
        events = [event for event in mm.frame.os.trace() if event["what"] == "recall"]
        assert [event["stream_position"] for event in events] == [2000 + 24 + 16, 2000 + 24 + 32]
        assert mm.frame.os.recalled_tokens > 0


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="often"):
        everlong.MemoryConfig(answer=everlong.AnswerConfig(policy="often"))  # type: ignore[arg-type]
