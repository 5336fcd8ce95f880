"""Answers from chosen tokens: what comes back for a question in the same slots, and what a kept zone alone answers.

    python benchmarks/kept_answers.py FOLDER [--tokens 65536] [--count 24] [--arms kv "Trimmer's tokens" ...]
    python benchmarks/kept_answers.py FOLDER --zone [--texts 6] [--kept 1024]

The first reads books with planted facts, and FairytaleQA's val stories, once, into FOLDER. Every arm then gets a copy
of each memory, whose blocks it gives a payload of chosen tokens; a question is asked in each. The second reads texts of
books with planted facts into frames with a kept zone, and asks with recall off: what is answered is in the frame.
Planted facts are right or not; a question to a story scores the F1 of the words that reply and answer share.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import everlong
from everlong.eval.decoding import AS_MEASURED
from everlong.eval.meaning import Asked, planted_facts, read_planted, read_stories
from everlong.eval.meaning_answers import ToAnswer

KEPT, WRITTEN, NEWEST, PAGES = "Trimmer's tokens", "KV writer", "newest tokens", "kv"
NO_ZONE = "no zone"
_LEARNED = {"recall_mode": "kept", "trimmer": "learned"}
ARMS: dict[str, dict[str, Any]] = {
    PAGES: {"recall_mode": "kv"},
    KEPT: _LEARNED,
    WRITTEN: {**_LEARNED, "kept_writer": True},
    NEWEST: {"recall_mode": "kept", "trimmer": "newest"},
}
_STORY_TOKENS = 32

Scores = dict[str, dict[str, list[float]]]  # by arm and kind, question by question


# --- what comes back


def read_once(
    folder: pathlib.Path, model: tuple[Any, Any], config: everlong.MemoryConfig, tokens: int
) -> Iterator[tuple[pathlib.Path, list[Asked]]]:
    """Each memory and the questions to it; what is there is not read again."""
    for name in ("planted", "stories"):
        place, asked = folder / f"{name}.everlong", folder / f"{name}.questions.json"
        if not asked.exists():
            shutil.rmtree(place, ignore_errors=True)  # half of it may be there
            place.parent.mkdir(parents=True, exist_ok=True)
            found: list[Asked] = []
            with everlong.MemoryModel(*model, place, config) as mm:
                if name == "planted":
                    read_planted(mm, planted_facts(development=False), [tokens], None, found.extend)
                else:
                    found += read_stories(mm, "test", tokens=tokens)
                print(name, mm.stream_tokens, "tokens", file=sys.stderr, flush=True)
            asked.write_text(json.dumps([dataclasses.asdict(one) for one in found]), "utf-8")
        yield place, [_asked(one) for one in json.loads(asked.read_text("utf-8"))]


def _asked(said: Mapping[str, Any]) -> Asked:
    spans = tuple((int(first), int(last)) for first, last in said["spans"])
    return Asked(said["words"], said["kind"], spans, tuple(said["answers"]))


def ask_arms(
    model: tuple[Any, Any],
    memory: pathlib.Path,
    questions: Sequence[ToAnswer],
    arms: Mapping[str, everlong.MemoryConfig],
    scores: Scores,
    slots: dict[str, list[int]],
    pack: Any = "auto",
) -> None:
    """Every question of every arm, each of which has a copy of the memory."""
    for arm, config in arms.items():
        with tempfile.TemporaryDirectory() as place:
            with everlong.Memory.open(memory, read_only=True) as kept:
                kept.fork(f"{place}/fork").close()
            with everlong.MemoryModel(*model, f"{place}/fork", config, pack=pack) as mm:
                mm.searcher.settle()
                for question in questions:
                    scores.setdefault(arm, {}).setdefault(question.kind, []).append(answered(mm, question))
                    back = [event["tokens"] for event in mm.trace() if event["what"] == "restore"]
                    slots.setdefault(arm, []).append(back[-1] if back else 0)
        print(memory.stem, arm, len(questions), file=sys.stderr, flush=True)


def answered(mm: everlong.MemoryModel, question: ToAnswer) -> float:
    most = _STORY_TOKENS if question.fact is None else question.fact.max_new_tokens
    answer = mm.generate(question.words, max_new_tokens=most, remember=False, **AS_MEASURED)
    return question.score(answer.text)
