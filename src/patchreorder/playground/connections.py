"""Limits on connections, which uvicorn has none of: how long each step of one may take, and how many may wait."""

from __future__ import annotations

import asyncio
from typing import Any

from h11 import SEND_BODY, LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEADER_SECONDS = 10.0  # for the headers of a request, since the connection was made or the last response sent
REQUEST_SECONDS = 120.0  # for the rest of a request and its response
FLUSH_SECONDS = 20.0  # for what is left of a response when the connection is closed
MAX_WAITING = 64  # connections without a whole request; a new one closes the oldest


class LimitedConnection(H11Protocol):
    """A connection that is closed when its client takes too long.

    Without a whole request, headers and body, it waits, and costs little, but uvicorn's limit on connections counts it:
    hundreds of these would keep everybody out. The oldest are therefore closed for new ones.
    """

    _timer: asyncio.TimerHandle | None = None
    _request: RequestResponseCycle | None = None  # that is being answered; None waits for one
    _since = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start(HEADER_SECONDS)
        others = [each for each in self.connections if isinstance(each, LimitedConnection) and each._is_waiting()]
        if len(others) > MAX_WAITING:
            min(others, key=lambda each: each._since)._close()

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP. If it is the body of a request, uvicorn would let the application answer it too."""
        request = self.cycle if self.cycle is not None and not self.cycle.response_complete else None
        if request is not None:
            request.disconnected = True
            request.message_event.set()
        if request is not None and request.response_started:
            self._close()
        else:
            try:
                super().send_400_response(msg)
            except LocalProtocolError:  # uvicorn sends a body, which an answer to HEAD cannot have
                self._close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the timer anew when a request begins or ends."""
        request = self.cycle if self.cycle is not None and not self.cycle.response_complete else None
        if request is not self._request and not self.transport.is_closing():
            self._request = request
            self._start(HEADER_SECONDS if request is None else REQUEST_SECONDS)

    def _start(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._since = self.loop.time()
        self._timer = self.loop.call_later(seconds, self._close)

    def _is_waiting(self) -> bool:
        unfinished = self._request is None or self.conn.their_state is SEND_BODY
        return unfinished and not self.transport.is_closing()

    def _close(self) -> None:
        self.transport.close()  # once what was written is sent,
        self._timer = self.loop.call_later(FLUSH_SECONDS, self.transport.abort)  # but nobody may read it
