"""The page, in a real browser, as somebody uses it."""

import io
import re
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from leapfactual.imaging import to_pil
from leapfactual.pretrained import load
from leapfactual.studio import studio as module
from tests.serving import running
from tests.studio.conftest import TOKEN

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="PLAYWRIGHT IS MISSING: THE PAGE IS NOT TESTED"
)
expect = sync_api.expect

AXE = Path(sys.prefix) / "package" / "axe.min.js"
POLICY = """document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));"""


@pytest.fixture
def served(app):
    with running(app) as url:
        yield url


@pytest.fixture
def open_page(browser, served):
    """Opens the page; nothing may be said on the console, and nobody else is asked."""
    contexts = []

    def make(link="", fails=False, **options):
        options = {"viewport": {"width": 1440, "height": 900}} | options
        context = browser.new_context(reduced_motion="reduce", **options)
        context.set_default_timeout(10_000)
        contexts.append((context, []))
        page = context.new_page()
        errors = contexts[-1][1]
        page.add_init_script(POLICY)
        page.on("console", lambda m: m.type == "error" and not fails and errors.append(m.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda r: _ours(r.url, served) or errors.append(r.url))
        page.goto(f"{served}/open/{TOKEN}")
        if link:
            page.goto(served + "/" + link)
            page.reload()
        expect(page.locator(".class").first).to_be_enabled()
        return page

    yield make
    for context, errors in contexts:
        assert errors == []
        context.close()


def _ours(url, served):
    return url.startswith((served, "data:", "blob:"))


def ask(page, name):
    page.locator(".class").nth(name).click()
    expect(page.locator("#status")).to_contain_text("became")


def test_a_click_on_a_class_shows_the_answer(open_page):
    page = open_page()
    expect(page.locator("#says")).to_have_text(
        "The classifier says 7 with 1.00: test digit 0, a 7."
    )
    ask(page, 3)
    expect(page.locator("#status")).to_have_text(re.compile(r"^7 became 3 after .*\(\S+ m?s\)\.$"))
    card = page.get_by_role("article")
    expect(card.locator(".badge")).to_contain_text("reached")
    expect(card).to_contain_text("The oracle says 3 too")
    expect(page.locator(".class").nth(3)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".class").nth(3).locator(".value")).to_have_text(
        re.compile(r"0.00 → 0\.\d\d")
    )
    width = page.locator(".class").nth(7).locator(".before").evaluate("e => e.style.width")
    assert float(width.removesuffix("%")) > 99
    expect(page.locator("#nearest")).to_contain_text("a 3")
    expect(page.locator("#progress")).to_be_hidden()


def test_the_dial_goes_from_nearest_to_reliable(open_page):
    page = open_page()
    ask(page, 3)
    dial, answers = page.locator("#dial"), []
    expect(page.locator("#dial-says")).to_have_text("0.00")
    for _ in range(5):
        dial.press("ArrowRight")
        expect(page.locator("#dial-says")).not_to_contain_text("on its way")
        answers.append(page.locator(".numbers tr", has_text="distance").inner_text())
    expect(page.locator("#dial-says")).to_have_text("1.00")
    assert len(set(answers)) > 3
    expect(page).to_have_url(re.compile("dial=5"))


def test_steps_are_walked_and_played(open_page):
    page = open_page()
    ask(page, 3)
    card = page.get_by_role("article")
    last = card.locator(".place").inner_text()
    page.keyboard.press("ArrowLeft")
    assert card.locator(".place").inner_text() != last
    page.keyboard.press("ArrowRight")
    expect(card.locator(".place")).to_have_text(last)
    page.locator("#answer-title").click()
    page.keyboard.press("Space")
    expect(card.get_by_role("button", name="pause")).to_be_visible()


def test_keys_choose_classes_and_pictures(open_page):
    page = open_page()
    page.keyboard.press("5")
    expect(page.locator("#status")).to_contain_text("7 became 5")
    page.keyboard.press("j")
    expect(page.locator("#status")).to_contain_text("2 became 5")
    page.keyboard.press("k")
    expect(page.locator("#status")).to_contain_text("7 became 5")
    page.locator(".thumb[aria-pressed=true]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#status")).to_contain_text("2 became 5")
    expect(page.locator(".thumb:focus")).to_have_attribute("aria-label", re.compile("digit 1,"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("the class of that name")
    page.keyboard.press("Escape")


def test_a_class_that_is_chosen_before_the_picture_is_seen_is_asked_for(open_page):
    page = open_page()
    page.evaluate("choose('4'); leap(9)")
    expect(page.locator("#status")).to_contain_text("became 9")
    expect(page.locator("article")).to_contain_text("test digit 4")


def test_only_the_painted_part_changes(open_page):
    page = open_page()
    page.get_by_text("Only a part of it may change").click()
    brush = page.locator("#brush-over")
    brush.focus()
    for key in ("Space", "ArrowDown", "ArrowDown", "ArrowDown", "Space"):
        brush.press(key)
    expect(page.locator("#brush-says")).to_have_text(re.compile(r"^\d+ % of it may change\.$"))
    painted = brush.evaluate(
        """c => {
          const { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
          return data.filter((value, n) => n % 4 === 3 && value > 0).length;
        }"""
    )
    assert painted > 10, "what is painted is seen"
    page.locator(".class").nth(3).click()
    expect(page.locator("article")).to_be_visible()
    expect(page).to_have_url(re.compile("mask=[0-9a-f]{196}"))
    page.get_by_role("button", name="Everywhere").click()
    expect(page.locator("#brush-says")).to_have_text("All of it may change.")
    expect(page.locator("#status")).to_contain_text("7 became 3")


def test_other_ways_can_be_looked_at(open_page):
    page = open_page()
    ask(page, 3)
    page.get_by_role("button", name="In other ways").click()
    expect(page.locator("#status")).to_contain_text("4 other ways")
    before = page.locator("article .over").get_attribute("src")
    page.locator("#ways button").nth(2).click()
    assert page.locator("article .over").get_attribute("src") != before
    expect(page.locator("#ways button")).to_have_count(4)


def test_what_is_kept_is_listed_after_a_reload_and_can_be_removed(open_page, kept):
    page = open_page()
    ask(page, 3)
    page.get_by_label("A note").fill("<b>bends</b>")
    page.get_by_role("button", name="Keep").click()
    expect(page.locator("#kept li")).to_contain_text("<b>bends</b>")
    assert len(kept.items()) == 1
    page.reload()
    expect(page.locator("#kept li")).to_contain_text("7 → 3")
    with page.expect_download() as download:
        page.get_by_role("link", name="As a page").click()
    assert "bends" in Path(download.value.path()).read_text()
    page.get_by_role("button", name="remove").click()
    expect(page.locator("#shelf")).to_be_hidden()
    assert kept.items() == []


def test_a_link_opens_picture_class_and_dial(open_page):
    page = open_page("#picture=4&target=9&dial=5")
    expect(page.locator("#status")).to_contain_text("became 9")
    expect(page.locator("#dial-says")).to_have_text("1.00")
    expect(page.locator(".thumb[aria-pressed=true]")).to_have_attribute(
        "aria-label", re.compile("^test digit 4")
    )


@pytest.mark.parametrize("link", ["#picture=999&target=3", "#picture=b12", "#target=99&dial=-1"])
def test_a_link_to_what_is_not_here_opens_what_is(open_page, link):
    page = open_page(link)
    expect(page.locator("#says")).to_contain_text("The classifier says")


def test_pictures_are_opened_dropped_and_drawn(open_page, tmp_path):
    page = open_page()
    to_pil(load().digits.images[1]).save(tmp_path / "mine.png")
    page.locator("#file").set_input_files(tmp_path / "mine.png")
    expect(page.locator("#says")).to_have_text(re.compile(r"says 2 with .*: mine\.png\."))
    ask(page, 3)
    file = io.BytesIO()
    Image.new("L", (900, 700), 30).save(file, format="JPEG")
    page.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "dropped.jpg", { type: "image/jpeg" }));
          dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
        }""",
        list(file.getvalue()),
    )
    expect(page.locator("#says")).to_contain_text("dropped.jpg")
    page.evaluate(
        """(bytes) => {
          const clipboardData = new DataTransfer();
          const file = new File([new Uint8Array(bytes)], "pasted.jpg", { type: "image/jpeg" });
          clipboardData.items.add(file);
          dispatchEvent(new ClipboardEvent("paste", { clipboardData }));
        }""",
        list(file.getvalue()),
    )
    expect(page.locator("#says")).to_contain_text("pasted.jpg")
    page.get_by_role("button", name="Draw").click()
    box = page.locator("#paper").bounding_box()
    page.mouse.move(box["x"] + 140, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 140, box["y"] + 220, steps=8)
    page.mouse.up()
    page.get_by_role("button", name="Take it").click()
    expect(page.locator("#says")).to_have_text(re.compile(r"says 1 with .*: drawn\."))


def test_a_finger_is_enough(open_page):
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    page = open_page(**phone)
    page.locator(".thumb").nth(1).tap()
    expect(page.locator("#says")).to_contain_text("test digit 1")
    page.locator(".class").nth(3).tap()
    expect(page.locator("#status")).to_contain_text("2 became 3")
    expect(page.locator("#status")).to_be_in_viewport()
    page.get_by_text("Only a part of it may change").tap()
    page.locator("#brush-over").tap()
    expect(page.locator("#brush-says")).to_contain_text("% of it may change")


def test_what_goes_wrong_is_said(open_page, tmp_path):
    page = open_page(fails=True)
    (tmp_path / "page.png").write_text("<html>")
    page.locator("#file").set_input_files(tmp_path / "page.png")
    expect(page.locator("#status.bad")).to_contain_text("is no PNG, JPEG, WEBP or TIFF image")
    page.route("**/walk", lambda route: route.abort())
    page.locator(".class").nth(3).click()
    expect(page.locator("#status.bad")).to_contain_text("Is it still running")


def test_long_walks_are_shown_on_their_way_and_can_be_stopped(open_page, studio, monkeypatch):
    page = open_page()
    monkeypatch.setattr(module, "SECONDS_PER_STEP", 0.0)
    slow, query = [], studio._networks.classifier

    def patient(x):
        slow.append(1)
        time.sleep(0.15)
        return query(x)

    networks = type(studio._networks)(studio._networks.generator, patient)
    monkeypatch.setattr(studio, "_networks", networks)
    page.locator(".class").nth(3).click()
    expect(page.locator("#progress")).to_be_visible()
    expect(page.locator("#live-says")).to_contain_text(re.compile(r"Step \d+: the"))
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#progress")).to_be_hidden()
    expect(page.locator("#status")).to_have_text("Stopped.")
    page.wait_for_timeout(400)
    count = len(slow)
    page.wait_for_timeout(600)
    assert len(slow) == count, "nobody computes what nobody waits for"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_nothing_is_wider_than_the_window(open_page, width, scheme):
    page = open_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    ask(page, 3)
    page.get_by_text("Only a part of it may change").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter((e) =>
          e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("#gallery, .scroll"))
          .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert wide == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_axe_finds_no_violation(open_page, width, scheme):
    if not AXE.exists():
        pytest.skip("AXE IS MISSING: ACCESSIBILITY IS NOT TESTED (npm was not found by make)")
    page = open_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    ask(page, 3)
    page.get_by_role("button", name="In other ways").click()
    expect(page.locator("#ways")).to_be_visible()
    page.get_by_role("button", name="Keep").click()
    expect(page.locator("#kept li")).to_be_visible()
    page.get_by_text("Only a part of it may change").click()
    for opened in (None, "#help", "#pen"):
        if opened:
            page.locator(opened).click()
        # By the tools of the browser, which the policy of the page does not bind.
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run(document)")["violations"]
        assert [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in found] == []
        page.keyboard.press("Escape")
