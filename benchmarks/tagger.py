"""Taggers beside each other: tags a second, and whether the right block stays when a question narrows by them.

    python benchmarks/tagger.py FOLDER [--questions 400] [--json]

FOLDER is a memory of stories of FairytaleQA's val split, each under its name, such as benchmarks/prefetch.py leaves.
The questions are that set's questions about these stories. Every block is tagged by `keyphrases` (`archive.tagger`),
by the model itself, and by both together. A question narrows by its words and by names of two words, as
`search.narrow="tags"` does. The figures are:

- `narrowed`: the share of the questions for which some block has a tag;
- `right`: the share of those that keep a block of a section that answers;
- `left`: the share of all blocks that is left, on average;
- `chance`: the share that would keep such a block if as many blocks were drawn at random.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

import everlong
import everlong._core as _core
from everlong.models import load
from everlong.models.hardware import processor
from everlong.retrieval.model_tags import FIRST_TOKENS, ModelTags
from everlong.retrieval.query_filters import rarity_of
from everlong.text.encoding import decode_text
from everlong.text.keyphrases import Keyphrases, phrases_of
from everlong_lab.corpora.pairs import load_pairs

_RUN = 40  # characters that a section and a block share


@dataclasses.dataclass(frozen=True)
class Asked:
    words: str
    right: frozenset[int]  # blocks


@dataclasses.dataclass(frozen=True)
class Row:
    tags: float  # tags of a block
    tags_a_second: float
    narrowed: float
    right: float
    chance: float
    left: float


def asked_of(texts: Mapping[int, str], sources: Mapping[int, str], most: int) -> list[Asked]:
    pairs = load_pairs()
    asked = []
    for at in pairs.of_split("test"):
        question = pairs.questions[at]
        text = pairs.texts[question.text]
        sections = [" ".join(text.pieces[piece].split()) for piece in question.pieces]
        runs = [section[at : at + _RUN] for section in sections for at in range(0, len(section) - _RUN, _RUN // 2)]
        of_story = [block for block, source in sources.items() if source == text.name]
        right = frozenset(block for block in of_story if any(run in texts[block] for run in runs))
        if right:
            asked.append(Asked(question.words, right))
    return [asked[at] for at in np.random.default_rng(0).permutation(len(asked))[:most]]


def measure(tags: Mapping[int, Sequence[str]], seconds: float, asked: Sequence[Asked]) -> Row:
    tree = _core.TagTree()
    for block, own in sorted(tags.items()):
        tree.add(block, 0.0, 0, list(own))
    narrowed, right, chance, left = 0, 0, 0.0, 0
    for one in asked:
        blocks = set(tree.narrow(tags=sorted(set(phrases_of(one.words))))[1].tolist())
        if not blocks:
            continue
        narrowed += 1
        right += bool(blocks & one.right)
        missed = 1.0  # by as many blocks drawn without replacement
        for at in range(len(blocks)):
            missed *= max(0, len(tags) - len(one.right) - at) / (len(tags) - at)
        chance += 1 - missed
        left += len(blocks)
    count = sum(map(len, tags.values()))
    of = max(1, narrowed)
    return Row(
        count / len(tags), count / seconds, narrowed / len(asked), right / of, chance / of, left / of / len(tags)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load("smollm2")
    with everlong.Memory.open(options.folder, read_only=True) as memory:
        core = memory.core
        blocks = [block for block in core.blocks.infos() if block.role == "read"]
        ids = {block.id: core.blocks.token_ids(block.stream, block.begin, block.end).tolist() for block in blocks}
        texts = {id: " ".join(decode_text(tokenizer, tokens).split()) for id, tokens in ids.items()}
        asked = asked_of(texts, {block.id: block.source for block in blocks}, options.questions)

        started = time.process_time()
        keyphrases = Keyphrases(rarity_of(core, tokenizer))
        by_words = {id: keyphrases.tags(text) for id, text in texts.items()}
        of_words = time.process_time() - started

        started = time.process_time()
        tagger = ModelTags(core, model, tokenizer)
        by_model: dict[int, list[str]] = {}
        for first in range(0, len(blocks), 8):
            some = [block.id for block in blocks[first : first + 8]]
            shortest = min(FIRST_TOKENS, *(len(ids[id]) for id in some))
            said = tagger.generate_tags([torch.tensor(ids[id][:shortest]) for id in some])
            by_model |= {id: tagger.tags_in(words) for id, words in zip(some, said, strict=True)}
        of_model = time.process_time() - started
        both = {id: [*by_words[id], *(tag for tag in by_model[id] if tag not in by_words[id])] for id in texts}
    rows = {
        "keyphrases": measure(by_words, of_words, asked),
        "model": measure(by_model, of_model, asked),
        "both": measure(both, of_words + of_model, asked),
    }
    if options.json:
        named = {name: dataclasses.asdict(row) for name, row in rows.items()}
        print(
            json.dumps({"cpu": processor(), "blocks": len(blocks), "questions": len(asked), "result": named}, indent=2)
        )
        return
    print(f"{processor()}, one thread; {len(blocks)} blocks, {len(asked)} questions; seconds are the processor's\n")
    heads = f"{'tags a block':>12} {'tags/s':>8} {'narrowed %':>10} {'right %':>8} {'chance %':>8} {'left %':>7}"
    print(f"{'':12} {heads}")
    for name, row in rows.items():
        shares = [100 * share for share in (row.narrowed, row.right, row.chance, row.left)]
        columns = " ".join(f"{share:{width}.0f}" for share, width in zip(shares, (10, 8, 8, 7), strict=True))
        print(f"{name:12} {row.tags:12.1f} {row.tags_a_second:8.1f} {columns}")
    for id in list(texts)[:4]:
        print(f"\n{texts[id][:160]} ...\n  keyphrases: {', '.join(by_words[id])}\n  model: {', '.join(by_model[id])}")


if __name__ == "__main__":
    main()
