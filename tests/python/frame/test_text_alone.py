"""Models whose keys and values cannot be spliced: their memory is of text alone, and recalled text is read again."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import everlong
from everlong import AnswerConfig, MemoryConfig, MemoryModel
from everlong.frame.model_setup import TextAloneError, configured
from everlong.frame.text_frame import TextFrame
from everlong.models.releases import cache_argument
from support import TEXT_ALONE, TINY_MEMORY, byte_tokenizer, tiny_model, tiny_text_model
from support.encoder import CountingEncoder
from support.text_alone import TEXT_ALONE_MEMORY, remembering

FACT = "The key of the tower is Zq7#Kx9. "
TEXT = "The rain fell on the town. " * 90 + FACT + "And the sun came out again. " * 90
QUESTION = "What is the key of the tower?"
KINDS = pytest.mark.parametrize("kind", list(TEXT_ALONE))


def text_of(mm: MemoryModel) -> list[int]:
    assert isinstance(mm.frame, TextFrame)
    return mm.frame.text


def ids_of(text: str) -> list[int]:
    ids: list[int] = byte_tokenizer()(text)["input_ids"]
    return ids


def plain_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """[n, V] of a forward without a cache."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def greedy(model: Any, ids: list[int], count: int) -> list[int]:
    out = list(ids)
    for _ in range(count):
        out.append(int(plain_logits(model, out)[-1].argmax()))
    return out[len(ids) :]


@KINDS
def test_such_a_model_is_refused_unless_text_is_read_again(kind: str, tmp_path: Path) -> None:
    model = tiny_text_model(kind)
    for mode in ("auto", "kv"):
        with pytest.raises(
            everlong.UnsupportedModelError, match=r"By text alone it works: .*--set answer\.recall_mode=text"
        ):
            remembering(model, tmp_path / "m", recall_mode=mode)
    assert not (tmp_path / "m").exists()
    with remembering(model) as mm:
        assert mm.config.search.index == ("lexical",)


def test_such_a_refusal_comes_through_a_pipe() -> None:
    told = TextAloneError("its keys are compressed", 2048)
    again = pickle.loads(pickle.dumps(told))
    assert (str(again), again.reason) == (str(told), told.reason)
    assert "By text alone it works" in str(again)


def test_a_model_without_a_cache_to_go_on_from_is_refused_altogether() -> None:
    model = tiny_text_model()
    forward = model.forward

    def without_cache(*arguments: Any, **named: Any) -> Any:
        out = forward(*arguments, **{**named, "use_cache": False, cache_argument(model): None})
        setattr(out, cache_argument(model), None)
        return out

    model.forward = without_cache
    for mode in ("auto", "text"):
        with pytest.raises(everlong.UnsupportedModelError) as refused:
            remembering(model, recall_mode=mode)
        assert "By text alone" not in str(refused.value)


def test_a_model_whose_cache_is_no_part_of_its_text_is_refused() -> None:
    model = tiny_text_model()
    forward = model.forward

    def forgetful(*arguments: Any, **named: Any) -> Any:
        return forward(*arguments, **{**named, cache_argument(model): None})

    model.forward = forgetful
    with pytest.raises(everlong.UnsupportedModelError, match="one by one"):
        remembering(model)


@KINDS
def test_logits_are_those_of_a_plain_forward_over_the_same_text(kind: str) -> None:
    model = tiny_text_model(kind)
    with remembering(model) as mm:
        mm.read(TEXT, source="book")
        assert mm.frame.os.evicted
        found = mm.recall(QUESTION, chat=False)
        assert FACT.strip() in found[0].text
        first, last = found[0].span
        pages = mm.memory.core.blocks.pages_of(0, first, last)
        ids = torch.tensor(ids_of(QUESTION))
        with mm.frame.branch():
            mm.frame.begin_prompt()
            mm.frame.recall(pages)
            logits = mm.frame.extend(ids, "prompt", logits=True)
            again = mm.frame.extend(ids[:3], "generated")
            text = text_of(mm)
        # Sinks, what was recalled, the question: the text that was read last has made room.
        assert text == ids_of(TEXT[:4] + TEXT[first:last] + QUESTION + QUESTION[:3])
    expected = plain_logits(model, text)
    torch.testing.assert_close(logits, expected[-len(ids) - 3 : -3], atol=1e-4, rtol=0)
    torch.testing.assert_close(again, expected[-1:], atol=1e-4, rtol=0)


@KINDS
def test_answers_are_those_of_plain_greedy_decoding(kind: str) -> None:
    model = tiny_text_model(kind)
    with remembering(model) as mm:
        mm.read(TEXT, source="book")
        answer = mm.generate(QUESTION, max_new_tokens=6, chat=False)
        text = text_of(mm)
        assert FACT.strip() in answer.recalled[0].text
        assert answer.tokens == 6
        assert text[-6:] == greedy(model, text[:-6], 6)


def test_reading_costs_no_forward() -> None:
    model = tiny_text_model()
    with remembering(model) as mm:
        forwards: list[int] = []
        hook = model.register_forward_hook(lambda *_: forwards.append(1))
        report = mm.read(TEXT)
        assert forwards == []
        mm.generate(QUESTION, max_new_tokens=1, chat=False)
        assert forwards
        hook.remove()
        assert report.tokens == len(TEXT)
        stats = mm.memory.stats()
        assert stats.tokens >= len(TEXT)
        assert stats.payload_bytes == 0
        assert stats.pages >= len(TEXT) // TEXT_ALONE_MEMORY.archive.page_tokens


@pytest.mark.slow
def test_recalling_many_times_and_turning_the_frame_over_keeps_to_the_text() -> None:
    model = tiny_text_model()
    with remembering(model) as mm:
        for turn in range(6):
            mm.read(f"Chapter {turn}. " + "Nothing happened on that day. " * 20 + f"The word is {turn * 1111}. ")
            answer = mm.generate(f"What is the word of chapter {turn}?", max_new_tokens=40, chat=False)
            text = text_of(mm)
            assert len(text) <= TEXT_ALONE_MEMORY.frame.tokens
            assert text[-answer.tokens :] == greedy(model, text[: -answer.tokens], answer.tokens)
        assert mm.stream_tokens > 2 * TEXT_ALONE_MEMORY.frame.tokens


def test_reopening_goes_on_with_the_same_text(tmp_path: Path) -> None:
    model = tiny_text_model()
    with remembering(model, tmp_path / "m") as mm:
        mm.read(TEXT, source="book")
        mm.generate(QUESTION, max_new_tokens=8, chat=False)
        mm.frame.clear_recalled()
        text, end = text_of(mm), mm.stream_tokens
        wanted = mm.generate("What came then?", max_new_tokens=8, chat=False, remember=False)
    with MemoryModel(model, byte_tokenizer(), tmp_path / "m") as mm:  # what it is of needs no saying again
        assert mm.stream_tokens == end
        assert (mm.config.answer.recall_mode, mm.config.search.index) == ("text", ("words", "encoder"))
    with remembering(model, tmp_path / "m") as mm:
        assert (text_of(mm), mm.stream_tokens) == (text, end)
        again = mm.generate("What came then?", max_new_tokens=8, chat=False, remember=False)
        assert (again.text, again.recalled) == (wanted.text, wanted.recalled)


def test_what_leaves_no_trace_leaves_none() -> None:
    with remembering(tiny_text_model()) as mm:
        mm.read(TEXT)
        text, stats = text_of(mm), mm.memory.stats()
        first = mm.generate(QUESTION, max_new_tokens=8, chat=False, remember=False)
        mm.perplexity("And on it goes, as it always went.")
        assert (text_of(mm), mm.memory.stats()) == (text, stats)
        assert mm.generate(QUESTION, max_new_tokens=8, chat=False, remember=False) == first


def test_a_forward_that_fails_leaves_the_frame_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_text_model()
    with remembering(model) as mm:
        mm.read(TEXT)
        wanted = mm.generate(QUESTION, max_new_tokens=4, chat=False, remember=False)

        def fail(*_: Any, **__: Any) -> Any:
            raise RuntimeError("no memory left")

        with monkeypatch.context() as patched:
            patched.setattr(model, "forward", fail)
            text = text_of(mm)
            with pytest.raises(RuntimeError, match="no memory left"):
                mm.frame.extend(torch.tensor([1, 2, 3]), "prompt")
            assert text_of(mm) == text
        assert mm.generate(QUESTION, max_new_tokens=4, chat=False, remember=False) == wanted


def test_any_model_of_the_tokenizer_goes_on_with_it(tmp_path: Path) -> None:
    with remembering(tiny_text_model(), tmp_path / "m") as mm:
        mm.read(TEXT, source="book")
        text = text_of(mm)
    with MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", TINY_MEMORY) as mm:
        assert text_of(mm) == text
        assert FACT.strip() in mm.generate(QUESTION, max_new_tokens=2, chat=False).recalled[0].text
    with pytest.raises(everlong.ModelMismatchError, match="tokenizer"):
        MemoryModel(tiny_text_model(vocab_size=258), byte_tokenizer(begins=True), tmp_path / "m", TEXT_ALONE_MEMORY)


def test_a_memory_of_keys_and_values_is_no_such_model_s(tmp_path: Path) -> None:
    with MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", TINY_MEMORY) as mm:
        mm.read("a text")
    with pytest.raises(everlong.ModelMismatchError, match="weights"):
        remembering(tiny_text_model(), tmp_path / "m")


def test_perplexity_of_a_text_that_fits_is_a_plain_forward_s() -> None:
    model = tiny_text_model()
    text = "A text that is short enough for the window."
    with remembering(model, sink_tokens=0) as mm:
        found = mm.perplexity(text)
    ids = torch.tensor(ids_of(text))
    loss = torch.nn.functional.cross_entropy(plain_logits(model, ids.tolist())[:-1], ids[1:])
    assert found.nll == pytest.approx(float(loss), abs=1e-5)
    assert found.ppl == pytest.approx(math.exp(float(loss)), rel=1e-4)


def test_what_needs_keys_is_refused(tmp_path: Path) -> None:
    model = tiny_text_model()
    for changes, named in (
        ({"index": ("heads", "mean_pool")}, "lexical"),
        ({"anchor_tokens": 8}, "anchor_tokens"),
        ({"tombstones": 4}, "tombstones"),
        ({"frame_tokens": 1 << 20, "rolling_tokens": 1 << 18}, "window"),
    ):
        with pytest.raises(ValueError, match=named):
            remembering(model, tmp_path / "m", **changes)
    assert not (tmp_path / "m").exists()
    with remembering(model) as mm:
        mm.read(TEXT)
        with pytest.raises(everlong.EverlongError, match="text alone"):
            mm.calibrate()


def test_a_model_whose_config_names_no_window_takes_the_frame_it_is_given() -> None:
    model = tiny_text_model("bloom")
    with pytest.raises(everlong.UnsupportedModelError, match="By text alone it works"):
        MemoryModel(model, byte_tokenizer())
    with MemoryModel(model, byte_tokenizer(), None, MemoryConfig(answer=AnswerConfig(recall_mode="text"))) as mm:
        assert mm.config.frame.tokens == MemoryConfig().frame.tokens
        assert mm.read("a text").tokens == 6


def test_pages_are_found_by_an_encoder_too(tmp_path: Path) -> None:
    config = TEXT_ALONE_MEMORY.changed(search={"index": ("heads", "embedding"), "encoder": CountingEncoder()})
    for _ in range(2):  # made, then opened again
        with MemoryModel(tiny_text_model(), byte_tokenizer(), tmp_path / "m", config) as mm:
            assert mm.config.search.index == ("embedding",)
            if mm.stream_tokens == 0:
                mm.read(TEXT, source="book")
            found = mm.recall(FACT, chat=False)
            assert FACT.strip() in found[0].text
            assert found[0].found_by == ("embedding",)


def test_a_long_prompt_is_read_as_far_as_its_answer_needs_it() -> None:
    model = tiny_text_model()
    with remembering(model) as mm:
        computed: list[int] = []
        hook = model.register_forward_hook(
            lambda _, args, kwargs, __: computed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        ids = torch.tensor(ids_of(TEXT[: 2 * TEXT_ALONE_MEMORY.frame.tokens]))
        mm.frame.extend(ids, "prompt")
        hook.remove()
        assert len(text_of(mm)) <= sum(computed) <= TEXT_ALONE_MEMORY.frame.tokens


def test_sinks_that_were_forgotten_are_not_filled_again(tmp_path: Path) -> None:
    model = tiny_text_model()
    with remembering(model, tmp_path / "m") as mm:
        mm.read("abc", source="first")
        mm.read("def", source="second")
    with everlong.Memory.open(tmp_path / "m") as memory:
        memory.forget(source="first")
    with remembering(model, tmp_path / "m", sink_tokens=8) as mm:
        mm.read("ghijklmn")
        assert (mm.frame.os.sinks, mm.frame.os.rolling) == (0, (4, 14))  # the fourth sink went with the others
        assert text_of(mm) == ids_of("efghijklmn")
        core = mm.memory.core
        assert core.blocks.token_ids(0, 3, core.blocks.stream_end(0)).tolist() == ids_of("defghijklmn")


def test_settings_go_with_a_memory_of_text_alone_and_a_model_that_names_no_window() -> None:
    model = tiny_text_model("bloom")
    with pytest.raises(everlong.UnsupportedModelError):
        configured(model, ["search.groups=2"])
    assert configured(model, ["search.groups=2"], text_alone=True).search.groups == 2
