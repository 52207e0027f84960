"""The page in a real browser, offline, at the width of a desk and of a phone.

Needs Debian's chromium and chromium-driver. MASKPRIOR_SCREENSHOTS=FOLDER keeps what was seen.
"""

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from maskprior.analysis.html import write_html
from maskprior.experiments.presets import make_configs
from maskprior.experiments.progress import SilentReporter
from maskprior.experiments.sweep import Device, sweep

pytestmark = pytest.mark.browser

ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


class Page:
    """One page in one browser, by the WebDriver protocol."""

    def __init__(self, driver: str, session: str) -> None:
        self._base = f"{driver}/session/{session}"

    def call(self, path: str, body: dict[str, Any]) -> Any:
        return request(f"{self._base}/{path}", body)

    def open(self, path: Path) -> None:
        self.call("url", {"url": path.as_uri()})

    def run(self, script: str) -> Any:
        return self.call("execute/sync", {"script": script, "args": []})

    def console(self) -> list[str]:
        entries = self.call("se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def requests(self) -> list[str]:
        """Addresses of everything that was asked for over a network."""
        entries = [
            json.loads(entry["message"])["message"] for entry in self.call("se/log", {"type": "performance"})
        ]
        urls = [e["params"]["request"]["url"] for e in entries if e["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("file:", "data:", "chrome:"))]

    def screenshot(self, path: Path) -> None:
        options = {"captureBeyondViewport": True}
        taken = self.call("goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": options})
        path.write_bytes(base64.b64decode(taken["data"]))


def request(url: str, body: dict[str, Any] | None, method: str | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(url, data, headers, method=method), timeout=120
    ) as reply:
        return json.loads(reply.read())["value"]


@contextmanager
def browser(width: int, profile: Path) -> Iterator[Page]:
    """A headless browser whose window is so wide; offline, as it may only read files."""
    process = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        port = next(
            line.split("port ")[1].strip(" .\n") for line in process.stdout if "successfully on port" in line
        )
        driver = f"http://127.0.0.1:{port}"
        metrics = {
            "width": width,
            "height": 844,
            "pixelRatio": 1,
            "touch": width < 500,
            "mobile": width < 500,
        }
        options = {
            "args": [*ARGUMENTS, f"--user-data-dir={profile}"],
            "mobileEmulation": {"deviceMetrics": metrics},
            "perfLoggingPrefs": {"enableNetwork": True},
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        opened = request(f"{driver}/session", {"capabilities": {"alwaysMatch": wanted}})
        yield Page(driver, opened["sessionId"])
        request(f"{driver}/session/{opened['sessionId']}", None, "DELETE")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a few short runs, or of MASKPRIOR_REPORT (a folder of records)."""
    folder = Path(os.environ.get("MASKPRIOR_REPORT") or tmp_path_factory.mktemp("runs"))
    if not list(folder.glob("*.json")):
        from dataclasses import replace

        configs = [
            replace(config, training=replace(config.training, steps=8, batch_size=16, probes=5))
            for config in make_configs("quick", "2parity", ["qk_svd", "mask"], [0, 1], dimension=5)
        ]
        sweep(configs, folder, SilentReporter(), device=Device("cpu"))
    return write_html(folder)


def test_the_tools_are_there() -> None:
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    assert missing == [], "apt-get install chromium chromium-driver"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_works_and_is_legible(width: int, page_path: Path, tmp_path: Path) -> None:
    assert page_path.stat().st_size < 5_000_000
    with browser(width, tmp_path / "profile") as page:
        page.open(page_path)
        time.sleep(0.5)
        assert page.run("return innerWidth") == width
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert page.console() == []
        assert page.requests() == []
        keep_screenshot(page, page_path, width)
        check_figures(page)
        check_slider(page)
        assert page.console() == []


def keep_screenshot(page: Page, page_path: Path, width: int) -> None:
    if os.environ.get("MASKPRIOR_SCREENSHOTS"):
        folder = Path(os.environ["MASKPRIOR_SCREENSHOTS"])
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(folder / f"{page_path.parents[1].name}-{width}.png")


def check_figures(page: Page) -> None:
    """Every chart is drawn and its smallest letters can be read; every picture is painted."""
    titles = page.run("return [...document.querySelectorAll('svg.chart .title')].map(t => t.textContent)")
    for wanted in (
        "loss, seen",
        "accuracy, unseen",
        "kept by the prior’s own pattern",
        "kept by the attention",
    ):
        assert wanted in titles
    sizes = page.run(
        "return [...document.querySelectorAll('section > .charts text, td, th, p, li, figcaption')]"
        ".map(e => {"
        "const scale = e.ownerSVGElement ? e.ownerSVGElement.getBoundingClientRect().width / 340 : 1;"
        "return parseFloat(getComputedStyle(e).fontSize) * scale; })"
    )
    assert len(sizes) > 50
    assert min(sizes) >= 10
    outside = page.run(
        "return [...document.querySelectorAll('section > .charts svg.chart text')].filter(e => {"
        "const t = e.getBoundingClientRect(), c = e.ownerSVGElement.getBoundingClientRect();"
        "return t.left < c.left - 1 || t.right > c.right + 1; }).map(e => e.textContent)"
    )
    assert outside == []
    painted = page.run(
        "return [...document.querySelectorAll('canvas')].map(c => {"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "return new Set(d).size > 2 && c.getBoundingClientRect().width >= 60; })"
    )
    assert len(painted) >= 4
    assert all(painted)
    assert "kept" in page.run("return document.querySelector('.verdict').textContent")


def check_slider(page: Page) -> None:
    """Moving the slider changes the pictures and the step that is named."""
    look = (
        "const browser = document.querySelector('.browser'), time = browser.querySelector('.time');"
        "time.value = arguments_; time.dispatchEvent(new Event('input'));"
        "const canvas = [...browser.querySelectorAll('canvas')].at(-1);"
        "return [browser.querySelector('.moment').textContent, canvas.toDataURL()];"
    )
    start, end = (page.run(look.replace("arguments_", value)) for value in ("0", "time.max"))
    assert start[0] == "step 0"
    assert end[0] != "step 0"
    assert start[1] != end[1]
