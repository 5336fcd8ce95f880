"""A frame as a tensor-level stream: soft tokens as ids, hidden states, and who is told of archived blocks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import everlong
from everlong.frame.observers import OnBlock
from everlong.frame.read_request import ReadRequest
from everlong.frame.taps import HiddenTap
from support import ARCHITECTURES, ROOMY, SMALL, TOLERANCE, byte_tokenizer, random_text, tiny_model, tiny_text_model
from support.text_alone import remembering

Told = list[tuple[int, tuple[int, int], torch.Tensor, Mapping[int, torch.Tensor]]]
# Its first layer looks up what it adds to every layer by token ids, which soft tokens have none of.
TAKES_EMBEDDINGS = [(kind, rope) for kind, rope in ARCHITECTURES if kind != "gemma4"]


def embedded(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        embeds: torch.Tensor = model.get_input_embeddings()(ids)
    return embeds


def every_hidden_state(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        hidden = model(input_ids=ids[None], output_hidden_states=True).hidden_states
    return tuple(states[0] for states in hidden)


def hooks_of(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize(("kind", "rope"), TAKES_EMBEDDINGS)
def test_the_embeddings_of_a_text_are_read_as_its_ids(kind: str, rope: str) -> None:
    """While all is resident, in a branch, and once text has left and the rest was turned; the archive is the same."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    with (
        everlong.MemoryModel(model, tokenizer, config=SMALL) as by_ids,
        everlong.MemoryModel(model, tokenizer, config=SMALL) as by_embeds,
    ):
        ids = by_ids.encode(random_text(900))
        embeds = embedded(model, ids)
        for first, last in ((0, 150), (150, 700), (700, 900)):
            part = slice(first, last)
            with by_ids.frame.branch(), by_embeds.frame.branch():
                expected = by_ids.frame.forward(ReadRequest(ids[part], "read", keep_all=True)).logits
                got = by_embeds.frame.forward(
                    ReadRequest(None, "read", inputs_embeds=embeds[part], keep_all=True)
                ).logits
                torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
            expected = by_ids.frame.forward(ReadRequest(ids[part], "read", keep_all=True)).logits
            got = by_embeds.frame.forward(
                ReadRequest(ids[part], "read", inputs_embeds=embeds[part], keep_all=True)
            ).logits
            torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
        assert by_embeds.frame.os.evicted
        blocks = by_ids.memory.blocks()
        assert [block.span for block in by_embeds.memory.blocks()] == [block.span for block in blocks]
        for page in by_ids.memory.core.blocks.pages():
            (same,) = by_embeds.memory.core.blocks.pages_of(page.stream, page.begin, page.end)
            k = [mm.memory.core.blocks.read_keys(one, 0) for mm, one in ((by_ids, page), (by_embeds, same))]
            torch.testing.assert_close(*map(torch.from_numpy, k), atol=TOLERANCE, rtol=0)
        assert by_embeds.text(blocks[0].id) == by_ids.text(blocks[0].id)


def test_text_alone_reads_soft_tokens_as_they_are() -> None:
    model = tiny_text_model()
    with remembering(model) as by_ids, remembering(model) as by_embeds:
        ids = by_ids.encode(random_text(700))
        embeds = embedded(model, ids)
        for first, last in ((0, 100), (100, 640), (640, 700)):
            part = slice(first, last)
            expected = by_ids.frame.forward(ReadRequest(ids[part], "prompt")).logits
            got = by_embeds.frame.forward(ReadRequest(ids[part], "prompt", inputs_embeds=embeds[part])).logits
            torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
            assert by_embeds.frame.text == by_ids.frame.text
        assert by_embeds.frame.os.evicted


def test_vectors_that_are_no_tokens_are_computed_and_stand_as_a_special_token() -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    soft = torch.randn(40, 64, generator=torch.Generator().manual_seed(3))
    with everlong.MemoryModel(model, tokenizer, config=ROOMY) as mm:
        ids = mm.encode(random_text(100))
        mm.frame.extend(ids, "read")
        got = mm.frame.forward(ReadRequest(None, "read", inputs_embeds=soft, keep_all=True)).logits
        mm.frame.end_of_text()
        with torch.no_grad():
            whole = torch.cat([embedded(model, ids), soft])
            expected = model(inputs_embeds=whole[None]).logits[0, len(ids) :]
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
        kept = mm.memory.core.blocks.token_ids(0, len(ids), len(ids) + len(soft))
        assert set(kept.tolist()) == {tokenizer.eos_token_id}


@pytest.mark.parametrize(
    ("ids", "shape"), [(None, None), (None, (3,)), (5, (6, 64)), (5, (5, 64, 1))], ids=["nothing", "1d", "few", "3d"]
)
def test_what_is_no_run_of_tokens_is_refused(ids: int | None, shape: tuple[int, ...] | None) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        given = None if ids is None else torch.zeros(ids, dtype=torch.int64)
        with pytest.raises(ValueError, match="inputs_embeds"):
            mm.frame.forward(ReadRequest(given, "read", inputs_embeds=None if shape is None else torch.zeros(shape)))
        mm.frame.forward(ReadRequest(torch.zeros(3, dtype=torch.int64), "read"))
        assert mm.frame.os.stream_end == 3


# --- hidden states


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
@pytest.mark.parametrize("chunk", [7, 512])
def test_hidden_states_are_those_of_transformers(kind: str, rope: str, chunk: int) -> None:
    model = tiny_model(kind, rope)
    # As many as a longrope model needs for its long factors, which its frame uses.
    ids = torch.randint(97, 123, (530,), generator=torch.Generator().manual_seed(1))
    expected = every_hidden_state(model, ids)
    before = hooks_of(model)  # transformers leaves its own
    with everlong.MemoryModel(model, byte_tokenizer(), config=ROOMY) as mm:
        layers = range(-len(expected), len(expected))
        mm.frame.extend(ids[:400], "read")
        got = mm.frame.forward(ReadRequest(ids[400:], "read", hidden_layers=layers, chunk_tokens=chunk)).hidden
        assert set(got) == set(layers)
        for layer, states in got.items():
            torch.testing.assert_close(states, expected[layer][400:], atol=TOLERANCE, rtol=1e-4)
    assert hooks_of(model) == before


def test_a_stream_that_begins_with_tokens_of_its_own_gives_states_of_what_was_asked() -> None:
    model = tiny_model(vocab_size=258)
    with everlong.MemoryModel(model, byte_tokenizer(begins=True), config=ROOMY) as mm:
        ids = torch.arange(65, 85)
        out = mm.frame.forward(ReadRequest(ids, "read", keep_all=True, hidden_layers=(1,)))
        expected = every_hidden_state(model, torch.cat([torch.tensor([257]), ids]))[1][1:]
        assert len(out.logits) == len(ids)
        torch.testing.assert_close(out.hidden[1], expected, atol=TOLERANCE, rtol=0)


def test_text_alone_has_hidden_states_too() -> None:
    model = tiny_text_model()
    with remembering(model) as mm:
        ids = mm.encode(random_text(90))
        expected = every_hidden_state(model, ids)
        mm.frame.extend(ids[:50], "read")
        got = mm.frame.forward(ReadRequest(ids[50:], "read", hidden_layers=(0, 1, -1))).hidden
        for layer in (0, 1, -1):
            torch.testing.assert_close(got[layer], expected[layer][50:], atol=TOLERANCE, rtol=0)


def test_a_layer_that_there_is_not_is_named() -> None:
    model = tiny_model()
    assert len(every_hidden_state(model, torch.arange(3))) == 4
    for layer in (4, -5):
        with pytest.raises(ValueError, match=rf"hidden layers are \[{layer}\], expected -4 to 3"):
            HiddenTap(model, [0, layer])


def test_another_thread_is_not_listened_to() -> None:
    model, ids = tiny_model(), torch.arange(10)
    with HiddenTap(model, [1]) as tap, torch.no_grad():
        other = threading.Thread(target=lambda: model(input_ids=ids[None]))
        other.start()
        other.join()
        model(input_ids=ids[None, :4])
    assert tap.hidden(1).shape == (4, 64)


# --- observers


def collector(told: Told) -> OnBlock:
    return lambda block, span, ids, hidden: told.append((block, span, ids, hidden))


@pytest.mark.parametrize("background", [False, True])
def test_observers_get_every_block_with_ids_and_states(background: bool) -> None:
    model, told = tiny_model(), []
    with everlong.MemoryModel(model, byte_tokenizer(), config=ROOMY) as mm:
        mm.frame.observe(collector(told), hidden_layers=(1, -1), background=background)
        mm.read(random_text(500))
        mm.generate("what?", max_new_tokens=20, chat=False)
        mm.frame.archive.observers.settle()
        blocks = mm.memory.blocks()
        assert [(block, span) for block, span, _, _ in told] == [(one.id, one.span) for one in blocks]
        ids = torch.from_numpy(mm.memory.core.blocks.token_ids(0, 0, mm.stream_tokens)).long()
        expected = every_hidden_state(model, ids)
        assert not mm.frame.os.evicted
        for _, (begin, end), of_block, hidden in told:
            assert torch.equal(of_block, ids[begin:end])
            assert set(hidden) == {1, -1}
            for layer, states in hidden.items():
                torch.testing.assert_close(states, expected[layer][begin:end], atol=TOLERANCE, rtol=1e-4)


def test_text_alone_tells_its_observers_too() -> None:
    model, told = tiny_text_model(), []
    with remembering(model) as mm:
        mm.frame.observe(collector(told), hidden_layers=(1,))
        ids = mm.encode(random_text(100))
        mm.read(random_text(100))
        expected = every_hidden_state(model, ids)[1]
        states = torch.cat([hidden[1] for *_, hidden in told])
        torch.testing.assert_close(states, expected, atol=TOLERANCE, rtol=0)


def test_several_observers_are_told_in_order_until_they_are_closed() -> None:
    said: list[tuple[str, int]] = []
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        first = mm.frame.observe(lambda block, *_: said.append(("first", block)))
        with mm.frame.observe(lambda block, *_: said.append(("second", block))):
            mm.read(random_text(100))
        mm.read(random_text(100, seed=2))
        first.close()
        first.close()
        mm.read(random_text(100, seed=3))
        assert said == [("first", 1), ("second", 1), ("first", 2)]


def test_who_registers_in_the_middle_of_a_block_gets_no_part_of_its_states() -> None:
    told: Told = []
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        ids = mm.encode(random_text(300))
        mm.frame.extend(ids[:50], "read")
        mm.frame.observe(collector(told), hidden_layers=(2,))
        mm.frame.extend(ids[50:], "read")
        mm.frame.end_of_text()
        assert [len(one) for _, _, one, _ in told] == [128, 128, 44]
        assert [{layer: len(states) for layer, states in hidden.items()} for *_, hidden in told] == [
            {},
            {2: 128},
            {2: 44},
        ]


def test_a_branch_tells_nobody_and_changes_no_states() -> None:
    told: list[Told] = [[], []]
    for branched, of_one in zip((False, True), told, strict=True):
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
            mm.frame.observe(collector(of_one), hidden_layers=(1,))
            ids = mm.encode(random_text(300))
            mm.frame.extend(ids[:150], "read")
            if branched:
                with mm.frame.branch():
                    mm.frame.extend(ids[:90], "read")
            mm.frame.extend(ids[150:], "read")
            mm.frame.end_of_text()
    assert [span for _, span, *_ in told[0]] == [span for _, span, *_ in told[1]]
    for (*_, plain), (*_, after) in zip(*told, strict=True):
        torch.testing.assert_close(plain[1], after[1], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("background", [False, True])
def test_an_observer_that_fails_costs_the_memory_nothing(background: bool, caplog: pytest.LogCaptureFixture) -> None:
    told: Told = []

    def fail(*archived: object) -> None:
        raise LookupError("no room here")

    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.frame.observe(fail, background=background)
        mm.frame.observe(collector(told))
        mm.read(random_text(300))
        assert [block for block, *_ in told] == [block.id for block in mm.memory.blocks()]
        with pytest.raises(LookupError, match="no room here"):
            mm.frame.archive.observers.settle()
        mm.frame.archive.observers.settle()
    assert "an observer of block 1 failed" in caplog.text


def test_a_slow_observer_in_the_background_is_waited_for_at_the_end() -> None:
    go, told = threading.Event(), []

    def wait(block: int, *_: object) -> None:
        go.wait(60)
        told.append(block)

    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.frame.observe(wait, background=True)
        mm.read(random_text(400))
        assert not told
        go.set()
        mm.frame.archive.observers.settle()
        assert told == [block.id for block in mm.memory.blocks()]


def test_states_for_observers_cost_no_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    forwards: list[list[int]] = []
    for layers in ((), (1, 2)):
        model = tiny_model()
        lengths: list[int] = []
        model.register_forward_pre_hook(
            lambda module, args, kwargs, lengths=lengths: lengths.append(kwargs["input_ids"].shape[1]),
            with_kwargs=True,
        )
        with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
            mm.frame.observe(lambda *_: None, hidden_layers=layers)
            lengths.clear()
            mm.read(random_text(700))
        forwards.append(lengths)
    assert forwards[0] == forwards[1]
