"""What a MemoryModel finds pages with: its retrieval heads and their calibration, the encoder, and the citations."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.frame.frame import Frame
from everlong.frame.kv_frame import KvFrame
from everlong.frame.older_blocks import MakesTensors, OlderBlocks
from everlong.frame.older_kept import OlderKept
from everlong.frame.part import Needs, Offer, Said
from everlong.frame.parts import needs_of
from everlong.memory.fingerprint import Fingerprint
from everlong.memory.origins import told_apart
from everlong.memory.where import EVERYWHERE, Role, Where
from everlong.retrieval.background import Background
from everlong.retrieval.calibrate import calibrate, pages_to_quote
from everlong.retrieval.embedding import PageEmbedder
from everlong.retrieval.graph_growth import GraphGrowth
from everlong.retrieval.model_tags import ModelTags
from everlong.retrieval.narrowing import block_tags, keyphrases_of, narrowed_by
from everlong.retrieval.profile import (
    FEWEST_PAGES,
    IndexProfile,
    keep_profile,
    load_model_profile,
    load_profile,
    save_model_profile,
)
from everlong.retrieval.quotes import Sentence, nearest_sentences
from everlong.retrieval.recall import (
    Asked,
    Found,
    Group,
    QuestionStates,
    Recall,
    Rerank,
    Tapped,
    best_page,
    query_layers,
    search,
    tap_question,
)
from everlong.retrieval.rerank import Reranker, candidates
from everlong.retrieval.settings import HeadsKeys
from everlong.text.boundaries import TextBoundaries
from everlong.text.encoding import decode_text
from everlong.text.prompt import Prompt, quoting_prompt, start_ids
from everlong.text.vectors import Encoder

_LOGGER = logging.getLogger("everlong")

_ALL_BLOCKS = (1 << 31) - 1

# Below this many pages every head ranks well on quotes: nothing can be told apart, and words alone find the page.
MIN_CALIBRATION_PAGES = 64

_WALKED_AHEAD = 2  # times as many groups as come back for a question


class Searcher:
    """Finds what a prompt needs in a frame's memory. Used by the frame's thread alone; `close` ends the encoder's."""

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
        self._boundaries = TextBoundaries(tokenizer)
        self.config = config  # another one holds from the next question on
        self.prints = prints
        self._profile = self._fitting(load_profile(self._core))
        # Whose heads' keys the index holds, and how.
        self._searched_by: tuple[IndexProfile, HeadsKeys, int] | None = None
        if "heads" in config.search.index:
            if self._profile is None:
                self._use_earlier_profile()
            else:
                self._search_by(self._profile)
        self.embedder: PageEmbedder | None = None
        if encoder is not None:
            self.embedder = PageEmbedder(self._core, tokenizer, encoder, search=config.search.embedding_index)
            embedder = self.embedder  # which has a thread of its own
            frame.observe(lambda *archived: embedder.archived())
        if config.archive.tagger == "keyphrases":
            frame.tagger = block_tags(keyphrases_of(self._core, tokenizer), tokenizer)
        self._filling: list[Background] = []
        if config.archive.tagger == "model" and not self._core.read_only:
            self._tag_by_model()
        self._growth: GraphGrowth | None = None
        if config.archive.graph and not self._core.read_only:
            growth = self._growth = GraphGrowth(self._core, config.archive.graph_share)
            frame.observe(lambda *archived: growth.archived())
            if self.embedder is not None:
                self.embedder.tell(growth.archived)
        if not self._core.read_only:
            for one in frame.parts.having("lacks"):
                lacks = functools.partial(one.lacks, self._core)
                self._fill_older_blocks(one.block, functools.partial(needs_of, one), lacks)
            if config.frame.kept_tokens > 0 and config.answer.recall_mode == "kept":
                older = OlderKept(self._core, config, frame.parts)
                self._fill_older_blocks(older.tensors, older.needs, older.missing)

    def _tag_by_model(self) -> None:
        """In the background, every block that the model was not asked about."""
        tags = ModelTags(self._core, self._frame.served.model, copy.deepcopy(self._tokenizer))
        tagging = Background(
            tags.fill, name="everlong tags", doing="the model has tagged the newest blocks", failed="no tags were made"
        )
        self._frame.observe(lambda *archived: tagging.wake())
        tagging.wake()
        self._filling.append(tagging)

    def _fill_older_blocks(
        self, make: MakesTensors, needs: Callable[[], Needs], without: Callable[[], Sequence[int]]
    ) -> None:
        """In the background, for blocks that were archived before there was who makes these tensors."""
        if not without():
            return
        older = OlderBlocks(self._core, self._frame.served.model, make, needs, without)
        filling = Background(
            older.fill,
            name="everlong older blocks",
            doing="older blocks have what is stored with a block now",
            failed="what is stored with a block could not be made for older ones",
        )
        filling.wake()
        self._filling.append(filling)

    def settle(self) -> None:
        """Return once every page has its vectors, and every block its Detail Tokens and its place in the graph.

        Those, too, of memories that were archived without them.
        """
        for background in (self.embedder, *self._filling, self._growth, self._frame.parts):
            if background is not None:
                background.settle()

    def close(self) -> None:
        for background in (self.embedder, *self._filling, self._growth, self._frame.parts):
            if background is not None:
                background.close()

    # --- from a prompt to pages

    def tap(self, prompt: Prompt) -> Tapped:
        """Read a prompt without a trace, behind what the frame holds now but for recalled pages."""
        self.calibrate_if_due()
        states = self.states_of(prompt.ids, prompt.question)
        return Tapped(prompt.ids[prompt.question].numpy().astype(np.int32), states, self._profile)

    def states_of(self, prompt_ids: torch.Tensor, question: slice) -> QuestionStates:
        """What of a prompt's question a search reads, by one forward of it that leaves no trace."""
        parts, index = self._frame.parts, set(self.config.search.index)
        layers = sorted(query_layers(self._frame.served, self._profile, self.config, parts))
        asked = [needs_of(one) for one in parts.having("asked")]
        read = {
            layer for needs in asked if not needs.kinds or index & set(needs.kinds) for layer in needs.question_layers
        }
        return tap_question(self._frame, prompt_ids, question, layers, sorted(read))

    def find(self, prompt: Prompt, where: Where = EVERYWHERE, tapped: Tapped | None = None) -> Found:
        """Search for a prompt; by what was `tapped` before, if its heads are still in use."""
        self.calibrate_if_due()
        if tapped is None or tapped.profile is not self._profile:
            tapped = self.tap(prompt)
        page_query, rerank = self._page_query(tapped), self._rerank(prompt)
        return search(self._frame, prompt, tapped, self.config, where, page_query, rerank, self._narrow(tapped))

    def _narrow(self, tapped: Tapped) -> _core.Narrow | None:
        """What the question's own words say of times and tags, where they are to."""
        if not self.config.search.narrow:
            return None
        return narrowed_by(decode_text(self._tokenizer, tapped.token_ids.tolist()), self.config.search.narrow)

    def ahead(self, token_ids: Sequence[int], answered: int, where: Where = EVERYWHERE) -> None:
        """Tell the parts what is asked and said: ids of question and answer so far, `answered` of the answer."""
        os, branched_at = self._frame.os, self._frame.branched_at
        self._frame.parts.ahead(
            lambda: Said(token_ids, answered, where, self.config, os.stream, os.stream_end, os.rolling[0], branched_at)
        )

    def _rerank(self, prompt: Prompt) -> Rerank | None:
        """How this prompt's candidates are looked at by the model, where that is asked for and there are keys."""
        seconds, frame = self.config.search.rerank_seconds, self._frame
        if seconds == 0 or not isinstance(frame, KvFrame):
            return None
        reranker = Reranker(frame, start_ids(self._tokenizer))
        beside, page_tokens = self.config.search.neighbours, self.config.archive.page_tokens
        return lambda result: reranker.added_scores(prompt, candidates(result, beside, page_tokens), seconds)

    def quotes(self, found: Found, tapped: Tapped) -> list[Sentence]:
        """Of what was found the sentences nearest to its question, `answer.quotes` of them, best first."""
        count = self.config.answer.quotes
        if count == 0:
            return []
        return nearest_sentences(self._core, self._boundaries, found.groups, tapped.token_ids, found.vectors, count)

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        """What `core.search` and `core.rankings` take of a prompt's question, for who looks at the parts one by one."""
        tapped = self.tap(prompt)
        asked = Asked(self._frame, prompt, tapped, self.config, page_query=self._page_query(tapped))
        asked.ask_finders()
        return asked.request

    def _page_query(self, tapped: Tapped) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        if self.embedder is None or "embedding" not in self.config.search.index:
            return None
        self.embedder.settle()
        return self.embedder.query(decode_text(self._tokenizer, tapped.token_ids.tolist()))

    def recent_pages(self, blocks: int, where: Where = EVERYWHERE) -> Sequence[_core.PageRef]:
        """The pages of the newest blocks outside of the frame."""
        os = self._frame.os
        return self._core.recent_pages(os.stream, os.rolling[0], blocks, **where.core())

    def pages_of(self, span: tuple[int, int], where: Where = EVERYWHERE) -> Sequence[_core.PageRef]:
        """The archived pages of a span of the frame's stream, in order of time."""
        (begin, end), os = span, self._frame.os
        pages = self._core.recent_pages(os.stream, os.stream_end, _ALL_BLOCKS, **where.core())
        return [page for page in pages if page.begin < end and page.end > begin]

    def anything_outside(self, where: Where = EVERYWHERE) -> bool:
        """Whether there is a page outside of the frame, in any stream, that a search could find."""
        os = self._frame.os
        return len(self._core.random_pages(os.stream, os.rolling[0], 1, seed=0, **where.core())) > 0

    def cite_pages(self, pages: Sequence[_core.PageRef], found_by: str) -> tuple[Recall, ...]:
        """Pages that came back without a search, a block at a time, in their order; their score is 0."""
        cited = []
        for block, run in itertools.groupby(pages, key=lambda page: page.block):
            of_block = list(run)
            begin, end = of_block[0].begin, of_block[-1].end
            text = self._text(of_block[0].stream, begin, end)
            info = self._core.block(block)
            cited.append(
                Recall(
                    block_id=block,
                    span=(begin, end),
                    score=0.0,
                    source=info.source,
                    text=text,
                    passage=text,
                    found_by=(found_by,),
                    role=cast(Role, info.role),
                    origin=told_apart(info.tags)[1],
                    as_details=self.config.answer.recall_mode == "detail" and self._has_details(block),
                )
            )
        return tuple(cited)

    def _has_details(self, block: int) -> bool:
        details = self._frame.parts.details
        return details is not None and details.has(block)

    def _text(self, stream: int, begin: int, end: int) -> str:
        return decode_text(self._tokenizer, self._core.token_ids(stream, begin, end).tolist())

    def cite(self, found: Found) -> tuple[Recall, ...]:
        """What comes back of it as a user reads it, best first: its groups, then blocks as Detail Tokens."""
        soft = [one for one in found.blocks if self._has_details(one.page.block)]
        groups = found.groups
        if self.config.answer.recall_mode == "detail":
            groups = tuple(group for group in groups if not self._has_details(best_page(group).block))

        def cited(group: Group) -> Recall:
            page = best_page(group)
            info = self._core.block(page.block)
            return Recall(
                block_id=group.pages[0].block,
                span=(group.begin, group.end),
                score=group.score,
                source=group.source,
                text=self._text(group.stream, group.begin, group.end),
                passage=self._text(page.stream, page.begin, page.end),
                found_by=(*group.found_by, *(["graph"] if group.walked else [])),
                role=cast(Role, info.role),
                confidence=group.confidence,
                origin=told_apart(info.tags)[1],
            )

        def cited_whole(one: Offer) -> Recall:
            info = self._core.block(one.page.block)
            return Recall(
                block_id=info.id,
                span=(info.begin, info.end),
                score=one.score,
                source=info.source,
                text=self._text(info.stream, info.begin, info.end),
                passage=self._text(info.stream, one.page.begin, one.page.end),
                found_by=one.found_by,
                role=cast(Role, info.role),
                origin=told_apart(info.tags)[1],
                as_details=True,
            )

        return (*map(cited, groups), *map(cited_whole, soft))

    # --- retrieval heads

    @property
    def profile(self) -> IndexProfile | None:
        """The retrieval heads in use; None before the first question or while the memory is too small to tell."""
        return self._profile

    def calibrate(self, *, seed: int = 0) -> IndexProfile:
        """Find the model's retrieval heads on the memory's own text; keep them, for the model's next memory too.

        EverlongError in a memory of text alone: it has no keys.
        """
        frame = self._frame
        started = time.monotonic()
        _LOGGER.info(
            "calibrating: looking for the model's retrieval heads in %d pages", len(pages_to_quote(self._core))
        )

        def ask(question: str, layers: Sequence[int]) -> tuple[Any, Mapping[int, torch.Tensor]]:
            prompt = quoting_prompt(self._tokenizer, question)
            ids = prompt.ids[prompt.question].numpy().astype(np.int32)
            return ids, tap_question(frame, prompt.ids, prompt.question, layers).queries

        profile = calibrate(
            frame,
            ask,
            lambda ids: decode_text(self._tokenizer, ids),
            heads=self.config.search.retrieval_heads,
            query_distance=self._query_distance,
            seed=seed,
        )
        _LOGGER.info("calibrated in %.1f s: retrieval heads %s", time.monotonic() - started, profile.heads)
        self._use_profile(profile)
        save_model_profile(self.prints, profile)
        return profile

    def calibrate_if_due(self) -> None:
        """Before a search: heads that were not looked for yet, or among few pages of what are many by now."""
        if "heads" not in self.config.search.index:
            return
        if self._profile is not None and self._searched_by != self._to_search_by(self._profile):
            self._search_by(self._profile)
        known = self._profile.pages if self._profile is not None else 0
        if known >= FEWEST_PAGES:
            return
        pages = len(pages_to_quote(self._core))
        # A profile from few pages is redone once there are enough to tell heads apart.
        if (known == 0 and pages >= MIN_CALIBRATION_PAGES) or (known > 0 and pages >= 4 * known):
            self.calibrate()

    @property
    def _query_distance(self) -> int:
        distance, window = self.config.search.query_distance, self._frame.served.window
        return distance if window is None else min(distance, window // 4)

    def _use_earlier_profile(self) -> None:
        heads = self.config.search.retrieval_heads
        known = self._fitting(load_model_profile(self.prints, heads=heads, query_distance=self._query_distance))
        if known is not None:
            self._use_profile(known)

    def _fitting(self, profile: IndexProfile | None) -> IndexProfile | None:
        """A profile whose heads this model has; None, and so found anew, for a damaged one."""
        keyed = self._frame.served.keyed
        if profile is None or keyed is None:
            return profile
        return profile if profile.fits(keyed.layers, keyed.query_heads, keyed.kv_heads) else None

    def _use_profile(self, profile: IndexProfile) -> None:
        keep_profile(self._core, profile)
        self._profile = profile
        if "heads" in self.config.search.index:
            self._search_by(profile)

    def _search_by(self, profile: IndexProfile) -> None:
        """Let the index search by the profile's heads, where the model computes."""
        self._core.set_retrieval_heads(
            profile.heads,
            keys=self.config.search.heads_keys,
            device=self._gpu(self.config.search.heads_device_bytes),
            device_bytes=self.config.search.heads_device_bytes,
        )
        self._searched_by = self._to_search_by(profile)

    def _gpu(self, most_bytes: int) -> int | None:
        """Where the model computes, if that is a GPU of which a part of the index may have something."""
        device = self._frame.served.device
        return device.index if device.type != "cpu" and most_bytes > 0 else None

    def _to_search_by(self, profile: IndexProfile) -> tuple[IndexProfile, HeadsKeys, int]:
        return profile, self.config.search.heads_keys, self.config.search.heads_device_bytes
