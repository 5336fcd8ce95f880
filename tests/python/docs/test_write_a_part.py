"""The part of docs/guides/write-a-part.md, as an installed package: it is found, and takes part in a memory's life."""

from __future__ import annotations

import datetime
import importlib
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong import part_list
from everlong.config import settings
from everlong.frame.part import Needs
from support import REPOSITORY, TINY_MEMORY, byte_tokenizer, tiny_model

NEW_YEAR = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
GUIDE = REPOSITORY / "docs" / "guides" / "write-a-part.md"
SENTENCE, NATS = "surprise.sentence", "surprise.nats"
ODD = "ZZZQQQ"  # no token of it is in a text below: the index finds nothing


def block_of_guide(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with the guide's module and its entry point."""
    site = tmp_path_factory.mktemp("site")
    (site / "surprise.py").write_text(block_of_guide("python"), encoding="utf-8")
    info = site / "surprise-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: surprise\nVersion: 0.1\n")
    group, points = re.findall(r'\[project\.entry-points\."(.*?)"\]\n(.*?)\n\n', block_of_guide("toml"), re.DOTALL)[0]
    (info / "entry_points.txt").write_text(f"[{group}]\n{points.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("surprise", None)
    settings._GROUPS.pop("surprise", None)


def memory_config(*set_: str) -> everlong.MemoryConfig:
    return TINY_MEMORY.with_settings(["parts=surprise", "answer.prompt_rolling_tokens=512", *set_])


def text_of(sentences: int, seed: int) -> str:
    """Words of small letters without q and z."""
    rng = np.random.default_rng(seed)
    letters = list("abcdefghijklmnoprstuvwxy")
    said = [
        " ".join("".join(rng.choice(letters, rng.integers(2, 7))) for _ in range(rng.integers(3, 8)))
        for _ in range(sentences)
    ]
    return ". ".join(said) + "."


def opened(path: Path | None, config: everlong.MemoryConfig) -> everlong.MemoryModel:
    return everlong.MemoryModel(tiny_model(), byte_tokenizer(), path, config)


def by_surprise(mm: everlong.MemoryModel) -> list[Any]:
    """Blocks, the most surprising first."""
    core = mm.memory.core
    return sorted(core.blocks.infos(), key=lambda block: -float(core.blocks.tensor(block.id, NATS)[0]))


def place_of(mm: everlong.MemoryModel, block: Any) -> tuple[int, int]:
    """Of its sentence in the stream, as far as it has left the frame; that may be nothing."""
    begin, end = (block.begin + int(offset) for offset in mm.memory.core.blocks.tensor(block.id, SENTENCE))
    return begin, min(end, mm.frame.os.rolling[0])


def outside(mm: everlong.MemoryModel, block: Any) -> bool:
    begin, end = place_of(mm, block)
    return begin < end


def has_sentence(mm: everlong.MemoryModel, recall: everlong.Recall, block: Any) -> bool:
    begin, end = place_of(mm, block)
    said = byte_tokenizer().decode(mm.memory.core.blocks.token_ids(block.stream, begin, end).tolist())
    return recall.span[0] <= begin and end <= recall.span[1] and said in recall.text


@pytest.mark.usefixtures("installed")
def test_it_is_listed_and_found_by_its_name() -> None:
    assert part_list.names()[-1] == "surprise"
    assert "surprise" not in sys.modules  # to list it imports nothing
    config = everlong.MemoryConfig().with_settings(["parts=towers,surprise", "surprise.tokens=6"])
    assert [one.name for one in config.parts] == ["towers", "surprise"]
    assert config.to_dict()["parts"]["surprise"] == {"tokens": 6, "score": -2.3}
    assert everlong.MemoryConfig().with_settings(["surprise.score=0"]).parts[-1].name == "surprise"
    with pytest.raises(ValueError, match="tokens is 0"):
        everlong.MemoryConfig().with_settings(["surprise.tokens=0"])


def test_where_it_is_not_installed_it_is_not_there() -> None:
    assert "surprise" not in part_list.names()
    with pytest.raises(ValueError, match="there is no part 'surprise'"):
        everlong.MemoryConfig().with_settings(["parts=surprise"])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), ("gemma3", "nested")])
def test_what_is_stored_is_what_plain_transformers_is_surprised_by(kind: str, rope: str) -> None:
    """All that is read stays in the frame, so a plain forward of it sees the same."""
    model, tokenizer = tiny_model(kind, rope), byte_tokenizer()
    config = memory_config().changed(
        frame={"tokens": 2048, "rolling_tokens": 1200, "recalled_tokens": 64, "evict_tokens": 64}
    )
    with everlong.MemoryModel(model, tokenizer, None, config) as mm:
        mm.read(text_of(30, seed=1))
        core = mm.memory.core
        ids = core.blocks.token_ids(0, 0, core.blocks.stream_end(0))
        with torch.no_grad():
            logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].double().numpy()
        shifted = logits - logits.max(axis=1, keepdims=True)
        odds = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        (full_stop,) = tokenizer(".").input_ids
        assert len(core.blocks.infos()) >= 5
        for block in core.blocks.infos():
            own = ids[block.begin : block.end]
            losses = np.zeros(len(own))
            for token in range(1, len(own)):
                losses[token] = -odds[block.begin + token - 1, own[token]]
            ends = [token + 1 for token in range(len(own)) if own[token] == full_stop]
            cuts = sorted({0, *ends, len(own)})
            means = [
                (losses[begin:end].mean(), begin, end) for begin, end in itertools.pairwise(cuts) if end - begin >= 4
            ]
            mean, *expected = max(means)
            assert core.blocks.tensor(block.id, SENTENCE).tolist() == expected
            assert core.blocks.tensor(block.id, SENTENCE).dtype == np.int32
            assert core.blocks.tensor(block.id, NATS)[0] == pytest.approx(mean, abs=1e-3)


@pytest.mark.usefixtures("installed")
def test_each_question_is_reminded_of_the_next_sentence() -> None:
    with opened(None, memory_config()) as mm:
        mm.read(text_of(40, seed=1), source="book")
        blocks = by_surprise(mm)
        assert {outside(mm, block) for block in blocks} == {True, False}
        for block in [*blocks, blocks[0]]:
            answer = mm.generate(ODD, max_new_tokens=2, remember=False)
            if not outside(mm, block):  # the model has it before it
                assert answer.recalled == ()
                continue
            (recall,) = answer.recalled
            assert recall.found_by == ("surprise",)
            assert recall.source == "book"
            assert has_sentence(mm, recall, block)
            assert recall.score == pytest.approx(-2.3)


@pytest.mark.usefixtures("installed")
def test_what_it_offers_takes_its_place_beside_what_was_found() -> None:
    with opened(None, memory_config("surprise.score=1000", "search.groups=2", "search.neighbours=0")) as mm:
        mm.read(text_of(40, seed=1))
        blocks = by_surprise(mm)
        words, reminded = "xylo abc", 0  # in many pages
        for block in blocks:
            recalled = mm.recall(words)
            assert len(recalled) <= 2
            by = [recall.found_by for recall in recalled]
            pages = {token for recall in recalled for token in range(*recall.span)}
            assert len(pages) == sum(recall.span[1] - recall.span[0] for recall in recalled)  # each page comes once
            assert not outside(mm, block) or set(range(*place_of(mm, block))) <= pages
            assert set(by[1:]) <= {("lexical",)}
            reminded += by[0] == ("surprise",)  # else the index found its pages, or the frame holds them
            assert outside(mm, block) or by[0] == ("lexical",)
        assert reminded > 2


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("where", [everlong.Where(source="letters"), everlong.Where(happened_after=NEW_YEAR)])
def test_where_leaves_it_out(where: everlong.Where) -> None:
    with opened(None, memory_config()) as mm:
        mm.read(text_of(20, seed=1), source="book", happened=NEW_YEAR - datetime.timedelta(days=1))
        mm.read(text_of(20, seed=2), source="letters", happened=NEW_YEAR + datetime.timedelta(days=1))
        blocks = by_surprise(mm)
        assert {block.source for block in blocks if outside(mm, block)} == {"book", "letters"}
        for block in blocks:
            recalled = mm.recall(ODD, where=where)
            assert len(recalled) == int(outside(mm, block) and block.source == "letters")
            assert all(has_sentence(mm, recall, block) for recall in recalled)


@pytest.mark.usefixtures("installed")
def test_its_state_comes_back(tmp_path: Path) -> None:
    with opened(tmp_path / "m", memory_config()) as mm:
        mm.read(text_of(40, seed=1))
        mm.recall(ODD)
        mm.frame.checkpoint()
        mm.recall(ODD)  # nothing of it is in the stream
        assert mm.frame.parts.get("surprise").questions == 2
    with opened(tmp_path / "m", memory_config()) as mm:
        assert mm.frame.parts.get("surprise").questions == 2
        third = by_surprise(mm)[2]
        recalled = mm.recall(ODD)
        assert [has_sentence(mm, recall, third) for recall in recalled] == [True] * outside(mm, third)
        mm.memory.fork(tmp_path / "branch").close()
        mm.memory.export(tmp_path / "export")
        stored = {block.id: mm.memory.core.blocks.tensor(block.id, NATS)[0] for block in mm.memory.core.blocks.infos()}
    everlong.Memory.import_file(tmp_path / "export", tmp_path / "imported").close()
    for name in ("branch", "imported"):
        with opened(tmp_path / name, memory_config()) as mm:
            core = mm.memory.core
            assert {block.id: core.blocks.tensor(block.id, NATS)[0] for block in core.blocks.infos()} == stored
            assert mm.frame.parts.get("surprise").questions == 2  # as the memory had it


@pytest.mark.usefixtures("installed")
def test_older_blocks_get_theirs_in_the_background(tmp_path: Path) -> None:
    with opened(tmp_path / "m", TINY_MEMORY.changed(parts=())) as mm:
        mm.read(text_of(40, seed=1))
        assert not any(NATS in mm.memory.core.blocks.tensor_shapes(block.id) for block in mm.memory.core.blocks.infos())
    with opened(tmp_path / "m", memory_config()) as mm:
        mm.searcher.settle()
        blocks = by_surprise(mm)
        assert len(blocks) == len(mm.memory.blocks()) > 5
        recalled = mm.recall(ODD)
        assert [has_sentence(mm, recall, blocks[0]) for recall in recalled] == [True] * outside(mm, blocks[0])
        # The first block is read again behind nothing, as it was read.
        first, whole = mm.memory.core.blocks.infos()[0], text_of(40, seed=1)
        stored = mm.memory.core.blocks.tensor(first.id, NATS)[0]
    with opened(None, memory_config()) as mm:
        mm.read(whole)
        assert mm.memory.core.blocks.tensor(mm.memory.core.blocks.infos()[0].id, NATS)[0] == pytest.approx(
            stored, abs=1e-3
        )


@pytest.mark.usefixtures("installed")
def test_what_is_forgotten_is_offered_no_more(tmp_path: Path) -> None:
    with opened(tmp_path / "m", memory_config()) as mm:
        mm.read(text_of(20, seed=1), source="book")
        mm.read(text_of(20, seed=2), source="letters")
        gone = [block.id for block in mm.memory.core.blocks.infos() if block.source == "book"]
        mm.memory.forget(source="book")
        for block in gone:
            with pytest.raises(everlong.EverlongError):
                mm.memory.core.blocks.tensor(block, SENTENCE)
        for _ in range(2 * len(by_surprise(mm))):
            assert all(recall.source == "letters" for recall in mm.recall(ODD))
        assert any(mm.recall(ODD) for _ in by_surprise(mm))
        mm.memory.forget([block.id for block in mm.memory.blocks()])
        assert mm.recall(ODD) == ()


def test_an_object_with_hooks_is_a_part_itself(tmp_path: Path) -> None:
    """Without settings, and with a name in large letters."""

    class Counting:
        needs = Needs(hidden_layers=(1,))
        name = "Counting"

        def __init__(self) -> None:
            self.blocks = 0

        def write_block(
            self, block: int | None, span: tuple[int, int], ids: torch.Tensor, hidden: Any
        ) -> dict[str, Any]:
            self.blocks += 1
            return {"counting.tokens": np.array([len(ids), hidden[1].shape[0]], np.int32)}

        def state(self) -> bytes:
            return str(self.blocks).encode()

        def load_state(self, state: bytes) -> None:
            self.blocks = int(state)

    with opened(tmp_path / "m", TINY_MEMORY.with_part(Counting())) as mm:
        mm.read(text_of(20, seed=1))
        for block in mm.memory.core.blocks.infos():
            tokens = block.end - block.begin
            assert mm.memory.core.blocks.tensor(block.id, "counting.tokens").tolist() == [tokens, tokens]
        blocks = len(mm.memory.blocks())
    again = Counting()
    with opened(tmp_path / "m", TINY_MEMORY.with_part(again)):
        assert again.blocks == blocks
