"""A headless Chromium for tests: started where one is installed, driven through its debugging pipe."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
ROOT = Path(__file__).resolve().parents[4]
SHOTS = ROOT / "build" / "screenshots"  # build output: not kept in the repository


def chromium() -> str | None:
    """The path of a Chromium, or None. $CHROMIUM names one that is not on the path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Failed(AssertionError):
    """The browser says no."""


class Tab:
    """A page. `errors` has what its scripts raised and what the browser refused or complained of."""

    def __init__(self, browser: Browser, session: str):
        self.browser, self.session = browser, session
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **parameters)

    def open(self, url: str) -> None:
        self.run("window.meshrt = undefined")
        self.send("Page.navigate", url=url)
        self.until("document.documentElement.dataset.ready !== undefined")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise Failed(json.dumps(found["exceptionDetails"])[:800])
        return found["result"].get("value")

    def until(self, expression: str, patience: float = 100.0) -> Any:
        """The value of an expression once it is true."""
        end = time.monotonic() + patience
        while True:
            with contextlib.suppress(Failed):  # the page may be under way to another
                if value := self.run(expression):
                    return value
            if time.monotonic() > end:
                raise Failed(f"never true: {expression}; errors of the page: {self.errors}")
            time.sleep(0.02)

    def key(self, *names: str) -> None:
        """Presses keys, one after the other, as a person at a keyboard does."""
        for name in names:
            text = {"Enter": "\r", "Space": " "}.get(name, name if len(name) == 1 else "")
            key = " " if name == "Space" else name
            down = {"type": "keyDown", "key": key, "code": name, "windowsVirtualKeyCode": _CODES.get(name, 0)}
            self.send("Input.dispatchKeyEvent", **down, **({"text": text} if text else {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=name)

    def click(self, x: float, y: float, count: int = 1) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=count)

    def dark(self, is_dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def shot(self, name: str) -> None:
        """Keeps a picture of the page as build output."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        data = self.send("Page.captureScreenshot", format="png")["data"]
        (SHOTS / f"{name}.png").write_bytes(base64.b64decode(data))

    def heard(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:800])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


_CODES = {
    "Enter": 13, "Space": 32, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36,
    "End": 35, "PageUp": 33, "PageDown": 34,
}  # fmt: skip


def _high(descriptor: int) -> int:
    """The same file under a descriptor of at least 10."""
    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
    os.close(descriptor)
    return high


class Browser:
    """A Chromium whose messages come and go through a pipe."""

    def __init__(self, path: str, folder: Path):
        (read, theirs), (their_read, write) = os.pipe(), os.pipe()
        # Chromium reads descriptor 3 and writes descriptor 4; neither may be one of those that become them.
        theirs, their_read = (_high(descriptor) for descriptor in (theirs, their_read))
        command = (
            f'exec "$0" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run '
            f'--hide-scrollbars --window-size=1500,950 --remote-debugging-pipe --user-data-dir="$1" about:blank '
            f"3<&{their_read} 4>&{theirs}"
        )
        self.process = subprocess.Popen(
            ["bash", "-c", command, path, str(folder)], pass_fds=(their_read, theirs), stderr=subprocess.DEVNULL
        )
        os.close(their_read)
        os.close(theirs)
        self._read, self._write = os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)
        self._numbers, self._left = itertools.count(1), b""
        self.tabs: dict[str, Tab] = {}

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Asks, and waits for the answer; what is heard meanwhile goes to the tabs."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("id") == number:
                if "error" in heard:
                    raise Failed(f"{method}: {heard['error'].get('message')}")
                return heard["result"]
            if heard.get("sessionId") in self.tabs:
                self.tabs[heard["sessionId"]].heard(heard["method"], heard["params"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            data = self._read.read(1 << 20)
            if not data:
                raise Failed("the browser has ended")
            self._left += data
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    @contextlib.contextmanager
    def tab(self) -> Iterator[Tab]:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        made = Tab(self, session)
        self.tabs[session] = made
        try:
            yield made
        finally:
            self.send("Target.closeTarget", targetId=target)
            self.tabs.pop(session)

    def close(self) -> None:
        with contextlib.suppress(Failed, OSError):
            self.send("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._read.close()
        self._write.close()
