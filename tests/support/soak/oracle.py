"""What must be so, by what the service acknowledged. What was under way when it was killed may be so, or not."""

from __future__ import annotations

import collections
import dataclasses
import enum
import time
from collections.abc import Collection, Iterable

from support.soak.words import secrets_in

_SHOWN = 12  # faults of one kind that are told in full


class Presence(enum.Enum):
    """Whether something is there. MAYBE: either is right."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


@dataclasses.dataclass(eq=False)
class StoredMemory:
    """A memory, as the oracle knows it."""

    name: str
    there: Presence = Presence.NO
    made: int = 0  # one more when it begins, and when it ends, to be made or removed
    taken: int = 0  # one more when something begins, and when it ends, to take something out of it
    taking: int = 0  # so many do that now
    held: bool = False  # somebody makes or removes it, and nobody else does
    texts: list[Text] = dataclasses.field(default_factory=list)  # that were sent to it; those that are gone leave

    @property
    def sure(self) -> tuple[int, bool]:
        """The same before and behind a request: the memory was there all the time."""
        return self.made, self.there is Presence.YES and self.made % 2 == 0


@dataclasses.dataclass(eq=False)
class Text:
    """A text that was sent to be read."""

    memory: StoredMemory
    source: str
    secret: str  # in its words
    handle: str  # what readers ask for
    named: str = ""  # a secret in the name of its source
    there: Presence = Presence.MAYBE
    since: float = 0.0  # when it was known to be gone
    writing: bool = True  # its request is under way
    accepted: bool = False  # it was acknowledged
    settled: bool = False  # its reading is known to be over
    clouded: bool = False  # something that would take it out overlapped with its request
    leaving: int = 0  # so many requests to take it out are under way
    made: int = 0  # of the memory, when it was sent
    reading: str = ""
    failed: str = ""  # why it was not read
    story: str = ""  # what became of it, for whoever looks for a fault
    readable: bool = True  # it is text

    @property
    def certain(self) -> bool:
        """Whether it must be found now."""
        return self.certain_but(0)

    def certain_but(self, leaving: int) -> bool:
        """Whether it must be found, but for so many requests under way that would take it out."""
        return self.there is Presence.YES and self.settled and self.leaving == leaving and not self.failed


@dataclasses.dataclass(frozen=True)
class Leaving:
    """What a request would take out: the texts, and which of them it takes for sure."""

    memory: StoredMemory
    source: str | None  # None: the whole memory
    texts: tuple[tuple[Text, bool], ...]
    what: str


class Oracle:
    """For one thread."""

    def __init__(self, names: Iterable[str]) -> None:
        self.memories = {name: StoredMemory(name) for name in names}
        self._by_secret: dict[str, Text] = {}
        self._leaving: list[Leaving] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self.begun = time.monotonic()
        self.fault_kinds: collections.Counter[str] = collections.Counter()

    def fault(self, kind: str, what: str) -> None:
        """Note that something is not as it must be."""
        self.fault_kinds[kind] += 1
        if self.fault_kinds[kind] <= _SHOWN:
            self.faults.append(f"{kind}: {what}")

    def require(self, holds: bool, kind: str, what: str) -> None:
        self.counts["checks"] += 1
        if not holds:
            self.fault(kind, what)

    # --- texts

    def note(self, text: Text, what: str) -> None:
        text.story += f"; {time.monotonic() - self.begun:.2f} {what}"

    def told(self, text: Text) -> str:
        """Return which text it is, and what became of it."""
        return f"source {text.source!r} of {text.memory.name!r}, reading {text.reading!r}{text.story}"

    def send(self, text: Text) -> Text:
        """Know a text before it is sent."""
        text.memory.texts = [one for one in text.memory.texts if one.there is not Presence.NO] + [text]
        self._by_secret.update({one: text for one in (text.secret, text.named) if one})
        text.made = text.memory.made
        text.clouded = any(one.memory is text.memory and one.source in (None, text.source) for one in self._leaving)
        return text

    def accepted(self, text: Text, *, settled: bool) -> None:
        """Note that the service acknowledged a text; `settled`: it has been read."""
        text.writing, text.accepted, text.settled = False, True, settled
        self.counts["acknowledged"] += 1
        self.note(text, "read" if settled else "accepted")
        if not text.clouded and text.memory.sure == (text.made, True):
            text.there = Presence.YES

    def refused(self, text: Text) -> None:
        text.writing, text.settled = False, True
        text.there, text.since = Presence.NO, time.monotonic()
        self.note(text, "refused")

    def failed(self, text: Text, why: str) -> None:
        """Note that the service told a reading as failed. A part of it may have been read."""
        if text.failed:
            return
        text.settled, text.failed = True, why or "?"
        self.note(text, f"failed: {why}")
        self.require(bool(why), "failed without a reason", self.told(text))
        # What was read when the service was killed, twice, is set aside: it might be what kills the service.
        wanted = text.readable and text.there is Presence.YES and not text.leaving and not why.startswith("set aside")
        self.require(not wanted, "not read", self.told(text))
        self.unknown(text)

    def unknown(self, text: Text) -> None:
        """Note that a request ended, and nobody knows what became of its text."""
        text.writing = False
        self._unsure(text)

    def cancelling(self, text: Text) -> None:
        """Note that a text is to be left out, if it is not too late."""
        text.clouded = True
        self._unsure(text)

    @staticmethod
    def _unsure(text: Text) -> None:
        if text.there is Presence.YES:
            text.there = Presence.MAYBE

    # --- what is taken out

    def leave(self, memory: StoredMemory, source: str | None, what: str, *, waiting: bool = True) -> Leaving:
        """Know what a request would take out before it is sent; without a source, the whole memory.

        `waiting`: texts that wait to be read, too.
        """
        found = []
        for text in memory.texts:
            if text.there is not Presence.NO and source in (None, text.source):
                # A second process does not know what the service could not read: its name and reason stay there.
                settled = text.settled and (waiting or not text.failed)
                sure = not text.writing and (settled or (text.accepted and waiting))
                found.append((text, sure))
                text.leaving += 1
                text.clouded |= not sure
        left = Leaving(memory, source, tuple(found), what)
        self._leaving.append(left)
        memory.taken += 1
        memory.taking += 1
        return left

    def left(self, leaving: Leaving, gone: bool | None) -> None:
        """Note whether it was taken out; None: nobody knows."""
        self._leaving.remove(leaving)
        leaving.memory.taken += 1
        leaving.memory.taking -= 1
        for text, sure in leaving.texts:
            text.leaving -= 1
            if gone and sure:
                self.gone([text], f"by {leaving.what}")
                continue
            self.note(text, f"{'kept' if gone is False else 'maybe gone'} by {leaving.what}")
            if gone is not False:
                text.clouded = True
                self._unsure(text)

    def made(self, memory: StoredMemory, earlier: Iterable[Text]) -> None:
        """Note that a memory is there; `earlier`: texts of another one of its name."""
        memory.there = Presence.YES
        self.gone(earlier, "as it was made anew")

    def gone(self, texts: Iterable[Text], what: str) -> None:
        """Note that texts are gone for sure."""
        for text in texts:
            if text.there is not Presence.NO:
                self.note(text, f"gone {what}")
                text.there, text.since = Presence.NO, time.monotonic()
                self.counts["forgotten"] += 1

    # --- what may be seen

    def saw(self, data: bytes, begun: float, memories: Collection[str], what: str, asked: bytes) -> None:
        """Check what a response shows, which was asked for at `begun` about `memories`; `asked` may be echoed."""
        self.counts["checks"] += 1
        for one in secrets_in(data) - secrets_in(asked):
            text = self._by_secret.get(one)
            if text is None:
                self.fault("unknown secret", f"{what}: {one}")
            elif text.memory.name not in memories:
                self.fault("another's text", f"{what} shows {self.told(text)}")
            elif text.there is Presence.NO and text.since < begun:
                which = "name" if one == text.named else "text"
                self.fault(f"forgotten {which}", f"{what} at {begun - self.begun:.2f} shows {self.told(text)}")

    def missing(self, data: bytes, texts: Collection[Text], where: str) -> None:
        """Check that what was read is in the bytes of a memory, if nobody has taken it out meanwhile."""
        found = secrets_in(data)
        for text in texts:
            if text.certain:
                self.require(text.secret in found, "lost", f"{where} has no {self.told(text)}")

    def left_on_disk(self, data: bytes, where: str) -> None:
        """Check that bytes of the service's folder hold nothing that was forgotten."""
        for one in secrets_in(data):
            text = self._by_secret.get(one)
            if text is not None and text.there is Presence.NO:
                which = "the name" if one == text.named else "words"
                self.fault("forgotten bytes", f"{where} has {which} of {self.told(text)}")
