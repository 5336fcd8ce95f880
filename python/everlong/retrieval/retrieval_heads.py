"""The model's retrieval heads over one memory: which they are, when to look for them anew, and the index by them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from everlong.config.search import HeadsKeys, SearchConfig
from everlong.frame.frame import Frame
from everlong.memory.fingerprint import Fingerprint
from everlong.models.model_interface import gpu_of
from everlong.retrieval.calibration import calibrate, pages_to_quote
from everlong.retrieval.profile import (
    FEWEST_PAGES,
    IndexProfile,
    load_model_profile,
    load_profile,
    save_model_profile,
    store_profile,
)
from everlong.retrieval.question_states import tap_question
from everlong.text.encoding import decode_text
from everlong.text.prompt import quoting_prompt

_LOGGER = logging.getLogger("everlong")

# With fewer pages every head ranks well on quotes. Heads cannot be told apart, and words alone find the page.
MIN_CALIBRATION_PAGES = 64


class RetrievalHeads:
    """The retrieval heads of one frame. For the frame's thread alone."""

    def __init__(self, frame: Frame, tokenizer: Any, prints: Fingerprint, search: SearchConfig) -> None:
        self._frame, self._tokenizer, self._prints = frame, tokenizer, prints
        self.search = search  # other settings hold from the next question on
        self._core = frame.memory.core
        # The heads in use; None before the first question, or while the memory is too small to tell.
        self.profile = self._fitting(load_profile(self._core))
        # The heads whose keys the index holds, and how.
        self._searched_by: tuple[IndexProfile, HeadsKeys, int] | None = None
        if "heads" in search.index:
            if self.profile is None:
                self._use_earlier_profile()
            else:
                self._search_by(self.profile)

    def look(self, *, seed: int = 0) -> IndexProfile:
        """Find the model's retrieval heads on the memory's own text. Keep them, for the model's next memory too.

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
            heads=self.search.retrieval_heads,
            query_distance=self._query_distance,
            seed=seed,
        )
        _LOGGER.info("calibrated in %.1f s: retrieval heads %s", time.monotonic() - started, profile.heads)
        self._use_profile(profile)
        save_model_profile(self._prints, profile)
        return profile

    def look_if_due(self) -> None:
        """Look for heads before a search, where none were looked for yet, or among few pages that are many by now."""
        if "heads" not in self.search.index:
            return
        if self.profile is not None and self._searched_by != self._to_search_by(self.profile):
            self._search_by(self.profile)
        known = self.profile.pages if self.profile is not None else 0
        if known >= FEWEST_PAGES:
            return
        pages = len(pages_to_quote(self._core))
        # A profile from few pages is redone once there are enough to tell heads apart.
        if (known == 0 and pages >= MIN_CALIBRATION_PAGES) or (known > 0 and pages >= 4 * known):
            self.look()

    @property
    def _query_distance(self) -> int:
        distance, window = self.search.query_distance, self._frame.served.window
        return distance if window is None else min(distance, window // 4)

    def _use_earlier_profile(self) -> None:
        heads = self.search.retrieval_heads
        known = self._fitting(load_model_profile(self._prints, heads=heads, query_distance=self._query_distance))
        if known is not None:
            self._use_profile(known)

    def _fitting(self, profile: IndexProfile | None) -> IndexProfile | None:
        """Return a profile with heads that this model has; None for a damaged one, which is then found anew."""
        keyed = self._frame.served.keyed
        if profile is None or keyed is None:
            return profile
        return profile if profile.fits(keyed.layers, keyed.query_heads, keyed.kv_heads) else None

    def _use_profile(self, profile: IndexProfile) -> None:
        store_profile(self._core, profile)
        self.profile = profile
        if "heads" in self.search.index:
            self._search_by(profile)

    def _search_by(self, profile: IndexProfile) -> None:
        """Let the index search by the profile's heads, on the model's device."""
        search = self.search
        self._core.index.set_retrieval_heads(
            profile.heads,
            keys=search.heads_keys,
            device=gpu_of(self._frame.served, search.heads_device_bytes),
            device_bytes=search.heads_device_bytes,
        )
        self._searched_by = self._to_search_by(profile)

    def _to_search_by(self, profile: IndexProfile) -> tuple[IndexProfile, HeadsKeys, int]:
        return profile, self.search.heads_keys, self.search.heads_device_bytes
