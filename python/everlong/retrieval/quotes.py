"""The recalled sentences that are nearest to the question. They are put before it in words.

A small model reads over what it is not shown. It gives an answer out of a page half as often as where the sentence
stands alone (docs/lab/measured/indexes.md). So the best sentences of the recalled groups stand once more right before
the question, in its own turn. Where there are several, retrieval/quote_choice.py chooses them, and each stands behind
where it comes from (retrieval/quote_lines.py).

A sentence's score has three terms. The first is late interaction of the question with the vectors of the sentence's
block: the weighted mean of each question token's best cosine. The second is the share of the question's words that the
sentence has, each weighted by its inverse document frequency. Without vectors words alone decide. The third is the
cosine of question and sentence, each as a whole. Only an encoder has it, and only the best by the other two get it,
because it is computed when it is asked for, a few milliseconds each.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.part import Cosines, Offer, Vectors
from everlong.text.encoding import count_decoded_characters, decode_text, encode, token_at
from everlong.text.prompt import Prompt
from everlong.text.sentences import sentences
from everlong.text.unit_context import Turns, without_names, without_speaker
from everlong.text.words import words_apart

# What the share of words counts beside the mean cosine. On the development set the right sentence is first for 99 % of
# drawn facts and 33 % of paraphrases (benchmarks/quotes_recall.py). With 0 it is 88 and 38, with 0.5 it is 100 and 25.
WORDS_WEIGHT = 0.2
WHOLE_WEIGHT = 0.5  # of the cosine of question and sentence: chosen there, and on dialogues
# The same where several are quoted, and all sentences have it. It tells what answers from small talk, which shares the
# question's words (benchmarks/sessions.py, eight groups: six sentences hold all evidence of 47 questions of 52; with
# 0.25 of 39, by the first two terms alone of 26).
SEVERAL_WEIGHT = 1.0
_LEAST_TOKENS, _MOST_TOKENS = 4, 96  # of a sentence; a longer one is cut between its lines, or its words
_BEYOND = _MOST_TOKENS  # tokens before and after a group, where a sentence of it may begin and end

Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Tokens of a stream that end where a sentence does, and how near they are to a question."""

    stream: int
    begin: int
    end: int
    score: float
    speaker: str = ""  # who says it, where it does not begin with that
    newest: bool = False  # others say another thing of the same, earlier
    second: bool = False  # only a second search found it, by what the first one did

    @property
    def before_it(self) -> str:
        """What is put before its words, to tell who speaks."""
        return f"{self.speaker}: " if self.speaker else ""

    def within(self, group: Offer) -> bool:
        """Return whether the group has some of it."""
        return group.stream == self.stream and group.begin < self.end and self.begin < group.end


def nearest_sentences(
    core: _core.Memory,
    tokenizer: Any,
    groups: Sequence[Offer],
    question_ids: npt.NDArray[np.int32],
    near: Vectors | None,
    count: int,
    cosines: Cosines | None = None,
    *,
    words_weight: float = WORDS_WEIGHT,
    whole_weight: float = WHOLE_WEIGHT,
) -> list[Sentence]:
    """Return the `count` sentences of the groups that are best by the first two terms, best first by all three.

    question_ids: int32 [T]. `near`: the question's vectors, and those that they are compared with. `cosines`: of it as
    a whole with texts. A group that was forgotten meanwhile has no sentences.
    """
    found: list[Sentence] = []
    sentence_ids: dict[Sentence, npt.NDArray[np.int32]] = {}
    words = np.unique(question_ids)
    rare = core.search.idf(words)
    for group in groups:
        try:
            begin, ids = _with_what_is_beside(core, group)
            vectors, places = (None, None) if near is None else _vectors(core, group, near)
        except MemoryNotFoundError:
            continue
        for first, last, speaker in _sentences(tokenizer, ids.tolist(), group.begin - begin, group.end - begin):
            share = float(rare[np.isin(words, ids[first:last])].sum() / max(float(rare.sum()), 1e-9))
            cosine = 0.0
            if near is not None and vectors is not None and places is not None:
                cosine = _mean_cosine(near.query, vectors[(places >= begin + first) & (places < begin + last)])
            score = cosine + words_weight * share
            found.append(sentence := Sentence(group.stream, begin + first, begin + last, score, speaker))
            sentence_ids[sentence] = ids[first:last]
    found.sort(key=lambda sentence: -sentence.score)  # stable: of equals the better group's is first
    chosen: list[Sentence] = []
    for sentence in found:
        if not any(
            one.stream == sentence.stream and one.begin < sentence.end and sentence.begin < one.end for one in chosen
        ):
            chosen.append(sentence)
    chosen = chosen[:count]
    if cosines is None:
        return chosen
    said = [one.before_it + decode_text(tokenizer, sentence_ids[one].tolist()).strip() for one in chosen]
    alike = wholes_alike(cosines, decode_text(tokenizer, question_ids.tolist()), said)
    chosen = [
        dataclasses.replace(one, score=one.score + whole_weight * cosine)
        for one, cosine in zip(chosen, alike, strict=True)
    ]
    return sorted(chosen, key=lambda sentence: -sentence.score)


def wholes_alike(cosines: Cosines, question: str, texts: Sequence[str]) -> list[float]:
    """Return the cosine of each text with the question.

    What is said by one whom the question names is compared without the name on either side: two texts with one name are
    alike whatever else they say, and all that a person says has it.
    """
    words = set(words_apart(question))
    apart = [without_speaker(text) for text in texts]
    named = [bool(speaker) and words.issuperset(words_apart(speaker)) for speaker, _ in apart]
    names = {speaker for (speaker, _), is_named in zip(apart, named, strict=True) if is_named}
    alike = np.zeros(len(texts))
    for of_named, asked in ((False, ""), (True, without_names(question, names))):
        at = [number for number, is_named in enumerate(named) if is_named == of_named]
        if at:
            alike[at] = cosines([apart[number][1] if of_named else texts[number] for number in at], asked)
    return alike.tolist()


def block_of(core: _core.Memory, sentence: Sentence) -> _core.BlockInfo | None:
    """Return the block in which a sentence begins; None where that was forgotten since."""
    try:
        return core.blocks.info(core.blocks.pages_of(sentence.stream, sentence.begin, sentence.begin + 1)[0].block)
    except (MemoryNotFoundError, IndexError):
        return None


def words_of(core: _core.Memory, tokenizer: Any, sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """Return what they say, in their order, without those that were forgotten since."""
    words = []
    for one in sentences:
        with contextlib.suppress(MemoryNotFoundError):
            ids = core.blocks.token_ids(one.stream, one.begin, one.end).tolist()
            words.append(decode_text(tokenizer, ids).strip())
    return tuple(words)


def quoting(tokenizer: Any, prompt: Prompt, words: Sequence[str]) -> Prompt:
    """Put quotes before a question in their order, a line each, as one paragraph."""
    if not words:
        return prompt
    return prompt.behind(encode(tokenizer, "\n".join(words) + "\n\n"))


def _with_what_is_beside(core: _core.Memory, group: Offer) -> tuple[int, npt.NDArray[np.int32]]:
    """Return token ids of a group and of what stands around it in its own blocks, and the first one's place.

    No further: another block may be one that the question was kept from.
    """
    first, last = core.blocks.info(group.pages[0].block), core.blocks.info(group.pages[-1].block)
    begin, end = max(first.begin, group.begin - _BEYOND), min(last.end, group.end + _BEYOND)
    return begin, core.blocks.token_ids(group.stream, begin, end)


def _sentences(tokenizer: Any, ids: list[int], first: int, last: int) -> Iterator[tuple[int, int, str]]:
    """Yield where each sentence begins and ends among ids, and its speaker, where it has some of [first, last)."""
    text = decode_text(tokenizer, ids)
    length = count_decoded_characters(tokenizer, ids, text)

    turns = Turns(text)
    for place in sentences(text):
        speaker = turns.speaker_of(place[0])
        begin, end = token_at(length, len(ids), place[0]), bisect.bisect_left(range(len(ids)), place[1], key=length)
        while begin < end:
            cut = end
            if end - begin > _MOST_TOKENS:
                half, full = length(begin + _MOST_TOKENS // 2), length(begin + _MOST_TOKENS)
                line = text.rfind("\n", half, full)
                between = line if line >= 0 else text.rfind(" ", half, full)
                cut = begin + _MOST_TOKENS if between < 0 else token_at(length, len(ids), between)
            if cut - begin >= _LEAST_TOKENS and begin < last and first < cut:
                yield begin, cut, speaker
            begin = cut


def _vectors(
    core: _core.Memory, group: Offer, near: Vectors
) -> tuple[Floats, npt.NDArray[np.int64]] | tuple[None, None]:
    """Return unit vectors [n, dimension] of the group's pages, and the place of each one's middle token; or none."""
    rows, places = [], []
    full = core.manifest().page_tokens
    by_block = {block: core.blocks.tensors(block).get(near.tensor) for block in {page.block for page in group.pages}}
    for page in group.pages:
        kept = by_block[page.block]
        if kept is None:
            continue
        before = page.page * -(-full // near.group_tokens)
        rows.append(kept[before : before - (-(page.end - page.begin) // near.group_tokens)])
        places.append(page.begin + np.arange(len(rows[-1])) * near.group_tokens + near.group_tokens // 2)
    if not rows:
        return None, None
    vectors = np.concatenate(rows).astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9), np.concatenate(places)


def _mean_cosine(query: Floats, vectors: Floats) -> float:
    if len(vectors) == 0:
        return 0.0
    weights = np.linalg.norm(query, axis=1)
    return float((query @ vectors.T).max(axis=1).sum() / max(float(weights.sum()), 1e-9))
