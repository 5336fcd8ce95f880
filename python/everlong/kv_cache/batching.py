"""Several frames at work at once: what they compute is computed in one forward.

Each frame's work runs in a thread of its own, as if it were alone, until it needs the model. There it waits, and the
next one runs. Once all of them wait, what they asked for is computed together. So only one thread runs at any time:
nothing is shared by two of them at once, and the same work is done in the same order every time. A frame whose work is
done makes room for the next piece of work.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import weakref
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

import everlong.models.batched_forward as joint
from everlong.kv_cache.steps import plain_tensors
from everlong.models.block_layers import dtype_of_rounding

_LOGGER = logging.getLogger("everlong")
_TOKENS_AT_ONCE = 1024  # of one forward; more are computed in several
# Logits of a stream among others may differ so much from those alone, as a share of the largest one.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_TOLERANCE_16_BIT = 0.1

JobInput = TypeVar("JobInput")
JobResult = TypeVar("JobResult")

Computed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # logits, and the rotation of its tokens: cos, sin


class PendingForward(Protocol):
    """Tokens of one frame that wait for the model."""

    @property
    def model(self) -> Any: ...

    @property
    def positions(self) -> Hashable:
        """How the model turns positions for its frame: a forward has one way for all of its tokens."""

    def tokens(self) -> joint.StreamTokens:
        """Return them."""

    def alone(self) -> Computed:
        """Compute them in a forward of their own."""

    def in_one_call(self, streams: Sequence[PendingForward]) -> list[tuple[torch.Tensor, slice]] | None:
        """Compute streams, of which this is the first, without the model's modules. None: they have to do it.

        Return the logits of each, and where its tokens stood in this thread's newest forward.
        """

    def remember(self) -> Callable[[], None]:
        """Return a call that undoes what a forward of them changes, so that they can be computed anew."""

    def rotation(self, span: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos, sin of the tokens that stood at `span` in this thread's newest forward."""


class JobCancelled(BaseException):
    """Ends the work of a frame. It is no error, and nobody else catches it."""


_own = threading.local()


def current_job() -> BatchJob[Any, Any] | None:
    """Return the work that this thread does among others; None: it works alone."""
    found: BatchJob[Any, Any] | None = getattr(_own, "work", None)
    return found


class BatchJob(Generic[JobInput, JobResult]):
    """The work of one frame, in a thread that runs while the others wait."""

    def __init__(self, do: Callable[[JobInput], JobResult]) -> None:
        self._do = do
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._ended = False
        self.pending: PendingForward | None = None  # what it waits for
        self.computed: Computed | BaseException | None = None
        self.result: JobResult | None = None
        self.error: BaseException | None = None

    @property
    def running(self) -> bool:
        return self._thread is not None

    def begin(self, job_input: JobInput) -> None:
        """Run until it waits for the model, or is done."""
        self.result, self.error = None, None
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=lambda: context.run(self._run, job_input), name="everlong work", daemon=True
        )
        self._thread.start()
        self._wait()

    def resume(self) -> None:
        """Run on with what was computed, until it waits again, or is done."""
        self._go.release()
        self._wait()

    def end(self) -> None:
        """End it wherever it is. What it was about is undone as after an error."""
        self._ended = True
        while self.running:
            self.computed = JobCancelled()
            self.resume()
        self._ended = False

    def compute(self, pending: PendingForward) -> Computed:
        """Have the model compute, for the thread that does this work."""
        self.pending = pending
        self._stopped.release()
        self._go.acquire()
        self.pending, computed = None, self.computed
        self.computed = None
        if isinstance(computed, BaseException):
            raise computed
        assert computed is not None
        return computed

    def _run(self, job_input: JobInput) -> None:
        _own.work = self
        try:
            self.result = self._do(job_input)
        except BaseException as error:
            self.error = error
        finally:
            _own.work = None
            self._thread = None
            self._stopped.release()

    def _wait(self) -> None:
        """Wait until the thread has stopped. An interrupt meanwhile is raised once it has."""
        try:
            self._stopped.acquire()
        except BaseException:
            self._stopped.acquire()
            raise


def run_batched(
    workers: Sequence[Callable[[JobInput], JobResult]], inputs: Iterable[JobInput]
) -> Generator[tuple[int, JobResult]]:
    """Do a piece of work with each of the inputs, as many at once as there are workers.

    Yield the number of each and what was made of it, as they are done. After an error nothing more is begun. What is
    under way is done, then the first error is raised. Closing the generator ends all work. A single worker works in the
    thread that asks, with no other beside it.
    """
    if len(workers) == 1:
        for number, one in enumerate(inputs):
            yield number, workers[0](one)
        return
    rows: list[BatchJob[JobInput, JobResult]] = [BatchJob(do) for do in workers]
    numbers: dict[int, int] = {}  # of what each row works on
    waiting = enumerate(inputs)
    failed: BaseException | None = None
    try:
        while True:
            for at, row in enumerate(rows):
                if row.running:
                    row.resume()
                while not row.running:
                    if at in numbers:
                        number = numbers.pop(at)
                        if row.error is None:
                            yield number, row.result  # type: ignore[misc]  # it was made
                        failed = failed or row.error
                    upcoming = next(waiting, None) if failed is None else None
                    if upcoming is None:
                        break
                    numbers[at], one = upcoming
                    row.begin(one)
            under_way = [row for row in rows if row.running]
            if not under_way:
                break
            _compute(under_way)
    finally:
        for row in rows:
            row.end()
    if failed is not None:
        raise failed


def _compute(rows: Sequence[BatchJob[Any, Any]]) -> None:
    """Compute what the rows wait for."""
    alike: dict[Hashable, list[BatchJob[Any, Any]]] = {}  # rows that one forward may compute
    for row in rows:
        pending = _pending(row)
        alike.setdefault((id(pending.model), pending.positions), []).append(row)
    with plain_tensors():
        for group in alike.values():
            for some in _portions(group):
                _compute_batch(some)


def _portions(rows: Sequence[BatchJob[Any, Any]]) -> Iterator[list[BatchJob[Any, Any]]]:
    """Yield the rows in as many portions as it takes: a forward has so many tokens at most, or a single row."""
    some: list[BatchJob[Any, Any]] = []
    tokens = 0
    for row in rows:
        count = len(_pending(row).tokens().ids)
        if some and tokens + count > _TOKENS_AT_ONCE:
            yield some
            some, tokens = [], 0
        some.append(row)
        tokens += count
    yield some


def _pending(row: BatchJob[Any, Any]) -> PendingForward:
    assert row.pending is not None
    return row.pending


def _compute_batch(rows: Sequence[BatchJob[Any, Any]]) -> None:
    """Compute what rows of one model wait for."""
    if len(rows) > 1:
        _batched_forward(rows)
    for row in rows:
        if row.computed is None:
            try:
                row.computed = _pending(row).alone()
            except Exception as error:
                row.computed = error


# Models whose joint forward was compared with one alone, and whether it was the same.
_known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def batches_exactly(model: Any) -> bool | None:
    """Return whether the model computes several rows in one forward as each alone; None before that was compared."""
    return _known.get(model)


def _batched_forward(rows: Sequence[BatchJob[Any, Any]]) -> None:
    """Compute what these rows ask for in one forward, where that is possible. What is not computed then is left.

    A row that fails gets its own error, and the others what they asked for.
    """
    model = _pending(rows[0]).model
    left, streams = rows, [_pending(row) for row in rows]
    try:
        parts: Sequence[tuple[torch.Tensor, slice] | Exception] | None = streams[0].in_one_call(streams)
        if parts is None:
            if batches_exactly(model) is False:
                return
            if model not in _known:
                _compare(rows)
            left = [row for row in rows if row.computed is None]
            if len(left) < 2:
                return
            streams = [_pending(row) for row in left]
            parts = joint.compute(model, [stream.tokens() for stream in streams])
        for row, stream, part in zip(left, streams, parts, strict=True):
            row.computed = part if isinstance(part, Exception) else (part[0], *stream.rotation(part[1]))
    except joint.BatchedForwardError as error:
        _known[model] = False
        _LOGGER.warning("%s computes one frame after another: %s", type(model).__name__, error)
    except Exception as error:
        for row in rows:
            if row.computed is None:
                row.computed = error


def _compare(rows: Sequence[BatchJob[Any, Any]]) -> None:
    """Compute the rows' tokens together and one row's alone, and undo it. JointError where these differ.

    A row that fails meanwhile gets its error, and is not compared. Logits that are no numbers say nothing.
    """
    streams = [_pending(row) for row in rows]
    model, undo = streams[0].model, [stream.remember() for stream in streams]
    try:
        with joint.unobserved():
            parts = joint.compute(model, [stream.tokens() for stream in streams])
            for row, part in zip(rows, parts, strict=True):
                row.computed = part if isinstance(part, Exception) else None
            for row, put_back, part in zip(rows, undo, parts, strict=True):
                if isinstance(part, Exception):
                    continue
                put_back()
                try:
                    expected, *_ = _pending(row).alone()
                except Exception as error:
                    row.computed = error
                    continue
                if bool(expected.isfinite().any()):
                    _require_same(part[0], expected, dtype_of_rounding(model, expected.dtype))
                    _known[model] = True
                    return
    finally:
        for put_back in undo:
            put_back()


def _require_same(found: torch.Tensor, expected: torch.Tensor, rounding: torch.dtype) -> None:
    numbers = expected.isfinite()
    largest = float((found - expected)[numbers].abs().max())
    if not largest <= _TOLERANCE.get(rounding, _TOLERANCE_16_BIT) * float(expected[numbers].abs().max()):
        raise joint.BatchedForwardError(f"logits of a frame among others differ by {largest:.1e} from those alone")
