"""Addresses of WebSockets; the ASGI application wraps them in the origin check and the login."""

from __future__ import annotations

from django.urls import path

from webapp.live.consumer import LiveConsumer

websocket_urlpatterns = [path("ws/live/", LiveConsumer.as_asgi())]
