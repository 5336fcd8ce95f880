"""A whole memory as one file, which is sent: the copy lies on the disk no longer than that takes.

Something that is forgotten meanwhile ends it.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from everlong.serve.guard import AnswerCutError
from everlong.serve.service import Service
from everlong.service_data.keys import Key
from everlong.service_data.memory_registry import memory_changed


class Export(Response):
    """The file that `Memory.export` writes. Its copy goes however the sending ends."""

    def __init__(self, service: Service, key: Key, name: str) -> None:
        super().__init__()
        self._service, self._key, self._name = service, key, name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, key, name = self._service, self._key, self._name
        file = service.folder.new_in(service.folder.exports)

        def size() -> int:
            with service.registry.open_read_only(name) as memory:
                return memory.stats().disk_bytes

        def write() -> None:
            with service.registry.open_read_only(name) as memory:
                memory.export(file)

        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        with service.quotas.copy(key, await run_in_threadpool(size)), service.sending.of(name) as until:
            try:
                with until:
                    async with service.copies.acquire(key.name):
                        await run_in_threadpool(write)
                    service.audit.note(key.name, "export", name)
                    await FileResponse(file, filename=f"{name}.everlong")(scope, receive, sending)
            finally:
                file.unlink(missing_ok=True)
        if until.cancelled_caught:
            raise AnswerCutError if begun else memory_changed(name)
