"""The anchor of what copies in RAM: memcpy with torch's number of threads, which is the core's too."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import torch

Piece = tuple[int, int, int]  # to, from (addresses), bytes


def memcpy(pieces: Sequence[Piece]) -> None:
    """Copy every piece; each thread copies its share, piece after piece."""
    count = torch.get_num_threads()
    shares = [pieces[len(pieces) * i // count : len(pieces) * (i + 1) // count] for i in range(count)]

    def copy(share: Sequence[Piece]) -> None:
        for piece in share:
            ctypes.memmove(*piece)  # other threads run meanwhile

    others = [threading.Thread(target=copy, args=(share,)) for share in shares[1:]]
    for thread in others:
        thread.start()
    copy(shares[0])
    for thread in others:
        thread.join()
