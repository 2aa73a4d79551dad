"""What an explanation shows of itself: cards, figures, animations, frames."""

import base64
import html
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import leapfactual as lf
from leapfactual.errors import InputError
from leapfactual.generators import Identity
from leapfactual.imaging import as_images, to_pil
from leapfactual.pretrained import load
from leapfactual.report import change_map, write_page
from leapfactual.report.cards import MAX_FRAMES, _differences, cards, frames
from leapfactual.report.colors import CHANGE_COLORS, DARK_CHANGE_COLORS, ChangeColors
from leapfactual.testing import GaussianOracle


@pytest.fixture(scope="module")
def shipped():
    return load()


@pytest.fixture(scope="module")
def explained(shipped):
    explainer = shipped.bundle.explainer(
        shipped.classifier, plan=[lf.blend(30, 0.1), lf.inject(2, 0.0, 0.1)], keep_path=True
    )
    return explainer.explain(shipped.digits.images[:6], torch.tensor([3, 1, 4, 1, 5, 9]))


def test_frames_go_from_the_reconstruction_to_the_counterfactual(explained, shipped):
    for row in range(len(explained)):
        x, leaps, p = frames(explained, row, shipped.bundle.generator)
        assert len(x) == len(leaps) == len(p) <= MAX_FRAMES
        assert leaps == sorted(set(leaps))
        assert leaps[0] == 0
        assert leaps[-1] == explained.leaps[row]
        torch.testing.assert_close(x[0], explained.reconstruction[row], atol=1e-5, rtol=0)
        torch.testing.assert_close(x[-1], explained.counterfactual[row], atol=1e-5, rtol=0)
        first = int(explained.first[row])
        if 0 < first < explained.leaps[row]:
            assert first in leaps
            assert p[leaps.index(first)].argmax() == explained.target[row]


def test_without_a_path_or_a_generator_there_are_two_frames(explained, shipped):
    without = shipped.bundle.explainer(shipped.classifier, plan=[lf.blend(5, 0.4)]).explain(
        shipped.digits.images[:1], 3
    )
    for found, generator in ((without, shipped.bundle.generator), (explained, None)):
        x, leaps, p = frames(found, 0, generator)
        assert torch.equal(x[1], found.counterfactual[0])
        assert leaps == [0, int(found.leaps[0])]
        assert p[0].isnan().all()


def test_cards_hold_what_json_can_hold(explained, shipped):
    typical = torch.tensor([50.0, 1.0, math.nan, 2.0, 3.0, 4.0])
    made = list(
        cards(
            explained,
            names=list("abcdef"),
            typicality=typical,
            reliable=explained,
            generator=shipped.bundle.generator,
        )
    )
    text = json.dumps(made, allow_nan=False)
    assert json.loads(text) == made
    first = made[0]
    assert first["name"] == "a"
    assert first["oracle"] is first["reliable"]["oracle"] is None
    assert first["changed"] == first["reliable"]["changed"]
    assert first["redrawn"] == pytest.approx(
        float((explained.reconstruction[0] - explained.x[0]).abs().mean()), rel=1e-3
    )
    assert first["target"] == 3
    assert first["numbers"]["typicality"] == 0.5
    assert made[2]["numbers"]["typicality"] is None
    assert first["numbers"]["leaps"] == int(explained.leaps[0])
    assert first["curve"]["classes"][:2] == [int(explained.source[0]), 3]
    assert len(first["curve"]["p"][0]) == first["frames"]["n"] > 5
    assert first["frames"]["width"] == 28
    assert len(text) < 6 * 40_000


def changed(before, after):
    """Returns what a card says of the change from one image to another."""
    x, one = before[None], torch.ones(1, dtype=torch.long)
    e = lf.Explanation.of(x, after[None], one, torch.eye(2)[[1]], 0 * one)
    return next(iter(cards(e, names=["x"])))["changed"]


def test_cards_say_how_much_changed_where_and_which_way():
    before = torch.full((1, 9, 9), 0.5)
    after = before.clone()
    after[:, :3, :2] += 0.5
    after[:, 0, 2] -= 0.5
    after[:, 8, 8] += 0.1  # seen by nobody at a glance
    found = changed(before, after)
    assert found["share"] == pytest.approx(7 / 81, abs=1e-4)
    assert found["where"] == "at the upper left"
    assert found["lighter"] == pytest.approx(3.1 / 3.6, abs=1e-3)
    assert found["darker"] == pytest.approx(0.5 / 3.6, abs=1e-3)
    assert found["other"] == 0
    assert changed(before, before + 0.3)["where"] is None, "everywhere"
    still = changed(before, before)
    assert still == {"share": 0, "where": None, "lighter": 0, "darker": 0, "other": 0}


def test_another_colour_is_neither_lighter_nor_darker():
    leaf = torch.tensor([0.3, 0.5, 0.2])[:, None, None].expand(3, 64, 80)
    brown = torch.tensor([0.5, 0.3, 0.2])[:, None, None].expand(3, 64, 80)
    found = changed(leaf, brown)
    assert found["share"] == 1, "photographs have a finer scale"
    assert found["other"] == pytest.approx(1)
    assert changed(leaf, leaf + 0.04)["share"] == 0


def test_cards_tell_labels_from_probabilities(explained, shipped):
    def labels(x):
        return torch.nn.functional.one_hot(shipped.classifier(x).argmax(1), 10).float()

    explainer = shipped.bundle.explainer(labels, plan=[lf.blend(9, 0.2)], force=True)
    hard = explainer.explain(shipped.digits.images[:2], 3)
    for e, reliable, expected in (
        *((hard, None, True), (hard, hard, True)),
        *((explained[:2], None, False), (hard, explained[:2], False)),
    ):
        made = cards(e, names="ab", reliable=reliable)
        assert [card["labels"] for card in made] == [expected] * 2


def test_red_was_added_and_blue_taken_away():
    before, after = torch.tensor([[[0.0, 1.0, 0.5]]]), torch.tensor([[[1.0, 0.0, 0.5]]])
    pixels = np.asarray(change_map(before, after))
    assert pixels.tolist() == [[[0xCA, 0x00, 0x20], [0x05, 0x71, 0xB0], [255, 255, 255]]]
    half = np.asarray(change_map(after, torch.tensor([[[0.5, 0.5, 0.5]]])))[0, 0]
    assert half.tolist() == [(0x05 + 255) // 2, (0x71 + 255) // 2, round((0xB0 + 255) / 2)]


def test_a_colour_as_bright_is_violet_and_photographs_have_a_finer_scale():
    leaf = torch.tensor([0.3, 0.5, 0.2])[:, None, None].expand(3, 64, 80)
    brown = torch.tensor([0.5, 0.3, 0.2])[:, None, None].expand(3, 64, 80)
    spotted = leaf.clone()
    spotted[:, 10:12, 20:22] = brown[:, :2, :2]
    drawn = change_map(leaf, spotted)
    assert drawn.size == (80, 64)
    assert drawn.getpixel((0, 0)) == (255, 255, 255)
    share = 0.4 / 3 / 0.25
    violet = bytes.fromhex(CHANGE_COLORS.other[1:])
    expected = [255 + share * (c - 255) for c in violet]
    assert drawn.getpixel((20, 10)) == pytest.approx(expected, abs=0.6)
    darker = change_map(leaf, leaf - 0.2).getpixel((0, 0))
    assert darker[2] > darker[0] + 100


def test_photographs_are_stored_without_loss_and_their_frames_as_differences():
    x = torch.rand(1, 3, 96, 64, generator=torch.Generator().manual_seed(0))
    far, target = x.roll(3, -1), torch.tensor([1])
    e = lf.Explanation.of(x, far, target, torch.tensor([[0.1, 0.9]]), target - 1)
    (moved,) = cards(e, names=["leaf"])
    assert (moved["frames"]["width"], moved["frames"]["height"]) == (64, 96)
    assert moved["frames"]["strip"] is None  # there is nothing between the ends
    assert moved["pictures"]["reconstruction"] is None  # it is the input
    for name, image in (("input", x[0]), ("counterfactual", far[0])):
        head, content = moved["pictures"][name].split(",")
        assert head == "data:image/webp;base64"
        with Image.open(io.BytesIO(base64.b64decode(content))) as kept:
            assert np.array_equal(np.asarray(kept), np.asarray(to_pil(image)))
    pictures = [Image.new("RGB", (64, 64), (v, 0, 255 - v)) for v in (0, 0, 100, 255, 9)]
    found = _differences(pictures)
    assert [p.getpixel((0, 0)) for p in found] == [(128,) * 3, (178, 128, 78), (255, 128, 1)]


def test_one_constant_decides_the_colours_of_the_change_map(explained, tmp_path, monkeypatch):
    explained.report(tmp_path / "page.html")
    for name, light, dark in zip(
        ChangeColors._fields, CHANGE_COLORS, DARK_CHANGE_COLORS, strict=True
    ):
        page = (tmp_path / "page.html").read_text()
        assert f"--{name}: light-dark({light}, {dark});" in page
    green = ChangeColors("#000000", "#ffffff", "#00ff00", "#0000ff")
    monkeypatch.setattr("leapfactual.report.figures.CHANGE_COLORS", green)
    monkeypatch.setattr("leapfactual.report.page.CHANGE_COLORS", green)
    assert change_map(torch.zeros(1, 1, 1), torch.ones(1, 1, 1)).getpixel((0, 0)) == (0, 255, 0)
    explained.report(tmp_path / "page.html")
    assert "--more: light-dark(#00ff00, " in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_an_animation_has_the_frames_of_the_path(explained, shipped, tmp_path, suffix):
    path = tmp_path / f"way.{suffix}"
    explained.animate(path, row=1, generator=shipped.bundle.generator)
    with Image.open(path) as image:
        assert image.n_frames > 5
        assert min(image.size) >= 128
    with pytest.raises(InputError, match="written as .gif, .webp, .png, got `way.mp4`"):
        explained.animate(tmp_path / "way.mp4")


def test_it_plots_tabulates_and_reports_itself(explained, tmp_path):
    explained.plot(rows=[0, 2]).savefig(tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        assert image.width > 100
    named = replace(explained, classes=tuple(f"digit {k}" for k in range(10)))
    assert named.plot([0]).axes[0].get_title() == f"digit {explained.source[0]} →\ndigit 3"
    frame = explained.to_frame()
    assert frame["target"].tolist() == ["3", "1", "4", "1", "5", "9"]
    assert frame["L1"].iloc[0] == pytest.approx(
        (explained.counterfactual - explained.reconstruction)[0].abs().mean().item()
    )
    named.report(tmp_path / "page.html", names=["</script><b>"] * 6, reliable=named)
    page = (tmp_path / "page.html").read_text()
    assert f'"reason":"digit {explained.source[0]} became digit 3 after ' in page
    assert "</script><b>" not in page
    assert page.count('"strip"') == 6
    with pytest.raises(InputError, match="`reliable` must be of the same 6 images, got 1"):
        explained.report(tmp_path / "page.html", reliable=explained[:1])


def test_notebooks_see_pictures_and_reasons(explained):
    shown = explained._repr_html_()
    assert shown.count("<img") == 18
    assert explained.reason[0] in shown
    assert "and 40 more" in lf.Explanation.cat([explained] * 8)._repr_html_()


def test_figures_and_bundles_show_themselves_in_notebooks(explained, shipped):
    assert explained.plot(rows=[0])._repr_png_().startswith(b"\x89PNG")
    shown = shipped.bundle._repr_html_()
    assert "reliability 1.00" in shown
    assert "a small convolutional network" in shown


def test_rows_of_numbers_have_a_page_and_no_picture(tmp_path):
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), scale=0.5)
    explainer = lf.LeapFactual(Identity(), oracle.classifier, oracle.flow(), [lf.blend(9, 0.2)])
    found = explainer.explain(oracle.sample(4)[0], 1)
    found.report(tmp_path / "page.html")
    assert '"columns":["column 1","column 2"]' in (tmp_path / "page.html").read_text()
    assert "<img" not in found._repr_html_()
    with pytest.raises(InputError, match="rows of numbers have no picture"):
        found.plot()
    with pytest.raises(InputError, match="there are pictures of"):
        found.pictures()


def test_pictures_go_in_and_come_out(shipped, explained):
    explainer = shipped.bundle.explainer(shipped.classifier, plan=[lf.blend(5, 0.4)])
    tensors = shipped.digits.images[:3]
    pillow = [Image.fromarray((x[0] * 255).round().byte().numpy()) for x in tensors]
    array = np.stack([np.asarray(p) for p in pillow])
    expected = explainer.explain(tensors, 3)
    for given in (pillow, array, array[..., None], array.astype(np.float32) / 255):
        torch.testing.assert_close(explainer.explain(given, 3).z, expected.z)
    assert explainer.explain(pillow[0], 3).label.shape == (1,)
    out = expected.pictures()
    assert out[0].size == (28, 28)
    assert np.asarray(out[1]).tolist() == (
        (expected.counterfactual[1, 0].clamp(0, 1) * 255).round().byte().tolist()
    )
    assert as_images([p.convert("RGB") for p in pillow]).shape == (3, 3, 28, 28)


@pytest.mark.parametrize("title", ["__DATA__", "__TITLE__", "__MORE__", "</script>"])
def test_a_title_may_read_like_a_placeholder(tmp_path, title):
    write_page(tmp_path / "page.html", [], title=title, about="", classes=["a", "b"])
    text = (tmp_path / "page.html").read_text()
    assert f"<title>{html.escape(title)}" in text
    data = text.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert json.loads(data)["title"] == title


def test_what_is_no_picture_is_named():
    with pytest.raises(InputError, match="got a list of int, str"):
        as_images(["a", 1])
    with pytest.raises(InputError, match="of one size"):
        as_images([Image.new("L", (2, 2)), Image.new("L", (3, 2))])


def test_a_title_that_is_not_utf_8_can_be_written(tmp_path):
    title = b"caf\xe9".decode(errors="surrogateescape")
    write_page(tmp_path / "page.html", [], title=title, about="", classes=["a", "b"])
    assert r"caf\udce9" in (tmp_path / "page.html").read_text(encoding="utf-8")
