"""The frame against a plain transformers forward: what fits must be the same, what came back from the archive too."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache

import everlong
from everlong.models.releases import cache_argument
from everlong.models.rope import rope_table
from everlong.models.tokens import Tokens
from support import (
    ARCHITECTURES,
    OWN_STATE,
    ROOMY,
    SMALL,
    TINY_KINDS,
    TOLERANCE,
    WINDOW_ONLY,
    byte_tokenizer,
    changed,
    next_logits,
    plain_logits,
    random_text,
    tiny_model,
)
from support.rope import rotated

WIDE = 1536

# Holds 600 tokens before anything leaves; a longrope model uses its long factors in it.
# Nothing but rolling, 400 to 463 tokens of it.
REOPENED = [("llama", "default"), *OWN_STATE, ("smollm3", "default")]


@pytest.mark.parametrize(("kind", "rope"), TINY_KINDS)
@pytest.mark.parametrize("chunk", [7, 64, 512])
def test_frame_that_holds_everything_is_the_plain_forward(kind: str, rope: str, chunk: int) -> None:
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, config=ROOMY.changed(frame={"chunk_tokens": chunk})) as mm:
        ids = mm.encode(random_text(530))
        logits = mm.frame.extend(ids, "read", logits=True)
    assert (logits - plain_logits(model, ids)).abs().max() <= TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_one_token_a_forward_is_the_plain_forward(kind: str, rope: str) -> None:
    """In a frame that a longrope model uses its short factors for."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, config=WINDOW_ONLY.changed(frame={"chunk_tokens": 1})) as mm:
        ids = mm.encode(random_text(120))
        logits = mm.frame.extend(ids, "read", logits=True)
        assert mm.frame.served.first_position == 0
    assert (logits - plain_logits(model, ids)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_attention_implementations_over_what_came_back(
    kind: str, rope: str, implementation: str, tmp_path: Path
) -> None:
    model = tiny_model(kind, rope)
    if implementation == "sdpa" and not model._supports_sdpa:
        return
    model.set_attn_implementation(implementation)
    logits, ids = restored_logits(model, tmp_path / "m")
    assert (logits - plain_logits(model, ids)[-40:]).abs().max() <= TOLERANCE


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_attention_implementations(kind: str, rope: str, implementation: str) -> None:
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    if implementation == "sdpa" and not model._supports_sdpa:
        with pytest.raises(ValueError, match="does not support"):
            model.set_attn_implementation("sdpa")
        return
    model.set_attn_implementation(implementation)
    with everlong.MemoryModel(model, tokenizer, config=WINDOW_ONLY) as mm:
        ids = mm.encode(random_text(300))
        logits = mm.frame.extend(ids, "read", logits=True)
    assert (logits - plain_logits(model, ids)).abs().max() <= TOLERANCE


def restored_logits(model: Any, folder: Path, **written: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Of 40 tokens behind 600 that all came back from an archive, and the ids of all.

    Read with a frame that holds all; reopened with one that holds a third; the rest brought back in order of time.
    """
    tokenizer = byte_tokenizer()
    text, rest = random_text(600), random_text(40, seed=2)
    rolling = 128
    all_resident = changed(SMALL, rolling_tokens=640, recalled_tokens=0, frame_tokens=WIDE, **written)
    with everlong.MemoryModel(model, tokenizer, folder, config=all_resident) as mm:
        mm.read(text)
        ids = torch.cat([mm.encode(text), mm.encode(rest)])

    # A reopened frame takes back as much of the earlier one's rolling zone as it can hold.
    kept = rolling + SMALL.frame.evict_tokens - 1
    gone = 600 - SMALL.frame.sink_tokens - kept
    small = all_resident.changed(frame={"rolling_tokens": rolling, "recalled_tokens": gone})
    with everlong.MemoryModel(model, tokenizer, folder, config=small) as mm:
        assert mm.frame.os.rolling == (600 - kept, 600)
        mm.frame.recall(mm.memory.core.blocks.pages_of(0, 0, 600))
        assert mm.frame.os.recalled_tokens == gone
        return mm.frame.extend(mm.encode(rest), "read", logits=True), ids


@pytest.mark.parametrize(("kind", "rope"), TINY_KINDS)
def test_everything_archived_and_restored_is_the_plain_forward(kind: str, rope: str, tmp_path: Path) -> None:
    model = tiny_model(kind, rope)
    logits, ids = restored_logits(model, tmp_path / "m")
    assert (logits - plain_logits(model, ids)[-40:]).abs().max() <= TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), REOPENED)
def test_longer_pages_come_back_as_exactly(kind: str, rope: str, tmp_path: Path) -> None:
    model = tiny_model(kind, rope)
    logits, ids = restored_logits(model, tmp_path / "m", page_tokens=128)
    assert (logits - plain_logits(model, ids)[-40:]).abs().max() <= TOLERANCE
    with everlong.Memory.open(tmp_path / "m") as memory:
        assert {page.end - page.begin for page in memory.core.blocks.pages()} == {128, 600 % 128, 40}


@pytest.mark.parametrize(
    ("kind", "rope"), [("llama", "default"), ("qwen3", "yarn"), ("glm", "partial"), ("cohere", "default")]
)
def test_a_bf16_archive_is_the_plain_forward_over_rounded_kv(kind: str, rope: str, tmp_path: Path) -> None:
    """Keys are rounded as they are before their rotation, values as they are."""
    model = tiny_model(kind, rope)
    logits, ids = restored_logits(model, tmp_path / "m", codec="bf16")
    table = rope_table(model.config)
    m, where = table.attention_scaling, torch.arange(600)
    past = DynamicCache()
    with torch.no_grad():
        model(input_ids=ids[None, :600], **{cache_argument(model): past})
        for layer in past.layers:
            rounded = rotated(layer.keys, table, -where, 1 / m).bfloat16()
            layer.keys = rotated(rounded, table, where, m).float()
            layer.values = layer.values.bfloat16().float()
        expected = model(input_ids=ids[None, 600:], **{cache_argument(model): past}).logits[0]
    # A number half-way between two of bf16 may be rounded to either: that is little of what all rounding does.
    rounding = (expected - plain_logits(model, ids)[-40:]).norm()
    assert rounding > 0
    assert (logits - expected).norm() <= 0.1 * rounding


def test_without_the_recalled_pages_the_same_frame_differs(tmp_path: Path) -> None:
    """The control of the test above: what comes back is what makes it equal."""
    model, tokenizer = tiny_model(), byte_tokenizer()
    text, rest = random_text(600), random_text(40, seed=2)
    all_resident = SMALL.changed(frame={"rolling_tokens": 640, "recalled_tokens": 0, "tokens": WIDE})
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=all_resident) as mm:
        mm.read(text)
        ids = torch.cat([mm.encode(text), mm.encode(rest)])
    expected = plain_logits(model, ids)[-40:]
    small = SMALL.changed(frame={"rolling_tokens": 128, "recalled_tokens": 464, "tokens": WIDE})
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=small) as mm:
        logits = mm.frame.extend(mm.encode(rest), "read", logits=True)
    assert (logits - expected).abs().max() > 100 * TOLERANCE


def frame_after(config: everlong.MemoryConfig, kind: str, rope: str, text: str) -> tuple[torch.Tensor, ...]:
    """Its keys, values and what it says next."""
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=config) as mm:
        mm.read(text)
        assert mm.frame.os.evicted
        cache = mm.frame.cache
        k, v = (x[:, :, cache.begin : cache.end].clone() for x in (cache.k, cache.v))
        return k, v, next_logits(mm, random_text(20, seed=2))


# Sinks of one chunk's length put the evictions at the same tokens whatever the chunk.
IN_SMALL_CHUNKS = SMALL.changed(frame={"sink_tokens": 64})
IN_ODD_CHUNKS = SMALL.changed(frame={"sink_tokens": 63, "rolling_tokens": 252, "evict_tokens": 63})
IN_LARGE_CHUNKS = SMALL.changed(
    frame={"tokens": 2048, "sink_tokens": 512, "recalled_tokens": 0, "rolling_tokens": 512, "evict_tokens": 512}
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rope", "config", "chunks", "tokens"),
    [
        *((kind, rope, IN_SMALL_CHUNKS, (1, 16, 64), 768) for kind, rope in TINY_KINDS),
        *((kind, rope, IN_ODD_CHUNKS, (7, 63), 756) for kind, rope in REOPENED),
        *((kind, rope, IN_LARGE_CHUNKS, (64, 512), 2560) for kind, rope in REOPENED),
    ],
)
def test_chunk_sizes_agree_across_evictions(
    kind: str, rope: str, config: everlong.MemoryConfig, chunks: tuple[int, ...], tokens: int
) -> None:
    """The same evictions, reached in chunks of several sizes, leave the same frame."""
    text = random_text(tokens)
    first, *others = (frame_after(config.changed(frame={"chunk_tokens": chunk}), kind, rope, text) for chunk in chunks)
    for other in others:
        for got, expected in zip(other, first, strict=True):
            assert got.shape == expected.shape
            assert (got - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_frame_rebased_a_thousand_times_is_the_plain_forward(kind: str, rope: str) -> None:
    """The frame's positions move back and forth 1,000 times; then it reads on as if they never had."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, config=WINDOW_ONLY) as mm:
        ids = mm.encode(random_text(340))
        mm.frame.extend(ids[:300], "read")
        generator = torch.Generator().manual_seed(0)
        moved = 0
        for to in torch.randint(0, 150, (1000,), generator=generator).tolist():
            mm.frame.cache.evict(0, to - moved)
            moved = to
        logits = mm.frame.zones.computing.forward_at(300 + moved, Tokens(ids[300:]), keep_all=True)
    assert (logits - plain_logits(model, ids)[300:]).abs().max() <= 1e-3


def follow_without_rebase(
    model: Any, mm: everlong.MemoryModel, ids: torch.Tensor, chunk: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits of the frame and of transformers' own cache, which never moves a position and drops the same tokens."""
    served = mm.frame.served
    reference = DynamicCache(config=model.config) if mm.frame.cache.own else DynamicCache()
    for first in range(0, len(ids), chunk):
        part = ids[first : first + chunk]
        positions = torch.arange(first, first + len(part))[None] + served.first_position
        with torch.no_grad():
            expected = model(input_ids=part[None], position_ids=positions, **{cache_argument(model): reference}).logits[
                0
            ]
        yield mm.frame.extend(part, "read", logits=True), expected
        for index in served.archived:
            layer = reference.layers[index]
            layer.keys = layer.keys[:, :, -mm.frame.cache.length :]
            layer.values = layer.values[:, :, -mm.frame.cache.length :]


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
@pytest.mark.parametrize(("chunk", "tokens", "evictions"), [(7, 600, 20), (16, 900, 40), (512, 1200, 2)])
def test_evicting_frame_is_a_window_that_never_moves(
    kind: str, rope: str, chunk: int, tokens: int, evictions: int
) -> None:
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    config = WINDOW_ONLY.changed(
        frame={"tokens": 1024, "rolling_tokens": 128, "evict_tokens": 16, "chunk_tokens": chunk}
    )
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        for got, expected in follow_without_rebase(model, mm, mm.encode(random_text(tokens)), chunk):
            assert (got - expected).abs().max() <= TOLERANCE
        assert sum(event["what"] == "evict" for event in mm.frame.os.trace()) >= evictions


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), ("gemma3", "nested")])
def test_a_thousand_evictions_are_a_window_that_never_moves(kind: str, rope: str) -> None:
    model, tokenizer = tiny_model(kind, rope, max_position_embeddings=8192), byte_tokenizer()
    config = WINDOW_ONLY.changed(
        frame={"rolling_tokens": 64, "evict_tokens": 4, "chunk_tokens": 4}, archive={"block_tokens": 32}
    )
    with everlong.MemoryModel(model, tokenizer, config=config) as mm:
        for got, expected in follow_without_rebase(model, mm, mm.encode(random_text(4100)), 4):
            assert (got - expected).abs().max() <= 1e-3
        assert sum(event["what"] == "evict" for event in mm.frame.os.trace()) >= 1000


def test_keys_in_16_bits_that_would_be_turned_often_warn() -> None:
    config = SMALL.changed(frame={"rolling_tokens": 320, "evict_tokens": 20})
    for dtype, evict, expected in [(torch.bfloat16, 19, 1), (torch.bfloat16, 20, 0), (torch.float32, 1, 0)]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            settings = config.changed(frame={"evict_tokens": evict})
            model = tiny_model()
            for parameter in model.parameters():  # its rotary frequencies stay as they are
                parameter.data = parameter.data.to(dtype)
            everlong.MemoryModel(model, byte_tokenizer(), config=settings).close()
        assert sum("turns the keys" in str(warning.message) for warning in told) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_flex_attention(kind: str, rope: str, tmp_path: Path) -> None:
    """Its masks over the frame, without the compiler, which would take minutes here; it computes the same."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    config = SMALL.changed(frame={"tokens": 512, "recalled_tokens": 64})  # a longrope model's short factors
    ids = torch.tensor(tokenizer(random_text(300))["input_ids"])
    expected = plain_logits(model, ids)
    if not model._supports_flex_attn:
        with pytest.raises(ValueError, match="does not support"):
            model.set_attn_implementation("flex_attention")
        return
    model.set_attn_implementation("flex_attention")
    with torch.compiler.set_stance("force_eager"):
        if kind == "gpt_oss":  # transformers' own limit
            with pytest.raises(everlong.UnsupportedModelError, match="cannot be run on CPU with flex attention"):
                everlong.MemoryModel(model, tokenizer, config=config)
            return
        with everlong.MemoryModel(model, tokenizer, config=config) as mm:
            logits = mm.frame.extend(ids, "read", logits=True)
            mm.read(random_text(600, seed=2))
            assert mm.generate(random_text(20, seed=3), max_new_tokens=3).tokens == 3
        if rope != "longrope":  # whose factors change in a frame that holds all
            restored, whole = restored_logits(model, tmp_path / "m")
            assert (restored - plain_logits(model, whole)[-40:]).abs().max() <= TOLERANCE
    assert (logits - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), *OWN_STATE, ("smollm3", "default")])
def test_branch_leaves_no_trace(kind: str, rope: str) -> None:
    """Questions that overflow the frame and recall leave buffers, counters and memory as they were."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        mm.read(random_text(1500))
        cache = mm.frame.cache
        visible = slice(cache.begin, cache.end)
        before = (cache.begin, cache.end, cache.k[:, :, visible].clone(), cache.v[:, :, visible].clone())
        blocks, end = mm.memory.stats().blocks, mm.stream_tokens
        own = {name: tensor.clone() for name, tensor in cache.own.tensors().items()}
        first = mm.generate(random_text(300, seed=3), max_new_tokens=70, remember=False)
        mm.perplexity(random_text(700, seed=4), policy="recent")
        assert (cache.begin, cache.end) == before[:2]
        assert torch.equal(cache.k[:, :, visible], before[2])
        assert torch.equal(cache.v[:, :, visible], before[3])
        assert (mm.memory.stats().blocks, mm.stream_tokens) == (blocks, end)
        assert bool(own) == (kind not in ("llama", "smollm3"))
        assert own.keys() == cache.own.tensors().keys()
        assert all(torch.equal(tensor, own[name]) for name, tensor in cache.own.tensors().items())
        again = mm.generate(random_text(300, seed=3), max_new_tokens=70, remember=False)
    assert first == again


def test_generation_is_transformers_own_while_everything_fits() -> None:
    model, tokenizer = tiny_model("qwen3"), byte_tokenizer()
    prompt = random_text(50)
    ids = torch.tensor(tokenizer(prompt)["input_ids"])[None]
    with torch.no_grad():
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
    with everlong.MemoryModel(model, tokenizer, config=SMALL) as mm:
        answer = mm.generate(prompt, max_new_tokens=40)
        pieces = "".join(mm.stream(prompt, max_new_tokens=5, remember=False))
    assert answer.text == tokenizer.decode(expected[0, 50:], skip_special_tokens=True)
    assert answer.tokens == expected.shape[1] - 50
    assert pieces != ""


def test_sinks_are_the_streams_whatever_a_branch_began_with() -> None:
    """A perplexity on an empty memory overflows the frame: the text that is read later has sinks of its own."""
    logits = []
    for asked_before in (False, True):
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
            if asked_before:
                mm.perplexity(random_text(900, seed=4), policy="window")
            mm.read(random_text(1500))
            with mm.frame.branch():
                mm.frame.clear_recalled()
                logits.append(mm.frame.extend(mm.encode(random_text(30, seed=5)), "prompt", logits=True))
    assert torch.equal(*logits)


@pytest.mark.parametrize(("kind", "rope"), REOPENED)
@pytest.mark.parametrize("in_ram", [False, True])
def test_closed_and_reopened_goes_on_as_before(kind: str, rope: str, in_ram: bool, tmp_path: Path) -> None:
    """Also the layers that are not archived: their state is part of what closing saves."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    text, question = random_text(900), random_text(30, seed=2)
    with everlong.MemoryModel(model, tokenizer, None if in_ram else tmp_path / "m", config=SMALL) as mm:
        mm.read(text)
        expected, answer = next_logits(mm, question), mm.generate(question, max_new_tokens=20, remember=False)
        memory = mm.memory if in_ram else tmp_path / "m"
        if in_ram:
            mm._owns_memory = False
    with everlong.MemoryModel(model, tokenizer, memory, config=SMALL) as mm:
        assert (next_logits(mm, question) - expected).abs().max() <= TOLERANCE
        assert mm.generate(question, max_new_tokens=20, remember=False).text == answer.text
    # In a frame whose rolling zone stands elsewhere, only the distance to the sinks is another.
    other = SMALL.changed(frame={"recalled_tokens": 255})
    with everlong.MemoryModel(model, tokenizer, memory, config=other) as mm:
        assert 0 < (next_logits(mm, question) - expected).abs().max() <= 0.2


@pytest.mark.parametrize(("kind", "rope"), OWN_STATE)
@pytest.mark.parametrize("in_ram", [False, True])
def test_a_fork_and_an_imported_memory_go_on_as_the_original(
    kind: str, rope: str, in_ram: bool, tmp_path: Path
) -> None:
    """The state of the layers that are not archived belongs to the conversation, and branches with it."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    question = random_text(30, seed=2)
    with everlong.MemoryModel(model, tokenizer, None if in_ram else tmp_path / "m", config=SMALL) as mm:
        mm.read(random_text(900))
        expected = next_logits(mm, question)
        mm.frame.checkpoint()
        mm.memory.fork(tmp_path / "branch").close()
        mm.memory.export(tmp_path / "export")
    everlong.Memory.import_file(tmp_path / "export", tmp_path / "imported").close()
    for name in ("branch", "imported"):
        with everlong.MemoryModel(model, tokenizer, tmp_path / name, config=SMALL) as mm:
            assert mm.memory.core.file("frame.safetensors") is not None
            assert (next_logits(mm, question) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), OWN_STATE)
@pytest.mark.parametrize("how", ["not closed", "damaged", "lost"])
def test_own_state_that_is_not_there_is_read_again(kind: str, rope: str, how: str, tmp_path: Path) -> None:
    """Exact while everything read is in the frame; beyond that the newest tokens make it."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    question = random_text(30, seed=2)
    for tokens in (250, 900):
        folder = tmp_path / str(tokens)
        mm = everlong.MemoryModel(model, tokenizer, folder, config=SMALL)
        mm.frame.extend(mm.encode(random_text(tokens)), "read")
        mm.frame.end_of_text()  # durable, but no checkpoint yet
        expected = next_logits(mm, question)
        own = mm.frame.cache.own.tensors()
        if how == "not closed":
            mm.memory.close()
            assert not (folder / "files" / "frame.safetensors").exists()
        else:
            mm.close()
            state = (folder / "files" / "frame.safetensors").read_bytes()
            (folder / "files" / "frame.safetensors").unlink()
            if how == "damaged":
                (folder / "files" / "frame.safetensors").write_bytes(state[:-1] + bytes([state[-1] ^ 1]))
        with everlong.MemoryModel(model, tokenizer, folder, config=SMALL) as mm:
            got = next_logits(mm, question)
            again = mm.frame.cache.own.tensors()
        assert again.keys() == own.keys()
        if tokens == 250:
            assert (got - expected).abs().max() <= TOLERANCE
        elif "0.values" in own:
            # The first layer's values depend on their own token alone.
            assert (again["0.values"] - own["0.values"]).abs().max() <= TOLERANCE


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), ("gemma3", "nested"), ("smollm3", "default")])
def test_bf16_archive_of_a_bf16_model_costs_what_bf16_costs(kind: str, rope: str, tmp_path: Path) -> None:
    """Restored from bf16, logits are no further from fp32 arithmetic than the bf16 model's own."""
    exact, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    model = tiny_model(kind, rope)
    for parameter in model.parameters():  # not `.to`, which would round RoPE's frequencies too
        parameter.data = parameter.data.bfloat16()
    text, rest = random_text(600), random_text(40, seed=2)
    config = SMALL.changed(
        frame={"rolling_tokens": 640, "recalled_tokens": 0, "tokens": WIDE}, archive={"codec": "bf16"}
    )
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=config) as mm:
        mm.read(text)
        ids = torch.cat([mm.encode(text), mm.encode(rest)])
    reference = plain_logits(exact, ids)[-40:]
    own_error = (plain_logits(model, ids)[-40:].float() - reference).pow(2).mean().sqrt()
    with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config=config) as mm:
        logits = mm.frame.extend(mm.encode(rest), "read", logits=True)
    assert 0 < (logits.float() - reference).pow(2).mean().sqrt() <= 1.5 * own_error
