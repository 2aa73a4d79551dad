"""The page of cards, opened from disk in a real browser."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from leapfactual.explanation import Explanation
from leapfactual.report import cards, change_map, write_page

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="PLAYWRIGHT IS MISSING: THE PAGE IS NOT TESTED"
)
expect = sync_api.expect

EVIL = "<img src=x onerror=alert(1)>"
RED, BLUE, WHITE = (202, 0, 32), (5, 113, 176), (255, 255, 255)
# Three frames of 2 × 2 pixels. The first pixel grows lighter, the second darker.
STRIP = [[(0, 204, 51, 51)], [(102, 102, 51, 51)], [(255, 0, 51, 51)]]


def uri(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def picture(*frames):
    strip = Image.new("RGB", (2 * len(frames), 2))
    for n, (pixels,) in enumerate(frames):
        for k, value in enumerate(pixels):
            strip.putpixel((2 * n + k % 2, k // 2), (value,) * 3)
    return uri(strip)


def numbers(**changes):
    given = {"label": 1, "leaps": 4, "queries": 5, "nfe": 40, "milliseconds": 3.1}
    return given | {"L1": 0.066, "margin": -0.12, "typicality": 0.41} | changes


def outcome(status="reached", reason="so", oracle=None, changed=None, **changes):
    way = {"share": 0.5, "where": "on the left", "lighter": 0.5, "darker": 0.5, "other": 0}
    return {
        "status": status,
        "reason": reason,
        "numbers": numbers(**changes),
        "oracle": oracle,
        "changed": way | (changed or {}),
    }


def card(name, source=0, target=1, status="reached", reliable=True, labels=False, **changes):
    return {
        "name": name,
        "source": source,
        "target": target,
        **outcome(status, f"reason of {name}", **changes),
        "reliable": outcome(leaps=9) if reliable is True else reliable,
        "labels": labels,
        "redrawn": 0.01,
        "pictures": {
            "input": picture(STRIP[0]),
            "counterfactual": picture(STRIP[1]),
            "reliable": picture(STRIP[2]) if reliable else None,
        },
        "frames": {"strip": picture(*STRIP), "n": 3, "width": 2, "height": 2, "leaps": [0, 3, 4]},
        "curve": {"classes": [0, 1], "p": [[0.9, None, 0.2], [0.1, None, 0.8]]},
    }


PLANS = [
    ("nearest counterfactual", "blend(9, 0.1), tighten(3)"),
    ("reliable counterfactual", "blend(9, 0.1), inject(2, 0, 0.1)"),
]
IMAGES = {
    "title": "Digits",
    "about": "Made for a test.",
    "kind": "images",
    "classes": ["seven", EVIL, "nine"],
    "table": [["all 3", "nearest"], ["validity", "2 of 3"], ["mean L1", "0.2"]],
    "plans": PLANS,
    "cards": [
        card("b10", L1=0.3, leaps=7, typicality=0.2),
        card(EVIL, 1, 2, "not reached", reliable=None, L1=0.1, leaps=9, typicality=None),
        card("b9", 2, 2, "already there", L1=0.2, leaps=8, typicality=0.9),
    ],
}
COLUMNS = [f"column {k}" for k in range(14)]
ROWS = {
    "title": "Rows",
    "about": "Made for a test.",
    "kind": "rows",
    "classes": ["a", "b"],
    "columns": COLUMNS,
    "std": [2.0] * 14,
    "table": None,
    "cards": [
        card("row", reliable=None)
        | {
            "rows": {
                "input": [1.0] * 14,
                "counterfactual": [1.0, 4.0, -7.0] + [1.0] * 11,
                "reliable": None,
                "frames": [
                    [1.0] * 14,
                    [1.0, 2.0, 1.0] + [1.0] * 11,
                    [1.0, 4.0, -7.0] + [1.0] * 11,
                ],
            },
            "frames": {"n": 3, "leaps": [0, 3, 4]},
        }
    ],
}


@pytest.fixture
def visit(browser, tmp_path):
    """Opens a page with data; at the end, nothing may have gone wrong or left the page."""
    wrong, contexts = [], []

    def visit(data=IMAGES, **options):
        file = tmp_path / "page.html"
        given = {key: value for key, value in data.items() if key not in ("cards", "kind")}
        write_page(file, data["cards"], **given)
        contexts.append(browser.new_context(**{"color_scheme": "light"} | options))
        page = contexts[-1].new_page()
        allowed = (file.as_uri(), "data:")
        page.on("request", lambda r: r.url.startswith(allowed) or wrong.append(r.url))
        page.on("console", lambda m: m.type == "error" and wrong.append(m.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.goto(file.as_uri())
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []


def soon(holds, page):
    """Waits up to two seconds for something to hold."""
    for _ in range(100):
        if holds():
            return True
        page.wait_for_timeout(20)
    return False


def pixels(card, name, n=0):
    """Returns the four pixels of a canvas, once it is drawn."""
    read = "c => [...c.getContext('2d').getImageData(0, 0, 2, 2).data]"
    canvas = card.locator(f"canvas.{name}").nth(n)
    for _ in range(100):
        values = canvas.evaluate(read)
        if values[3]:
            return [tuple(values[k : k + 3]) for k in range(0, 16, 4)]
        card.page.wait_for_timeout(20)
    raise AssertionError(f"the canvas {name} was never drawn")


def slide(card, frame):
    card.locator(".slider").fill(str(frame))


def names(page):
    return page.locator(".card:visible .name").all_inner_texts()


def blended(share, end):
    return tuple(round(255 + share * (colour - 255)) for colour in end)


def test_the_slider_moves_picture_curve_and_words(visit):
    card = visit().locator(".card").first
    expect(card).to_have_attribute("data-frame", "2")
    cursor, place = card.locator(".curve .cursor"), card.locator(".place")
    seen = {}
    for frame, leap in enumerate((0, 3, 4)):
        slide(card, frame)
        assert pixels(card, "frame") == [(v,) * 3 for v in STRIP[frame][0]]
        expect(card).to_have_attribute("data-frame", str(frame))
        expect(place).to_have_text(f"leap {leap} of 4")
        seen[leap] = float(cursor.get_attribute("x1"))
        assert cursor.get_attribute("x2") == cursor.get_attribute("x1")
    assert seen[3] - seen[0] == pytest.approx(0.75 * (seen[4] - seen[0]))
    assert seen[4] > seen[0]
    assert pixels(card, "seen") == [(v,) * 3 for v in STRIP[0][0]]


def test_the_change_maps_of_both_plans_have_one_fixed_scale(visit):
    card = visit().locator(".card").first
    assert pixels(card, "change") == [blended(0.4, RED), blended(0.4, BLUE), WHITE, WHITE]
    assert pixels(card, "change", 1) == [RED, blended(0.8, BLUE), WHITE, WHITE]


def test_labels_for_those_who_do_not_see_follow_the_slider(visit):
    page = visit()
    card = page.locator(".card").first
    frame, curve = card.locator(".frame"), card.locator(".curve")
    expect(frame).to_have_attribute(
        "aria-label", f"leap 4 of 4: the classifier says {EVIL} with 0.80"
    )
    slide(card, 1)
    expect(frame).to_have_attribute("aria-label", re.compile("leap 3 of 4: .* not queried"))
    expect(card.locator(".change").first).to_have_attribute(
        "aria-label", re.compile("what changed to the nearest counterfactual: blue .* red")
    )
    expect(curve).to_have_attribute("aria-label", re.compile("leap 3 of 4: seven not known"))
    slide(card, 0)
    expect(card.locator(".slider")).to_have_attribute(
        "aria-valuetext", re.compile("seven .* 0.90")
    )
    unnamed = (
        "e => !(e.ariaLabel || e.alt || e.textContent.trim() || e.closest('label, [role=img]')"
        " || e.querySelector('img[alt], [aria-label]'))"
    )
    found = page.locator(":is(button, select, input, img, canvas, [role=img])").all()
    assert len(found) > 30
    assert [e.evaluate("e => e.outerHTML") for e in found if e.evaluate(unnamed)] == []


def test_curves_join_known_points_only(visit):
    curve = visit().locator(".card").first.locator(".curve")
    assert "NaN" not in curve.evaluate("e => e.outerHTML")
    assert [p.get_attribute("d").count("M") for p in curve.locator(".dots").all()] == [2, 2]
    assert [p.get_attribute("d").count("L") for p in curve.locator(".thread").all()] == [1, 1]
    dashes = [p.get_attribute("stroke-dasharray") for p in curve.locator(".thread").all()]
    assert len(set(dashes)) == 2


def test_the_curve_can_be_clicked(visit):
    card = visit().locator(".card").first
    card.locator(".curve").click(position={"x": 30, "y": 40})
    expect(card).to_have_attribute("data-frame", "0")


def test_play_goes_to_the_end_and_stops(visit):
    card = visit().locator(".card").first
    card.evaluate(
        "c => { window.seen = []; new MutationObserver(() => seen.push(c.dataset.frame))"
        ".observe(c, { attributeFilter: ['data-frame'] }); }"
    )
    play = card.locator(".play")
    play.click()
    expect(play).to_contain_text("Pause")
    expect(card).to_have_attribute("data-frame", "2")
    expect(play).to_contain_text("Play")
    assert card.evaluate("() => seen") == ["0", "1", "2"]


CLIP = "e => getComputedStyle(e).clipPath"


def test_the_dividers_of_a_card_move_together(visit):
    page = visit()
    card = page.locator(".card").first
    overs, dividers = card.locator(".over"), card.locator(".compare input")
    sources = [picture(STRIP[1]), picture(STRIP[2])]
    assert [over.get_attribute("src") for over in overs.all()] == sources
    unders = card.locator(".compare img:not(.over)").all()
    assert [under.get_attribute("src") for under in unders] == [picture(STRIP[0])] * 2
    assert int(dividers.first.input_value()) < 20, "the counterfactual is seen first"
    dividers.nth(1).fill("20")
    assert [over.evaluate(CLIP) for over in overs.all()] == ["inset(0px 0px 0px 20%)"] * 2
    expect(dividers.first).to_have_attribute(
        "aria-valuetext", "left 20 %: input; right 80 %: nearest counterfactual"
    )
    other = page.locator(".card").nth(1).locator(".over")
    assert other.evaluate(CLIP) != "inset(0px 0px 0px 20%)"
    box = dividers.first.bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 60)
    page.mouse.up()
    line = card.locator(".line").first.bounding_box()
    assert line["x"] + line["width"] / 2 == pytest.approx(box["x"] + 0.75 * box["width"], abs=3)


def test_filters_choose_and_count(visit):
    page = visit()
    shown = page.locator("#shown")
    expect(shown).to_have_text("3 of 3 shown")
    for field, value, left in (
        ("source", "2", ["b9"]),
        ("target", "2", [EVIL, "b9"]),
        ("status", "reached", ["b10"]),
    ):
        page.locator(f"#{field}").select_option(value)
        assert names(page) == left
        expect(shown).to_have_text(f"{len(left)} of 3 shown")
        page.locator(f"#{field}").select_option("")
    page.locator("#search").fill("B1")
    assert names(page) == ["b10"]
    page.locator("#search").fill("nobody")
    expect(shown).to_have_text("0 of 3 shown")
    page.locator("#reset").click()
    assert len(names(page)) == 3


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("L1", [EVIL, "b9", "b10"]),
        ("typicality", ["b9", "b10", EVIL]),
        ("leaps", ["b10", "b9", EVIL]),
        ("name", [EVIL, "b9", "b10"]),
        ("given", ["b10", EVIL, "b9"]),
    ],
)
def test_sorting_changes_the_order(visit, key, order):
    page = visit()
    page.locator("#sort").select_option("name" if key == "given" else "given")
    page.locator("#sort").select_option(key)
    assert names(page) == order


def test_keys(visit):
    page = visit()
    first, second, third = (page.locator(".card").nth(n) for n in range(3))
    page.keyboard.press("j")
    expect(first).to_be_focused()
    page.keyboard.press("j")
    expect(second).to_be_focused()
    outline = second.evaluate("e => getComputedStyle(e).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("ArrowLeft")
    expect(second).to_have_attribute("data-frame", "1")
    page.keyboard.press("ArrowRight")
    expect(second).to_have_attribute("data-frame", "2")
    page.keyboard.press("k")
    expect(first).to_be_focused()
    page.keyboard.press(" ")
    expect(first.locator(".play")).to_contain_text("Pause")
    page.keyboard.press(" ")
    expect(first.locator(".play")).to_contain_text("Play")
    divider = first.locator(".compare input").first
    at = int(divider.input_value())
    divider.press("ArrowRight")
    expect(divider).to_have_value(str(at + 1))
    frame = first.get_attribute("data-frame")
    divider.press("ArrowLeft")
    divider.press("ArrowLeft")
    expect(divider).to_have_value(str(at - 1))
    expect(first).to_have_attribute("data-frame", frame)
    page.locator("#target").select_option("2")
    page.locator("#target").focus()
    page.keyboard.press("j")  # a select keeps its own keys, as the divider does
    expect(page.locator("#target")).to_be_focused()
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(third).to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.locator("#letters").uncheck()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).not_to_be_visible()
    third.focus()
    page.keyboard.press("k")
    expect(third).to_be_focused()
    page.locator("#help").click()
    page.locator("#letters").check()
    page.locator("#close").click()
    page.keyboard.press("/")
    page.keyboard.type("j?")
    expect(page.locator("#search")).to_have_value("j?")


def test_text_of_the_user_stays_text(visit):
    page = visit()
    expect(page.locator("h2 .name").nth(1)).to_have_text(EVIL)
    expect(page.locator("#source option").nth(2)).to_have_text(f"from {EVIL}")
    expect(page.locator("img[src=x]")).to_have_count(0)
    expect(page.locator(".numbers").first).to_contain_text(EVIL)
    expect(page.locator(".numbers").first).to_contain_text("−0.12")
    expect(page.locator("#summary")).to_contain_text("2 of 3")


def test_light_dark_and_the_button_between(visit):
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = visit(), visit(color_scheme="dark")
    bright, dim = light.evaluate(colour), dark.evaluate(colour)
    assert bright != dim
    card = dark.locator(".card").first
    assert max(pixels(card, "change")[2]) < 40
    dark.emulate_media(color_scheme="light")
    assert soon(lambda: pixels(card, "change")[2] == WHITE, dark)
    dark.emulate_media(color_scheme="dark")
    dark.locator("#theme").click()
    assert soon(lambda: dark.evaluate(colour) == bright, dark)
    assert soon(lambda: pixels(card, "change")[2] == WHITE, dark)
    dark.emulate_media(color_scheme="light")
    dark.locator("#theme").click()
    assert soon(lambda: dark.evaluate(colour) == dim, dark)


@pytest.mark.parametrize("data", [IMAGES, ROWS], ids=["images", "rows"])
@pytest.mark.parametrize("width", [320, 390, 800, 1024, 1440])
def test_nothing_sticks_out_sideways(visit, data, width):
    long = data | {"cards": [c | {"name": 99 * "x", "reason": 400 * "y"} for c in data["cards"]]}
    page = visit(long, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".slider").first.bounding_box()["width"] > 60
    inside = "e => e.scrollWidth <= e.clientWidth"
    assert page.locator(".figures .scroll").first.evaluate(inside)
    assert data is IMAGES or width < 390 or page.locator(".columns").evaluate(inside)


def test_far_cards_are_drawn_late_but_before_printing(visit):
    many = IMAGES | {"cards": [card(f"card {n}") for n in range(40)]}
    page = visit(many, color_scheme="dark")
    last = page.locator(".card").last
    alpha = "c => c.getContext('2d').getImageData(0, 0, 1, 1).data[3]"
    assert pixels(page.locator(".card").first, "frame")
    page.wait_for_timeout(300)
    assert last.locator(".frame").evaluate(alpha) == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert last.locator(".frame").evaluate(alpha) == 255
    assert pixels(last, "change")[2] == WHITE
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert max(pixels(last, "change")[2]) < 40


def test_rows_show_columns_by_how_much_they_change(visit):
    page = visit(ROWS)
    card = page.locator(".card")
    lines = card.locator(".columns tbody tr")
    expect(lines).to_have_count(12)
    assert lines.locator("th").all_inner_texts()[:3] == ["column 2", "column 1", "column 0"]
    bars = card.locator(".bar i")
    expect(lines.first).to_contain_text("−4.00")
    expect(bars.first).to_have_attribute("style", "width: 50%;")
    expect(bars.first).to_have_class("down")
    expect(bars.nth(1)).to_have_class("up")
    assert card.locator(".columns thead th").all_inner_texts() == [
        *("column", "before", "counterfactual", "at this leap")
    ]
    slide(card, 1)
    expect(lines.nth(1).locator(".here")).to_have_text("2")
    slide(card, 2)
    expect(lines.nth(1).locator(".here")).to_have_text("4")
    expect(card.locator(".answers dd").first).to_have_text(
        "2 of 14 columns, most of all column 2 1 → -7; column 1 1 → 4."
    )
    card.locator("summary").click()
    expect(card.locator(".columns tbody tr")).to_have_count(14)
    expect(page.locator("canvas, .compare")).to_have_count(0)


def test_rows_show_both_plans_in_the_same_way(visit):
    (given,) = ROWS["cards"]
    rows = given["rows"] | {"reliable": [1.0, 5.0, -9.0] + [1.0] * 11}
    page = visit(ROWS | {"plans": PLANS, "cards": [given | {"reliable": outcome(), "rows": rows}]})
    head = page.locator(".columns thead th").all_inner_texts()
    assert head == ["column", "before", "nearest", "reliable", "at this leap"]
    cells = page.locator(".columns tbody tr").first.locator(".cell")
    assert [cell.inner_text().split() for cell in cells.all()] == [
        ["-7", "−4.00"],
        ["-9", "−5.00"],
    ]
    widths = [bar.evaluate("e => e.style.width") for bar in cells.locator(".bar i").all()]
    assert widths == ["40%", "50%"], "one scale for both"


# -- what changed, can it be trusted, and what is all this? --


def answers(page, card=0, plan=0):
    """Returns the answers to both questions and the points of the second."""
    panel = page.locator(".card").nth(card).locator(".plan").nth(plan)
    changed, trust = panel.locator("dd").all()
    points = [li.inner_text().replace("\n", " ") for li in panel.locator(".answers li").all()]
    assert points.pop() == "? What this page cannot tell"
    return changed.inner_text(), trust.inner_text().split("\n")[0], points


def test_both_plans_have_one_layout(visit):
    page = visit(viewport={"width": 1440, "height": 900})
    panels = page.locator(".card").first.locator(".plan")
    assert panels.locator("h3").all_inner_texts() == [
        *("Nearest counterfactual", "Reliable counterfactual")
    ]
    shapes = "e => [...e.querySelectorAll('img, canvas, dt, .reason')].map(c => [c.tagName, " + (
        "...['width', 'height'].map(k => Math.round(c.getBoundingClientRect()[k]))])"
    )
    near, far = (panel.evaluate(shapes) for panel in panels.all())
    assert near == far
    boxes = [panel.locator(".compare").bounding_box() for panel in panels.all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["width"] > 200
    numbers = page.locator(".numbers").first
    assert numbers.locator("thead th").all_inner_texts() == ["nearest", "reliable"]
    assert boxes[0]["y"] + boxes[0]["height"] < numbers.bounding_box()["y"]


@pytest.mark.parametrize(
    ("changed", "color", "expected"),
    [
        ({}, True, "50 % of the image changed clearly, most on the left: partly lighter (red), "
                   "partly darker (blue)."),
        ({"where": None, "darker": 0.2}, False,
         "50 % of the image changed clearly, here and there: mostly added (red)."),
        ({"share": 0.001, "lighter": 0, "darker": 0.1, "other": 0.9}, True,
         "Less than 1 % of the image changed clearly, most on the left: mostly another colour "
         "(violet)."),
        ({"share": 0.0}, True, "Nothing that is clear to see."),
    ],
)  # fmt: skip
def test_what_changed_is_said_in_words(visit, changed, color, expected):
    one = card("x", changed=changed)
    one["frames"]["color"] = color
    assert answers(visit(IMAGES | {"cards": [one]}))[0] == expected


def test_what_speaks_against_a_counterfactual_is_counted(visit):
    sure = outcome(margin=0.98, typicality=0.7, oracle=1)
    weak = card("a", reliable=sure, margin=0.04, typicality=0.03, oracle=0)
    page = visit(IMAGES | {"cards": [weak], "classes": ["seven", "four", "nine"]})
    assert answers(page)[1:] == (
        "With care: 3 of 4 points speak against it.",
        [
            "! The classifier only just says four (margin 0.04)",
            "! Unusual: more typical than only 3 % of real images of four",
            "! The oracle says seven",
            "✓ The reliable one arrives too",
        ],
    )
    assert answers(page, plan=1)[1:] == (
        "None of 4 points speaks against it.",
        [
            "✓ The classifier clearly says four (margin 0.98)",
            "✓ Not unusual: more typical than 70 % of real images of four",
            "✓ The oracle says four too",
            "✓ The nearest one arrives too",
        ],
    )
    marks = page.locator(".answers li [role=img]")
    expect(marks.first).to_have_attribute("aria-label", "against it: ")


def test_what_is_not_known_is_said(visit):
    alone = card("a", reliable=None, margin=0.3, typicality=None)
    hidden = card("b", margin=0.3, changed={"share": 0.0}, reliable=outcome("not reached"))
    page = visit(IMAGES | {"cards": [alone, hidden | {"redrawn": 0.5}]})
    _, verdict, points = answers(page)
    assert verdict == "None of 4 points speaks against it, but 3 are not known."
    assert [point[0] for point in points] == ["✓", "·", "·", "·"]
    assert "No oracle was asked" in points[2]
    _, verdict, points = answers(page, 1)
    assert verdict == "With care: 3 of 6 points speak against it, and 1 is not known."
    assert "! The reliable one does not arrive" in points
    assert "! The generator alone changes the input by more (0.500) than this (0.066)" in points
    assert any("hardly to be seen" in point for point in points)


def test_what_did_not_arrive_and_what_was_there_are_not_trusted(visit):
    missed = card("a", 0, 2, "not reached", label=0)
    there = card("b", 2, 2, "already there")
    page = visit(IMAGES | {"cards": [missed, there]})
    assert answers(page)[1:] == ("No. The classifier still says seven, not nine.", [])
    assert answers(page, 1)[1].startswith("There was nothing to change: nine was the answer")


def test_labels_are_not_shown_as_probabilities(visit):
    labels = card("a", labels=True, margin=1.0)
    labels["curve"]["p"] = [[1, None, 0], [0, None, 1]]
    page = visit(IMAGES | {"cards": [labels], "classes": ["seven", "four", "nine"]})
    page.locator("#help").click()
    whole = page.locator("main").inner_text() + page.locator("#keys").inner_text()
    assert "margin" not in whole
    assert "1.00" not in whole
    assert "it gives labels only" in answers(page)[2][0]
    expect(page.locator(".legend")).to_have_text(
        "The classifier gives labels only: a dot is an answer."
    )
    expect(page.locator(".curve .thread")).to_have_count(0)
    heights = [
        re.findall(r"M\S+ (\S+?)h0", dots.get_attribute("d"))
        for dots in page.locator(".curve .dots").all()
    ]
    assert [len(found) for found in heights] == [1, 1]
    assert heights[0] != heights[1], "each class has a lane"
    expect(page.locator(".says")).to_have_text("the classifier says four")
    soft = visit(IMAGES | {"cards": [labels, card("b")]})
    expect(soft.locator(".curve .thread").first).to_be_visible()
    assert "margin" in soft.locator("main").inner_text()


def test_people_give_labels(visit):
    page = visit(IMAGES | {"asked": "people", "cards": [card("a", reliable=None)]})
    assert answers(page)[2][0] == f"✓ People say {EVIL}"
    expect(page.locator(".numbers")).not_to_contain_text("margin")


def test_every_number_is_explained_by_pointer_focus_and_touch(visit):
    page = visit()
    tip = page.locator("#tip")
    terms = page.locator(".card").first.locator(".numbers .term")
    assert terms.all_inner_texts() == [
        *("result", "the classifier says", "distance (L1)", "margin", "typicality"),
        *("leaps", "queries", "NFE", "time"),
    ]
    for term in [*terms.all(), *page.locator("#summary .term, .title .term").all()]:
        about = page.locator(f"#{term.get_attribute('aria-describedby')}")
        assert len(about.text_content()) > 40
        term.focus()
        expect(tip).to_be_visible()
        expect(tip).to_contain_text(about.locator("p").first.text_content())
    terms.nth(2).hover()
    expect(tip).to_contain_text("Better: smaller")
    expect(tip).to_contain_text("It does not say whether")
    tip.hover()  # it can be read with the pointer on it
    page.wait_for_timeout(300)
    expect(tip).to_be_visible()
    page.locator("h1").hover()
    expect(tip).not_to_be_visible()
    terms.first.focus()
    expect(tip).to_be_visible()
    page.keyboard.press("Escape")
    expect(tip).not_to_be_visible()
    page.locator("#summary .term").nth(1).focus()
    expect(tip).to_contain_text("distance (L1)")
    touch = visit(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    last = touch.locator(".numbers .term").last
    last.tap()
    expect(touch.locator("#tip")).to_be_visible()
    box = touch.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert box["y"] + box["height"] <= 800


def test_the_plan_of_each_column_is_named_and_exact_on_demand(visit):
    page = visit()
    page.locator(".title .term").nth(1).focus()
    expect(page.locator("#tip")).to_contain_text("blend(9, 0.1), inject(2, 0, 0.1)")
    expect(page.locator("#tip")).to_contain_text("on into the class")
    expect(page.locator("#tip")).not_to_contain_text("tighten")
    bare = visit(IMAGES | {"plans": ()})
    expect(bare.locator(".title .term")).to_have_count(0)
    assert bare.locator(".card").first.locator(".plan h3").all_inner_texts() == [
        *("Counterfactual", "Reliable counterfactual")
    ]


def test_the_help_has_all_in_one_place(visit):
    page = visit()
    page.locator("#help").click()
    words = page.locator("#keys").inner_text()
    for text in (
        *("What changed?", "Can I trust it?", "What this page cannot tell", "distance (L1)"),
        *("typicality", "oracle", "blend(9, 0.1), tighten(3)"),
    ):
        assert text in words
    assert words.count("Better: ") == words.count("It does not say ") == 11
    page.keyboard.press("Escape")
    page.locator(".limits").first.click()
    top = page.locator("#limits").bounding_box()["y"]
    box = page.locator("#keys").bounding_box()
    assert box["y"] < top < box["y"] + box["height"]
    tables = visit(ROWS)
    assert "divider" not in tables.locator("#keys p").all_text_contents()[1]


CONTRAST = """() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour, below = [255, 255, 255]) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = probe.getImageData(0, 0, 1, 1).data;
    return a ? [r, g, b] : null;
  };
  const light = (colour) => colour.map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const ground = (e) => rgb(getComputedStyle(e).backgroundColor) ?? ground(e.parentElement);
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  return [...document.querySelectorAll("body :not(script, option)")]
    .filter((e) => own(e) && e.checkVisibility())
    .map((e) => {
      const style = getComputedStyle(e);
      const ink = e instanceof SVGElement ? style.fill : style.color;
      const [a, b] = [light(rgb(ink)), light(ground(e))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), e.className.baseVal ?? e.className, e.textContent];
    }).filter(([ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(visit, scheme):
    weak = card("a", margin=0.04, typicality=0.03, oracle=0)
    page = visit(IMAGES | {"cards": [weak, *IMAGES["cards"]]}, color_scheme=scheme)
    assert page.evaluate(CONTRAST) == []
    page.locator("#help").click()
    assert page.evaluate(CONTRAST) == []
    assert visit(ROWS, color_scheme=scheme).evaluate(CONTRAST) == []


def test_less_motion_where_that_is_wanted(visit):
    smooth = "getComputedStyle(document.documentElement).scrollBehavior"
    assert visit().evaluate(smooth) == "smooth"
    page = visit(reduced_motion="reduce")
    assert page.evaluate(smooth) == "auto"
    card = page.locator(".card").first
    card.evaluate(
        "c => { window.seen = []; new MutationObserver(() => seen.push(performance.now()))"
        ".observe(c, { attributeFilter: ['data-frame'] }); }"
    )
    card.locator(".play").click()
    assert soon(lambda: page.evaluate("seen.length") == 3, page)
    assert page.evaluate("seen[2] - seen[0]") > 900, "two steps a second"


# -- photographs, and the large view --


def photographs(width, height, channels=3):
    """Returns a page of one photograph, whose counterfactual has a spot of another colour."""
    torch.manual_seed(0)
    x = torch.rand(1, channels, height, width)
    spot = x.clone()
    spot[:, 0, 8:12, 8:12], spot[:, -1, 8:12, 8:12] = 0.9, 0.1
    target, p = torch.tensor([1]), torch.tensor([[0.2, 0.8]])
    e = Explanation.of(x, spot, target, p, 1 - target, reconstruction=0.9 * x)
    made = list(cards(e, names=["leaf"]))
    middle = uri(Image.new("RGB", (width, height), (128, 128, 128)))
    made[0]["frames"] |= {"n": 3, "leaps": [0, 1, 2], "strip": middle}
    page = {"title": "Leaves", "about": "", "classes": ["healthy", "ill"], "cards": made}
    return page, e


def sizes(page, selector):
    found = [place.bounding_box() for place in page.locator(selector).all()]
    return [(round(box["width"]), round(box["height"])) for box in found]


@pytest.mark.parametrize(("width", "height"), [(64, 64), (128, 128), (96, 160), (256, 192)])
@pytest.mark.parametrize("window", [390, 900, 1440])
def test_photographs_keep_their_size_and_shape(visit, width, height, window):
    data, _ = photographs(width, height)
    page = visit(data, viewport={"width": window, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= window
    shown = sizes(page, ".zoom > *, .compare img")
    assert len(shown) == 6
    for across, down in shown:
        assert across >= width
        assert down / across == pytest.approx(height / width, rel=0.02)
    rendering = "e => getComputedStyle(e).imageRendering"
    assert page.locator(".change").evaluate(rendering) == "auto"
    assert visit().locator(".change").first.evaluate(rendering) == "pixelated"


@pytest.mark.parametrize("channels", [1, 3])
def test_change_maps_of_photographs_are_those_of_the_files(visit, channels):
    data, e = photographs(64, 80, channels)
    page = visit(data)
    read = "c => [...c.getContext('2d').getImageData(0, 0, 64, 80).data]"
    soon(lambda: page.locator(".change").evaluate(read)[3], page)
    drawn = torch.tensor(page.locator(".change").evaluate(read)).view(80, 64, 4)[..., :3]
    file = torch.tensor(np.array(change_map(e.reconstruction[0], e.counterfactual[0])).tolist())
    # Files are drawn from the numbers, the page from pictures of 8 bits.
    assert (drawn - file).abs().max() <= 5


def test_frames_of_photographs_are_differences_from_the_first(visit):
    data, e = photographs(64, 64)
    middle = Image.new("RGB", (64, 64), (128, 128, 128))
    middle.paste((138, 128, 118), (16, 16, 48, 48))
    frames = data["cards"][0]["frames"]
    frames |= {"n": 3, "leaps": [0, 1, 2], "strip": uri(middle)}
    data["cards"][0]["curve"] = {"classes": [0, 1], "p": [[0.9, 0.5, 0.2], [0.1, 0.5, 0.8]]}
    card = visit(data).locator(".card")
    read = "c => [...c.getContext('2d').getImageData(0, 0, 64, 64).data]"

    def drawn(frame):
        slide(card, frame)
        soon(lambda: card.locator(".frame").evaluate(read)[3], card.page)
        values = torch.tensor(card.locator(".frame").evaluate(read))
        return values.view(64, 64, 4)[..., :3].permute(2, 0, 1)

    start, end = ((255 * x[0]).round() for x in (e.reconstruction, e.counterfactual))
    assert torch.equal(drawn(0), start.long())
    assert torch.equal(drawn(2), end.long())
    change = torch.tensor([20, 0, -20])[:, None, None].expand(3, 32, 32)
    expected = start.long()
    expected[:, 16:48, 16:48] = (expected[:, 16:48, 16:48] + change).clamp(0, 255)
    assert torch.equal(drawn(1), expected)


def test_a_picture_is_enlarged_by_mouse_and_by_keys_and_the_focus_returns(visit):
    page = visit()
    card, dialog = page.locator(".card").first, page.locator("#zoom")
    opener = card.locator(".corner").first
    opener.click()
    expect(dialog).to_be_visible()
    expect(page.locator("#what label:has(:checked)")).to_contain_text("nearest counterfactual")
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(opener).to_be_focused()
    for key in ("Enter", " "):
        page.keyboard.press(key)
        expect(dialog).to_be_visible()
        expect(page.locator("#what :checked")).to_be_focused()
        page.keyboard.press("j")  # the keys of the page rest
        page.locator("#zoom-close").click()
        expect(opener).to_be_focused()
    card.locator(".change").first.click()
    expect(page.locator("#zoom-note")).to_contain_text("what changed")
    page.mouse.click(3, 3)  # beside the dialog
    expect(dialog).not_to_be_visible()
    expect(card.locator(".zoom:has(.change)").first).to_be_focused()


def test_pictures_are_switched_at_the_same_place(visit):
    page = visit()
    card, large = page.locator(".card").first, page.locator("#pane canvas")
    read = "c => [...c.getContext('2d').getImageData(0, 0, 1, 1).data.slice(0, 3)]"
    assert pixels(card, "change")
    card.locator(".zoom").first.click()
    place = large.bounding_box()
    pale = list(blended(0.4, RED))
    shown = {"1": [0] * 3, "2": [0] * 3, "3": [102] * 3, "4": pale, "5": [255] * 3, "6": list(RED)}
    for key, value in (shown | {"7": [255] * 3}).items():
        page.keyboard.press(key)
        assert soon(lambda value=value: large.evaluate(read) == value, page)
        assert large.bounding_box() == place
    page.keyboard.press("6")
    page.keyboard.press("3")
    for value in (list(RED), [102] * 3):
        page.keyboard.press("s")
        assert large.evaluate(read) == value
    page.locator("#swap").click()
    assert large.evaluate(read) == list(RED)
    page.locator("#what label").nth(1).click()
    expect(large).to_have_attribute("aria-label", re.compile("as the generator sees it"))
    page.keyboard.press("ArrowRight")
    expect(large).to_have_attribute("aria-label", re.compile(", nearest counterfactual"))


@pytest.mark.parametrize("window", [390, 1440])
def test_the_large_view_zooms_and_pans(visit, window):
    data, _ = photographs(256, 192)
    page = visit(data, viewport={"width": window, "height": 800})
    page.locator(".zoom").first.click()
    pane, large = page.locator("#pane"), page.locator("#pane canvas")
    inside = "e => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight"
    assert pane.evaluate(inside)
    box = page.locator("#zoom").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= window
    fit = large.bounding_box()["width"]
    assert fit >= 256
    for step, width in (("1×", 256), ("2×", 512), ("8×", 2048)):
        page.locator("#scale label", has_text=step).click()
        assert sizes(page, "#pane canvas") == [(width, width * 3 // 4)]
    middle = "e => (e.scrollLeft + e.clientWidth / 2) / e.scrollWidth"
    assert pane.evaluate(middle) == pytest.approx(0.5, abs=0.01)
    before = pane.evaluate("e => [e.scrollLeft, e.scrollTop]")
    place = pane.bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y - 40)
    page.mouse.up()
    page.mouse.move(x, y)
    after = pane.evaluate("e => [e.scrollLeft, e.scrollTop]")
    assert after == pytest.approx([before[0] + 60, before[1] + 40], abs=1)
    page.keyboard.press("2")  # another picture, the same part of it
    assert pane.evaluate("e => [e.scrollLeft, e.scrollTop]") == after
    for key, width in (("-", 1024), ("-", 512), ("+", 1024), ("0", fit)):
        page.keyboard.press(key)
        assert large.bounding_box()["width"] == pytest.approx(width, abs=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= window


def test_the_large_view_follows_the_theme(visit):
    page = visit()
    card = page.locator(".card").first
    assert pixels(card, "change")[2] == WHITE
    card.locator(".change").first.click()
    read = "c => Math.max(...c.getContext('2d').getImageData(0, 1, 1, 1).data.slice(0, 3))"
    assert page.locator("#pane canvas").evaluate(read) == 255
    page.emulate_media(color_scheme="dark")
    assert soon(lambda: page.locator("#pane canvas").evaluate(read) < 40, page)


def test_a_notebook_shows_the_page_in_a_frame(browser, tmp_path):
    """The script of the page runs in it, and the page around is out of its reach."""
    x = torch.rand(2, 1, 8, 8)
    p = torch.tensor([[0.2, 0.8]]).expand(2, -1)
    e = Explanation.of(x, 1 - x, torch.ones(2).long(), p, torch.zeros(2).long())
    shown = e.show(names=["<b>one</b>", "two"], height=640)
    assert repr(shown).startswith("Frame(a page of ")
    (tmp_path / "notebook.html").write_text(f"<!doctype html><p>cell</p>{shown._repr_html_()}")
    page = browser.new_page()
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("article")).to_have_count(2)
    expect(frame.get_by_role("article").first).to_contain_text("<b>one</b>")
    assert page.locator("iframe").bounding_box()["height"] == 640
    page.close()
