"""One model, used by others while a MemoryModel uses it: in other threads, and under torch's modes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import everlong
from everlong.models.releases import checkpointing
from support import OWN_STATE, SMALL, TOLERANCE, byte_tokenizer, plain_logits, random_text, tiny_model


@pytest.fixture(name="disturbed")
def a_model_that_another_thread_uses_too() -> Iterator[torch.nn.Module]:
    """In the middle of each of its forwards another thread runs one over other tokens at other positions."""
    model = tiny_model()
    elsewhere = torch.arange(3, 12)[None]
    others: list[threading.Thread] = []

    def run() -> None:
        with torch.no_grad():
            model(input_ids=elsewhere, position_ids=elsewhere + 100)

    def disturb(*_: object) -> None:
        if threading.current_thread() not in others:
            others.append(threading.Thread(target=run))
            others[-1].start()
            others[-1].join()

    hook = model.model.layers[1].register_forward_hook(disturb)
    yield model
    hook.remove()
    assert len(others) > 10


def test_another_thread_s_forwards_leave_a_memory_alone(disturbed: torch.nn.Module) -> None:
    """Its keys' positions, what calibration hears, what a question asks."""
    texts = [random_text(64, seed=i) for i in range(80)]
    question = "".join(texts)[1000:1040]

    def read_and_ask(model: torch.nn.Module) -> tuple[object, everlong.Answer, torch.Tensor]:
        with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
            mm.read("".join(texts))
            answer = mm.generate(question, max_new_tokens=4)
            return mm.profile, answer, mm.frame.cache.k.clone()

    alone, beside = read_and_ask(tiny_model()), read_and_ask(disturbed)
    assert alone[1].recalled
    assert alone[:2] == beside[:2]
    assert torch.equal(alone[2], beside[2])


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), *OWN_STATE])
def test_in_and_out_of_inference_mode(kind: str, rope: str) -> None:
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    text, question = random_text(1500), random_text(30, seed=2)

    def ask(mm: everlong.MemoryModel) -> everlong.Answer:
        mm.read(text)
        mm.generate(question, max_new_tokens=3, remember=False)
        return mm.generate(question, max_new_tokens=3)

    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        expected = ask(mm), ask(mm)
    with torch.inference_mode():
        made_inside = everlong.MemoryModel(model, tokenizer, config=SMALL)
    with made_inside as mm:
        first = ask(mm)
        with torch.inference_mode():
            second = ask(mm)
        assert (first, second) == expected
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        with torch.inference_mode():
            first = ask(mm)
        assert torch.is_grad_enabled()
        assert (first, ask(mm)) == expected


def test_a_model_that_was_made_in_inference_mode() -> None:
    """transformers writes the frequencies of longrope into the rotary embedding's buffer in every forward."""
    text, question = random_text(1500), random_text(30, seed=2)

    def ask(mm: everlong.MemoryModel) -> everlong.Answer:
        with mm:
            mm.read(text)
            return mm.generate(question, max_new_tokens=3)

    expected = ask(everlong.MemoryModel(tiny_model("phi3", "longrope"), byte_tokenizer(), config=SMALL))
    with torch.inference_mode():
        model = tiny_model("phi3", "longrope")
        attached_there = everlong.MemoryModel(model, byte_tokenizer(), config=SMALL)
    assert ask(attached_there) == expected
    with torch.inference_mode():
        model = tiny_model("phi3", "longrope")
    assert ask(everlong.MemoryModel(model, byte_tokenizer(), config=SMALL)) == expected


def test_a_closed_memory_model_leaves_no_buffers_behind() -> None:
    model = tiny_model()
    gc.disable()  # which would find them in the end
    try:
        with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
            mm.read(random_text(1500))
            mm.generate(random_text(30, seed=2), max_new_tokens=3)
            mm.perplexity(random_text(40, seed=3))
            "".join(mm.stream("who?", max_new_tokens=3, remember=False))
        buffers = [weakref.ref(tensor) for tensor in (mm.frame.cache.k, mm.frame.cache.v)]
        del mm
        assert [buffer() for buffer in buffers] == [None, None]
    finally:
        gc.enable()


def test_a_model_in_training_mode_is_told_apart_from_one_that_does_not_work() -> None:
    model = tiny_model().train()
    with pytest.raises(everlong.UnsupportedModelError, match=r"training mode; model\.eval\(\) works"):
        everlong.MemoryModel(model, byte_tokenizer(), config=SMALL)
    with everlong.MemoryModel(model.eval(), byte_tokenizer(), config=SMALL) as mm:
        ids = mm.encode(random_text(40))
        assert (mm.frame.extend(ids, "read", logits=True) - plain_logits(model, ids)).abs().max() <= TOLERANCE


def pickled(model: torch.nn.Module) -> torch.nn.Module:
    copied: torch.nn.Module = pickle.loads(pickle.dumps(model))
    return copied


def saved(model: torch.nn.Module) -> torch.nn.Module:
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    copied: torch.nn.Module = torch.load(file, weights_only=False)
    return copied


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
def test_a_copy_of_a_model_that_has_a_memory_is_a_plain_one(
    copied: Callable[[torch.nn.Module], torch.nn.Module],
) -> None:
    model = tiny_model()
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(300))
        cos, sin = mm.frame.zones.computing.phase.newest
        other = copied(model)
        ids = mm.encode(random_text(40, seed=1))
        assert torch.equal(plain_logits(other, ids), plain_logits(tiny_model(), ids))
        assert mm.frame.zones.computing.phase.newest[0] is cos
        assert mm.frame.zones.computing.phase.newest[1] is sin
        with everlong.MemoryModel(other, byte_tokenizer(), config=SMALL) as its_own:
            assert its_own.read(random_text(300)).tokens == mm.stream_tokens


def test_a_part_in_training_mode_is_named() -> None:
    model = tiny_model()
    model.model.layers[1].self_attn.train()
    with pytest.raises(everlong.UnsupportedModelError, match=r"model\.layers\.1\.self_attn is in training mode"):
        everlong.MemoryModel(model, byte_tokenizer(), config=SMALL)


@pytest.mark.parametrize("part", ["", "model.layers.1.mlp"])
def test_a_model_that_is_trained_while_it_has_a_memory_is_told_at_the_next_call(part: str) -> None:
    model = tiny_model()
    checkpointing(model)[0]()  # whose layers keep no keys while they are trained
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(300))
        before = mm.stream_tokens, mm.memory.stats()
        model.get_submodule(part).train()
        for call in (mm.read, mm.generate, mm.recall, mm.perplexity, lambda question: list(mm.stream(question))):
            with pytest.raises(everlong.UnsupportedModelError, match=r"training mode; model\.eval\(\) works"):
                call(random_text(200, seed=1))
        assert (mm.stream_tokens, mm.memory.stats()) == before
        model.eval()
        assert mm.read(random_text(200, seed=1)).tokens == 200


@pytest.mark.slow
@pytest.mark.parametrize("ran", [False, True])
def test_a_compiled_model_s_memory_is_that_of_the_model(ran: bool, tmp_path: Path) -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "memory", SMALL) as mm:
        mm.read(random_text(1500))

    def asked(model: Any) -> tuple[everlong.IndexProfile, everlong.Answer]:
        with everlong.MemoryModel(model, tokenizer, tmp_path / "memory", SMALL) as mm:
            return mm.calibrate(), mm.generate(random_text(30, seed=2), max_new_tokens=3, remember=False)

    expected = asked(model)
    compiled = torch.compile(model, backend="eager")
    if ran:
        plain_logits(compiled, torch.arange(9))
    assert asked(compiled) == expected


def compile_in_place(model: Any) -> None:
    model.compile(backend="eager")


def compile_its_decoder(model: Any) -> None:
    model.model.compile(backend="eager")


def wrap_its_decoder(model: Any) -> None:
    model.model = torch.compile(model.model, backend="eager")


def compile_its_forward(model: Any) -> None:
    model.forward = torch.compile(model.forward, backend="eager")


@pytest.mark.parametrize(
    ("compiles", "named"),
    [
        (compile_in_place, "it"),
        (compile_its_decoder, "its module model"),
        (wrap_its_decoder, "its module model"),
        (compile_its_forward, "it"),
    ],
)
def test_a_model_that_was_compiled_in_place_is_told_with_what_works(
    compiles: Callable[[Any], None], named: str
) -> None:
    with everlong.MemoryModel(model := tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        told = rf"llama: {named} was compiled in place; the model as it was loaded works"
        compiles(model)
        with pytest.raises(everlong.UnsupportedModelError, match=told):
            mm.read("More.")
        assert mm.stream_tokens == 0
    with pytest.raises(everlong.UnsupportedModelError, match=told):
        everlong.MemoryModel(model, byte_tokenizer(), config=SMALL)


@pytest.mark.usefixtures("torch_defaults")
def test_torch_s_defaults_decide_nothing() -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    text, question = "".join(random_text(64, seed=i) for i in range(80)), random_text(30, seed=2)

    def ask() -> tuple[object, everlong.Answer]:
        with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
            mm.read(text)
            return mm.generate(question, max_new_tokens=4), mm.profile

    expected = ask()
    torch.set_default_dtype(torch.bfloat16)
    assert ask() == expected
    torch.set_default_dtype(torch.float32)
    torch.set_default_device("meta")  # what is made there by mistake holds nothing
    assert ask() == expected
