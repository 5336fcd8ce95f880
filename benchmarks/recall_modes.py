"""Answers by what comes back for a question: Detail Tokens, archived KV, both, or text, in the same slots.

    python benchmarks/recall_modes.py FOLDER [--tokens 32000] [--modes kv text detail both] [--count 24] [--details 32]
        [--set answer.quotes=0] [--pack FOLDER] [--keep answers.jsonl]

Three memories lie in FOLDER, or are read into it: books with planted facts, FairytaleQA's stories that nothing was
trained on, and TIAGE's dev dialogues. In every second dialogue somebody states a fact. Every question is asked of the
same memory in each mode; the recalled zone has `frame.recalled_tokens` slots in all of them. Facts are right or not. A
question to a story scores the F1 of the words that reply and answer share; "gist" are those whose answer takes several
sections.

Kinds take turns, and with `--keep` every answer is on disk at once. So a run that is stopped prints what it has, and
the same command goes on. The memories are forked for asking: what is in FOLDER stays as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import everlong
from everlong.config.answer import RecallMode
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor
from everlong_lab.corpora.facts import Fact, Kind, make_facts
from everlong_lab.data.qa import qa_dialogues
from everlong_lab.eval.answers import AnswerFile
from everlong_lab.eval.statistics import mean_interval
from everlong_lab.parts.towers.measure import QuestionMeasured, planted_facts, read_planted, read_stories, to_answer
from everlong_lab.parts.towers.measure_answers import ToAnswer, drawn_evenly

_STORY_TOKENS = 24
_AT_ONCE = 12  # questions of a memory, one mode after the other
_DIALOGUE_FACTS: tuple[Kind, ...] = ("pass-key", "name", "best-thing")
KINDS = ("fact", "paraphrase", "association", "dialogue", "explicit", "implicit", "gist")


def read_planted_books(mm: everlong.MemoryModel, tokens: int, count: int) -> list[ToAnswer]:
    """Read books with as many facts of a kind as are asked about."""
    by_kind: dict[str, list[Fact]] = {}
    for fact in planted_facts(development=False):
        kind = fact.kind if fact.kind in KINDS else "fact"
        by_kind.setdefault(kind, []).append(fact)
    found: list[QuestionMeasured] = []
    facts = [
        fact for row in itertools.zip_longest(*(some[:count] for some in by_kind.values())) for fact in row if fact
    ]
    read_planted(mm, facts, [tokens], None, found.extend)
    return to_answer(found, development=False)


def read_test_stories(mm: everlong.MemoryModel, tokens: int, count: int) -> list[ToAnswer]:
    asked = to_answer(read_stories(mm, "test", tokens=tokens), development=False)
    return [dataclasses.replace(one, kind="gist") if len(one.spans) > 1 else one for one in asked]


def read_dialogues(mm: everlong.MemoryModel, tokens: int, count: int) -> list[ToAnswer]:
    """Read as many dialogues as come to `tokens` tokens, one after the other.

    Every second one has a fact as a turn in its middle.
    """
    facts = make_facts(_DIALOGUE_FACTS, count, seed=33)
    asked = []
    for number, (name, turns) in enumerate(qa_dialogues("tiage-dev")):
        if mm.stream_tokens > tokens:
            break
        said = [words for words, _ in turns]
        if number % 2 == 0 and number // 2 < len(facts):
            fact = facts[number // 2]
            said.insert(len(said) // 2, fact.statement)
            asked.append(ToAnswer(fact.question, "dialogue", (), fact=fact))
        mm.read("\n".join(f"- {words}" for words in said) + "\n\n", source=f"dialogue {name}")
    return asked


READINGS = {"planted": read_planted_books, "stories": read_test_stories, "dialogues": read_dialogues}


def questions_of(
    folder: pathlib.Path, name: str, model: tuple[Any, Any], config: everlong.MemoryConfig, options: Any
) -> list[ToAnswer]:
    """Return the questions to a memory in the folder; the memory is read if it is not there."""
    file = folder / f"{name}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with everlong.MemoryModel(model[0], model[1], folder / f"{name}.everlong", config, pack=options.pack) as mm:
            asked = READINGS[name](mm, options.tokens, options.count)
        file.write_text(json.dumps([dataclasses.asdict(one) for one in asked]), "utf-8")
    rows = json.loads(file.read_text("utf-8"))
    asked = [
        ToAnswer(
            row["words"],
            row["kind"],
            tuple(map(tuple, row["spans"])),
            tuple(row["answers"]),
            row["fact"] and Fact(**{**row["fact"], "planted": tuple(row["fact"]["planted"])}),
        )
        for row in rows
    ]
    return drawn_evenly([one for one in asked if one.kind in options.kinds], options.count)


def in_turns(questions: Iterable[ToAnswer]) -> Iterator[ToAnswer]:
    """Yield one question of each kind, then the next of each."""
    by_kind: dict[str, list[ToAnswer]] = {}
    for question in questions:
        by_kind.setdefault(question.kind, []).append(question)
    for row in itertools.zip_longest(*by_kind.values()):
        yield from (question for question in row if question is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=32_000, help="tokens of a memory to read")
    parser.add_argument("--modes", nargs="+", choices=get_args(RecallMode), default=["kv", "text", "detail", "both"])
    parser.add_argument("--count", type=int, default=24, help="questions of each kind")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--details", type=int, default=32)
    parser.add_argument("--pack", default="auto", help="pack of the model's trained parts: auto, or a folder")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="setting of MemoryConfig, group.name=value; may be given several times",
    )
    parser.add_argument("--keep", type=pathlib.Path, help="file for every answer as it comes; old answers stay")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    loaded = load(options.model)
    base = everlong.MemoryConfig().with_settings([*options.set, f"writer.tokens={options.details}"])
    said = {name: getattr(options, name) for name in ("count", "set", "details", "tokens")}
    with tempfile.TemporaryDirectory() as place:
        kept = AnswerFile(options.keep or pathlib.Path(place) / "answers.jsonl", said)
        memories: dict[str, list[ToAnswer]] = {}
        for name in READINGS:
            questions = questions_of(options.folder, name, loaded, base, options)
            with everlong.Memory.open(options.folder / f"{name}.everlong", read_only=True) as there:
                there.fork(f"{place}/{name}").close()
            memories[f"{place}/{name}"] = questions
        ask(loaded, base, options, memories, kept)
        print_report(kept, options.modes, as_json=options.json)


def ask(
    model: tuple[Any, Any],
    base: everlong.MemoryConfig,
    options: argparse.Namespace,
    memories: dict[str, list[ToAnswer]],
    kept: AnswerFile,
) -> None:
    """Ask some questions of each kind in every mode, then the next ones.

    A mode has a MemoryModel of its own, as what helps a model to read what comes back belongs to it.
    """
    order = {memory: list(in_turns(questions)) for memory, questions in memories.items()}
    for first in range(0, max(map(len, order.values())), _AT_ONCE):
        for (memory, questions), mode in itertools.product(order.items(), options.modes):
            some = questions[first : first + _AT_ONCE]
            left = [one for one in some if not kept.find(mode=mode, words=one.words)]
            if not left:
                continue
            config = base.changed(answer={"recall_mode": mode})
            with everlong.MemoryModel(model[0], model[1], memory, config, pack=options.pack) as mm:
                mm.searcher.settle()
                for question in left:
                    most = _STORY_TOKENS if question.fact is None else question.fact.max_new_tokens
                    before = len(mm.trace())
                    answer = mm.generate(question.words, max_new_tokens=most, remember=False, **AS_MEASURED)
                    # Nothing comes back where the model did not ask for it (the part `Retrieve`).
                    events = reversed(mm.trace()[before:])
                    slots = next((event["tokens"] for event in events if event["what"] == "restore"), 0)
                    score = question.score(answer.text)
                    said = {"words": question.words, "score": score, "slots": slots, "reply": answer.text}
                    kept.add(mode=mode, kind=question.kind, **said)
        print(first + _AT_ONCE, file=sys.stderr, flush=True)


def print_report(kept: AnswerFile, modes: list[str], *, as_json: bool) -> None:
    """Print the report of the questions that were asked in every mode."""
    asked = [{row["words"] for row in kept.find(mode=mode)} for mode in modes]
    rows = [row for row in kept.rows if row["mode"] in modes and all(row["words"] in words for words in asked)]
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    scores = {
        mode: {kind: [row["score"] for row in rows if (row["mode"], row["kind"]) == (mode, kind)] for kind in kinds}
        for mode in modes
    }
    slots = {mode: [row["slots"] for row in rows if row["mode"] == mode] for mode in modes}
    if as_json:
        print(json.dumps({"cpu": processor(), "scores": scores, "slots": slots}, indent=2))
        return
    print("| recall_mode | slots | " + " | ".join(f"{kind} ({len(scores[modes[0]][kind])})" for kind in kinds) + " |")
    print("|---|---|" + "---|" * len(kinds))
    for mode, by_kind in scores.items():
        cells = []
        for kind in kinds:
            low, high = mean_interval(by_kind[kind])
            cells.append(f"{sum(by_kind[kind]) / len(by_kind[kind]):.2f} ({low:.2f} to {high:.2f})")
        print(f"| `{mode}` | {sum(slots[mode]) / max(1, len(slots[mode])):.0f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
