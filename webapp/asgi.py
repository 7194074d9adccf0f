"""ASGI application: HTTP by Django, WebSockets by Channels with the same sign-in."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

sys.setswitchinterval(0.001)  # with the default of 5 ms renderings hold up what waits for the database
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
_http = get_asgi_application()

from engine.garbage import collect_rarely  # noqa: E402
from webapp.ingestion.bodies import BodyLimit  # noqa: E402  (needs the app registry)
from webapp.live.origins import SameOrigin  # noqa: E402
from webapp.live.routing import websocket_urlpatterns  # noqa: E402
from webapp.supervisor.selectors import monitor  # noqa: E402

Message = dict[str, Any]


async def lifespan(
    _scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Probe the servers during the lifetime of the web server, and make full garbage collections rare."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            monitor.start()
            collect_rarely()  # a seventh of the time of ingest was spent on collections
        else:
            monitor.stop()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


application = ProtocolTypeRouter(
    {
        "http": BodyLimit(_http),
        "lifespan": lifespan,
        "websocket": SameOrigin(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
