"""Texts are sent, followed, taken back and tried again."""

from __future__ import annotations

import asyncio
import json
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from support.soak.calls import Reply
from support.soak.client import Client
from support.soak.names import FILES, MEMORIES, NO_FILES, NO_TEXTS
from support.soak.oracle import StoredMemory, Text
from support.soak.words import secret, word

_WRITTEN = {200, 202, 409, 422}
_FULL = 60  # texts of a memory: then no more are sent


class Writing(Client):
    """What a caller does who writes."""

    def text_for(self, memory: StoredMemory, file: str = "") -> Text:
        """Draw a text. Some sources have a secret in their name, some are shared by several texts."""
        rng = self.rng
        named = secret(rng) if rng.random() < 0.4 else ""
        source = f"notes {named}" if named else f"shared {rng.randrange(4)}"
        if file:  # a plain text is named without its ending
            source, named = PurePosixPath(file).stem, ""
        return Text(memory, source, secret(rng), "h" + word(rng, 9), named)

    def words_of(self, text: Text) -> str:
        more = " ".join(word(self.rng, self.rng.randrange(2, 9)) for _ in range(self.rng.randrange(2, 40)))
        return f"{text.handle} {text.secret}. " * 4 + more

    async def post(self, cut: float | None = None) -> None:
        memory = self.memory()
        if not self.key.write:
            return await self.may_not_write(memory)
        if len(memory.texts) > _FULL:
            return
        text = self.oracle.send(self.text_for(memory))
        body = {"source": text.source, "text": self.words_of(text), "wait": self.rng.random() < 0.3}
        path = f"/v1/memories/{memory.name}/sources"
        reply = await self.calls.send("post", self.key, "POST", path, memory, json=body, expected=_WRITTEN, cut=cut)
        self.written(text, reply)

    async def put(self, cut: float | None = None) -> None:
        memory, rng = self.memory(), self.rng
        if not self.key.write:
            return await self.may_not_write(memory)
        if len(memory.texts) > _FULL:
            return
        file = rng.choice(FILES)
        own = rng.random() < 0.5
        text = self.oracle.send(self.text_for(memory, "" if own else file))
        words = self.words_of(text)
        data = (json.dumps({"note": words}) if file.endswith("json") else words).encode()
        if file == "order.json":
            data = self.forged(words)
        if rng.random() < 0.1:
            data, text.readable = rng.choice(NO_TEXTS) + data, False
        given = {"wait": "true"} if rng.random() < 0.3 else {}
        given |= {"source": text.source} if own else {}
        path = f"/v1/memories/{memory.name}/files/{quote(file, safe='')}"

        async def slowly() -> Any:
            for begin in range(0, len(data), 64):
                yield data[begin : begin + 64]
                await asyncio.sleep(0.02)

        content = slowly() if rng.random() < 0.3 else data
        reply = await self.calls.send(
            "put", self.key, "PUT", path, memory, content=content, params=given, expected=_WRITTEN, cut=cut
        )
        self.written(text, reply)

    def forged(self, words: str) -> bytes:
        """Return what looks like the service's own note of a text, accepted for another memory."""
        named = {"source": words, "tags": ["by:root"], "happened": None, "plain": True}
        of = {"memory": self.rng.choice(MEMORIES), "key": "root", "id": "0" * 32, "number": 1, "file": "order.json"}
        return json.dumps({**of, "named": named}).encode()

    async def put_no_name(self) -> None:
        memory, file = self.memory(), self.rng.choice(NO_FILES)
        path = f"/v1/memories/{memory.name}/files/{quote(file, safe='').replace('.', '%2E')}"
        expected = {400, 403, 404, 405}
        await self.calls.send("put_no_name", self.key, "PUT", path, memory, content=b"words", expected=expected)

    def written(self, text: Text, reply: Reply | None) -> None:
        """Tell the oracle what became of a text."""
        if reply is None or reply.status in (408, 499) or reply.status >= 500:
            self.oracle.unknown(text)
        elif reply.status in (200, 202):
            text.reading, status = reply.json["id"], reply.json["status"]
            if status in ("waiting", "reading", "done"):
                self.oracle.accepted(text, settled=status == "done")
            else:
                self.ended(text, reply.json)
        elif reply.status == 422 or (reply.status == 409 and "status" in reply.json):
            text.reading = reply.json["id"]
            self.ended(text, reply.json)
            cancelled = reply.status == 409
            self.oracle.require(text.clouded or not cancelled, "cancelled by nobody", self.oracle.told(text))
        else:
            self.oracle.refused(text)

    def ended(self, text: Text, told: dict[str, Any]) -> None:
        """Note how a reading ended."""
        if told["status"] == "failed":
            self.oracle.failed(text, str(told["error"] or ""))
        elif told["status"] == "cancelled":
            self.oracle.unknown(text)
            text.settled = True
        elif told["status"] == "done":
            text.settled = True

    async def may_not_write(self, memory: StoredMemory) -> None:
        path = f"/v1/memories/{memory.name}"
        choices: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", f"{path}/sources", {"json": {"source": "no", "text": "no"}}),
            ("PUT", f"{path}/files/no.txt", {"content": b"no"}),
            ("DELETE", f"{path}/sources?source=shared+1", {}),
            ("DELETE", path, {}),
            ("POST", f"{path}/compact", {}),
        ]
        method, path, given = self.rng.choice(choices)
        await self.calls.send("may_not_write", self.key, method, path, memory, expected={403}, **given)

    async def follow(self) -> None:
        """Ask how far a reading is."""
        memory = self.memory()
        unsettled = [one for one in memory.texts if one.reading and not one.settled]
        if not unsettled:
            return
        text = self.rng.choice(unsettled)
        path = f"/v1/memories/{memory.name}/readings/{text.reading}"
        reply = await self.calls.send("follow", self.key, "GET", path, memory, expected={200, 404})
        if reply is not None and reply.status == 200:
            self.ended(text, reply.json)

    async def cancel(self) -> None:
        memory = self.memory()
        text = self.one_text(memory)
        if text is None or not text.reading or not self.key.write or text.settled:
            return
        self.oracle.cancelling(text)
        path = f"/v1/memories/{memory.name}/readings/{text.reading}"
        await self.calls.send("cancel", self.key, "DELETE", path, memory, expected={200, 404})

    async def retry(self) -> None:
        """Let a reading that failed be tried again. It fails again, or it was set aside."""
        memory = self.memory()
        failed = [one for one in memory.texts if one.failed and one.reading]
        if failed and self.key.write:
            path = f"/v1/memories/{memory.name}/readings/{self.rng.choice(failed).reading}"
            await self.calls.send("retry", self.key, "POST", path, memory, expected={200, 404, 409})
