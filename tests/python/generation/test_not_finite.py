"""A model that computes NaN or infinity: nothing of it is kept, and the stream goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import everlong
from support import SMALL, byte_tokenizer, next_logits, random_text, tiny_model

BAD = "~"
TEXT = random_text(900).replace(BAD, "-")


def spoiled(kind: str, rope: str, value: float, dtype: torch.dtype = torch.float32) -> Any:
    """A model that turns one token into this value."""
    model = tiny_model(kind, rope, tie_word_embeddings=False)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    with torch.no_grad():
        model.get_input_embeddings().weight[byte_tokenizer()(BAD)["input_ids"][0]] = value
    return model


def open_spoiled(folder: Path | None, kind: str, rope: str, value: float = float("nan")) -> everlong.MemoryModel:
    return everlong.MemoryModel(spoiled(kind, rope, value), byte_tokenizer(), folder, SMALL)


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), ("gemma3", "nested"), ("qwen3_5", "partial")])
@pytest.mark.parametrize("bad", [f"a {BAD} b", TEXT[:301] + BAD, BAD + BAD])
def test_a_bad_reading_is_kept_out_and_later_ones_are_as_without_it(
    kind: str, rope: str, bad: str, tmp_path: Path
) -> None:
    with open_spoiled(tmp_path / "m", kind, rope) as mm:
        mm.read(TEXT, source="before")
        with pytest.raises(everlong.NotFiniteError):
            mm.read(bad, source="bad")
        kept = "".join(mm.text(block.id) for block in mm.memory.blocks("bad"))
        assert bad.startswith(kept)
        assert BAD not in kept
        mm.read(TEXT[::-1], source="after")
        ours = next_logits(mm, "and so on")
        assert torch.isfinite(ours).all()
    with open_spoiled(tmp_path / "m", kind, rope) as mm:
        assert torch.allclose(next_logits(mm, "and so on"), ours, atol=1e-4)
        assert mm.read(TEXT, source="later").tokens == len(TEXT)
        assert mm.memory.verify().damage == ()
    with open_spoiled(None, kind, rope) as twin:
        twin.read(TEXT, source="before")
        if kept:
            twin.read(kept, source="bad")
        twin.read(TEXT[::-1], source="after")
        assert torch.allclose(next_logits(twin, "and so on"), ours, atol=1e-4)


def test_the_error_names_layer_token_and_dtype() -> None:
    with open_spoiled(None, "llama", "default") as mm:
        mm.read("It is so.", source="before")
        at = mm.stream_tokens + 2
        with pytest.raises(everlong.EverlongError, match=rf"layer 0 .* token {at} of the stream .* float32"):
            mm.read(f"a {BAD} b")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_sixteen_bits_that_overflow_are_told_as_such(value: float) -> None:
    model = spoiled("llama", "default", value, torch.float16)
    with (
        everlong.MemoryModel(model, byte_tokenizer(), None, SMALL) as mm,
        pytest.raises(everlong.NotFiniteError, match=r"float16.*load the model in bfloat16 or float32"),
    ):
        mm.read(TEXT + BAD)


def test_a_model_that_computes_nothing_finite_is_refused_when_a_memory_is_made() -> None:
    model = spoiled("llama", "default", 0.0, torch.float16)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight.fill_(60000)
    with pytest.raises(everlong.EverlongError, match="float16"):
        everlong.MemoryModel(model, byte_tokenizer(), None, SMALL)


def test_a_state_that_is_not_copied_for_one_token_breaks_the_frame_and_is_as_before_when_opened_again(
    tmp_path: Path,
) -> None:
    """Of linear attention, whose states are large. Nothing wrong is kept."""
    with open_spoiled(tmp_path / "m", "qwen3_5", "partial") as mm:
        mm.read(TEXT, source="before")
        expected = next_logits(mm, "and so on")
    with open_spoiled(tmp_path / "m", "qwen3_5", "partial") as mm:
        with pytest.raises(everlong.NotFiniteError):
            mm.read(BAD)
        with pytest.raises(everlong.BrokenFrameError, match="make another"):
            mm.read("more")
    with open_spoiled(tmp_path / "m", "qwen3_5", "partial") as mm:
        assert torch.allclose(next_logits(mm, "and so on"), expected, atol=1e-4)


@pytest.mark.parametrize("call", ["generate", "stream", "perplexity", "answer_many"])
def test_a_bad_question_leaves_the_stream_usable(call: str) -> None:
    with open_spoiled(None, "llama", "default") as mm, open_spoiled(None, "llama", "default") as twin:
        for one in (mm, twin):
            one.read(TEXT, source="book")
        question = f"what is {BAD}?"
        calls = {
            "generate": lambda: mm.generate(question, 5),
            "stream": lambda: list(mm.stream(question, 5)),
            "perplexity": lambda: mm.perplexity(question),
            "answer_many": lambda: mm.answer_many([question], 5),
        }
        with pytest.raises(everlong.NotFiniteError):
            calls[call]()
        assert mm.stream_tokens == twin.stream_tokens
        assert mm.generate("what is it?", 5) == twin.generate("what is it?", 5)


def test_a_generated_token_that_is_not_finite_ends_the_answer() -> None:
    """What was said before it stays, and the next question is answered."""
    with open_spoiled(None, "llama", "default") as mm:
        mm.read(TEXT, source="book")
        bad = byte_tokenizer()(BAD)["input_ids"][0]
        forced = []

        def force(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            forced.append(1)
            if len(forced) == 3:
                scores[:, bad] = 1e9
            else:
                scores[:, bad] = -1e9
            return scores

        with pytest.raises(everlong.NotFiniteError):
            mm.generate("what is it?", 9, logits_processor=[force])
        assert mm.generate("and now?", 3, logits_processor=[force]).tokens == 3
