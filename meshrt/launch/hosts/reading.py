"""Messages that are none: gRPC itself ends their calls without a word to whoever runs the coordinator, so they are
handed on as what they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from meshrt.launch.hosts.codec import MESSAGE_LIMIT
from meshrt.launch.hosts.messages import RefusedError

__all__ = ["HARD_LIMIT", "Reading", "readable"]

HARD_LIMIT = 4 * MESSAGE_LIMIT  # bytes of a message that gRPC reads at all; of a longer one only its sender hears
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class _Unreadable:
    """In the place of a message."""

    def __init__(self, why: str, kind: str):
        self.why, self.kind = why, kind


def readable(message: Any) -> Any:
    """The message. RefusedError if it is none."""
    if isinstance(message, _Unreadable):
        raise RefusedError(f"malformed message: {message.why}", message.kind)
    return message


class Reading(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Has calls whose messages cannot be read come to their methods, too, which ask `readable`."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """What answers a call."""
        method = str(details.method)
        if (found := self._known.get(method)) is not None:
            return found
        handler = await continuation(details)
        if handler is None or handler.request_deserializer is None:  # none of the coordinator's own
            return handler
        self._known[method] = found = _patient(handler)
        return found


def _patient(handler: Any) -> Any:
    kind = next(kind for kind in _KINDS if getattr(handler, kind) is not None)
    read = handler.request_deserializer

    def deserialize(data: bytes) -> Any:
        if len(data) > MESSAGE_LIMIT:
            why = f"it has {len(data)} bytes, more than the {MESSAGE_LIMIT} that are allowed"
            return _Unreadable(why, "RESOURCE_EXHAUSTED")
        try:
            return read(data)
        except DecodeError:
            return _Unreadable("it is none of this protocol", "INVALID_ARGUMENT")

    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(getattr(handler, kind), deserialize, handler.response_serializer)
