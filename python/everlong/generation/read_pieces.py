"""Reads pieces of a text into a frame, in chunks, as the one text that they are."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from typing import Any

import torch

from everlong.frame.frame import Frame
from everlong.generation.progress import Progress, report_progress
from everlong.memory.places import Places
from everlong.memory.readings import Readings
from everlong.memory.text_input import require_piece
from everlong.text.encoding import TextEncoder
from everlong.text.prompt import require_unicode


def read_pieces(
    frame: Frame,
    readings: Readings,
    tokenizer: Any,
    pieces: Iterable[str],
    label: str,
    places: Places,
    *,
    special_tokens: bool,
    progress: Progress,
) -> int:
    """Read pieces in chunks as one text, except what the memory has. Return how many tokens were read.

    `places` is told where each token stands.
    """
    tokens = 0
    ended = False  # all of it was tokenized
    size = frame.config.frame.chunk_tokens

    def chunks() -> Generator[torch.Tensor]:
        nonlocal tokens, ended
        waiting = torch.zeros(0, dtype=torch.int64, device="cpu")  # ids of short pieces, until they make a chunk

        def unread(ids: torch.Tensor) -> torch.Tensor:
            nonlocal tokens
            new = readings.unread(ids)
            tokens += len(new)
            places.note(encoder.begins[: len(ids)], tokens)
            return torch.cat([waiting, new])

        encoder = TextEncoder(tokenizer, special_tokens=special_tokens)
        try:
            for number, piece in enumerate(pieces):
                require_piece(piece, number)
                require_unicode(piece)
                waiting = unread(encoder.add(piece))
                whole = len(waiting) // size * size
                full, waiting = waiting[:whole], waiting[whole:]
                yield full
                reporter.step()
        except GeneratorExit:  # a chunk failed: what waits behind it has no place
            raise
        except BaseException:  # the pieces end here, and what was read of them is kept
            yield unread(encoder.end())
            raise
        last = unread(encoder.end())
        ended = True
        yield last

    with report_progress(progress, label or "reading") as reporter, contextlib.closing(chunks()) as read:
        for ids in read:
            if len(ids) > 0:
                frame.extend(ids, "read", progress=lambda count: reporter.advance(count, tokens, whole=ended))
        reporter.report(tokens)
    return tokens
