"""A tokenizer and a model that belong together, and go on doing so while a memory of them is open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import everlong
from everlong.text.control import add_control_tokens
from support import TINY_MEMORY, byte_tokenizer, tiny_model, tiny_text_model

TEXT = "The keeper of the lamp walked on. " * 20


def opened(model: Any, tokenizer: Any, folder: Path | None = None) -> everlong.MemoryModel:
    return everlong.MemoryModel(model, tokenizer, folder, TINY_MEMORY)


@pytest.mark.parametrize("special", [False, True])
def test_a_token_without_a_row_of_the_embedding_is_refused_before_there_is_a_folder(
    special: bool, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["lamp", "walked"], special_tokens=special)
    says = r"token 'lamp' has the id 257, .* 257 rows \(2 such tokens\).*resize_token_embeddings\(259\)"
    with pytest.raises(everlong.UnsupportedModelError, match=says):
        opened(tiny_model(), tokenizer, tmp_path / "m")
    assert not (tmp_path / "m").exists()
    with pytest.raises(everlong.UnsupportedModelError, match=says):
        everlong.MemoryModel(
            tiny_text_model("gpt2"), tokenizer, None, TINY_MEMORY.changed(answer={"recall_mode": "text"})
        )
    with opened(tiny_model(vocab_size=259), tokenizer) as mm:
        assert mm.read(TEXT).tokens > 0


def test_a_token_of_pictures_needs_no_row_and_reaches_no_model(tmp_path: Path) -> None:
    """As in Gemma 3's model of text alone."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<picture>"]})
    tokenizer.image_token = "<picture>"
    with opened(tiny_model(), tokenizer) as mm:
        assert mm.read("a <picture>").tokens == len("a <picture>")
        with pytest.raises(everlong.UnsupportedModelError, match=r"token id 257 is none of the model's: .* 257 rows"):
            mm.read("a <picture>", special_tokens=True)
        before = mm.stream_tokens
        for strange in (257, -1):
            with pytest.raises(everlong.UnsupportedModelError, match=f"token id {strange} "):
                mm.frame.extend(torch.tensor([3, strange]), "prompt")
        assert mm.stream_tokens == before
        assert mm.generate("a", max_new_tokens=2).tokens == 2  # the frame is whole


def grown(tokenizer: Any, model: Any) -> None:
    tokenizer.add_tokens(["lamp", "oil", "night", "keeper"])


def marked(tokenizer: Any, model: Any) -> None:
    add_control_tokens(model, tokenizer)


def known_before(tokenizer: Any, model: Any) -> None:
    tokenizer.add_special_tokens({"additional_special_tokens": ["a"]})  # it has a row, and text is read otherwise


@pytest.mark.parametrize(
    ("change", "says"), [(grown, "'keeper', 'lamp', 'night' and more"), (marked, "<RETRIEVE>"), (known_before, "'a'")]
)
def test_a_tokenizer_that_changes_while_a_memory_is_open_is_noticed(change: Any, says: str, tmp_path: Path) -> None:
    tokenizer, model = byte_tokenizer(), tiny_model(vocab_size=300)
    with opened(model, tokenizer, tmp_path / "m") as mm:
        mm.read(TEXT, source="before")
        stood = mm.stream_tokens, mm.memory.stats()
        change(tokenizer, model)
        calls = (
            lambda: mm.read(TEXT, source="behind"),
            lambda: mm.generate("a lamp?", max_new_tokens=1),
            lambda: list(mm.stream("a lamp?", max_new_tokens=1)),
            lambda: mm.answer_many(["a lamp?"], max_new_tokens=1),
            lambda: mm.recall("a lamp?"),
            lambda: mm.perplexity(TEXT),
        )
        for call in calls:
            with pytest.raises(everlong.ModelMismatchError, match=f"tokenizer has other tokens .*{says}"):
                call()
        assert (mm.stream_tokens, mm.memory.stats()) == stood
    with opened(model, byte_tokenizer(), tmp_path / "m") as mm:
        assert mm.text(mm.memory.blocks("before")[0].id).startswith("The keeper of the lamp")
        assert mm.read(TEXT, source="behind").tokens > 0


def test_another_template_or_padding_is_no_other_tokenizer() -> None:
    tokenizer = byte_tokenizer()
    with opened(tiny_model(), tokenizer) as mm:
        tokenizer.chat_template = "{{ messages[-1].content }}"
        tokenizer.pad_token = tokenizer.eos_token
        assert mm.read(TEXT).tokens == len(TEXT)
