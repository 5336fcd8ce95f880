"""The Trimmer of a pack chooses what a frame keeps: by the states that a plain forward has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import everlong
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack
from everlong.parts.trimmer import Trimmer
from everlong.parts.trimmer.model import TRIMMER, TrimmerNet, TrimmerSettings
from support import byte_tokenizer, random_text, tiny_model
from support.kept_tokens import KEPT_TOKENS

LEARNED = KEPT_TOKENS.changed(frame={"sink_tokens": 4}).with_part(Trimmer())


@pytest.fixture
def trimmer() -> TrimmerNet:
    torch.manual_seed(3)
    trimmer = TrimmerNet(TrimmerSettings((1, 2), 64, units=4))
    trimmer.scale.fill_(0.2)
    return TrimmerNet.of_part(trimmer.part({}))


@pytest.fixture
def pack(trimmer: TrimmerNet, tmp_path: Path) -> Path:
    Pack(weights_fingerprint(tiny_model()), "tiny", {TRIMMER: trimmer.part({})}).save(tmp_path / "pack")
    return tmp_path / "pack"


def test_the_best_tokens_of_a_block_are_kept(trimmer: TrimmerNet, pack: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=LEARNED, pack=pack) as mm:
        ids = mm.encode(random_text(128 * 6))
        mm.frame.extend(ids, "read")
        mm.frame.end_of_text()
        with torch.no_grad():
            states = mm.model(input_ids=ids[None, :128], output_hidden_states=True).hidden_states
        scores = trimmer.scores(torch.cat([states[1][0], states[2][0]], dim=-1))
        scores[: LEARNED.frame.sink_tokens] = -torch.inf  # they stay anyway
        held = sorted(token for token in mm.frame.os.kept_held if token < 128)
        assert mm.memory.blocks()[0].span == (0, 128)
        assert 0 < len(held) < 64
        assert held == sorted(scores.topk(len(held)).indices.tolist())


def test_without_one_there_is_nobody_to_choose(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="trimmer: nothing was trained for this model; `everlong train trimmer` makes it"
    ):
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=LEARNED, pack=None)
    assert not (tmp_path / "m").exists()
