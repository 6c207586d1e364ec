"""Response times of the playground: with several clients at once, and in a browser from a change to the drawn answer.

    python benchmarks/playground.py [--out runs/bench] [--clients 8] [--seconds 20] [--quick]
    python benchmarks/playground.py --screenshots docs/images
    python benchmarks/playground.py --errors src/patchreorder/weights/aligned.json

Contract: the server is `patchreorder play` in a process of its own. Load: each client has a connection and sends the
requests of the page without a pause: answers for new poses, every tenth time a ring, every fortieth a map of shifts
(for new digits, so that the cache does not help). Browser: chromium rotates the digit by one degree, 20 times a second;
the time is from the input event until the answer is drawn (`performance.measure` in the page). Other load on the
machine is part of the numbers, so the load average is written with them. A missed limit is printed as such.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder: its operator.py hides the one of the standard library

import argparse
import contextlib
import http.client
import io
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table

from patchreorder.laboratory import provenance
from patchreorder.playground.digits import SAMPLES

LIVE = 100.0  # limit for a change in the browser, in milliseconds
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
# Window size, colour scheme, state, and whether to show the whole page.
VIEWS: dict[str, tuple[Any, Any, str, bool]] = {
    "playground": ({"width": 1280, "height": 1290}, "light", "#t=-130&d=s2", False),
    "playground_dark": ({"width": 1280, "height": 900}, "dark", "#n=t&t=20&x=5&y=-4&g=4&pt=25", True),
    "playground_phone": ({"width": 360, "height": 740}, "light", "#t=60&d=s7", True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--changes", type=int, default=100, help="number of changes in the browser")
    parser.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    parser.add_argument("--screenshots", type=Path, help="only write screenshots of the page to this folder")
    parser.add_argument(
        "--errors", type=Path, help="only test the networks with `align` in front on MNIST's test digits"
    )
    args = parser.parse_args()
    console = Console()
    if args.errors:
        found = {**provenance.provenance(), "errors": aligned_errors()}
        args.errors.write_text(json.dumps(found, indent=1) + "\n")
        console.print(found["errors"])
        return
    with serving() as address:
        if args.screenshots:
            take_screenshots(address, args.screenshots)
            console.print(f"written to {args.screenshots}: {', '.join(VIEWS)}")
            return
        seconds, changes = (2.0, 10) if args.quick else (args.seconds, args.changes)
        with console.status(f"{args.clients} clients for {seconds:g} seconds"):
            load = under_load(address, args.clients, seconds)
        with console.status(f"{changes} changes in the browser"):
            browser = in_browser(address, changes)
    found = {"load": load, "browser": browser, "load average": os.getloadavg(), "cores": os.cpu_count()}
    table = Table("", "requests", "median ms", "p95 ms", "largest ms", title=f"{args.clients} clients, {seconds:g} s")
    for kind, row in load["kinds"].items():
        table.add_row(kind, str(row["count"]), *(f"{row[name]:.0f}" for name in ("median", "p95", "largest")))
    console.print(table)
    console.print(f"{load['errors']} errors, {load['busy']} times busy (503)")
    if browser:
        verdict = "" if browser["median"] < LIVE else f" [red](the limit is {LIVE:g})[/]"
        console.print(
            f"browser: a change is drawn after {browser['median']:.0f} ms (median){verdict}, "
            f"p95 {browser['p95']:.0f} ms; {browser['count']} changes, "
            f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
    else:
        console.print("browser: no chromium here, not measured")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "playground.json"
    path.write_text(json.dumps({**provenance.provenance(), **found}, indent=1))
    console.print(f"written to {path}")
    if load["errors"]:
        sys.exit(1)


def aligned_errors() -> dict[str, dict[str, float]]:
    """Errors in % of the networks that have no row of their own, over all test digits, rotated (r) and shifted (t)."""
    import torch

    from patchreorder.data.datasets import mnist
    from patchreorder.engine.batches import model_input
    from patchreorder.playground.networks import load_network
    from patchreorder.playground.requests import DATASETS

    found: dict[str, dict[str, float]] = {"aligned_cnn": {}, "unrolled_cnn": {}}
    for name, short in (("aligned_cnn", "r"), ("aligned_cnn", "t"), ("unrolled_cnn", "t")):
        digits, network, wrong = mnist(DATASETS[short], split="test"), load_network(name, DATASETS[short]), 0
        for part in torch.arange(len(digits)).split(500):
            images, labels = digits.batch(part)
            with torch.inference_mode():
                wrong += int((network(model_input(images, torch.device("cpu"))).argmax(1) != labels).sum())
        found[name][short] = round(100 * wrong / len(digits), 2)
    return found


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Run the playground and yield its address."""
    command = [sys.executable, "-m", "patchreorder", "play", "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0]
                return
        raise OSError("the playground did not start")
    finally:
        server.terminate()
        server.wait(20)


def under_load(address: str, clients: int, seconds: float) -> dict[str, Any]:
    """Return the milliseconds of every kind of request, from several clients at once."""
    drawings = [each["strokes"] for each in json.loads(SAMPLES.read_text(encoding="utf-8"))]
    times: dict[str, list[float]] = {"answer": [], "ring": [], "shifts": []}
    errors: list[str] = []
    busy: list[int] = []
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        own = random.Random(number)
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
        sent = 0
        while time.monotonic() < end:
            sent += 1
            kind = "shifts" if sent % 40 == 0 else "ring" if sent % 10 == 0 else "answer"
            strokes = [[max(0, min(1000, x + own.randint(-9, 9))) for x in line] for line in own.choice(drawings)]
            request = {"digit": {"strokes": strokes}, "rotation": own.randint(-180, 180), "trained": own.choice("rt")}
            began = time.perf_counter()
            try:
                connection.request("POST", f"/api/{kind}", json.dumps(request), {"content-type": "application/json"})
                answer = connection.getresponse()
                content = answer.read()
            except OSError as error:
                errors.append(str(error))
                connection.close()
                continue
            if answer.status == 200:
                times[kind].append(1000 * (time.perf_counter() - began))
            elif answer.status == 503:  # busy: the page tries again, too
                busy.append(1)
                time.sleep(0.3)
            else:
                errors.append(f"{answer.status} {content[:100]!r}")
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kinds = {kind: spread(values) for kind, values in times.items() if values}
    return {
        "clients": clients,
        "seconds": seconds,
        "kinds": kinds,
        "errors": len(errors),
        "said": errors[:5],
        "busy": len(busy),
    }


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "largest": ordered[-1],
    }


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not path:
        yield None
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def settle(page: Any, address: str) -> None:
    """Open the page and wait for its slower plots."""
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    for plot in (".ring g.mark", ".map rect.mark"):
        page.locator(plot).nth(2).wait_for(state="attached", timeout=60_000)


def in_browser(address: str, changes: int) -> dict[str, float] | None:
    """Return the milliseconds from a change of the rotation to the drawn answer."""
    with chromium() as browser:
        if browser is None:
            return None
        page = browser.new_page()
        settle(page, f"{address}/#n=t")
        page.wait_for_timeout(1500)
        page.locator("#rotation").focus()
        page.evaluate("performance.clearMeasures()")
        for _ in range(changes):
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(50)
        page.wait_for_timeout(1000)
        return spread(page.evaluate("performance.getEntriesByName('change').map((entry) => entry.duration)"))


def take_screenshots(address: str, folder: Path) -> None:
    """Write screenshots of the page, small enough for the documentation."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        if browser is None:
            raise OSError("there is no chromium: `apt-get install chromium`, or name one in the variable CHROMIUM")
        for name, (size, scheme, state, whole) in VIEWS.items():
            page = browser.new_page(viewport=size, color_scheme=scheme)
            settle(page, f"{address}/{state}")
            if page.locator("#photo-part").is_visible():
                page.set_input_files("#file", {"name": "scene.png", "mimeType": "image/png", "buffer": scene()})
                page.locator("#photo-layer").wait_for(state="visible")
                if page.locator("#no-answers").is_hidden():
                    page.locator("#photo-ring p").first.wait_for(state="visible")
            page.wait_for_timeout(500)
            image = Image.open(io.BytesIO(page.screenshot(full_page=whole)))
            page.close()
            image.convert("RGB").quantize(96, kmeans=1).save(folder / f"{name}.png", optimize=True)


def scene() -> bytes:
    """Draw an image for the section with photographs: a house by a lake."""
    image = Image.new("RGB", (640, 480), (150, 190, 225))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 300, 640, 480), fill=(70, 120, 75))
    pen.ellipse((330, 330, 620, 460), fill=(60, 110, 165))
    pen.rectangle((120, 200, 300, 350), fill=(205, 170, 130))
    pen.polygon([(100, 200), (320, 200), (210, 110)], fill=(150, 60, 50))
    pen.rectangle((190, 270, 235, 350), fill=(95, 60, 40))
    pen.rectangle((140, 225, 175, 260), fill=(235, 235, 200))
    pen.rectangle((250, 225, 285, 260), fill=(235, 235, 200))
    pen.rectangle((440, 180, 462, 330), fill=(90, 65, 45))
    pen.ellipse((385, 90, 520, 235), fill=(40, 95, 50))
    pen.ellipse((530, 30, 590, 90), fill=(250, 225, 120))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    main()
