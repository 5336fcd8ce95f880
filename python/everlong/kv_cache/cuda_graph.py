"""One token's forward as a CUDA graph, which the host launches at once.

Decoding on a GPU is bound by the host: it launches some thousand kernels for each token. A frame's buffers never move,
and the token's id, position and slot can stand in a tensor. So the kernels of one token are recorded once and played
again for each. Attention then goes through all slots of the frame, under a mask that shows those in use.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.phase import PhaseTap
from everlong.kv_cache.watched_model import WatchedModel
from everlong.models.attach import AttachedModel
from everlong.models.packing import takes_masks
from everlong.models.releases import cache_argument
from everlong.models.tokens import Tokens

_LOGGER = logging.getLogger("everlong")
_TOKENS_BEFORE = 4  # a recording takes as long as some tokens, and a short answer has no more


class GraphStep:
    """Computes one token behind a cache's newest slot, as `FrameForward` does.

    It stands aside for what it cannot do. Those are models whose forward needs the host or keeps a state of its own,
    forwards that some slots are hidden from, or wait for, and forwards that a hook listens to: hooks run while a step
    is recorded, and not when it is played.
    """

    def __init__(self, served: AttachedModel, cache: ResidentCache, phase: PhaseTap) -> None:
        self._served, self._cache, self._phase = served, cache, phase
        self._able = served.device.type == "cuda" and takes_masks(served.model) and not cache.own
        # The token's id, its position as the model counts, its slot, and the first slot that it sees.
        self._given = torch.zeros(4, dtype=torch.int64, device=served.device)
        self._slots = torch.arange(cache.slots, device=served.device)
        self._graph: Any = None
        self._logits = torch.zeros(0)  # [1, V], written whenever the graph is played
        self._model = WatchedModel(served)
        self._tokens = 0  # one by one, since something else was computed

    @property
    def recorded(self) -> bool:
        """Whether a token is computed by playing a recorded graph."""
        return self._graph is not None

    def token(self, chunk: Tokens, position: int) -> torch.Tensor | None:
        """Compute a token at a position as the model counts. Return its logits [1, V]; None: the caller computes it."""
        aside = chunk.embeds is not None or self._cache.hidden is not None or self._cache.arriving is not None
        if not self._able or len(chunk) != 1 or aside:
            self._tokens = 0
            return None
        self._tokens += 1
        if self._model.changed():
            self._graph = None
        if self._model.listened_to() or not (self._graph or (self._tokens > _TOKENS_BEFORE and self._record())):
            return None
        self.give(int(chunk.ids[0]), position)
        self._graph.replay()
        self._cache.end += 1
        return self._logits.clone()

    def give(self, token_id: int, position: int) -> None:
        """Set what the next `compute` reads."""
        given = torch.tensor([token_id, position, self._cache.end, self._cache.begin], device="cpu")
        self._given.copy_(given, non_blocking=True)

    def compute(self) -> torch.Tensor:
        """Run the model over what was given. Return logits [1, V]. The cache's end stays where it is."""
        cache, given = self._cache, self._given
        slot = given[2:3]
        seen = (self._slots >= given[3]) & (self._slots <= slot)
        with cache.forward(slot):
            out = self._served.model(
                input_ids=given[0:1][None],
                attention_mask=seen[None, None, None],
                position_ids=given[1:2][None],
                **{cache_argument(self._served.model): cache},
                use_cache=True,
                logits_to_keep=1,
            )
        cos, sin = self._phase.newest
        cache.cos.index_copy_(0, slot, cos)
        cache.sin.index_copy_(0, slot, sin)
        logits: torch.Tensor = out.logits[0]
        return logits

    def _record(self) -> bool:
        """Record `compute`. Return whether that worked."""
        device = self._served.device
        graph = torch.cuda.CUDAGraph()
        aside: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.give(0, self._served.first_position)  # the token that follows is written over this one
        try:
            aside.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(aside):  # kernels and their workspaces must be there before
                self.compute()
            torch.cuda.current_stream(device).wait_stream(aside)
            # Other threads copy blocks meanwhile.
            with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
                self._logits = self.compute()
        except RuntimeError as error:
            _LOGGER.info("tokens are computed kernel by kernel, because a step could not be recorded: %s", error)
            torch.cuda.synchronize(device)
            self._able = False
            return False
        self._graph = graph
        return True
