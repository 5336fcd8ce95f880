"""What the callers of a soak do, each drawn from its own random numbers."""

from __future__ import annotations

import asyncio
import time

from support.soak.inspecting import Inspecting
from support.soak.removing import Removing
from support.soak.writing import Writing

# What a caller may do, and how often.
_OPERATIONS = dict(post=12, put=10, put_no_name=1, follow=8, cancel=2, retry=1, give_up=6)
_OPERATIONS |= dict(search=14, chat=9, respond=10, kept=6, look=12, tools=6, resource=2, export=2, trespass=4)
_OPERATIONS |= dict(forget=8, forget_by_tool=3, compact=2, remove=1, make=4)


class Caller(Writing, Inspecting, Removing):
    """A caller who does all of it."""

    async def live(self, most: int) -> None:
        """Do one thing after the other."""
        names, weights = list(_OPERATIONS), list(_OPERATIONS.values())
        for _ in range(most):
            if time.monotonic() > self.calls.until:
                return
            async with self.calls.turn():
                await getattr(self, self.rng.choices(names, weights)[0])()
            await asyncio.sleep(self.rng.uniform(0, 0.4))

    async def give_up(self) -> None:
        """Go before the answer comes."""
        await self.rng.choice([self.post, self.put, self.chat, self.respond])(cut=self.rng.uniform(0.005, 0.3))
