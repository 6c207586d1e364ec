"""The page in a browser."""

import os
import re
import shutil

import pytest

from patchreorder.playground.networks import NETWORKS

from .images import encode, pattern

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import expect, sync_playwright


@pytest.fixture(scope="module")  # not longer: playwright keeps an event loop, in which no other can run
def browser():
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not path:
        pytest.skip("there is no chromium: `apt-get install chromium`, or name one in the variable CHROMIUM")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        # Chromium would contact servers of its own.
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
        expect.set_options(timeout=20_000)  # the machine may be busy
        opened = playwright.chromium.launch(executable_path=path, args=flags, timeout=60_000)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, address):
    """Open the page at a state. In the end there must have been no error and no request to another server."""
    contexts, complaints, elsewhere = [], [], []

    def note_request(request):
        if not request.url.startswith((address, "data:")):
            elsewhere.append(request.url)

    def visit(state="", **settings):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        contexts.append(context)
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "info" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", note_request)
        page.goto(f"{address}/{state}")
        page.wait_for_selector("html[data-ready]")
        page.wait_for_selector(".card[data-prediction]")
        return page

    visit.complaints = complaints
    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
    assert elsewhere == []


def predictions(page):
    return [card.get_attribute("data-prediction") for card in page.locator(".card").all()]


def test_drawing_and_rotating_change_the_predictions(visit):
    page = visit()
    assert predictions(page) == ["3"] * len(NETWORKS)
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + 0.52 * box["width"], box["y"] + 0.15 * box["height"])
    page.mouse.down()
    for step in range(1, 9):
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + (0.15 + 0.085 * step) * box["height"])
    page.mouse.up()
    for name in NETWORKS:
        expect(page.locator(f'.card[data-network="{name}"]')).to_have_attribute("data-prediction", "1")
    page.wait_for_url(re.compile(r"#d=w[\w-]+$"))
    page.reload()  # the address holds the drawing
    expect(page.locator(".card").first).to_have_attribute("data-prediction", "1")
    assert "d=w" in page.url
    page.goto(page.url.partition("#")[0] + "#d=s3")  # only the state changes: nothing is loaded
    expect(page.locator(".card").first).to_have_attribute("data-prediction", "3")
    page.locator("#rotation").focus()
    page.keyboard.press("Home")  # -180 degrees
    expect(page.locator("#rotation-value")).to_have_text("\u2212180°")
    expect(page.locator(".card").first).to_have_attribute("data-prediction", "8")
    expect(page.locator(".ring .right").first).to_be_attached()
    expect(page.locator(".map .wrong").first).to_be_attached()
    assert "3 at" in page.locator(".ring").first.get_attribute("aria-label")
    page.wait_for_url(re.compile("t=-180"))


def test_the_layer_follows_its_controls_and_the_address(visit):
    page = visit("#n=t&x=5&y=-4&g=pixels")
    layers = page.locator("#layer")
    expect(layers).to_have_attribute("data-after", re.compile(r"^0\.9"))
    page.locator('#layer input[value="2"][data-name="grid"]').check(force=True)
    expect(layers).to_have_attribute("data-after", re.compile(r"^0\.[0-2]"))
    page.wait_for_url(lambda url: "n=t" in url and "g=" not in url)  # defaults are not written
    page.locator('#layer input[value="3"][data-name="levels"]').check(force=True)
    page.locator('input[name="trained"][value="r"]').check(force=True)  # its maps are too small for eight patches
    expect(page.locator('#layer input[value="2"][data-name="levels"]')).to_be_checked()
    expect(page.locator('#layer input[value="3"][data-name="levels"]')).to_be_disabled()
    before = page.locator("#layer .after").screenshot()
    page.locator("#layer .time").focus()
    page.keyboard.press("Home")
    assert page.locator("#layer .after").screenshot() != before


def test_the_animation_respects_reduced_motion(visit):
    page = visit("#n=t&g=4", reduced_motion="reduce")
    page.locator("#layer .play").click()
    assert page.locator("#layer .time").input_value() == "0"  # at once
    page = visit("#n=t&g=4")
    seen = page.evaluate(
        """async () => {
          document.querySelector("#layer .play").click();
          for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
          return Number(document.querySelector("#layer .time").value);
        }"""
    )
    assert 0 < seen < 100


@pytest.mark.parametrize("fragment", ["#d=w!!&t=999&x=1e9&n=<b>&g=7&k=-1", "#" + "d=w" + "A" * 9000, "#d=m77", "#%"])
def test_an_invalid_address_gives_the_defaults(visit, fragment):
    page = visit(fragment)
    assert predictions(page) == ["3"] * len(NETWORKS)
    assert page.locator("#problem").is_hidden()


def test_upload_a_good_and_a_bad_file(visit, tmp_path):
    page = visit("#pt=30")
    page.set_input_files("#file", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": encode(pattern(), "JPEG")})
    expect(page.locator("#photo")).to_be_visible()
    expect(page.locator("#photo-layer")).to_have_attribute("data-before", re.compile(r"^0\.\d"))
    page.locator("#p-upright").click()
    expect(page.locator("#photo-layer")).to_have_attribute("data-before", "1")
    page.set_input_files("#file", {"name": "b.jpg", "mimeType": "image/jpeg", "buffer": b"<script>alert(1)</script>"})
    expect(page.locator("#photo-problem")).to_contain_text("send JPEG, PNG, GIF, WebP, BMP")
    expect(page.locator("#photo")).to_be_visible()  # the good one stays
    assert [text for text in visit.complaints if "415" not in text] == []
    visit.complaints.clear()  # the browser itself reports the 415
    (tmp_path / "c.png").write_bytes(b"\x89PNG" * 2_600_000)
    page.set_input_files("#file", tmp_path / "c.png")
    expect(page.locator("#photo-problem")).to_contain_text("more than 10 MB")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_horizontal_scrolling(visit, scheme):
    page = visit("#t=30", viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(253, 253, 252)", "dark": "rgb(23, 24, 28)"}[scheme]
    page.locator("#posed").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press(".")
    assert page.locator("#right-value").inner_text() == "1 px"
    assert page.locator("#rotation-value").inner_text() == "25°"


def test_answers_are_seen_while_drawing_on_a_phone(visit):
    page = visit("#n=t", viewport={"width": 360, "height": 740}, has_touch=True)
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + 0.52 * box["width"], box["y"] + 0.15 * box["height"])
    page.mouse.down()
    for step in range(1, 9):
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + (0.15 + 0.085 * step) * box["height"])
    expect(page.locator("#strip b")).to_have_text(["1"] * len(NETWORKS))  # before the finger is lifted
    expect(page.locator("#strip")).to_be_in_viewport()
    expect(page.locator("#pad")).to_be_in_viewport(ratio=0.9)
    page.mouse.up()
    page.locator("#clear").click()
    expect(page.locator("#strip b").first).to_be_hidden()  # there is no answer to an empty pad
    wide = visit()
    expect(wide.locator("#strip")).to_be_hidden()


def test_rings_and_squares_are_those_of_the_chosen_networks(visit):
    page = visit("#n=t")
    square = page.locator('.card[data-network="cnn"] .map')
    expect(square).to_have_attribute("aria-label", re.compile("3 at 225 of 225"))
    page.locator('input[name="trained"][value="r"]').check(force=True)
    expect(square).not_to_have_attribute("aria-label", re.compile("3 at 225 of 225"))


def test_a_photograph_gets_answers_in_every_pose(visit):
    page = visit("#pt=90")
    page.set_input_files("#file", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": encode(pattern(), "JPEG")})
    expect(page.locator("#answers-posed tbody tr")).to_have_count(3)
    expect(page.locator("#photo-ring p")).to_have_count(12)
    expect(page.locator("#photo-verdict")).to_have_text(re.compile("first answer"))
    page.locator("#p-upright").click()
    expect(page.locator("#photo-answers")).to_have_attribute("data-same", "true")


def test_everything_can_be_reached_by_keyboard(visit):
    page = visit()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.name || document.activeElement.className"
            )
        )
    digit = {"rotation", "right", "down", "posed", "upright", "trained", "sample", "undo", "clear", "share"}
    assert digit | {"time", "play", "digit-grid", "digit-channel", "p-rotation", "file"} <= reached


def test_the_tour_shows_numbers_from_the_server(visit):
    page = visit()
    page.get_by_role("button", name="2 Sort pixels instead").click()
    expect(page.locator("#tour-text strong")).to_have_count(3)
    before, after, others = (float(text) for text in page.locator("#tour-text strong").all_inner_texts())
    assert before < others < after
    shown = page.locator("#layer").get_attribute("data-before")
    page.locator("#rotation").focus()
    page.keyboard.press("PageUp")
    expect(page.get_by_role("button", name="2 Sort pixels instead")).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#layer")).not_to_have_attribute("data-before", shown)
    assert float(page.locator("#tour-text strong").first.inner_text()) == before  # of the tour, not of the new pose
    page.get_by_role("button", name="6 Build it in: rotations").click()
    expect(page.locator("#tour-text")).to_contain_text("in rings")
    expect(page.locator("#layer")).not_to_have_attribute("data-before", shown)
    expect(page.locator("#tour-text strong")).to_have_count(0)  # it is not about PR-CNN's maps


def test_nothing_leaves_its_card(visit):
    page = visit(viewport={"width": 1280, "height": 900})  # five in a row
    inside = "(card) => [...card.children].every((part) => part.scrollWidth <= part.clientWidth)"
    for card in page.locator(".card").all():
        assert card.evaluate(inside)
