"""The trigger at work: the probability of a topic's end at each token, and the threshold for blocks
of a wanted length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.frame.part import Hidden, Needs, TopicSegmenter
from everlong.frame.taps import side_by_side
from everlong.models.pack import Pack
from everlong.parts.trigger.model import TRIGGER, TriggerNet, calibration_of

ENDS = ("", "sentence", "paragraph")  # what a token may end, as the calibration text keeps it
_NEVER = 2.0  # a threshold that no probability reaches
_CHUNK_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class BoundaryPredictions:
    """What the trigger says of a text: probabilities [n], and where its sentences and paragraphs
    end, as tokens before.
    """

    probabilities: npt.NDArray[np.float32]
    ends: Sequence[tuple[int, str]]


class TriggerRuntime(TopicSegmenter):
    """A pack's trigger over the text of one frame. Not thread-safe."""

    def __init__(self, pack: Pack, os_config: _core.MemoryOsConfig, mean_tokens: int) -> None:
        """Load the trigger, with a threshold that gives blocks of `mean_tokens` on average by the rules of `os_config`.

        The mean holds as far as the calibration text is like the text that is read.
        """
        part = pack.parts[TRIGGER]
        self.trigger = TriggerNet.of_part(part)
        self.id = part.id
        self.needs = Needs(hidden_layers=self.trigger.settings.layers)
        texts = predict_boundaries(calibration_of(part))
        self._threshold = threshold_for(texts, os_config, self.lookahead, mean_tokens)
        self._before: torch.Tensor | None = None  # the newest states of the text

    @property
    def threshold(self) -> float:
        return self._threshold

    @property
    def lookahead(self) -> int:
        return self.trigger.settings.lookahead

    @torch.no_grad()
    def boundary_probabilities(self, ids: torch.Tensor, hidden: Hidden, *, begins: bool) -> npt.NDArray[np.float32]:
        states = side_by_side(hidden, self.needs.hidden_layers).float().cpu()
        known = states if begins or self._before is None else torch.cat([self._before, states])
        self._before = known[-self.trigger.settings.reach :]
        state: npt.NDArray[np.float32] = self.trigger.probabilities(known)[-len(states) :].numpy()
        return state


def threshold_for(
    texts: Sequence[BoundaryPredictions], os_config: _core.MemoryOsConfig, lookahead: int, mean_tokens: int
) -> float:
    """Return the threshold by which the Memory OS cuts these texts into blocks of a mean nearest to `mean_tokens`."""
    state = np.unique(np.concatenate([text.probabilities for text in texts])) if texts else np.zeros(0, np.float32)
    candidates = np.append(state[state > 0], np.float32(_NEVER))
    low, high = 0, len(candidates) - 1  # the mean grows with the threshold, except for a few tokens
    best, distance = _NEVER, np.inf
    while low <= high:
        middle = (low + high) // 2
        threshold = float(candidates[middle])
        lengths = [length for text in texts for length in block_lengths(text, os_config, threshold, lookahead)]
        mean = float(np.mean(lengths)) if lengths else np.inf
        if abs(mean - mean_tokens) < distance:
            best, distance = threshold, abs(mean - mean_tokens)
        if mean < mean_tokens:
            low = middle + 1
        else:
            high = middle - 1
    return best


def block_lengths(
    text: BoundaryPredictions, os_config: _core.MemoryOsConfig, threshold: float, lookahead: int
) -> list[int]:
    """Return the lengths of the blocks that the Memory OS makes of a text, without the last one, which the text's end
    cuts.
    """
    return [end - begin for begin, end in blocks_of(text, os_config, threshold, lookahead)]


def blocks_of(
    text: BoundaryPredictions, os_config: _core.MemoryOsConfig, threshold: float, lookahead: int
) -> Iterator[tuple[int, int]]:
    """Yield begin and end of those blocks."""
    os_config.topic_threshold, os_config.topic_lookahead = threshold, lookahead
    os_config.kept_tokens = 0  # kept tokens change no block
    os = _core.MemoryOs(os_config)
    done, next_end = 0, 0
    while done < len(text.probabilities):
        count = min(_CHUNK_TOKENS, os.room(), len(text.probabilities) - done)
        chunk_ends = []
        while next_end < len(text.ends) and text.ends[next_end][0] <= done + count:
            at, kind = text.ends[next_end]
            chunk_ends.append((at - done, kind))
            next_end += 1
        for action in os.observe(count, "read", chunk_ends, text.probabilities[done : done + count]):
            if isinstance(action, _core.Archive):
                yield action.begin, action.end
        done += count


def stored_predictions(texts: Sequence[BoundaryPredictions]) -> dict[str, torch.Tensor]:
    """Return the texts as a pack keeps them.

    Probabilities and what each token ends are stored one text after the other, with the texts' lengths beside them.
    """
    codes = []
    for text in texts:
        code = np.zeros(len(text.probabilities), dtype=np.uint8)
        for at, kind in text.ends:
            code[at - 1] = ENDS.index(kind)
        codes.append(code)
    return {
        "probabilities": torch.from_numpy(np.concatenate([text.probabilities for text in texts])),
        "ends": torch.from_numpy(np.concatenate(codes)),
        "lengths": torch.tensor([len(text.probabilities) for text in texts]),
    }


def predict_boundaries(kept: Mapping[str, torch.Tensor]) -> list[BoundaryPredictions]:
    """Return the texts that `stored_predictions` packed."""
    texts, first = [], 0
    for length in kept["lengths"].tolist():
        own = slice(first, first + length)
        ends = [(at + 1, ENDS[code]) for at, code in enumerate(kept["ends"][own].tolist()) if code]
        texts.append(BoundaryPredictions(kept["probabilities"][own].float().numpy(), ends))
        first += length
    return texts
