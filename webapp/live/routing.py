"""WebSocket URLs; the ASGI application wraps them in origin check and authentication."""

from __future__ import annotations

from django.urls import path

from webapp.live.consumer import LiveConsumer

websocket_urlpatterns = [path("ws/live/", LiveConsumer.as_asgi())]
