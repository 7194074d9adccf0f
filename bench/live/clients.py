"""Process with the WebSockets of many tabs: ``python -m bench.live.clients SETTINGS`` (JSON).

Each behaves like a page's scripts: it subscribes, receives updates, and requests the outage banner every five
seconds. Tabs about an iteration move to the next one with the run. Writes every frame with its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import websockets

from bench.live.plan import PERIOD_S, WATCHED_FROM_S, Tab, tabs

BANNER_S = 5.0
CLOSING_S = 4.0
"""Time that tabs stay open after the last event."""


class Client:
    """One tab."""

    def __init__(self, number: int, tab: Tab, settings: dict[str, Any]) -> None:
        self._tab = tab
        self._settings = settings
        self._iteration = 0
        self._steps = 0
        self.log: dict[str, Any] = {"tab": number, "frames": []}

    async def stay(self, client: httpx.AsyncClient) -> None:
        """Keep the tab open until the run has ended."""
        cookie = self._settings["cookies"][self._tab.role]
        address = self._settings["base"].replace("http", "ws", 1) + "/ws/live/"
        origin = websockets.Origin(self._settings["base"])
        async with websockets.connect(
            address, additional_headers={"Cookie": cookie}, origin=origin, open_timeout=None
        ) as socket:
            background = [self._banner(client, cookie), self._follow_iterations(socket)]
            tasks = [asyncio.create_task(coroutine) for coroutine in background]
            await self._subscribe(socket)
            end = self._settings["start"] + self._settings["iterations"] * PERIOD_S + CLOSING_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(end - time.time()):
                    async for message in socket:
                        self._receive(str(message))
            for task in tasks:
                task.cancel()

    def _receive(self, text: str) -> None:
        now = time.time()
        message = json.loads(text)
        if message["type"] != "update":
            return
        frame = {"time": now, "seq": message["seq"], "bytes": len(text), "iteration": self._iteration}
        self.log["frames"].append(frame)

    async def _subscribe(self, socket: websockets.ClientConnection) -> None:
        charts = {"point": -1.0, "series": []} if self._tab.page == "run" else {}
        is_run_page = self._tab.page not in ("overview", "runs")
        message = {
            "page": self._tab.page, "run": self._settings["run"] if is_run_page else None,
            "query": self._tab.query, "target": self._tab.target(self._iteration), "steps": 0, **charts,
        }  # fmt: skip
        await socket.send(json.dumps(message))

    async def _follow_iterations(self, socket: websockets.ClientConnection) -> None:
        for iteration in range(self._settings["iterations"]):
            at = self._settings["start"] + iteration * PERIOD_S + WATCHED_FROM_S
            await asyncio.sleep(max(0.0, at - time.time()))
            self._iteration = iteration
            if self._tab.target(iteration):
                await self._subscribe(socket)

    async def _banner(self, client: httpx.AsyncClient, cookie: str) -> None:
        await asyncio.sleep(random.uniform(0, BANNER_S))
        while True:
            await client.get("/healthz/banner", headers={"Cookie": cookie})
            await asyncio.sleep(BANNER_S)


async def stay_open(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Keep all tabs except those of Chromium open; return their logs."""
    opened = enumerate(tabs(settings["tabs"]))
    clients = [Client(number, tab, settings) for number, tab in opened if number >= settings["browsers"]]
    async with httpx.AsyncClient(base_url=settings["base"], timeout=60) as http:
        await asyncio.gather(*(client.stay(http) for client in clients))
    return [client.log for client in clients]


def main() -> None:
    """Keep the tabs open and store their logs."""
    settings = json.loads(sys.argv[1])
    logs = asyncio.run(stay_open(settings))
    Path(settings["log"]).write_text(json.dumps(logs))


if __name__ == "__main__":
    main()
