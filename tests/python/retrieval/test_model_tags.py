"""Tags that the model itself gives, in the background: as it would of each text alone, kept, and narrowed by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import everlong
import everlong._core as _core
from everlong.memory.origins import TAGGED_BY_MODEL, key_tag
from everlong.retrieval.model_tags import FIRST_TOKENS, ModelTags
from support import SMALL, TINY_MEMORY, byte_tokenizer, random_text, tiny_model

TAGGING = SMALL.changed(archive={"tagger": "model"})
TEXT = random_text(1500, seed=1)


def open_model(folder: Path | None, config: everlong.MemoryConfig = TAGGING) -> everlong.MemoryModel:
    return everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config=config)


def tags_of(memory: everlong.Memory) -> dict[int, list[str]]:
    return {block.id: list(block.tags) for block in memory.core.blocks.infos()}


def says(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """A tiny model says nothing that makes sense: it is asked, and this is what is heard."""
    real = ModelTags.generate_tags
    heard = lambda self, texts: [words for _ in real(self, texts)]  # noqa: E731
    monkeypatch.setattr(ModelTags, "generate_tags", heard)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt_oss"])
def test_several_texts_are_told_of_as_each_alone_by_plain_transformers(architecture: str) -> None:
    model, tokenizer = tiny_model(architecture), byte_tokenizer()
    with everlong.MemoryModel(model, tokenizer, None, TINY_MEMORY) as mm:
        tags = ModelTags(mm.memory.core, model, tokenizer)
        texts = [torch.randint(97, 123, (40,), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
        together = tags.generate_tags(texts)
    separators, ends = tags._separators, tags._end
    for text, said in zip(texts, together, strict=True):
        ids = torch.cat([tags._before, text, tags._behind])
        answer: list[int] = []
        for _ in range(24):
            with torch.no_grad():
                logits = model(input_ids=torch.cat([ids, torch.tensor(answer, dtype=torch.int64)])[None]).logits[0, -1]
            logits[[token for token in set(answer) if token not in separators]] = -torch.inf
            token = int(logits.argmax())
            if token in ends:
                break
            answer.append(token)
        assert said == tokenizer.decode(answer, skip_special_tokens=True)


def test_every_block_is_tagged_once_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, " Copper, the strike; copper, ox")
    with open_model(tmp_path / "m") as mm:
        mm.read(TEXT, source="a", tags=("mine",))
        mm.searcher.settle()
        there = tags_of(mm.memory)
    assert len(there) > 5
    for tags in there.values():
        assert tags.count(TAGGED_BY_MODEL) == tags.count("mine") == 1
        assert [tag for tag in tags if tag.startswith(_core.KEY_TAG)][:2] == [key_tag("copper"), key_tag("the strike")]
    with everlong.Memory.open(tmp_path / "m") as memory:
        assert tags_of(memory) == there
        assert memory.blocks()[0].keyphrases[:2] == ("copper", "the strike")
        assert memory.blocks()[0].tags == ("mine",)
        assert memory.verify().damage == ()
        memory.export(tmp_path / "m.export")
    with everlong.Memory.import_file(tmp_path / "m.export", None) as memory:
        assert tags_of(memory) == there


def test_a_memory_that_was_read_without_gets_them_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model(tmp_path / "m", SMALL) as mm:
        mm.read(TEXT)
    asked: list[int] = []
    real = ModelTags.generate_tags

    def counted(self: ModelTags, texts: Sequence[torch.Tensor]) -> list[str]:
        asked.append(len(texts))
        return real(self, texts)

    monkeypatch.setattr(ModelTags, "generate_tags", counted)
    with everlong.Memory.open(tmp_path / "m") as memory:
        tags = ModelTags(memory.core, tiny_model(), byte_tokenizer())
        blocks = [block.id for block in memory.blocks()]
        answers = iter([False, True])
        tags.fill(lambda: next(answers))  # ended after one batch
        left = tags.missing()
        assert blocks[: len(blocks) - len(left)] == [id for id in blocks if id not in left]
        assert 0 < len(left) < len(blocks)
        assert sum(asked) == len(blocks) - len(left)
        memory.forget(left[:1])
    with open_model(tmp_path / "m") as mm:
        mm.searcher.settle()
        assert all(TAGGED_BY_MODEL in tags for tags in tags_of(mm.memory).values())
    assert sum(asked) == len(blocks) - 1


def test_blocks_that_were_tagged_are_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_model(tmp_path / "m", SMALL) as mm:
        mm.read(TEXT)
    with everlong.Memory.open(tmp_path / "m") as memory:
        says(monkeypatch, "heron")
        tags = ModelTags(memory.core, tiny_model(), byte_tokenizer())
        tags.fill(lambda: False)
        assert tags.missing() == []
        last = memory.blocks()[-1].id
        assert all(TAGGED_BY_MODEL in of for of in tags_of(memory).values())
        memory.core.blocks.set_tags(last, [])  # as if it had come since
        assert tags.missing() == []
        tags = ModelTags(memory.core, tiny_model(), byte_tokenizer())
        assert tags.missing() == [last]


def test_a_question_is_narrowed_by_what_the_model_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_model(None, TAGGING.changed(search={"narrow": ("tags",)})) as mm:
        says(monkeypatch, "")
        mm.read(TEXT)
        mm.searcher.settle()
        narrow = _core.Narrow([], ["copper"])
        ids = mm.memory.core.blocks.token_ids(0, 0, 64)
        search: Any = {"token_ids": ids, "kinds": ["lexical"], "neighbours": 0, "narrow": narrow}
        assert mm.memory.core.search.find(**search).narrowed_to == 0  # the tree is made, and nothing is tagged so
        third, block = mm.memory.core.blocks.infos()[2:4]
        for one in (block, third):  # in any order
            mm.memory.core.blocks.add_tags(one.id, [key_tag("copper"), key_tag("copper")])
        found = mm.memory.core.search.find(**search)
        assert found.narrowed_to == 2
        assert {page.block for group in found.groups for page in group.pages} <= {third.id, block.id}
        mm.memory.forget([block.id])
        assert mm.memory.core.search.find(**search).narrowed_to == 1
        with pytest.raises(everlong.errors.MemoryNotFoundError):
            mm.memory.core.blocks.add_tags(block.id, ["x"])


def test_of_what_is_said_phrases_and_rare_words_are_kept() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, TINY_MEMORY) as mm:
        mm.read("the end of the thing " * 200 + "zqx" + " the end of the thing" * 200)
        tags = ModelTags(mm.memory.core, tiny_model(), byte_tokenizer())
        assert tags.tags_in(" The Zqx end, , thing\n") == ["the zqx end", "thing", "zqx"]
        assert tags.tags_in("") == []
        assert len(tags.tags_in("aaa, bbb, ccc, ddd, eee, fff, ggg, hhh")) == 6
        assert tags.tags_in("x" * 70) == []


def test_settings_of_it() -> None:
    assert everlong.MemoryConfig().with_settings(["archive.tagger=model"]).archive.tagger == "model"
    with pytest.raises(ValueError, match="text alone"):
        TINY_MEMORY.changed(archive={"tagger": "model"}).of_text_alone()
    assert FIRST_TOKENS >= 64
