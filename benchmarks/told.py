"""Whether what was told last is found first, and whether a question that goes on from the last turn finds its section.

    python benchmarks/told.py

It reads the sections of 20 conversations, with 40 facts between them, of which half are superseded. For each kind of
fact it prints how often the right sentence and the right group come first, without and with `search.newest_first`, and
the mean confidence. For the second questions of the conversations it prints how often the right section of four comes
first: asked alone in full, and as it goes on, without and with the turn before.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

import everlong
from everlong.data import shipped_books
from everlong.models import DEFAULT_MODEL, load
from everlong.retrieval.quotes import words_of
from everlong.text.encoding import encode
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.follow_ups import Conversation, conversations
from everlong_lab.corpora.superseded import superseded_facts

FACTS, CONVERSATIONS = superseded_facts(40), conversations(20)


def read(mm: everlong.MemoryModel) -> None:
    """Read each conversation's sections, with statements between them; those that supersede come in the second half."""
    halves = [[fact.statements[0] for fact in FACTS], [one for fact in FACTS for one in fact.statements[1:]]]
    per = [-(-len(half) * 2 // len(CONVERSATIONS)) for half in halves]
    for number, told in enumerate(CONVERSATIONS):
        half, place = divmod(number, len(CONVERSATIONS) // 2)
        between = halves[half][place * per[half] : (place + 1) * per[half]]
        parts = [part for pair in zip(told.sections, [*between, *[""] * 4], strict=False) for part in pair if part]
        mm.read("\n\n".join(parts), source=f"guide {number}")
    mm.read(shipped_books()[0].text[20_000:26_000], source="behind")
    mm.searcher.settle()


def facts(mm: everlong.MemoryModel) -> None:
    rows: dict[tuple[str, bool], list[tuple[float, ...]]] = {}
    for fact in FACTS:
        for newest in (False, True):
            mm.config = mm.config.changed(search={"newest_first": newest})
            found = mm.searcher.find_sentences(build_prompt(mm.tokenizer, fact.question))
            sentence = "".join(words_of(mm.memory.core, mm.tokenizer, found.sentences[:1]))
            group = "".join(one.text for one in mm.searcher.citing.found(found)[:1])
            right = (fact.answer in sentence, fact.answer in group, found.confidence or 0.0)
            rows.setdefault((fact.standing, newest), []).append(right)
    for (standing, newest), of in rows.items():
        sentence_right, group_right, sure = np.sum(of, axis=0)
        print(
            f"{len(of)} {standing}, newest_first={newest}: sentence {sentence_right:.0f}, group {group_right:.0f}",
            end="",
        )
        print(f", confidence {sure / len(of):.2f}")


def first_section(
    mm: everlong.MemoryModel, told: Conversation, number: int, asked: str, before: torch.Tensor | None
) -> bool:
    """Return whether the page that was found first is of the right section."""
    prompt = dataclasses.replace(build_prompt(mm.tokenizer, asked), before=before)
    found = mm.searcher.find_sentences(prompt, everlong.Where(source=f"guide {number}"))
    words = {word for one in mm.searcher.citing.found(found)[:1] for word in one.passage.split()}
    shared = [len(words & set(section.split())) for section in told.sections]
    return int(np.argmax(shared)) == told.right


def follow_ups(mm: everlong.MemoryModel) -> None:
    right = np.zeros(3, dtype=int)
    for number, told in enumerate(CONVERSATIONS):
        with mm.frame.branch():
            first, said = build_prompt(mm.tokenizer, told.first), encode(mm.tokenizer, told.said)
            mm.frame.extend(first.ids, "prompt")
            mm.frame.extend(said, "generated")
            turn = torch.cat([first.ids[first.question], said])
            asked = ((told.alone, None), (told.second, None), (told.second, turn))
            right += [first_section(mm, told, number, question, before) for question, before in asked]
    print("{} conversations: asked in full {}, going on {}, with the turn before {}".format(len(CONVERSATIONS), *right))


def main() -> None:
    config = everlong.MemoryConfig().changed(frame={"rolling_tokens": 512})
    with everlong.MemoryModel(*load(DEFAULT_MODEL), None, config) as mm:
        read(mm)
        facts(mm)
        follow_ups(mm)


if __name__ == "__main__":
    main()
