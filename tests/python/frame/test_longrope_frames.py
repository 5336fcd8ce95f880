"""A longrope model rotates by one table in a short frame and by another in a long one. Its archive serves both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb

import everlong
from everlong.models import fingerprint
from everlong.models.releases import cache_argument
from support import SMALL, TINY_MEMORY, byte_tokenizer, random_text, tiny_model
from support.models import ROPE

ORIGINAL = 512
TEXT, TAIL = 256, 32
SHORT = SMALL.changed(
    frame={"tokens": 480, "sink_tokens": 0, "recalled_tokens": 0, "rolling_tokens": 288, "chunk_tokens": 64},
    archive={"block_tokens": 64},
    search={"index": ("lexical",)},
)
LONG = SHORT.changed(frame={"tokens": 1024})


def reading(config: everlong.MemoryConfig) -> everlong.MemoryConfig:
    """Return a config whose frame brings back all of the text but the newest tokens."""
    kept = 64
    return config.changed(
        frame={"recalled_tokens": TEXT - kept, "rolling_tokens": kept - 7, "evict_tokens": 8},
        archive={"block_tokens": kept - 7},
    )


def phases(model: Any, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's own cos and sin [1, n, D] in fp64, by the table that it chooses for these positions."""
    model.model.rotary_emb(torch.zeros(1), positions)
    angles = positions.double()[..., None] * model.model.rotary_emb.inv_freq.double()
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


@torch.no_grad()
def plainly(model: Any, ids: torch.Tensor, read_at: int, asked_at: int) -> torch.Tensor:
    """Logits of the tail by transformers alone: the text is read by one table, and its keys are turned to another."""
    cache = transformers.DynamicCache(config=model.config)
    read, asked = (torch.arange(first, first + TEXT)[None] for first in (read_at, asked_at))
    model(input_ids=ids[None, :TEXT], position_ids=read, **{cache_argument(model): cache})
    (off_cos, off_sin), (on_cos, on_sin) = phases(model, read), phases(model, asked)
    for layer in cache.layers:
        bare = apply_rotary_pos_emb(layer.keys.double(), layer.keys.double(), off_cos, -off_sin)[1]
        layer.keys = apply_rotary_pos_emb(bare, bare, on_cos, on_sin)[1].float()
    positions = torch.arange(asked_at + TEXT, asked_at + TEXT + TAIL)[None]
    return model(input_ids=ids[None, TEXT:], position_ids=positions, **{cache_argument(model): cache}).logits[0]


def restored(
    model: Any, ids: torch.Tensor, written: everlong.MemoryConfig, read: everlong.MemoryConfig
) -> torch.Tensor:
    """Logits of the tail behind the text, which was archived in one frame and brought back into another."""
    with everlong.MemoryModel(model, byte_tokenizer(), None, written) as writer:
        writer.frame.extend(ids[:TEXT], "read")
        writer.frame.close()
        memory = writer.memory
        memory.end_writing(writer)
        with everlong.MemoryModel(model, byte_tokenizer(), memory, reading(read)) as reader:
            reader.frame.recall(memory.core.blocks.pages_of(0, 0, TEXT))
            assert reader.frame.os.recalled_tokens == TEXT - 64
            return reader.frame.extend(ids[TEXT:], "prompt", logits=True)


@pytest.mark.parametrize(("written", "read"), [(SHORT, LONG), (LONG, SHORT), (SHORT, SHORT), (LONG, LONG)])
@pytest.mark.parametrize("layers", [1, 3])
def test_what_was_read_by_one_table_comes_back_by_the_other(
    written: everlong.MemoryConfig, read: everlong.MemoryConfig, layers: int
) -> None:
    model = tiny_model("phi3", "longrope", num_hidden_layers=layers)
    ids = torch.tensor(byte_tokenizer()(random_text(TEXT + TAIL))["input_ids"])
    first, then = (ORIGINAL if config.frame.tokens > ORIGINAL else 0 for config in (written, read))
    logits, expected = restored(model, ids, written, read), plainly(model, ids, first, then)
    assert (logits - expected).abs().max() < 1e-4
    whole = model(input_ids=ids[None], position_ids=torch.arange(then, then + len(ids))[None]).logits[0, TEXT:]
    # The first layer's keys are those of the text alone. Deeper ones saw it by the table that it was read by.
    assert ((logits - whole).abs().max() < 1e-4) == (layers == 1 or first == then)


def test_a_memory_goes_on_in_frames_of_either_table(tmp_path: Path) -> None:
    model, text = tiny_model("phi3", "longrope"), random_text(900)
    folder, blocks = tmp_path / "m", 0
    for number, config in enumerate((SHORT, LONG, TINY_MEMORY, SHORT)):
        with everlong.MemoryModel(model, byte_tokenizer(), folder, config) as mm:
            mm.read(text, source=f"text {number}")
            mm.generate(text[:20], max_new_tokens=2)
            assert len(mm.memory.blocks()) > blocks
            blocks = len(mm.memory.blocks())
            assert text.startswith(mm.text(mm.memory.blocks()[0].id))


@pytest.mark.parametrize("config", [SHORT, LONG])
def test_a_memory_that_was_noted_by_its_frame_s_table_opens_with_either(
    config: everlong.MemoryConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("phi3", "longrope")
    with monkeypatch.context() as earlier:
        earlier.setattr(fingerprint, "_rope", lambda served: served.rope.fingerprint())
        with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", config) as mm:
            mm.read(random_text(300))
    for other in (SHORT, LONG):
        with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", other) as mm:
            assert mm.stream_tokens == 300


@pytest.mark.parametrize("factors", ["short_factor", "long_factor"])
def test_other_factors_are_another_model(factors: str, tmp_path: Path) -> None:
    rope = {**ROPE["longrope"], factors: [3.0] * 8}
    with everlong.MemoryModel(tiny_model("phi3", "longrope"), byte_tokenizer(), tmp_path / "m", LONG) as mm:
        mm.read(random_text(300))
    other = tiny_model("phi3", "longrope", rope_parameters=rope)
    for config in (SHORT, LONG):
        with pytest.raises(everlong.ModelMismatchError, match="rope"):
            everlong.MemoryModel(other, byte_tokenizer(), tmp_path / "m", config)
