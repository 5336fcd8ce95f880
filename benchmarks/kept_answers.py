"""Answers from chosen tokens: what comes back for a question in the same slots, and what a kept zone alone answers.

    python benchmarks/kept_answers.py FOLDER [--tokens 65536] [--count 24] [--kinds fact paraphrase explicit implicit]
    python benchmarks/kept_answers.py FOLDER --zone [--texts 2] [--count 12] [--kept 1024]

The first reads books with planted facts, and FairytaleQA's val stories, once into FOLDER. It stores a payload of the
Trimmer's tokens as the KV writer wrote them. Every arm has a copy of each memory, and every question is asked of all
arms, one after the other. The second reads texts of books with planted facts into frames with a kept zone, and asks
with recall off: what is answered is in the frame. FOLDER/answers-NAME.json and zone.json have the results after each
step. Planted facts are right or not. A question to a story scores the F1 of the words that reply and answer share.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import everlong
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.memory.kept_tensors import TOKENS
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor
from everlong.parts.kv_writer import KvWriter
from everlong.parts.trimmer import Trimmer
from everlong_lab.eval.statistics import mean_and_stderr, mean_interval
from everlong_lab.parts.towers.measure import QuestionMeasured, planted_facts, read_planted, read_stories, to_answer
from everlong_lab.parts.towers.measure_answers import ToAnswer, drawn_evenly

KEPT, WRITTEN, NEWEST, NO_ZONE = "Trimmer's tokens", "KV writer", "newest tokens", "no zone"
PAGES, ONE_GROUP = "pages", "pages, one group"
# The parts that choose and write what is kept, by arm.
PARTS: dict[str, tuple[Any, ...]] = {
    NO_ZONE: (),
    NEWEST: (),
    KEPT: (Trimmer(),),
    WRITTEN: (Trimmer(), KvWriter(kept=True)),
}
_STORY_TOKENS = 32


def recalled_arms(base: everlong.MemoryConfig) -> dict[str, everlong.MemoryConfig]:
    """Return what comes back for a question. One group of pages takes fewer slots than the chosen tokens of four."""
    pages = base.changed(answer={"recall_mode": "kv"})
    arms = {PAGES: pages, ONE_GROUP: pages.changed(search={"groups": 1})}
    for arm in (KEPT, WRITTEN, NEWEST):
        arms[arm] = with_parts(base, arm).changed(answer={"recall_mode": "kept"})
    return arms


def zone_arms(base: everlong.MemoryConfig) -> dict[str, everlong.MemoryConfig]:
    """Return what stays in the frame where nothing comes back."""
    base = base.changed(answer={"policy": "off"})
    arms = {arm: with_parts(base, arm) for arm in PARTS}
    return {**arms, NO_ZONE: base.changed(frame={"kept_tokens": 0})}


def with_parts(base: everlong.MemoryConfig, arm: str) -> everlong.MemoryConfig:
    return functools.reduce(everlong.MemoryConfig.with_part, PARTS[arm], base)


Scores = dict[str, dict[str, list[float]]]  # by arm and kind, question by question


# --- what comes back


def read_once(
    folder: pathlib.Path,
    model: tuple[Any, Any],
    config: everlong.MemoryConfig,
    tokens: int,
    names: Sequence[str] = ("planted", "stories"),
) -> Iterator[tuple[pathlib.Path, list[QuestionMeasured]]]:
    """Yield each memory and the questions to it.

    An existing memory is not read again, but gets the payloads that it lacks.
    """
    for name in names:
        place, asked = folder / f"{name}.everlong", folder / f"{name}.questions.json"
        if not asked.exists():
            shutil.rmtree(place, ignore_errors=True)  # half of it may be there
            place.parent.mkdir(parents=True, exist_ok=True)
            found: list[QuestionMeasured] = []
            with everlong.MemoryModel(*model, place, config) as mm:
                if name == "planted":
                    read_planted(mm, planted_facts(development=False), [tokens], None, found.extend)
                else:
                    found += read_stories(mm, "test", tokens=tokens)
                print(name, mm.stream_tokens, "tokens", file=sys.stderr, flush=True)
            asked.write_text(json.dumps([dataclasses.asdict(one) for one in found]), "utf-8")
        with everlong.MemoryModel(*model, place, config) as mm:
            mm.searcher.settle()
        yield place, [_asked(one) for one in json.loads(asked.read_text("utf-8"))]


def _asked(said: Mapping[str, Any]) -> QuestionMeasured:
    spans = tuple((int(first), int(last)) for first, last in said["spans"])
    return QuestionMeasured(said["words"], said["kind"], spans, tuple(said["answers"]))


@contextlib.contextmanager
def opened_arms(
    model: tuple[Any, Any], memory: pathlib.Path, arms: Mapping[str, everlong.MemoryConfig], pack: Any = "auto"
) -> Iterator[dict[str, everlong.MemoryModel]]:
    """Open for every arm a copy of the memory, whose blocks have what the arm brings back."""
    with contextlib.ExitStack() as stack:
        found = {}
        for arm, config in arms.items():
            place = f"{stack.enter_context(tempfile.TemporaryDirectory())}/fork"
            with everlong.Memory.open(memory, read_only=True) as kept, kept.fork(place) as fork:
                if not any(isinstance(part, Trimmer) for part in config.parts):  # another choice than the memory has
                    for block in fork.blocks():
                        fork.core.blocks.put_tensors(block.id, {TOKENS: np.zeros(0, dtype=np.int32)})
            mm = stack.enter_context(everlong.MemoryModel(*model, place, config, pack=pack))
            mm.searcher.settle()
            found[arm] = mm
            print(memory.stem, arm, "is open", file=sys.stderr, flush=True)
        yield found


def ask(mm: everlong.MemoryModel, arm: str, question: ToAnswer, scores: Scores, slots: dict[str, list[int]]) -> None:
    """Ask one question in one arm; note how well it was answered, and the slots that what came back took."""
    most = _STORY_TOKENS if question.fact is None else question.fact.max_new_tokens
    answer = mm.generate(question.words, max_new_tokens=most, remember=False, **AS_MEASURED)
    scores.setdefault(arm, {}).setdefault(question.kind, []).append(question.score(answer.text))
    back = [event["tokens"] for event in mm.trace() if event["what"] == "restore"]
    slots.setdefault(arm, []).append(back[-1] if back and mm.config.answer.policies else len(mm.frame.os.kept_held))


# --- what a kept zone answers


def ask_zones(
    model: tuple[Any, Any],
    arms: Mapping[str, everlong.MemoryConfig],
    texts: int,
    tokens: int,
    count: int,
    known: Any,
    pack: Any = "auto",
) -> tuple[Scores, dict[str, list[int]]]:
    """Ask for the first `count` facts of each text that have left the frame; `known` gets the results after each."""
    scores: Scores = {}
    slots: dict[str, list[int]] = {}
    facts = [fact for fact in planted_facts(development=False) if fact.kind not in ("paraphrase", "association")]
    for text in range(texts):
        own = facts[text::texts][: 2 * count]
        for arm, config in arms.items():
            found: list[QuestionMeasured] = []
            with everlong.MemoryModel(*model, None, config, pack=pack) as mm:
                read_planted(mm, own, [tokens], None, found.extend)
                left = [one for one in found if one.spans[0][1] <= mm.frame.os.rolling[0]]
                for question in to_answer(left, development=False)[:count]:
                    ask(mm, arm, question, scores, slots)
            print("text", text + 1, arm, file=sys.stderr, flush=True)
            known(scores, slots)
    return scores, slots


# --- the table


def rows_of(scores: Scores, slots: Mapping[str, Sequence[int]]) -> Iterator[str]:
    kinds = list(dict.fromkeys(kind for by_kind in scores.values() for kind in by_kind))
    counts = {kind: len(next(iter(scores.values())).get(kind, [])) for kind in kinds}
    yield "| | slots | " + " | ".join(f"{kind} ({counts[kind]})" for kind in kinds) + " |"
    yield "|---|---|" + "---|" * len(kinds)
    for arm, by_kind in scores.items():
        cells = []
        for kind in kinds:
            low, high = mean_interval(by_kind[kind])
            cells.append(f"{sum(by_kind[kind]) / len(by_kind[kind]):.2f} ({low:.2f} to {high:.2f})")
        yield f"| {arm} | {sum(slots[arm]) / len(slots[arm]):.0f} | " + " | ".join(cells) + " |"
    if WRITTEN not in scores:
        return
    for arm in (one for one in scores if one != WRITTEN):
        cells = []
        for kind in kinds:
            pairs = zip(scores[WRITTEN][kind], scores[arm][kind], strict=True)
            mean, error = mean_and_stderr(one - other for one, other in pairs)
            cells.append(f"{mean:+.3f} ± {error:.3f}")
        yield f"| *{WRITTEN} less {arm}* | | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument(
        "--tokens", type=int, default=65536, help="tokens of a memory; with --zone, tokens of a text, at most 5000"
    )
    parser.add_argument(
        "--count", type=int, default=24, help="questions of each kind; with --zone, questions of a text"
    )
    parser.add_argument("--kinds", nargs="+", default=["fact", "paraphrase", "explicit", "implicit"])
    parser.add_argument("--memories", nargs="+", default=["planted", "stories"])
    parser.add_argument("--zone", action="store_true")
    parser.add_argument("--texts", type=int, default=2)
    parser.add_argument("--kept", type=int, default=1024, help="slots of the zone")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="setting of MemoryConfig, group.name=value; may be given several times",
    )
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    model = load(options.model)
    base = everlong.MemoryConfig().with_settings(["answer.quotes=0", f"frame.kept_tokens={options.kept}", *options.set])
    options.folder.mkdir(parents=True, exist_ok=True)
    scores: Scores = {}
    slots: dict[str, list[int]] = {}

    def known(scores: Scores, slots: dict[str, list[int]]) -> None:
        file = options.folder / ("zone.json" if options.zone else f"answers-{'-'.join(options.memories)}.json")
        file.write_text(json.dumps({"cpu": processor(), "scores": scores, "slots": slots}, indent=2), "utf-8")

    if options.zone:
        tokens = min(options.tokens, 5000)
        scores, slots = ask_zones(model, zone_arms(base), options.texts, tokens, options.count, known)
    else:
        arms = recalled_arms(base)
        for place, asked in read_once(options.folder, model, arms[WRITTEN], options.tokens, options.memories):
            drawn = drawn_evenly(to_answer(asked, development=False), options.count)
            questions = [one for one in drawn if one.kind in options.kinds]
            questions = [one for _, one in sorted(enumerate(questions), key=lambda pair: pair[0] % options.count)]
            with opened_arms(model, place, arms) as memories:
                for number, question in enumerate(questions):
                    for arm, mm in memories.items():
                        ask(mm, arm, question, scores, slots)
                    known(scores, slots)
                    print(place.stem, number + 1, "of", len(questions), file=sys.stderr, flush=True)
    print("\n".join(rows_of(scores, slots)))


if __name__ == "__main__":
    main()
