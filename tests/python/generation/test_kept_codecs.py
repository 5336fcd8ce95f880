"""Every place that keeps keys and values knows the codec: payloads, kept tokens, heads, forks, exports."""

from __future__ import annotations

from pathlib import Path

import pytest

import everlong
from everlong import Memory, MemoryModel, ops
from support import byte_tokenizer, random_text, tiny_model
from support.kept_tokens import KEPT_TOKENS


@pytest.mark.parametrize(("codec", "page_tokens"), [("e4m3", 64), ("e5m2", 128), ("int8", 128), ("k5v4", 64)])
def test_a_memory_and_its_copies_answer_the_same(codec: str, page_tokens: int, tmp_path: Path) -> None:
    config = KEPT_TOKENS.changed(
        archive={"codec": codec, "page_tokens": page_tokens},
        search={"index": ("heads", "lexical"), "heads_keys": "int8"},
    )
    text = random_text(3000)

    def answer(mm: MemoryModel) -> list[tuple[object, str]]:
        assert mm.memory.verify().damage == ()
        assert mm.memory.core.manifest().codec == codec
        assert mm.config.archive.codec == codec
        return [(recall.span, recall.text) for recall in mm.recall(text[900:930])]

    with MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        mm.read(text)
        kept = mm.frame.os.kept_held
        assert kept
        said = answer(mm)
        assert said
        core = mm.memory.core
        pages = [page.end - page.begin for page in core.blocks.pages()]
        assert mm.memory.stats().payload_bytes == sum(
            ops.payload_bytes(tokens, page_tokens, 3, 2, 16, codec) for tokens in pages
        )
        mm.memory.fork(tmp_path / "fork").close()
        mm.memory.export(tmp_path / "file")
    Memory.import_file(tmp_path / "file", tmp_path / "imported").close()
    for folder in ("m", "fork", "imported"):
        with MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / folder, config=KEPT_TOKENS) as mm:
            assert answer(mm) == said, folder
    with everlong.Memory.open(tmp_path / "m", read_only=True) as memory:
        assert memory.verify().damage == ()
