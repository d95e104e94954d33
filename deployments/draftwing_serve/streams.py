"""Small tools for asynchronous streams: merging them, and giving work up when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection; nobody reads an answer."""


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all sources as they come, each with its source's index. The first failure ends all of them.

    Closing the merged stream closes every source before it returns.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for single in only:
                yield 0, single
        return
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue()

    async def pump(index: int, source: AsyncGenerator[T, None]) -> None:
        async with aclosing(source):
            async for item in source:
                queue.put_nowait((index, item))

    def ended(task: asyncio.Task[None]) -> None:
        queue.put_nowait(None if task.cancelled() else task.exception())

    tasks = [asyncio.create_task(pump(index, source)) for index, source in enumerate(sources)]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; ClientGone, with the work cancelled, when the client leaves first.

    The request's body must have been read: what is received here is only ever the disconnect.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events. When the client leaves, the events' generator is closed before the request ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        super().__init__(headers={"cache-control": "no-cache", **headers})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_disconnected(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
