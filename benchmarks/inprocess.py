"""Services in the process that measures them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from pilotfish.server import Server

GRACE_S = 5.0


async def serve(exits: AsyncExitStack, name: str, service: Any, add: Any) -> str:
    """Have a service at work until the stack is left; its address.

    Args:
        name: the service's full name.
        service: to be started.
        add: puts it into a server, as the generated `add_…_to_server` does.
    """
    server = Server(name, "127.0.0.1", 0)
    add(service, server.grpc)
    await server.start()
    exits.push_async_callback(server.stop, GRACE_S, service.stop)
    await service.start()
    await server.set_ready(True)
    return server.address
