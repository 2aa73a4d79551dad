"""The page, served as people get it, in a real browser."""

import itertools
import re
import threading
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest
from sqlalchemy import select, update

from leapfactual.imaging import to_pil
from leapfactual.people import assignment, campaigns, status, votes
from leapfactual.people.consensus import IMPLAUSIBLE, UNSURE, Rule
from leapfactual.people.store import tables as t
from leapfactual.people.web.app import OWNER, VOTER, application
from leapfactual.people.worker import Worker
from leapfactual.web.guard import RateLimiter
from tests.people.crowd import labels, play
from tests.serving import running

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="PLAYWRIGHT IS MISSING: THE PAGE IS NOT TESTED"
)
pytest.importorskip("uvicorn", reason="UVICORN IS MISSING: THE PAGE IS NOT TESTED")
expect = sync_api.expect

SCRIPT, IMAGE = "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'
PHONE = {"viewport": {"width": 375, "height": 667}, "has_touch": True, "is_mobile": True}
REPORT = """document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));"""


@contextmanager
def working(db):
    """Does the jobs of a campaign in a thread."""
    over = threading.Event()
    thread = threading.Thread(target=lambda: Worker(db).run(over.is_set))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def serve(campaign, folder):
    """Serves campaigns, each with a worker in it, whose first pictures are asked about."""
    with ExitStack() as stack:

        def make(names=("Ada",), pictures=4, limiter=None, classes=None, **options):
            images = [folder / f"digit-{k}.png" for k in range(pictures)]
            made = campaign(**{"name": "Digits in spring", "images": images} | options)
            if classes is not None:
                with made.db.write() as c:
                    c.execute(update(t.campaign).values(classes=list(classes)))
            made.tokens = [campaigns.invite(made.db, name) for name in names]
            made.url = stack.enter_context(running(application(made.db, limiter=limiter)))
            stack.enter_context(working(made.db))
            worked(made.db)
            return made

        yield make


@pytest.fixture
def visit(browser):
    """Opens pages as somebody; at the end, nothing may have gone wrong or left the server.

    What the server refuses on purpose is told in advance, by status.
    """
    found, contexts = [], []

    def wrong(text, refusals=()):
        refused = re.search(r"responded with a status of (\d+)", text)
        if refused is None or int(refused[1]) not in refusals:
            found.append(text)

    def open_page(made, path="/task", person=0, refusals=(), **options):
        context = browser.new_context(**{"color_scheme": "light"} | options)
        contexts.append(context)
        context.set_default_timeout(10_000)
        if person is not None:
            cookies = {VOTER: made.tokens[person], OWNER: made.token}
            context.add_cookies(
                [{"name": name, "value": cookies[name], "url": made.url} for name in cookies]
            )
        context.add_init_script(REPORT)
        context.on("request", lambda r: r.url.startswith(made.url) or wrong(r.url))
        context.on("console", lambda m: m.type in ("error", "warning") and wrong(m.text, refusals))
        context.on("weberror", lambda error: wrong(str(error.error)))
        context.on("dialog", lambda dialog: (wrong(dialog.message), dialog.dismiss()))
        page = context.new_page()
        page.goto(made.url + path)
        return page

    open_page.wrong = found
    yield open_page
    for context in contexts:
        context.close()
    assert found == []


def worked(db):
    """Waits until the worker has nothing to do."""
    busy = select(t.job.c.id).where(t.job.c.state.in_([t.QUEUED, t.LEASED]))
    for _ in range(1000):
        with db.read() as c:
            if c.execute(busy).first() is None:
                return
        time.sleep(0.01)
    raise AssertionError("the worker did not come to an end")


def stored_votes(db, column=t.vote.c.answer):
    with db.read() as c:
        return list(c.execute(select(column).order_by(t.vote.c.id)).scalars())


def thanked(page, given):
    """Waits until the page says how many answers it has, and shows the next picture."""
    noun = "answer" if given == 1 else "answers"
    expect(page.get_by_role("status")).to_have_text(f"Thank you: {given} {noun} so far.")
    page.wait_for_load_state()


def answer(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def known(shipped, folder):
    """Makes a folder of pictures with known answers."""
    for k in range(10):
        row = int((shipped.digits.labels == k).nonzero()[2, 0])
        (folder / str(k)).mkdir(parents=True)
        to_pil(shipped.digits.images[row]).save(folder / str(k) / "gold.png")
    return folder


def crowd(made, voters, **options):
    """Lets voters vote beside the page, while the server does the jobs."""
    server = SimpleNamespace(once=lambda _: worked(made.db))
    return play(made.db, voters, server, time.time, **options)


# -- voting --


def test_the_keyboard_is_enough(serve, visit):
    made = serve(pictures=6)
    page = visit(made, f"/join/{made.tokens[0]}", person=None)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/task")
    page.wait_for_load_state()
    page.keyboard.press("Control+4")
    page.keyboard.press("q")
    for given, key in enumerate("4uX", start=1):
        page.keyboard.press(key)
        thanked(page, given)
    for _ in range(6):
        page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="5")).to_be_focused()
    page.keyboard.press("Enter")
    thanked(page, 4)
    page.get_by_role("button", name="Unsure").focus()
    page.keyboard.press("Space")
    thanked(page, 5)
    assert stored_votes(made.db) == [4, UNSURE, IMPLAUSIBLE, 5, UNSURE]


def test_keys_are_shown_where_they_are_not_the_name_and_can_be_switched_off(serve, visit):
    made = serve(classes=["round", "spiral"])
    page = visit(made)
    hints = page.locator(".key")
    assert hints.all_inner_texts() == ["1", "2", "u", "x"]
    spiral = page.get_by_role("button", name="spiral", exact=True)
    expect(spiral).to_have_attribute("aria-keyshortcuts", "2")
    answer(page, "Switch keyboard shortcuts off")
    expect(hints.first).to_be_hidden()
    assert spiral.get_attribute("aria-keyshortcuts") is None
    page.keyboard.press("2")
    answer(page, "round")
    thanked(page, 1)
    page.keyboard.press("u")
    expect(page.locator(".key").first).to_be_hidden()
    answer(page, "Switch keyboard shortcuts on")
    page.keyboard.press("2")
    thanked(page, 2)
    assert stored_votes(made.db) == [0, 1]


def test_it_works_without_javascript(serve, visit):
    made = serve()
    page = visit(made, f"/join/{made.tokens[0]}", person=None, java_script_enabled=False)
    answer(page, "Start")
    for given, (name, value) in enumerate(
        [("4", 4), ("Unsure", UNSURE), ("Not a believable picture", IMPLAUSIBLE)], start=1
    ):
        answer(page, name)
        thanked(page, given)
        assert stored_votes(made.db)[-1] == value
    assert page.locator(".key").count() == 0
    page.goto(made.url + "/owner/join/" + made.token)
    answer(page, "Start")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    answer(page, "Pause")
    expect(page.get_by_role("status")).to_contain_text("Paused")


def test_a_double_click_is_one_answer(serve, visit):
    """Its second half may come before the next picture, or after."""
    made = serve()
    page = visit(made)
    page.get_by_role("button", name="4", exact=True).dblclick()
    thanked(page, 1)
    box = page.get_by_role("button", name="7", exact=True).bounding_box()
    page.mouse.click(box["x"] + 9, box["y"] + 9)
    thanked(page, 2)
    page.mouse.down(click_count=2)
    page.mouse.up(click_count=2)
    page.wait_for_timeout(200)
    assert stored_votes(made.db) == [4, 7]
    page.evaluate("for (const k of [9, 8]) document.querySelectorAll('button')[k].click()")
    thanked(page, 3)
    assert stored_votes(made.db) == [4, 7, 9], "the first of two answers stands"


def test_who_goes_back_goes_on_from_there(serve, visit):
    made = serve()
    page = visit(made)
    first = page.locator("[name=key]").input_value()
    answer(page, "4")
    thanked(page, 1)
    page.go_back()
    assert page.locator("[name=key]").input_value() != first, "there is another picture by now"
    page.keyboard.press("5")
    thanked(page, 2)
    page.reload()
    thanked(page, 2)
    assert stored_votes(made.db) == [4, 5]
    assert stored_votes(made.db, t.vote.c.key)[0] == first


def test_a_stale_page_changes_nothing_and_says_so(serve, visit):
    made = serve()
    page = visit(made, refusals=(409,))
    same, other = (page.context.new_page() for _ in range(2))
    for stale in (same, other):
        stale.goto(made.url + "/task")
    answer(page, "4")
    thanked(page, 1)
    answer(same, "4")
    thanked(same, 1)
    answer(other, "5")
    expect(other.get_by_role("heading", level=1)).to_have_text("Already stored")
    expect(other.get_by_role("status")).to_have_text(
        "This vote was stored with another answer, which stands."
    )
    other.get_by_role("link", name="Go on").click()
    thanked(other, 1)
    assert stored_votes(made.db) == [4]


def test_who_is_late_is_told(serve, visit):
    made = serve(names=["Ada", "Ben"])
    page = visit(made)
    key = page.locator("[name=key]").input_value()
    with made.db.write() as c:
        c.execute(update(t.lease).values(expires=0.0))
    while (offer := assignment.take(made.db, 2, time.time())) is not None:
        votes.vote(made.db, 2, offer.key, 4, time.time())
    answer(page, "7")
    expect(page.locator(".notice")).to_contain_text("Your answer is kept, and does not count.")
    expect(page.locator(".notice")).to_have_role("status")
    with made.db.read() as c:
        late = c.execute(select(t.vote).where(t.vote.c.key == key)).one()
    assert (late.annotator_id, late.answer, late.counted) == (1, 7, False)


def test_only_the_picture_is_fetched_anew(serve, visit):
    page = visit(serve(pictures=2))
    answer(page, "4")
    thanked(page, 1)
    fetched = page.evaluate(
        "performance.getEntriesByType('resource').filter((r) => r.transferSize).map((r) => r.name)"
    )
    assert [name.split("/")[3] for name in fetched] == ["image"]


def test_who_is_too_fast_still_sees_the_picture_and_can_go_on(serve, visit):
    made = serve(limiter=RateLimiter(burst=2, rate=1e-9))
    page = visit(made, refusals=(429,))
    assert page.locator("img").evaluate("i => i.naturalWidth") == 28
    answer(page, "4")
    expect(page.get_by_role("status")).to_contain_text("too fast")
    expect(page.get_by_role("link", name="Go on")).to_have_attribute("href", "/task")
    assert stored_votes(made.db) == [4]


def test_the_end_is_told_apart_from_a_pause(serve, visit):
    made = serve(pictures=2)
    campaigns.pause(made.db, True)
    page = visit(made)
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text("Nothing to look at just now")
    assert "paused" in page.inner_text("main")
    assert page.request.get(made.url + "/task").headers["refresh"] == "20"
    campaigns.pause(made.db, False)
    page.get_by_role("link", name="Look again").click()
    expect(heading).to_have_text("Which digit is this?")
    crowd(made, {1: lambda _: IMPLAUSIBLE})
    page.reload()
    expect(heading).to_have_text("All done")
    assert "refresh" not in page.request.get(made.url + "/task").headers


# -- what is shown --


def test_pictures_with_and_without_a_known_answer_look_alike(serve, visit, shipped, tmp_path):
    gold = known(shipped, tmp_path / "gold")
    made = serve(gold=gold, gold_share=0.2, repeat_share=0.3, seed=15, pictures=6)
    page = visit(made)
    kinds, pages, headers, sizes = set(), set(), set(), set()
    for given in range(9):
        worked(made.db)
        html = page.request.get(made.url + "/task").text()
        key = re.search(r'name="key" value="([0-9a-f]{32})"', html)[1]
        with made.db.read() as c:
            task = c.execute(
                select(t.task)
                .join(t.lease, t.lease.c.task_id == t.task.c.id)
                .where(t.lease.c.key == key)
            ).one()
        image = page.request.get(f"{made.url}/image/{key}")
        if given > 1:
            kinds.add(task.kind)
            pages.add(html.replace(key, "KEY").replace(f"{given} answers", "GIVEN"))
            headers.add(tuple(sorted(image.headers)))
            sizes.add(image.body()[:33])
        page.request.post(
            made.url + "/vote",
            form={"key": key, "answer": str(given % 2 + 4)},
            headers={"origin": made.url},
        )
    assert kinds == {t.FRAME, t.GOLD, t.REPEAT}
    assert len(pages) == len(headers) == len(sizes) == 1
    assert "The pictures are synthetic." in pages.pop()


def test_names_are_text_and_nothing_runs(serve, visit):
    names = [f"{evil}{k}" for evil in (SCRIPT, IMAGE) for k in range(5)]
    made = serve(names=[SCRIPT, IMAGE], name=IMAGE, question=f"What is {SCRIPT}?", classes=names)
    page = visit(made, f"/join/{made.tokens[0]}")
    expect(page.get_by_role("banner")).to_have_text(IMAGE)
    answer(page, "Start")
    expect(page).to_have_title(f"What is {SCRIPT}? · {IMAGE}")
    for given, name in enumerate((names[4], names[9]), start=1):
        answer(page, name)
        thanked(page, given)
    page.goto(made.url + "/owner")
    for name in (SCRIPT, IMAGE):
        expect(page.get_by_role("rowheader", name=name, exact=True)).to_be_visible()
    worked(made.db)
    seen = ""
    for run in (1, 2, 3, 4):
        page.goto(f"{made.url}/owner/run/{run}")
        seen += page.inner_text("main")
        assert page.locator("main script, main [onerror]").count() == 0
    assert f"{SCRIPT}: {names[4]}\n" in seen
    assert f"{SCRIPT}: {names[9]}\n" in seen
    assert visit.wrong == []
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'alert(1)'}))"
    )
    page.wait_for_timeout(50)
    assert any("policy: script-src" in text for text in visit.wrong), "the test would notice"
    visit.wrong.clear()


# -- the owner --


def test_the_owner_sees_how_it_stands(serve, visit, shipped, tmp_path, network):
    made = serve(
        names=["Ada", "Ben", "Cleo"],
        pictures=2,
        gold=known(shipped, tmp_path / "gold"),
        gold_share=0.3,
        repeat_share=0.2,
        rule=Rule(least=2, most=3),
    )
    page = visit(made, f"/owner/join/{made.token}", person=None)
    answer(page, "Start")
    for name in ("agreement: Krippendorff's α", "median time for a vote"):
        expect(page.locator("dl div").filter(has_text=name).locator("dd")).to_have_text("–")
    right = labels(network)
    crowd(made, {1: right, 2: lambda content: (right(content) + 1) % 10, 3: right}, most=36)
    worked(made.db)
    page.reload()
    seen = status.overview(made.db)
    facts = dict(
        zip(
            page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True
        )
    )
    for name, count in seen.runs.items():
        assert facts[f"runs: {name}"] == str(count)
    assert facts["votes"] == str(seen.votes)
    assert facts["agreement: Krippendorff's α, 1 at best, 0 by chance"] == f"{seen.alpha:.2f}"
    assert facts["pictures waiting for votes"] == str(seen.open)
    assert facts["votes needed for these"] == str(seen.left)
    assert facts["median time for a vote"] == f"{seen.seconds:.1f} s"
    assert facts["time that these votes take"] == f"{seen.left * seen.seconds / 60:.0f} min"
    assert facts["pictures on disk"] == f"{seen.bytes / 1000:.1f} kB"
    ada, ben = (page.get_by_role("row").filter(has_text=name) for name in ("Ada", "Ben"))
    assert "100 % of" in ada.inner_text()
    assert re.search(r"\b0 % of \d+\s.*\d → \d", ben.inner_text())
    run = page.get_by_role("link", name="digit-0.png", exact=True)
    run.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("digit-0.png, to 3")
    history = status.run_history(made.db, 1)
    cast = [v for s in history["segments"] for f in s["frames"] for v in f["votes"]]
    assert cast
    expect(page.locator("figcaption li")).to_have_count(len(cast))
    assert sorted(page.locator("figcaption li").all_inner_texts()) == sorted(
        f"{v['name']}: {v['answer']}" for v in cast
    )
    pictures = page.locator("img")
    for k in range(pictures.count()):
        pictures.nth(k).scroll_into_view_if_needed()
    page.wait_for_function("[...document.images].every((image) => image.naturalWidth === 28)")
    page.get_by_role("navigation").get_by_role("link", name="Overview").click()
    expect(run).to_be_visible()


def test_the_owner_adjudicates(serve, visit):
    made = serve(names=["Ada", "Ben", "Cleo"], pictures=2, rule=Rule(least=3, most=3))
    crowd(made, {1: lambda _: 7, 2: lambda _: 8, 3: lambda _: 9})
    page = visit(made, "/owner", refusals=(422,))
    stale = page.context.new_page()
    stale.goto(made.url + "/owner")
    first = page.get_by_role("form", name="What is the picture of digit-0.png?")
    expect(page.locator("form.stuck")).to_have_count(2)
    first.get_by_role("link", name="digit-0.png").click()
    expect(page.locator("figcaption li")).to_have_count(3)
    page.go_back()
    first.get_by_role("button", name="7", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Your decision is stored.")
    expect(page.locator("form.stuck")).to_have_count(1)
    worked(made.db)
    assert status.overview(made.db).runs == {"no_consensus": 1, "asking": 1}
    stale.locator("form.stuck").first.get_by_role("button", name="8").click()
    expect(stale.get_by_role("status")).to_contain_text("there is nothing to do")
    stale.get_by_role("link", name="Go on").click()
    expect(stale.get_by_role("heading", level=1)).to_have_text("Overview")


def test_the_owner_pauses_and_resumes(serve, visit):
    made = serve()
    owner = visit(made, "/owner")
    voter = owner.context.new_page()
    voter.goto(made.url + "/task")
    answer(owner, "Pause")
    expect(owner.get_by_role("status")).to_contain_text("Paused: no pictures are given out.")
    answer(voter, "4")
    heading = voter.get_by_role("heading", level=1)
    expect(heading).to_have_text("Nothing to look at just now")
    expect(voter.get_by_role("status")).to_have_text("Thank you: you have given 1 answer.")
    answer(owner, "Resume")
    expect(owner.get_by_role("button", name="Pause")).to_be_visible()
    voter.reload()
    expect(heading).to_have_text("Which digit is this?")
    assert stored_votes(made.db) == [4]


# -- for everybody --


@pytest.fixture
def everything(serve):
    """Makes a campaign with all that the page can show, and where."""
    long = "Wolfeschlegelsteinhausenbergerdorff" * 2
    made = serve(names=[long, "Ben", "Cleo"], pictures=3, rule=Rule(least=2, most=2))
    crowd(made, {1: lambda _: 7, 2: lambda _: 8}, most=4)
    assert set(status.overview(made.db).runs) == {"asking", "no_consensus"}
    made.paths = (
        f"/join/{made.tokens[2]}",
        "/task?late=1",
        "/owner",
        "/owner/run/1",
        "/owner/run/9999",
    )
    return made


def unscrolled(page):
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], f"{page.url} scrolls sideways"


def test_it_fits_a_phone(serve, visit):
    made = serve()
    page = visit(made, **PHONE)
    unscrolled(page)
    picture = page.get_by_role("img").bounding_box()
    assert picture["width"] > 300
    for k in range(10):
        button = page.get_by_role("button", name=str(k), exact=True).bounding_box()
        assert button["height"] >= 44
        assert button["width"] >= 44
        assert picture["y"] + picture["height"] < button["y"]
        assert button["y"] + button["height"] <= 667, "picture and answers are on one screen"
    for given, name in enumerate(("9", "Not a believable picture"), start=1):
        page.get_by_role("button", name=name, exact=True).tap()
        thanked(page, given)
    assert stored_votes(made.db) == [9, IMPLAUSIBLE]


def test_nothing_is_cut_off_where_there_is_little_room(everything, visit):
    """Neither on a phone, nor where everything is shown at twice its size."""
    page = visit(everything, person=2, refusals=(422,), **PHONE)
    for path, width in itertools.product(everything.paths, (375, 640)):
        page.set_viewport_size({"width": width, "height": 400})
        page.goto(everything.url + path)
        unscrolled(page)
        for button in page.locator("button:visible, a.button:visible").all():
            box = button.bounding_box()
            assert box["height"] >= 44, (path, button.inner_text())
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
    page.goto(everything.url + "/owner")
    assert page.get_by_role("row").filter(has=page.get_by_role("rowheader")).count() == 6
    page.goto(everything.url + "/task")
    answer(page, "4")
    expect(page.get_by_role("status")).to_contain_text("1 answer")


def test_those_who_do_not_see_can_take_part(everything, visit):
    page = visit(everything, person=2, refusals=(422,))
    for path in everything.paths:
        page.goto(everything.url + path)
        assert page.locator("html").get_attribute("lang") == "en"
        assert page.title()
        for role in ("banner", "main"):
            expect(page.get_by_role(role)).to_have_count(1)
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        assert page.locator("img:not([alt]), img[alt='']").count() == 0
        assert page.locator("th:not([scope]), th:empty").count() == 0
        levels = page.evaluate(
            "[...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))"
        )
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    page.goto(everything.url + "/task?late=1")
    expect(page.get_by_role("status")).to_contain_text("does not count")
    buttons = "".join(f'\n    - button "{k}"' for k in range(10))
    expect(page.locator("body")).to_match_aria_snapshot(f"""
    - banner: Digits in spring
    - main:
      - heading "Which digit is this?" [level=1]
      - status
      - img "The picture that the question is about"
      - form "Which digit is this?":{buttons.replace("    -", "        -")}
        - button "Unsure"
        - button "Not a believable picture"
    - contentinfo:
      - paragraph: The pictures are synthetic.
      - button "Switch keyboard shortcuts off"
    """)


CONTRAST = """() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const luminance = (rgb) => rgb
    .map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      if (getComputedStyle(e).opacity !== "1") throw new Error(`${e.outerHTML} is see-through`);
      const { rgb, a } = parse(getComputedStyle(e).backgroundColor);
      if (a === 1) return rgb;
      if (a !== 0) throw new Error(`${e.outerHTML} is half see-through`);
    }
    throw new Error("there is no background");
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const colour = parse(getComputedStyle(element).color).rgb;
    found.push([element.textContent, contrast(colour, behind(element))]);
  }
  for (const button of document.querySelectorAll("button:not(.quiet)")) {
    const edge = parse(getComputedStyle(button).borderTopColor).rgb;
    const least = 3 / 4.5;
    found.push([button.outerHTML, contrast(edge, behind(button.parentElement)) / least]);
  }
  return found;
}"""


def test_there_is_contrast_by_day_and_by_night(everything, visit):
    page = visit(everything, person=2, refusals=(422,))
    for path, scheme in itertools.product(everything.paths, ("light", "dark")):
        page.emulate_media(color_scheme=scheme)
        page.goto(everything.url + path)
        found = page.evaluate(CONTRAST)
        assert len(found) > 3
        assert [pair for pair in found if pair[1] < 4.5] == []
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background))) < 384) == (scheme == "dark")


FOCUS = """() => {
  const style = getComputedStyle(document.activeElement);
  return [document.activeElement.tagName, style.outlineStyle, parseFloat(style.outlineWidth)];
}"""


def test_focus_is_seen(everything, visit):
    page = visit(everything, person=2, refusals=(422,))
    for path in ("/task", "/owner", "/owner/run/9999"):
        page.goto(everything.url + path)
        for _ in range(page.locator("a:visible, button:visible").count()):
            page.keyboard.press("Tab")
            tag, style, width = page.evaluate(FOCUS)
            assert tag in ("A", "BUTTON")
            assert style == "solid"
            assert width >= 2
        page.keyboard.press("Tab")
        assert page.evaluate(FOCUS)[0] == "BODY", "every stop was visited"


def test_what_goes_wrong_leads_on(serve, visit):
    made = serve(names=["Ada"])
    page = visit(made, "/nowhere", refusals=(401, 404, 405, 422))
    for path, text, link in (
        ("/nowhere", "There is nothing to see here.", "/task"),
        ("/vote", "There is nothing to see here.", "/task"),
        ("/owner/run/99", "There is no run 99.", "/owner"),
        ("/join/unknown", "This invitation is not valid. Ask for another.", None),
    ):
        page.goto(made.url + path)
        expect(page.get_by_role("status")).to_have_text(text)
        links = page.get_by_role("link", name="Go on")
        assert [a.get_attribute("href") for a in links.all()] == ([link] if link else [])
    stranger = visit(made, "/task", person=None, refusals=(401,))
    expect(stranger.get_by_role("status")).to_contain_text(
        "Open the link of your invitation first."
    )
    assert stranger.get_by_role("link").count() == 0
