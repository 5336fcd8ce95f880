"""A wrong argument is told by what was given, what is expected and what to do, before anything is done."""

from __future__ import annotations

import io
import os
import pathlib
import re
from typing import Any

import pytest
import torch
import transformers

import everlong
from everlong import Where
from support import TINY_MEMORY, byte_tokenizer, random_text, tiny_model


class Processor:
    """As of a model of text and pictures: its tokenizer is one of its parts."""

    def __init__(self) -> None:
        self.tokenizer = byte_tokenizer()


def without_head() -> Any:
    return tiny_model().model


def with_a_score() -> Any:
    return transformers.AutoModelForSequenceClassification.from_config(tiny_model().config).eval()


def pipeline() -> Any:
    return transformers.pipeline("text-generation", model=tiny_model(), tokenizer=byte_tokenizer())


@pytest.mark.parametrize(
    ("model", "error", "told"),
    [
        ("smollm2", TypeError, r"model is a name, 'smollm2': MemoryModel.from_pretrained\('smollm2'\) loads"),
        (pathlib.Path("a/model"), TypeError, r"model is a name, 'a/model': MemoryModel.from_pretrained\('a/model'\)"),
        (None, TypeError, "model is None, expected a causal LM of transformers"),
        (without_head, everlong.UnsupportedModelError, "LlamaModel has no head .* AutoModelForCausalLM loads"),
        (with_a_score, everlong.UnsupportedModelError, "LlamaForSequenceClassification has no head"),
        (pipeline, TypeError, "model is a TextGenerationPipeline, expected a causal LM .*: give its .model"),
        (torch.nn.Linear(1, 1), TypeError, "model is a Linear, a module without a config"),
        (lambda: tiny_model().config, TypeError, "model is a LlamaConfig, expected a causal LM"),
        (lambda: tiny_model().double(), everlong.UnsupportedModelError, "float64, .* dtype=torch.float32 works"),
    ],
)
def test_what_is_no_model(model: Any, error: type[Exception], told: str, tmp_path: pathlib.Path) -> None:
    made = model() if callable(model) and not isinstance(model, torch.nn.Module) else model
    with pytest.raises(error, match=told):
        everlong.MemoryModel(made, byte_tokenizer(), tmp_path / "m", TINY_MEMORY)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        (tiny_model, TypeError, r"a LlamaForCausalLM, expected a model's name.*MemoryModel\(model, tokenizer\) takes"),
        (None, TypeError, "name_or_path is None, expected a model's name or path"),
        (5, TypeError, "name_or_path is a int"),
        ("", ValueError, "name_or_path is empty"),
    ],
)
def test_what_is_no_name_of_a_model(name: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        everlong.MemoryModel.from_pretrained(name() if callable(name) else name)


@pytest.mark.parametrize(
    ("tokenizer", "told"),
    [
        (None, "tokenizer is None, expected the model's tokenizer, as AutoTokenizer.from_pretrained"),
        ("gpt2", r"tokenizer is a name, 'gpt2': AutoTokenizer.from_pretrained\('gpt2'\) loads it"),
        (lambda: byte_tokenizer().backend_tokenizer, "tokenizer is a Tokenizer, .*PreTrainedTokenizerFast"),
        (Processor, "tokenizer is a Processor, .*: give its .tokenizer"),
        (str.split, "tokenizer is a method_descriptor"),
        (tiny_model, "tokenizer is a LlamaForCausalLM"),
    ],
)
def test_what_is_no_tokenizer(tokenizer: Any, told: str) -> None:
    made = tokenizer() if callable(tokenizer) and tokenizer is not str.split else tokenizer
    with pytest.raises(TypeError, match=told):
        everlong.MemoryModel(tiny_model(), made, None, TINY_MEMORY)


def test_model_and_tokenizer_swapped() -> None:
    with pytest.raises(TypeError, match=re.escape("swapped: expected MemoryModel(model, tokenizer)")):
        everlong.MemoryModel(byte_tokenizer(), tiny_model(), None, TINY_MEMORY)


@pytest.mark.parametrize(
    ("path", "error", "told"),
    [
        ("", ValueError, "is empty: expected a folder's or file's name, or None for RAM alone"),
        (" ", ValueError, "is empty"),
        ("a\0b", ValueError, "has a zero byte"),
        (5, TypeError, r"the path is 5 \(int\): expected a str or a pathlib.Path"),
        (["m"], TypeError, "expected a str or a pathlib.Path"),
    ],
)
def test_what_is_no_folder(path: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), path, TINY_MEMORY)
    for call in (everlong.Memory.open, everlong.Memory.exists, everlong.Memory.repair):
        with pytest.raises(error, match=told):
            call(path)


@pytest.mark.parametrize(
    ("memory", "config", "told"),
    [
        (TINY_MEMORY, None, "memory is a MemoryConfig: give it as config="),
        (None, {"search.groups": 2}, "config is a dict, expected a MemoryConfig; .*with_settings"),
        (None, "search.groups=2", "config is a str, expected a MemoryConfig"),
    ],
)
def test_what_is_no_config(memory: Any, config: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, config)


@pytest.fixture(scope="module")
def mm() -> Any:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=TINY_MEMORY) as opened:
        opened.read(random_text(600), source="notes", tags="t")
        yield opened


def require_unchanged_by(mm: everlong.MemoryModel, error: type[Exception], told: str, call: Any) -> None:
    before = (mm.stream_tokens, mm.memory.stats())
    with pytest.raises(error, match=told):
        call()
    assert (mm.stream_tokens, mm.memory.stats()) == before


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"past_key_values": object()}, "past_key_values is no argument here: the frame is the cache"),
        ({"cache": object()}, "cache is no argument here: the frame is the cache"),
        ({"inputs_embeds": torch.zeros(1, 3, 64)}, "inputs_embeds is no argument here: a memory goes on from text"),
        ({"attention_mask": torch.ones(1, 3)}, "attention_mask is no argument here"),
        ({"position_ids": torch.ones(1, 3)}, "position_ids is no argument here"),
        ({"custom_generate": lambda *_: None}, "custom_generate is no argument here"),
        ({"input_ids": torch.ones(1, 3)}, "input_ids is no argument here"),
        ({"temprature": 0.5}, "there is no argument 'temprature', but 'temperature'"),
        ({"labels": None}, "there is no argument 'labels'"),
        ({"remembr": False}, "there is no argument 'remembr'"),
        ({"max_new_tokens": "3"}, "max_new_tokens is '3', expected a whole number, or None"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
    ],
)
def test_what_no_answer_obeys(mm: everlong.MemoryModel, given: dict[str, Any], told: str) -> None:
    require_unchanged_by(mm, TypeError, told, lambda: mm.generate("lamp?", **given))
    require_unchanged_by(mm, TypeError, told, lambda: mm.stream("lamp?", **given))
    require_unchanged_by(mm, TypeError, told, lambda: mm.answer_many(["lamp?"], **given))


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (5, r"the question is 5 \(int\), expected one str"),
        (2.5, "the question is 2.5"),
        (b"lamp?", "expected one str, decoded"),
        (["lamp?", "key?"], "messages= takes several turns, answer_many several questions"),
        ({"role": "user", "content": "lamp?"}, "or messages="),
        (pathlib.Path("lamp"), "expected one str"),
    ],
)
def test_what_is_no_question(mm: everlong.MemoryModel, question: Any, told: str) -> None:
    for call in (mm.generate, mm.stream, mm.recall):
        require_unchanged_by(mm, TypeError, told, lambda call=call: call(question))
    require_unchanged_by(mm, TypeError, told, lambda: mm.answer_many([question]))


def test_what_transformers_takes_is_taken(mm: everlong.MemoryModel) -> None:
    taken = {"temperature": 0.5, "do_sample": True, "stop_strings": ["z"], "tokenizer": mm.tokenizer, "max_time": 60.0}
    answer = mm.generate("lamp?", 2, remember=False, generation_config=transformers.GenerationConfig(), **taken)
    assert answer.tokens <= 2


def entry(folder: pathlib.Path) -> Any:
    return next(os.scandir(folder))


def test_every_kind_of_path_is_a_file(tmp_path: pathlib.Path) -> None:
    class Place:
        def __fspath__(self) -> str:
            return str(tmp_path / "a.txt")

    class PlaceInBytes:
        def __fspath__(self) -> bytes:
            return os.fsencode(tmp_path / "a.txt")

    (tmp_path / "a.txt").write_text("a text of its own")
    for number, path in enumerate([tmp_path / "a.txt", entry(tmp_path), Place(), PlaceInBytes()]):
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=TINY_MEMORY) as mm:
            assert mm.read(path).tokens == 17, number
            (block,) = mm.memory.blocks()
            assert (block.source, block.origin) == ("a", str(tmp_path / "a.txt"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "the text is None, expected str, the pathlib.Path of a file"),
        (5, r"the text is 5 \(int\), expected str"),
        (2.5, r"the text is 2.5 \(float\)"),
        (True, r"the text is True \(bool\)"),
        ({"title": "x", "text": "y"}, "the text is dict, .*: its keys would be read"),
        (b"text", "the text is bytes, .*: decode it"),
        (bytearray(b"text"), "the text is bytearray, .*: decode it"),
        (memoryview(b"text"), "the text is memoryview, .*: decode it"),
        ({"one", "two"}, "the text is set, .*: a set has no order"),
        (object(), "the text is object, expected str"),
        (["a", 5], r"the text is 5 \(int\), expected str, in its piece 1"),
        ([b"a"], "the text is bytes, expected str, in its piece 0: decode it"),
        ((pathlib.Path("a"),), "the text is .*Path, expected str, in its piece 0: each file is a text of its own"),
        (torch.zeros(3), "the text is Tensor, expected str, in its piece 0"),
        (iter(["", None]), "the text is None, expected str, in its piece 1"),
        (
            lambda: io.BytesIO(b"text"),
            "the text is bytes, expected str: the file was opened in binary mode; open it as",
        ),
    ],
)
def test_what_is_no_text(mm: everlong.MemoryModel, text: Any, told: str) -> None:
    given = text() if callable(text) else text
    require_unchanged_by(mm, TypeError, told, lambda: mm.read(given, source="wrong"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"block_ids": "notes"}, "block_ids is 'notes': expected ids of blocks.*source='notes' forgets a source"),
        ({"block_ids": 5}, "block_ids is 5: expected several ids"),
        ({"block_ids": [2.0]}, "block_ids has 2.0, expected an id"),
        ({"block_ids": [True]}, "block_ids has True"),
        ({"block_ids": [-1]}, "block_ids has -1"),
        ({"block_ids": ["1"]}, "block_ids has '1'"),
        ({"block_ids": Where(source="notes")}, r"block_ids is a Where: forget\(where=...\) takes it"),
        ({"source": ["a", "b"]}, r"source is \['a', 'b'\], expected one name.*Where\(source=\[...\]\) takes several"),
        ({"source": 5}, "source is 5, expected one name"),
        ({"source": pathlib.Path("notes")}, "expected one name"),
        ({"where": "notes"}, "where is 'notes', expected an everlong.Where"),
    ],
)
def test_what_cannot_be_forgotten(mm: everlong.MemoryModel, given: dict[str, Any], told: str) -> None:
    require_unchanged_by(mm, TypeError, told, lambda: mm.memory.forget(**given))


def test_blocks_in_place_of_their_ids(mm: everlong.MemoryModel) -> None:
    blocks = mm.memory.blocks()
    for given in (blocks, blocks[0]):
        require_unchanged_by(mm, TypeError, r"block_ids (has|is) Block\(", lambda given=given: mm.memory.forget(given))
    for given in ({"source": ["a"]}, {"tag": ["a"]}, {"tag": 5}):
        require_unchanged_by(mm, TypeError, "expected one name", lambda given=given: mm.memory.blocks(**given))
