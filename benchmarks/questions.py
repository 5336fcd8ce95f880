"""Questions to texts of your own: what came back, what was answered, and how sure the memory was.

    python benchmarks/questions.py FOLDER QUESTIONS.json --model MODEL [--texts DIRECTORY] [--count 24]

QUESTIONS.json has `texts`, by name (or FILE patterns below --texts), and `questions`. Each question has a `kind`, the
`sources` that answer it, and `answers`, of which all must stand in a reply. What is `evidence` must come back, by
default the answers. `only` is a pattern, for lists: what it finds in a reply must be among the answers. `elsewhere`
lists questions that nothing in the texts answers. A file in SQuAD's format will do, too: of XQuAD, in eleven languages,
each paragraph is a source. With --half every second paragraph is read, and 40 questions to the others are asked, too.

*Found*: all evidence came back from the sources. *Gold*: the same model with the sources in its prompt, cut to
--passage characters around the evidence. Confidence is asked for twice: from all texts, and from all but the sources.
*Unsure*: how often the memory is, where nothing answers, without the sources, and where all evidence came back.
With --survey, the memory is asked by `survey`, which is not sure of anything, and never without the sources.
FOLDER keeps the memory and every reply, and a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import everlong
from everlong.frame.model_setup import configured
from everlong.generation.answer import is_unsure
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.models import load
from everlong.retrieval.recall import Recall
from everlong_lab.eval.calibration import calibration
from everlong_lab.eval.gold import answer_from_passage

ELSEWHERE = 40  # questions that nothing answers, of those to the texts that are not read


@dataclasses.dataclass(frozen=True)
class Question:
    words: str
    kind: str
    sources: tuple[str, ...]
    answers: tuple[str, ...]
    evidence: tuple[str, ...]
    only: str = ""

    def right(self, reply: str) -> bool:
        """Return whether all answers stand in a reply, numbers as a whole, and nothing beside them that must not."""
        said = folded(re.sub(r"(?m)^\s*\d+\.\s", "", reply))  # without the numbers of a list's items
        others = set(re.findall(self.only, said)) - set(self.answers) if self.only else ()
        return not others and all(re.search(rf"(?<!\d){re.escape(folded(it))}(?!\d)", said) for it in self.answers)

    def found(self, recalled: Sequence[Recall]) -> bool:
        """Return whether all evidence came back, and something of every source."""
        theirs = [one for one in recalled if one.source in self.sources]
        text = folded("\n".join(one.text for one in theirs))
        return {one.source for one in theirs} == set(self.sources) and all(folded(it) in text for it in self.evidence)

    def passage(self, texts: Mapping[str, str], characters: int) -> str:
        """Return the sources as they stand, each cut to `characters` around the first of its evidence."""
        cut = []
        for source in self.sources:
            text = texts[source]
            places = [text.find(it) for it in self.evidence if it in text]
            begin = max(0, (min(places) if places else 0) - characters // 2)
            cut.append(text[begin : begin + characters])
        return "\n\n".join(cut)


def folded(text: str) -> str:
    return " ".join(text.casefold().split())


def squad(rows: Any, kind: str) -> tuple[dict[str, str], list[Question]]:
    """Return the paragraphs of a file in SQuAD's format, and its questions."""
    texts, found = {}, []
    for article in rows["data"]:
        for number, paragraph in enumerate(article["paragraphs"]):
            source = f"{article['title']} {number}"
            texts[source] = paragraph["context"]
            for one in paragraph["qas"]:
                answer = (one["answers"][0]["text"],)
                found.append(Question(one["question"], kind, (source,), answer, answer))
    return texts, found


def halved(texts: dict[str, str], questions: list[Question]) -> tuple[dict[str, str], list[Question], list[str]]:
    """Return every second text, the questions to these, and 40 of those to the others."""
    kept = {name: texts[name] for name in list(texts)[::2]}
    others = [one.words for one in questions if not kept.keys() & set(one.sources)]
    mine = [one for one in questions if kept.keys() >= set(one.sources)]
    return kept, mine, others[:: max(1, len(others) // ELSEWHERE)][:ELSEWHERE]


def given_questions(file: pathlib.Path, directory: pathlib.Path) -> tuple[dict[str, str], list[Question]]:
    rows = json.loads(file.read_text("utf-8"))
    if "data" in rows:
        return squad(rows, file.stem)
    texts = rows["texts"]
    if not isinstance(texts, dict):
        files = sorted(one for pattern in texts for one in directory.glob(pattern))
        texts = {str(one.relative_to(directory)): one.read_text("utf-8") for one in files}
    return texts, [
        Question(
            one["question"],
            one["kind"],
            tuple(one["sources"]),
            tuple(one["answers"]),
            tuple(one.get("evidence", one["answers"])),
            one.get("only", ""),
        )
        for one in rows["questions"]
    ]


def drawn(questions: Sequence[Question], count: int) -> list[Question]:
    """Return `count` of each kind, as far apart as they can be."""
    chosen = []
    for kind in dict.fromkeys(one.kind for one in questions):
        theirs = [one for one in questions if one.kind == kind]
        chosen += [theirs[at * len(theirs) // count] for at in range(count)] if len(theirs) > count else theirs
    return chosen


def asked(
    mm: everlong.MemoryModel, texts: Mapping[str, str], question: Question, tokens: int, characters: int, survey: bool
) -> dict[str, Any]:
    """Ask one question with memory, of the gold passage alone, and of all texts but those that answer it."""
    wrong: list[float | None] = [None]
    if survey:
        answer = mm.survey(question.words, max_new_tokens=tokens, **AS_MEASURED)
    else:
        answer = mm.generate(question.words, max_new_tokens=tokens, remember=False, **AS_MEASURED)
        others = everlong.Where(source=[name for name in texts if name not in question.sources])
        wrong = [one.confidence for one in mm.recall(question.words, where=others)]
    passage = question.passage(texts, characters)
    gold = answer_from_passage(mm.model, mm.tokenizer, passage, question.words, tokens)
    return {
        "kind": question.kind,
        "found": question.found(answer.recalled),
        "right": question.right(answer.text),
        "gold right": question.right(gold),
        "confidence": answer.confidence,
        "confidence without": None if None in wrong else sum(one or 0 for one in wrong),
        "sources": [one.source for one in answer.recalled],
        "reply": answer.text,
        "gold": gold,
    }


def confidence_of(mm: everlong.MemoryModel, words: str) -> float | None:
    return mm.generate(words, max_new_tokens=1, remember=False).confidence


def tables(rows: Sequence[dict[str, Any]], nowhere: Sequence[float | None]) -> Iterator[str]:
    yield "| questions | asked | found | right | gold right | of the found: right | of the found: gold right |"
    yield "|---|---|---|---|---|---|---|"
    for kind in (*dict.fromkeys(row["kind"] for row in rows), "all"):
        theirs = [row for row in rows if kind in ("all", row["kind"])]
        found = [row for row in theirs if row["found"]]
        counts = [len(found)] + [sum(row[name] for row in theirs) for name in ("right", "gold right")]
        counts += [sum(row[name] for row in found) for name in ("right", "gold right")]
        yield f"| {kind} | {len(theirs)} | " + " | ".join(map(str, counts)) + " |"
    told = [(row["confidence"], row["found"]) for row in rows if row["confidence"] is not None]
    told += [(row["confidence without"], False) for row in rows if row["confidence without"] is not None]
    if told:
        whole = calibration([said for said, _ in told], [true for _, true in told])
        auc = "none" if whole.auc is None else f"{whole.auc:.3f}"
        yield f"\nconfidence, {whole.n} searches, half of them without the sources: AUC {auc}, ECE {whole.ece:.3f}"
        for which in (True, False):
            if of_them := [said for said, true in told if true is which]:
                yield f"{'found' if which else 'not found'}: {statistics.fmean(of_them):.2f}, of {len(of_them)}"
        kinds = {
            "where nothing answers": nowhere,
            "without the sources": [row["confidence without"] for row in rows],
            "where all evidence came back": [row["confidence"] for row in rows if row["found"]],
        }
        yield "unsure " + ", ".join(
            f"{name} {sum(map(is_unsure, said))} of {len(said)}" for name, said in kinds.items() if said
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("questions", type=pathlib.Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16", help="empty: as the model comes")
    parser.add_argument("--texts", type=pathlib.Path, default=pathlib.Path(), help="where patterns of texts begin")
    parser.add_argument("--count", type=int, default=1000, help="questions of each kind at most")
    parser.add_argument("--tokens", type=int, default=48, help="of a reply")
    parser.add_argument("--passage", type=int, default=2000, help="characters of a source in the gold prompt")
    parser.add_argument("--minutes", type=float, default=600, help="no question is begun after so many")
    parser.add_argument("--name", default="replies", help="of the file of replies: another one for other settings")
    parser.add_argument("--half", action="store_true", help="read every second text, and ask for the others, too")
    parser.add_argument("--survey", action="store_true", help="ask by survey: questions over everything")
    parser.add_argument("--set", action="append", default=[], help="setting of MemoryConfig, group.name=value")
    given = parser.parse_args()
    started = time.monotonic()
    texts, questions = given_questions(given.questions, given.texts)
    elsewhere = json.loads(given.questions.read_text("utf-8")).get("elsewhere", [])
    if given.half:
        texts, questions, elsewhere = halved(texts, questions)
    given.folder.mkdir(parents=True, exist_ok=True)
    kept = given.folder / f"{given.name}.json"
    rows: dict[str, dict[str, Any]] = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    everlong.MemoryConfig().with_settings(given.set)  # a wrong setting is reported before a model is loaded
    network, tokenizer = load(given.model, given.dtype or None)
    config = configured(network, given.set)
    with everlong.MemoryModel(network, tokenizer, given.folder / "memory.everlong", config) as mm:
        for name, text in texts.items():
            mm.read(text, source=name)  # what was read is not read again
        print(f"{mm.stream_tokens} tokens of {len(texts)} texts, {time.monotonic() - started:.0f} s", file=sys.stderr)
        for question in drawn(questions, given.count):
            if question.words not in rows and time.monotonic() - started < 60 * given.minutes:
                row = rows[question.words] = asked(mm, texts, question, given.tokens, given.passage, given.survey)
                kept.write_text(json.dumps(rows, indent=1, ensure_ascii=False), "utf-8")
                told = " ".join(str(row[name]) for name in ("found", "right", "gold right"))
                print(told, question.words, "|", row["reply"], file=sys.stderr)
        nowhere = [] if given.survey else [confidence_of(mm, words) for words in elsewhere]
    print("\n".join(tables(list(rows.values()), nowhere)))


if __name__ == "__main__":
    main()
