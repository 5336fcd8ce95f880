"""A model folder whose own `generate` answers from a memory, as `transformers serve` loads and calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

import everlong
from everlong.integrations.transformers import folder_with
from support import random_text
from support.chatting import FACTS, chat_tokenizer
from support.models import tiny_model


def test_a_loaded_folder_answers_from_the_memory(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    chat_tokenizer().save_pretrained(tmp_path / "model")
    question = "Does 48213 open the garden shed?"
    config = everlong.MemoryConfig.fitting(2048).changed(search={"index": ("lexical",)})
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with everlong.MemoryModel(loaded, chat_tokenizer(), tmp_path / "m", config) as mm:
        mm.read(f"{FACTS['garden']}\n{random_text(3000)}")
    folder = folder_with(tmp_path / "m", tmp_path / "model", tmp_path / "served")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(question, return_tensors="pt", return_token_type_ids=False)
    streamer = transformers.TextIteratorStreamer(tokenizer, skip_prompt=True)
    said = model.generate(**inputs, max_new_tokens=6, do_sample=False, streamer=streamer)
    plain = type(model).generate(model, **inputs, max_new_tokens=6, do_sample=False)
    assert "".join(streamer) == tokenizer.decode(said[0, inputs["input_ids"].shape[1] :])
    assert not torch.equal(said, plain)
    again = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    assert torch.equal(said, again)  # nothing was remembered
    with pytest.raises(FileExistsError):
        folder_with(tmp_path / "m", tmp_path / "model", tmp_path / "served")
    with pytest.raises(FileNotFoundError, match="no folder of a saved model"):
        folder_with(tmp_path / "m", tmp_path / "none", tmp_path / "other")
