"""Re-ranking by the writer's decision: a search gains what the decider says of stored Detail Tokens, and no more.

The reference asks the writer itself, over what plain transformers and the memory's own payloads have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack
from everlong.parts.latents import LatentSettings
from everlong.parts.writer import Writer
from everlong.parts.writer.decider import DeciderSettings, odds
from everlong.parts.writer.model import WRITER, WriterNet, WriterSettings
from everlong.text.prompt import build_prompt
from support import SMALL, byte_tokenizer, random_text, tiny_model

PLAIN = SMALL.changed(search={"index": ("lexical",), "groups": 3})
DECIDING = PLAIN.with_part(Writer(tokens=6, rerank=2.0))
TEXT = random_text(2400)
ASKED = TEXT[700:720]


def drawn_part(*, decides: bool = True) -> Any:
    torch.manual_seed(4)
    decider = DeciderSettings(64, width=16, heads=4, inner=24) if decides else None
    reader = LatentSettings((1,), 64, 64, width=16, heads=2, inner=24)
    writer = WriterNet.untrained(WriterSettings(reader, decider=decider))
    if writer.decider is not None:
        torch.nn.init.normal_(writer.decider.kinds.weight)
    return writer.part({})


def pack_in(folder: Path, model: Any, *, decides: bool = True) -> Path:
    Pack(weights_fingerprint(model), "", {WRITER: drawn_part(decides=decides)}).save(folder)
    return folder


@pytest.fixture(name="mm")
def a_memory(tmp_path: Path) -> Iterator[everlong.MemoryModel]:
    model = tiny_model()
    with everlong.MemoryModel(model, byte_tokenizer(), config=DECIDING, pack=pack_in(tmp_path / "pack", model)) as mm:
        mm.read(TEXT)
        yield mm


def expected_odds(mm: everlong.MemoryModel, block: int) -> float:
    """Of a block that has Detail Tokens."""
    core, writer = mm.memory.core, WriterNet.of_part(drawn_part())
    (name,) = (name for name in core.blocks.tensors(block) if name.startswith("details."))
    details = torch.from_numpy(core.blocks.tensor(block, name).astype(np.float32))
    ids = torch.tensor([mm.tokenizer.encode(ASKED, add_special_tokens=False)])
    with torch.no_grad():
        question = mm.frame.served.model.get_input_embeddings()(ids)
        return float(odds(writer.verdicts(question, torch.ones_like(ids, dtype=torch.bool), details[None]))[0])


def test_pages_gain_what_their_block_s_decision_says(mm: everlong.MemoryModel) -> None:
    prompt = build_prompt(mm.tokenizer, ASKED)
    asked = prompt.ids[prompt.question]
    assert mm.tokenizer.decode(asked) == ASKED
    writer = mm.frame.parts.get("writer")
    assert writer is not None
    core = mm.memory.core
    wide = core.search.find(
        **mm.searcher.inputs(prompt), max_groups=64, token_budget=1 << 30, least_share=0, neighbours=1
    )
    added = writer.block_odds.added_scores(asked, wide, writer.settings.rerank)
    blocks = list(dict.fromkeys(page.block for page, _ in added))
    assert len(blocks) > 3
    wanted = {block: expected_odds(mm, block) for block in blocks}
    mean = sum(wanted.values()) / len(wanted)
    for page, gain in added:
        assert gain == pytest.approx(2.0 * (wanted[page.block] - mean), abs=1e-3)
    assert max(gain for _, gain in added) - min(gain for _, gain in added) > 0.05


def test_what_is_found_first_is_of_the_block_that_is_decided_for(mm: everlong.MemoryModel) -> None:
    """With a weight beside which no score counts."""
    prompt = build_prompt(mm.tokenizer, ASKED)
    firsts = []
    for weight in (0.0, 1e4):
        mm.config = mm.config.with_part(Writer(tokens=6, rerank=weight))
        with mm.frame.branch():
            found = mm.searcher.find(prompt)
        firsts.append(found.offers[0].page.block)
    named = mm.memory.core.search.find(**mm.searcher.inputs(prompt), max_groups=64, token_budget=1 << 30, least_share=0)
    blocks = {
        page.block
        for group in named.groups
        for page, score in zip(group.pages, group.page_scores, strict=True)
        if np.isfinite(score) and page.begin < mm.frame.os.rolling[0]
    }
    assert firsts[0] != firsts[1]
    assert firsts[1] == max(blocks, key=lambda block: expected_odds(mm, block))


def test_blocks_without_detail_tokens_are_left_as_they_are(tmp_path: Path) -> None:
    model = tiny_model()
    pack = pack_in(tmp_path / "pack", model)
    with everlong.MemoryModel(model, byte_tokenizer(), tmp_path / "m", PLAIN, pack=pack) as mm:
        mm.read(TEXT)
    with everlong.Memory.open(tmp_path / "m", read_only=True) as memory:
        prompt = build_prompt(byte_tokenizer(), ASKED)
        with everlong.MemoryModel(model, byte_tokenizer(), memory, DECIDING, pack=pack) as mm:
            wide = mm.memory.core.search.find(**mm.searcher.inputs(prompt), max_groups=64, token_budget=1 << 30)
            assert wide.groups
            writer = mm.frame.parts.get("writer")
            assert writer is not None
            assert writer.block_odds.added_scores(prompt.ids[prompt.question], wide, writer.settings.rerank) == []
            with mm.frame.branch():
                assert mm.searcher.find(prompt).offers


def test_who_cannot_decide_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    for pack in (None, pack_in(tmp_path / "pack", model, decides=False)):
        with pytest.raises(ValueError, match="no writer that decides"):
            everlong.MemoryModel(model, byte_tokenizer(), config=DECIDING, pack=pack)
    with pytest.raises(ValueError, match="tokens is 0"):
        Writer(tokens=0, rerank=1.0)
    for wrong in (float("nan"), -1.0):
        with pytest.raises(ValueError, match="rerank"):
            Writer(tokens=4, rerank=wrong)
