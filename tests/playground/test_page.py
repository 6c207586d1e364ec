"""The page: its files, and the page in a browser."""

import re

import pytest

from patchreorder.playground.app import PAGE
from patchreorder.playground.networks import NETWORKS

from .images import encode, pattern


def test_the_files_name_no_other_server_and_no_inline_code():
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8")
        found = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s\"']*", text)) - {"http://www.w3.org/2000/svg"}
        assert not found, path.name
        assert "innerHTML" not in text
        assert "eval(" not in text
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*src=)", html) == []
    assert not re.search(r"<style|\sstyle=|\son\w+=", html)


def test_every_control_has_a_label():
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    labelled = set(re.findall(r'for="([\w-]+)"', html))
    for tag in re.findall(r"<input[^>]*>", html):
        name = re.search(r'id="([\w-]+)"', tag)
        inside = re.search(rf"<label[^>]*>[^<]*{re.escape(tag)}", html)
        assert inside or (name and name[1] in labelled) or 'class="time"' in tag, tag


# ---- in a browser ----------------------------------------------------------------------------------


def predictions(page):
    return [card.get_attribute("data-prediction") for card in page.locator(".card").all()]


def test_drawing_and_rotating_change_the_predictions(visit):
    from playwright.sync_api import expect

    page = visit()
    assert predictions(page) == ["3", "3", "3"]
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
    from playwright.sync_api import expect

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
    assert predictions(page) == ["3", "3", "3"]
    assert page.locator("#problem").is_hidden()


def test_upload_a_good_and_a_bad_file(visit, tmp_path):
    from playwright.sync_api import expect

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
    from playwright.sync_api import expect

    page = visit()
    page.get_by_role("button", name="2 Sort pixels instead").click()
    expect(page.locator("#tour-text strong")).to_have_count(3)
    before, after, others = (float(text) for text in page.locator("#tour-text strong").all_inner_texts())
    assert before < others < after
    page.locator("#rotation").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="2 Sort pixels instead")).to_have_attribute("aria-pressed", "false")
