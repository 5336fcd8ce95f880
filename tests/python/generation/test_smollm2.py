"""The embedded model, which all other tests replace by tiny ones: README's three lines over it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import everlong
from everlong.data import shipped_books
from everlong.text.prompt import build_prompt

pytestmark = pytest.mark.slow
FACT = "The pass key for the garden shed is 48213."
QUESTION = "What is the pass key for the garden shed?"


def test_a_text_that_the_frame_does_not_hold_is_read_and_answered_from(tmp_path: Path) -> None:
    text = shipped_books()[0].text
    notes = tmp_path / "notes.txt"
    notes.write_text(f"{text[:4_000]}\n\n{FACT}\n\n{text[4_000:12_000]}", encoding="utf-8")
    with everlong.MemoryModel.from_pretrained("smollm2", memory=tmp_path / "notes.everlong", dtype="float32") as mm:
        mm.read(notes)
        assert mm.frame.os.evicted
        answer = mm.generate(QUESTION, max_new_tokens=24, remember=False)
        assert "48213" in answer.text
        assert answer.recalled[0].source == "notes"
        assert FACT in answer.recalled[0].text

        turns = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "An answer."},
            {"role": "user", "content": QUESTION},
        ]
        whole = mm.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        prompt = build_prompt(mm.tokenizer, QUESTION)
        assert mm.tokenizer.decode(prompt.ids) == whole[whole.index("An answer.") + len("An answer.") :]
        assert mm.tokenizer.decode(prompt.ids[prompt.question]) == QUESTION


def test_the_two_commands_of_the_readme_in_an_empty_folder(tmp_path: Path) -> None:
    text = shipped_books()[0].text
    (tmp_path / "notes.txt").write_text(f"{text[:4_000]}\n\n{FACT}\n\n{text[4_000:12_000]}", encoding="utf-8")
    everlong = [sys.executable, "-m", "everlong"]
    for arguments in (["read", "notes.txt"], ["ask", QUESTION]):
        done = subprocess.run(
            [*everlong, *arguments, "--memory", "notes.everlong"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    answer, *citations = done.stdout.split("\n\n[notes, 20")
    assert "48213" in answer
    assert FACT in citations[0]
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "notes.everlong"}


def test_its_pack_finds_what_is_asked_for_in_other_words(tmp_path: Path) -> None:
    """By default: it shares no word of meaning with what is told."""
    text = shipped_books()[0].text
    told = "My sister Clara is a physician in a small town by the sea, and mends broken bones."
    notes = f"{text[:14_000]}\n\n{told}\n\n{text[14_000:30_000]}"
    asked = "Which relative works as a doctor?"
    found = []
    for pack in ("auto", None):
        with everlong.MemoryModel.from_pretrained("smollm2", dtype="float32", pack=pack) as mm:
            mm.read(notes, source="notes")
            assert (mm.frame.parts.get("towers") is not None) == (pack == "auto")
            found.append(mm.recall(asked))
    with_pack, without = found
    assert told in with_pack[0].text
    assert "meaning" in with_pack[0].found_by
    assert not any("meaning" in recall.found_by for recall in without)
