"""Chromium without a network, driven by its own protocol through two pipes."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
# Chromium reads its protocol from 3 and writes it to 4.
_AS_3_AND_4 = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for theirs, number in enumerate(ours, 3):
    os.dup2(number, theirs)
os.execv(sys.argv[3], sys.argv[3:])
"""
_TIMEOUT = 60.0  # seconds for one reply, on a busy machine


class Browser:
    """A headless Chromium with one page. Every request, console message and error is kept."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [
            *(["unshare", "-n"] if os.getuid() == 0 and shutil.which("unshare") else []),
            *(sys.executable, "-IS", "-c", _AS_3_AND_4, str(to_browser), str(from_browser), CHROMIUM),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"),
            *("--force-prefers-reduced-motion", "--remote-debugging-pipe", f"--user-data-dir={folder}"),
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []
        page = next(one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        found = self._call("Target.attachToTarget", {"targetId": page["targetId"], "flatten": True})
        self._session: str | None = found["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def open(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Load a file, and return once it has loaded and drawn."""
        self.events.clear()
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
        self.call("Emulation.setDeviceMetricsOverride", screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.call("Page.navigate", {"url": path.as_uri()})
        deadline = time.monotonic() + _TIMEOUT
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read(deadline)
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        arguments = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        return self.call("Runtime.evaluate", arguments)["result"].get("value")

    def requests(self) -> list[str]:
        """Return the addresses that were requested since `open`."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        """Return every console message, log entry and uncaught error since `open`."""
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in kinds]

    def call(self, method: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a method of the page, and return its reply."""
        return self._call(method, arguments, self._session)

    def _call(
        self, method: str, arguments: dict[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": arguments or {}}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _TIMEOUT
        while True:
            reply = self._read(deadline)
            if reply.get("id") == self._last:
                assert "error" not in reply, (method, reply["error"])
                return dict(reply["result"])

    def _read(self, deadline: float) -> dict[str, Any]:
        """Return the next message; an event is kept, too."""
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._in], [], [], max(left, 0))
            assert ready, "Chromium does not reply"
            data = os.read(self._in, 1 << 20)
            assert data, "Chromium has ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message
