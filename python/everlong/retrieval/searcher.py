"""From a prompt to what a frame's memory has for it, and what grows over the memory in the background."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.frame.frame import Frame
from everlong.frame.kv_frame import KvFrame
from everlong.frame.part import AnswerProgress, Offer
from everlong.frame.parts import needs_of
from everlong.kv_cache.steps import run_to_end
from everlong.memory.fingerprint import Fingerprint
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.background_jobs import BackgroundJobs
from everlong.retrieval.citations import CitationBuilder
from everlong.retrieval.embedding import PageEmbedder
from everlong.retrieval.hop import by_text, in_scale, search_again, with_second
from everlong.retrieval.older_quotes import Quote, says_now, without_older
from everlong.retrieval.query_filters import block_tags, filters_of, rarity_of
from everlong.retrieval.question_states import (
    QuestionStates,
    TappedQuestion,
    query_layers,
    tap_question,
    tap_question_in_steps,
)
from everlong.retrieval.quote_choice import choose
from everlong.retrieval.quotes import (
    SEVERAL_WEIGHT,
    WHOLE_WEIGHT,
    Sentence,
    block_of,
    nearest_sentences,
    wholes_alike,
    words_of,
)
from everlong.retrieval.recall import SearchOutcome
from everlong.retrieval.recency import MOST_COMPARED, newest_first, occasion_of, time_of
from everlong.retrieval.rerank import Reranker, candidates
from everlong.retrieval.retrieval_heads import RetrievalHeads
from everlong.retrieval.search import NO_BUDGET, PartQuery, Rerank, offer_of, search, tokens_of
from everlong.retrieval.whole_texts import ShortTexts, with_whole_texts
from everlong.retrieval.word_table import rarest_words, word_table
from everlong.text.encoding import decode_text, encode
from everlong.text.keyphrases import Keyphrases
from everlong.text.prompt import Prompt, start_ids
from everlong.text.spellings import spelled_otherwise
from everlong.text.unit_context import title_of
from everlong.text.vectors import Encoder

_ALL_BLOCKS = (1 << 31) - 1
# So many tokens of the turn before are searched by, where a question goes on from it: the rarest.
_SAID_TOKENS = 32
# The most tokens of a question, its newest, whose queries are kept for a search: a layer's take kilobytes each.
_TAPPED_TOKENS = 4096
_SPELLED_TOKENS = 512  # of other spellings of a question's words: a long question does not become four of them
# Sentences, the nearest, that several quotes are chosen from.
_CHOSEN_FROM = 256


class Searcher:
    """Finds what a prompt needs in a frame's memory. For the frame's thread alone. `close` ends its own threads."""

    def __init__(
        self,
        frame: Frame,
        tokenizer: Any,
        config: MemoryConfig,
        prints: Fingerprint,
        encoder: Encoder | None,
    ) -> None:
        self._frame = frame
        self._core = frame.memory.core
        self._tokenizer = tokenizer
        self._config = config
        self.prints = prints
        self._set_words()
        self.heads = RetrievalHeads(frame, tokenizer, prints, config.search)
        self.citing = CitationBuilder(frame, tokenizer)
        self.embedder: PageEmbedder | None = None
        if encoder is not None:
            self.embedder = PageEmbedder(self._core, tokenizer, encoder, search=config.search.embedding_index)
        self._rarity = rarity_of(self._core, tokenizer)
        if config.archive.tagger == "keyphrases":
            frame.archive.tagger = block_tags(Keyphrases(self._rarity), tokenizer)
        self._jobs = BackgroundJobs(frame, tokenizer, config, self.embedder)

    @property
    def config(self) -> MemoryConfig:
        """The settings in use. Others hold from the next question on."""
        return self._config

    @config.setter
    def config(self, config: MemoryConfig) -> None:
        self._config, self.heads.search = config, config.search
        self._set_words()

    def _set_words(self) -> None:
        """Have the memory index words from now on, where they are to be searched."""
        if "words" in self._config.search.index and self._core.index.words() is None:
            self._core.index.set_words(word_table(self._tokenizer))

    def over(self, fork: Frame) -> Searcher:
        """Return this search for a fork of its frame, to be used while this frame stands. It has nothing to close."""
        other = copy.copy(self)
        other._frame, other.citing = fork, CitationBuilder(fork, self._tokenizer)
        return other

    def settle(self) -> None:
        """Return once every page has its vectors, and every block its Detail Tokens and its place in the graph.

        This includes blocks that were archived without them.
        """
        self._jobs.settle()

    def close(self) -> None:
        self._jobs.close()

    # --- from a prompt to pages

    def tap_in_steps(self, prompt: Prompt) -> Generator[None, None, TappedQuestion]:
        """Read a prompt without a trace, behind what the frame holds now without recalled pages.

        A question that goes on from the turn before it is read behind that turn's rarest tokens once more. Of a very
        long question the end is searched by. It yields between two chunks.
        """
        self.heads.look_if_due()
        if prompt.before is not None:
            prompt = self._with_previous_turn(prompt, prompt.before)
        prompt = self._with_other_spellings(prompt)
        question = slice(max(prompt.question.start, prompt.question.stop - _TAPPED_TOKENS), prompt.question.stop)
        layers, hidden_layers = self._tapped_layers()
        states = yield from tap_question_in_steps(self._frame, prompt.ids, question, layers, hidden_layers)
        return TappedQuestion(prompt.ids[question].numpy().astype(np.int32), states, self.heads.profile)

    tap = run_to_end(tap_in_steps)

    def _with_previous_turn(self, prompt: Prompt, before: torch.Tensor) -> Prompt:
        """Return the prompt with the turn before it as part of its question."""
        ids = before.numpy().astype(np.int32)
        weight = np.where(np.isin(ids, self._tokenizer.all_special_ids), 0.0, self._core.search.idf(ids))
        rarest = rarest_words(self._core, ids, weight, _SAID_TOKENS)
        longer = prompt.behind(before[torch.from_numpy(rarest)])
        first, last = prompt.question.start, longer.question.stop
        return dataclasses.replace(longer, question=slice(first, last), before=None)

    def _with_other_spellings(self, prompt: Prompt) -> Prompt:
        """Return the prompt with words of its question once more, spelled as the memory has them (text/spellings.py).

        A memory without such spellings, as nearly all are, changes nothing. Of a long question the last words count.
        """
        asked = prompt.ids[prompt.question].tolist()[-_TAPPED_TOKENS:]
        held = dict.fromkeys(asked, True)  # whether the memory has a token; it matters not for the question's own

        def holds(token: int) -> bool:
            if token not in held:
                ids = np.asarray([token], dtype=np.int32)
                ranked = self._core.search.rankings(1, token_ids=ids, kinds=["lexical"])
                held[token] = any(found.pages for found in ranked)
            return held[token]

        found, left = [], _SPELLED_TOKENS
        for word in reversed(spelled_otherwise(decode_text(self._tokenizer, asked))):
            ids = encode(self._tokenizer, f" {word}")
            if len(ids) <= left and all(map(holds, ids.tolist())):
                found.append(ids)
                left -= len(ids)
        if not found:
            return prompt
        longer = prompt.behind(torch.cat([*reversed(found), encode(self._tokenizer, "\n")]))
        return dataclasses.replace(longer, question=slice(prompt.question.start, longer.question.stop))

    def states_of(self, prompt_ids: torch.Tensor, question: slice) -> QuestionStates:
        """Return what a search reads of a prompt's question, by one forward of it that leaves no trace."""
        return tap_question(self._frame, prompt_ids, question, *self._tapped_layers())

    def _tapped_layers(self) -> tuple[list[int], list[int]]:
        """Return the layers whose queries, and those whose hidden states, a search reads of a question."""
        parts, index = self._frame.parts, set(self.config.search.index)
        layers = sorted(query_layers(self._frame.served, self.heads.profile, self.config, parts))
        question = [needs_of(one) for one in parts.retrievers]
        read = {
            layer
            for needs in question
            if not needs.kinds or index & set(needs.kinds)
            for layer in needs.question_layers
        }
        return layers, sorted(read)

    def find(
        self,
        prompt: Prompt,
        where: Where = EVERYWHERE,
        tapped: TappedQuestion | None = None,
        budget: int | None = None,
    ) -> SearchOutcome:
        """Search for a prompt. What was `tapped` before is used if its heads are still in use.

        `budget`: as `search` takes it.
        """
        self.heads.look_if_due()
        if tapped is None or tapped.profile is not self.heads.profile:
            tapped = self.tap(prompt)
        page_query, rerank = self._page_query(tapped), self._rerank(prompt)
        narrow = self._narrow(tapped)
        return search(self._frame, prompt, tapped, self.config, where, page_query, rerank, narrow, budget)

    def anywhere(self, prompt: Prompt, count: int, where: Where) -> SearchOutcome:
        """Return the `count` best places of all that was archived, in the frame or not, however large they are."""
        tapped = self.tap(prompt)
        question = PartQuery(self._frame, prompt, tapped, self.config, where, self._page_query(tapped))
        question.request |= {**where.core(), "narrow": self._narrow(tapped)}
        question.ask_finders()
        how: dict[str, Any] = {"neighbours": self.config.search.neighbours, "added": question.added}
        result = self._core.search.find(**question.request, **how, max_groups=count, token_budget=NO_BUDGET)
        return SearchOutcome(tuple(map(offer_of, result.groups)), result.agreed, result.decisiveness)

    def _narrow(self, tapped: TappedQuestion) -> _core.Narrow | None:
        """Return what the question's own words say of times and tags, where they are to narrow the search."""
        if not self.config.search.narrow:
            return None
        return filters_of(decode_text(self._tokenizer, tapped.token_ids.tolist()), self.config.search.narrow)

    def prefetch(self, token_ids: Sequence[int], answered: int, where: Where = EVERYWHERE) -> None:
        """Have parts prepare what may be needed next. `token_ids`: of question and answer, `answered` of the answer."""
        os, at = self._frame.os, self._frame.stream.branched_at
        self._frame.parts.prefetch(
            lambda: AnswerProgress(token_ids, answered, where, self.config, os.stream, os.stream_end, os.rolling[0], at)
        )

    def _rerank(self, prompt: Prompt) -> Rerank | None:
        """Return how the model re-ranks this prompt's candidates; None where it does not, or there are no keys."""
        seconds, frame = self.config.search.rerank_seconds, self._frame
        if seconds == 0 or not isinstance(frame, KvFrame):
            return None
        reranker = Reranker(frame, start_ids(self._tokenizer))
        beside, page_tokens = self.config.search.neighbours, self.config.archive.page_tokens
        return lambda result: reranker.added_scores(prompt, candidates(result, beside, page_tokens), seconds)

    def find_sentences(
        self, prompt: Prompt, where: Where = EVERYWHERE, tapped: TappedQuestion | None = None
    ) -> SearchOutcome:
        """Do as `find`, with the nearest sentences, and with the newest statement before those that it replaces.

        Where several are quoted, these are the sentences.
        """
        tapped = self.tap(prompt) if tapped is None else tapped
        budget = tokens_of(self.config.search.groups, self.config) if self.config.answer.quotes_alone else None
        found, newest = self.find(prompt, where, tapped, budget), self.config.search.newest_first
        if not found.offers or not (newest or self.config.answer.quotes):
            return found
        question, several = tapped.token_ids, self.config.answer.quotes > 1
        nearest = self._nearest(found, found.offers, question)
        again = by_text(self.config)
        if again is not None and nearest:
            ids, second = search_again(
                self._frame, question, self._words_found(nearest[0]), again, where, self._narrow(tapped)
            )
            found, new = with_second(found, second.offers, self.config)
            further = in_scale(self._nearest(second, new, ids), nearest[0].score)
            nearest = sorted([*nearest, *further], key=lambda one: -one.score)
        found = dataclasses.replace(found, sentences=tuple(nearest))
        found = newest_first(self._core, self._tokenizer, found, question) if newest else found
        return self._with_quotes_chosen(found, question, where) if several else found

    def _nearest(
        self, found: SearchOutcome, offers: Sequence[Offer], question_ids: npt.NDArray[np.int32]
    ) -> list[Sentence]:
        """Return the sentences of offers that are nearest to what was searched by, best first."""
        several = self.config.answer.quotes > 1
        return nearest_sentences(
            self._core,
            self._tokenizer,
            offers,
            question_ids,
            found.vectors,
            _CHOSEN_FROM if several else MOST_COMPARED,
            found.cosines,
            whole_weight=SEVERAL_WEIGHT if several else WHOLE_WEIGHT,
        )

    def _words_found(self, sentence: Sentence) -> npt.NDArray[np.int32]:
        """Return what a sentence says, behind what its source is called and who speaks, as token ids [n]."""
        block = block_of(self._core, sentence)
        if block is None:
            return np.zeros(0, dtype=np.int32)
        words = " ".join(words_of(self._core, self._tokenizer, [sentence]))
        said = f"\n{title_of(block.source)} {sentence.before_it}{words}"
        return encode(self._tokenizer, said).numpy().astype(np.int32)

    def _with_quotes_chosen(
        self, found: SearchOutcome, question_ids: npt.NDArray[np.int32], where: Where
    ) -> SearchOutcome:
        """Return it with those of its sentences alone that are to be quoted. What was forgotten since is none."""
        question = decode_text(self._tokenizer, question_ids.tolist())
        texts = {
            one: one.before_it + words
            for one in found.sentences
            for words in words_of(self._core, self._tokenizer, [one])
        }
        count = self.config.answer.quotes
        short = ShortTexts(self._core, self._tokenizer, where).of(list(texts))
        chosen = choose(list(texts), list(texts.values()), question, found.offers, self._rarity, count, short)
        if self.config.search.newest_first:
            chosen = self._without_older(found, chosen, [texts[one] for one in chosen], question)
        return dataclasses.replace(found, sentences=tuple(chosen))

    def _without_older(
        self, found: SearchOutcome, chosen: Sequence[Sentence], texts: Sequence[str], question: str
    ) -> list[Sentence]:
        """Return the chosen sentences without those that a newer one replaces. What was forgotten since is none."""
        alike = [0.0] * len(texts)
        if found.cosines is not None and says_now(question):  # no other question needs them
            alike = wholes_alike(found.cosines, question, texts)
        quotes = [
            Quote(one, text, near, time_of(block, one), occasion_of(block))
            for one, text, near in zip(chosen, texts, alike, strict=True)
            if (block := block_of(self._core, one)) is not None
        ]
        return without_older(quotes, question)

    def quotes(self, found: SearchOutcome, where: Where = EVERYWHERE) -> tuple[Sentence, ...]:
        """Return the `answer.quotes` sentences of what was found that are nearest to its question, best first.

        Of several, those of short texts that pass `where` are these texts.
        """
        count = self.config.answer.quotes
        there = itertools.islice((one for one in found.sentences if any(map(one.within, found.offers))), count)
        if count < 2:
            return tuple(there)
        chosen = list(there)
        return tuple(with_whole_texts(chosen, ShortTexts(self._core, self._tokenizer, where).of(chosen)))

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Return what `core.search` takes of a prompt's question, to look at index parts alone."""
        tapped = self.tap(prompt)
        question = PartQuery(self._frame, prompt, tapped, self.config, page_query=self._page_query(tapped))
        question.ask_finders()
        return question.request

    def _page_query(self, tapped: TappedQuestion) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        if self.embedder is None or "embedding" not in self.config.search.index:
            return None
        self.embedder.settle()
        return self.embedder.query(decode_text(self._tokenizer, tapped.token_ids.tolist()))

    def recent_pages(self, blocks: int, where: Where = EVERYWHERE) -> Sequence[_core.PageRef]:
        """Return the pages of the newest blocks outside of the frame."""
        os = self._frame.os
        return self._core.search.recent_pages(os.stream, os.rolling[0], blocks, **where.core())

    def passing(self, pages: Sequence[_core.PageRef], where: Where) -> list[_core.PageRef]:
        """Return those of the pages that pass `where`, in their order. Without a role it leaves none out."""
        if not where.chooses:
            return list(pages)
        blocks = {block.id for block in where.blocks(self._core, among=list({page.block for page in pages}))}
        return [page for page in pages if page.block in blocks]

    def pages_of(self, span: tuple[int, int], where: Where = EVERYWHERE) -> Sequence[_core.PageRef]:
        """Return the archived pages of a span of the frame's stream, in order of time."""
        (begin, end), os = span, self._frame.os
        pages = self._core.search.recent_pages(os.stream, os.stream_end, _ALL_BLOCKS, **where.core())
        return [page for page in pages if page.begin < end and page.end > begin]

    def anything_outside(self, where: Where = EVERYWHERE) -> bool:
        """Return whether there is a page outside of the frame, in any stream, that a search could find."""
        os = self._frame.os
        return len(self._core.search.random_pages(os.stream, os.rolling[0], 1, seed=0, **where.core())) > 0
