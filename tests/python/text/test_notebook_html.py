"""What a notebook shows of answers, recalls, memories and reports."""

from __future__ import annotations

import html.parser
from pathlib import Path

import everlong
from support import SMALL, byte_tokenizer, random_text, tiny_model


class Read(html.parser.HTMLParser):
    """The tags and the text of some HTML. AssertionError where a tag is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert attrs == []
        self.tags.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_answers_with_citations_that_unfold(tmp_path: Path) -> None:
    """And no text acts as HTML, wherever it comes from."""
    bad = "<script>alert('x')</script>"
    lines = [f"## {bad} {number}\n{random_text(150, seed=number)}\n" for number in range(20)]
    (tmp_path / "notes.md").write_text("".join(lines))
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL) as mm:
        report = mm.read(tmp_path / "notes.md", source=f"{bad}.md")
        answer = mm.generate(random_text(150, seed=3)[20:60], max_new_tokens=4)
        assert answer.recalled
        shown = Read(answer._repr_html_())
        assert shown.tags.count("details") == len(answer.recalled)
        assert shown.tags.count("script") == 0
        assert answer.recalled[0].passage.strip().replace("\n", "") in shown.text
        assert f"{bad}.md, {answer.recalled[0].place}" in shown.text
        memory = Read(mm.memory._repr_html_())
        assert f"{mm.memory.stats().tokens:,} tokens" in memory.text
        assert f"{bad}.md{report.tokens:,}" in memory.text
        assert f"tokens{report.tokens:,}blocks{report.blocks:,}" in Read(report._repr_html_()).text
        folder = tmp_path / "folder"
        folder.mkdir()
        for name in ("a.txt", "<b>.txt"):
            (folder / name).write_text("words")
        (folder / "c.png").write_bytes(b"\x89PNG\r\n\0")
        synced = Read(mm.sync(folder)._repr_html_())
        assert "2 new" in synced.text
        assert "<b>.txta.txt" in synced.text
        assert "c.png: holds no text: it is a picture" in synced.text
        stats = mm.memory.stats()
        assert f"blocks{stats.blocks:,}" in Read(stats._repr_html_()).text
        assert "no damage" in Read(mm.memory.verify()._repr_html_()).text
        damaged = everlong.memory.VerifyReport(1, 2, 3, (everlong.memory.Damage(7, bad),), ())
        assert f"1 damagedblock 7: {bad}" in Read(damaged._repr_html_()).text
        found = mm.perplexity(random_text(40))
        assert f"tokens{found.tokens}" in Read(found._repr_html_()).text
    assert "closed" in mm.memory._repr_html_()
