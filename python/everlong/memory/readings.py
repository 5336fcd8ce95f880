"""Readings that were cut short: what a memory has of them, so that a reading that begins again goes on."""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core

_ATTRIBUTE = "readings"  # of the manifest
_EARLIER = "reading"  # where earlier versions of everlong, before jobs, noted the one unfinished source
_NOTHING = torch.zeros(0, dtype=torch.int64, device="cpu")

# Spans of the stream, [first, end) each. The last one has no end while its text is being read.
_Job = list[list[int]]
_WHOLE: _Job = []  # stands for all that the memory has of a text, from finished or forgotten readings


class Readings:
    """The unfinished readings of one stream, kept in the memory's manifest.

    A job is one text, or several that are read one after the other. It is finished when its last text was read to its
    end. Only a job's spans are kept. The memory's blocks say which tokens they hold under which source.
    """

    def __init__(self, core: _core.Memory, stream: int, start: int = 0) -> None:
        """`start`: how many ids stand before every text of that tokenizer, and begin the stream."""
        self._core = core
        self._stream = stream
        self._start = start
        attributes = core.manifest().attributes
        self._jobs: list[_Job] = json.loads(attributes.get(_ATTRIBUTE) or "{}").get(str(stream), [])
        earlier = json.loads(attributes.get(_EARLIER) or "{}")
        if earlier.get("stream") == stream:
            self._jobs.append([[earlier["begin"]]])
        self._job: _Job | None = None  # the one at work
        self._known: dict[str, torch.Tensor] = {}  # what it had read when it began again, by source, less what was met
        self._source = ""
        # Earlier readings that the text at work may go on with, and the ids that each has under its name.
        self._candidates: list[tuple[_Job, torch.Tensor]] = []
        self._met = _NOTHING  # ids of the text that all candidates have
        self.resumed = 0  # ids of the newest text that an earlier reading had
        self.already = 0  # the same, for a reading that had read all of it to its end
        open_jobs = [job for job in self._jobs if len(job[-1]) == 1]
        for job in open_jobs:  # the process died while it read; nothing came behind that
            job[-1].append(core.blocks.stream_end(stream))
        if open_jobs and not core.read_only:
            self._keep()
            core.set_attribute(_EARLIER, "")

    def begin(self, source: str, first: int, text: str | None = None, *, again: bool = False) -> None:
        """Begin a text of that name. What is new of it stands in the stream from token `first` on.

        `text` is the tag of its blocks, and of those of every earlier reading of it. `again`: read all of it anew.
        """
        # What was forgotten at the end of the stream leaves its places to this text, and not to the job that had them.
        self._jobs = [
            [[begin, min(end, first)] for begin, end in job if begin < first] if job is not self._job else job
            for job in self._jobs
        ]
        self._jobs = [job for job in self._jobs if job or job is self._job]
        if self._job is None:
            self._job = []
            self._jobs = [*self._jobs, self._job]
        self._source, self.resumed, self.already, self._met = source, 0, 0, _NOTHING
        if source in self._known:
            self._candidates = [(self._job, self._known[source])]
        else:
            self._candidates = self._held_by(self._jobs, source)
        if text is not None:
            self._candidates.append((_WHOLE, self._held_as(text)))
        if again:
            self._candidates = []
        self._candidates = [candidate for candidate in self._candidates if len(candidate[1]) > 0]
        self._known[source] = _NOTHING
        if self._job and self._job[-1][1:] in ([], [first]):
            del self._job[-1][1:]
        else:
            self._job.append([first])
        self._keep()

    def unread(self, ids: torch.Tensor) -> torch.Tensor:
        """Return what is to be read now, when ids [n] come next in the text.

        A text goes on with an earlier reading when it has all of that reading. Until that is certain nothing of it is
        read. If it differs, it is another text, and is read from its beginning.
        """
        if not self._candidates:
            return ids
        begin = len(self._met)
        end = begin + len(ids)
        self._candidates = [
            (job, held)
            for job, held in self._candidates
            if torch.equal(held[begin:end], ids[: max(0, len(held) - begin)])
        ]
        if not self._candidates:
            return torch.cat([self._met, ids])
        longest = max((held for _, held in self._candidates), key=len)
        if len(longest) > end:
            self._met = longest[:end]  # a view: a text may come in many pieces
            return _NOTHING
        self._met = torch.cat([self._met, ids])
        _, held = self._go_on_with_longest()
        return self._met[len(held) :]

    def end(self, last: int, *, finished: bool, more: bool = False) -> None:
        """End the text before token `last` of the stream: `finished` as a whole, with `more` of its job to come."""
        assert self._job is not None
        if self._candidates:  # the text ends within what was read of it
            _, held = self._go_on_with_longest()
            self._known[self._source] = held[len(self._met) :]
        self._job[-1].append(last)
        if last <= self._job[-1][0]:
            self._job.pop()
        if finished and not more:
            self._jobs = [job for job in self._jobs if job is not self._job]
        if not (finished and more):
            self._job, self._known = None, {}
        self._keep()

    def _go_on_with_longest(self) -> tuple[_Job, torch.Tensor]:
        """Make the earlier reading that the text goes on with a part of this one."""
        assert self._job is not None
        earlier, held = max(self._candidates, key=lambda candidate: len(candidate[1]))
        self._candidates = []
        known = min(len(held), len(self._met))
        if earlier is _WHOLE:
            self.already = known
            return earlier, held
        self.resumed = known
        if earlier is not self._job:
            self._job[:] = sorted([*earlier, *self._job])
            self._jobs = [job for job in self._jobs if job is not earlier]
        return earlier, held

    def _held_by(self, jobs: Sequence[_Job], source: str) -> list[tuple[_Job, torch.Tensor]]:
        """Return the jobs, each with the token ids [n] that the memory holds of its texts of that name.

        The ids are in order of the stream. Spans lie apart, so a search finds the first that a block may lie in.
        """
        spans = sorted((*span, number) for number, job in enumerate(jobs) for span in job if len(span) == 2)
        pieces: list[list[npt.NDArray[np.int32]]] = [[np.zeros(0, dtype=np.int32)] for _ in jobs]
        for block in self._core.blocks.infos(source=source) if spans else ():
            if block.stream != self._stream:
                continue
            for first, last, number in spans[bisect.bisect_right(spans, block.begin, key=lambda span: span[1]) :]:
                if first >= block.end:
                    break
                begin, end = max(first, block.begin), min(last, block.end)
                pieces[number].append(self._core.blocks.token_ids(self._stream, begin, end))
        found = [torch.from_numpy(np.concatenate(piece).astype(np.int64)) for piece in pieces]
        return list(zip(jobs, found, strict=True))

    def _held_as(self, text: str) -> torch.Tensor:
        """Return token ids [n] that the memory holds under the tag of a text, in order of the stream."""
        # The index tells at once that no block has a tag. The catalog is only looked through for a tag that some have.
        if not self._core.search.recent_pages(self._stream, self._core.blocks.stream_end(self._stream), 1, tags=[text]):
            return _NOTHING
        blocks = [block for block in self._core.blocks.infos(tag=text) if block.stream == self._stream]
        ids = [self._core.blocks.token_ids(self._stream, max(block.begin, self._start), block.end) for block in blocks]
        return torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int32), *ids]).astype(np.int64))

    def _keep(self) -> None:
        kept = json.loads(self._core.manifest().attributes.get(_ATTRIBUTE) or "{}")
        kept[str(self._stream)] = [job for job in self._jobs if job]
        self._core.set_attribute(_ATTRIBUTE, json.dumps(kept))
