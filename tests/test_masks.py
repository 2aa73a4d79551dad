"""Masks: inside the picture may change, outside it stays, whichever way it is explained."""

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import leapfactual as lf
from leapfactual import masks
from leapfactual._engine.copies import Copies, Networks
from leapfactual._engine.replay import NAMES, WalkGraphs, half_precision
from leapfactual.errors import InputError, MissingData
from leapfactual.imaging import paste
from leapfactual.jobs.explain import explain_all
from leapfactual.jobs.job import Job
from leapfactual.metrics import inside as inside_metric
from leapfactual.pretrained import load
from leapfactual.report.cards import frames
from leapfactual.walk import Canvas, Walker, drive

PLANS = {
    "blended": [lf.blend(8, 0.2)],
    "open loop": [lf.blend(4, 0.2), lf.inject(3, lift=0.0, land=0.1)],
    "confidence": [lf.blend(3, 0.3), lf.inject(1, 0.0, 0.4, 0.99)],
    "tightened": [lf.blend(6, 0.3), lf.tighten(4)],
}
KEPT = [name for name in NAMES if name != "nfe"]


@pytest.fixture(scope="module")
def shipped():
    return load()


@pytest.fixture(scope="module")
def x(shipped):
    return shipped.digits.images[:30]


@pytest.fixture(scope="module")
def soft():
    """The middle of a digit, with an edge of two pixels."""
    mask = torch.zeros(28, 28)
    mask[4:24, 8:20] = 1
    return masks.soften(mask, 2)


TARGET = torch.arange(30) % 10


def explainer(shipped, plan=PLANS["blended"], **options):
    return lf.LeapFactual(
        shipped.bundle.generator, shipped.classifier, shipped.bundle.flow, plan, **options
    )


# -- what stays, and what is shown --


@pytest.mark.parametrize("options", [{}, {"accelerate": False}, {"keep_path": True}])
@pytest.mark.parametrize("name", PLANS)
def test_outside_the_input_stays_bit_for_bit(shipped, x, soft, name, options):
    found = explainer(shipped, PLANS[name], mask=soft, **options).explain(x, TARGET)
    outside = (soft == 0).expand(x.shape)
    assert outside.double().mean() > 0.5
    for image in (found.reconstruction, found.counterfactual):
        assert torch.equal(image[outside], x[outside])
        assert not torch.equal(image[~outside], x[~outside])
    decoded = shipped.bundle.generator.decode(found.z_counterfactual)
    expected = soft * decoded + (1 - soft) * x
    torch.testing.assert_close(found.counterfactual, expected, rtol=0, atol=1e-5)
    assert found.valid.double().mean() > 0.2
    assert not torch.equal(found.valid, explainer(shipped, PLANS[name]).explain(x, TARGET).valid)


@pytest.mark.parametrize("name", PLANS)
def test_a_mask_of_everything_is_none(shipped, x, name):
    wanted = explainer(shipped, PLANS[name], keep_path=True).explain(x, TARGET)
    for mask in (torch.ones(28, 28), torch.ones(1, 28, 28) > 0):
        options = {"mask": mask, "keep_path": True}
        found = explainer(shipped, PLANS[name], **options).explain(x, TARGET)
        for key in NAMES:
            assert torch.equal(getattr(found, key), getattr(wanted, key)), key
        assert torch.equal(found.path.z, wanted.path.z)


@pytest.mark.parametrize("name", PLANS)
def test_in_a_mask_of_nothing_nothing_moves(shipped, x, name):
    found = explainer(shipped, PLANS[name], mask=torch.zeros(28, 28)).explain(x, TARGET)
    assert torch.equal(found.reconstruction, x)
    assert torch.equal(found.counterfactual, x)
    with torch.no_grad():
        said = shipped.classifier(x).argmax(1)
    assert torch.equal(found.source, said)
    assert torch.equal(found.valid, said == TARGET)
    assert not torch.equal(found.z, found.z_counterfactual), "the latents walk all the same"


def test_the_classifier_sees_what_is_returned_and_nothing_else(shipped, x, soft):
    seen = []

    def looking(image):
        seen.append(image.clone())
        return shipped.classifier(image)

    parts = shipped.bundle.generator, looking, shipped.bundle.flow, PLANS["open loop"]
    found = lf.LeapFactual(*parts, mask=soft).explain(x[:6], 3)
    shown = torch.cat(seen)
    inputs = x[:6][:, soft == 0]
    for image in shown:
        assert (image[soft == 0] == inputs).all(1).any(), "every question is pasted into its input"
    for image in (*found.counterfactual, *found.reconstruction):
        assert (shown == image).flatten(1).all(1).any()


def test_source_and_reconstruction_are_of_the_first_question(shipped, x, soft):
    found = explainer(shipped, mask=soft).explain(x, 3)
    with torch.no_grad():
        back = shipped.bundle.generator.decode(found.z)
        torch.testing.assert_close(found.reconstruction, paste(back, x, soft), rtol=0, atol=1e-5)
        assert torch.equal(found.source, shipped.classifier(found.reconstruction).argmax(1))


def test_rows_stay_with_their_images(shipped, x, soft):
    order = torch.randperm(len(x))
    one = explainer(shipped, PLANS["open loop"], mask=soft)
    found, shuffled = one.explain(x, TARGET), one.explain(x[order], TARGET[order])
    alone = explainer(shipped, PLANS["open loop"], mask=soft, batch_size=7).explain(x, TARGET)
    for key in KEPT:
        wanted = getattr(found, key)
        torch.testing.assert_close(getattr(shuffled, key), wanted[order], rtol=0, atol=1e-4)
        torch.testing.assert_close(getattr(alone, key), wanted, rtol=0, atol=1e-4)
    outside = (soft == 0).expand(x.shape)
    assert torch.equal(alone.counterfactual[outside], x[outside])


def test_a_dialogue_and_known_latents_keep_to_the_mask(shipped, x, soft):
    one = explainer(shipped, mask=soft, accelerate=False)
    wanted = one.explain(x, 3)
    asked = drive(one.dialogue(x, 3), shipped.classifier)
    known = one.explain(x, 3, z=wanted.z)
    for found in (asked, known):
        assert torch.equal(found.counterfactual, wanted.counterfactual)
        assert torch.equal(found.queries, wanted.queries)


def test_channels_have_masks_of_their_own():
    torch.manual_seed(0)
    vae = lf.generators.VAE((3, 16, 16), 4)
    x = torch.rand(5, 3, 16, 16)
    mask = torch.zeros(3, 16, 16)
    mask[1] = 1

    def classifier(image):
        p = image[:, 1].flatten(1).mean(1)
        return torch.stack([p, 1 - p], 1)

    flow = lf.Flow(lf.MLPField(4, 2), lf.Midpoint(1))
    found = lf.LeapFactual(vae, classifier, flow, [lf.blend(2, 0.5)], mask=mask).explain(x, 1)
    assert torch.equal(found.counterfactual[:, [0, 2]], x[:, [0, 2]])
    assert not (found.counterfactual[:, 1] == x[:, 1]).any()


# -- the ways to walk --


@pytest.mark.parametrize("name", PLANS)
def test_a_masked_walk_keeps_to_the_mask(shipped, x, soft, name):
    """What a GPU records, run as it is."""
    copies = Copies(Networks(shipped.bundle.generator, shipped.classifier))
    with torch.no_grad():
        z = shipped.bundle.generator.encode(x)
    copies.refresh(z)
    wanted = explainer(shipped, PLANS[name], mask=soft).explain(x, TARGET)
    graphs = WalkGraphs(copies, shipped.bundle.flow, PLANS[name], soft)
    with torch.no_grad():
        *found, none = graphs.walk(copies.networks, shipped.bundle.flow, True, z, TARGET, x)
    assert not none.any()
    for key, tensor in zip(NAMES, found, strict=True):
        torch.testing.assert_close(tensor, getattr(wanted, key), rtol=0, atol=1e-3)
    outside = (soft == 0).expand(x.shape)
    made = dict(zip(NAMES, found, strict=True))
    for key in ("reconstruction", "counterfactual"):
        assert torch.equal(made[key][outside], x[outside])


def test_a_drafted_walk_ends_in_full_precision(shipped, x, soft):
    """What a GPU records in half precision: drafts on the way, the end as it is."""
    copies = Copies(Networks(shipped.bundle.generator, shipped.classifier))
    flow, plan = shipped.bundle.flow, PLANS["blended"]
    with torch.no_grad():
        z = shipped.bundle.generator.encode(x)
        copies.refresh(z)
        graphs, draft = WalkGraphs(copies, flow, plan, soft), copies.originals.fuse(torch.float16)
        *found, ambiguous = graphs.walk(draft, half_precision(flow), False, z, TARGET, x)
    made = dict(zip(NAMES, found, strict=True))
    wanted = explainer(shipped, plan, mask=soft).explain(x, TARGET)
    outside = (soft == 0).expand(x.shape)
    for key in ("reconstruction", "counterfactual"):
        assert made[key].dtype == torch.float32
        assert torch.equal(made[key][outside], x[outside])
    same = (made["leaps"] == wanted.leaps) & ~ambiguous
    assert same.double().mean() > 0.8
    torch.testing.assert_close(
        made["counterfactual"][same], wanted.counterfactual[same], rtol=0, atol=0.05
    )


def test_drafts_are_pasted_in_their_own_precision(shipped, x, soft):
    half = Networks(shipped.bundle.generator, shipped.classifier).fuse(torch.float16).generator
    walker = Walker(shipped.bundle.generator, shipped.bundle.flow, PLANS["open loop"], mask=soft)
    with torch.no_grad():
        z = shipped.bundle.generator.encode(x)
        draft, full = (
            walker.render(z, g, Canvas(x, None)) for g in (half, shipped.bundle.generator)
        )
    assert draft.dtype == torch.half
    torch.testing.assert_close(draft.float(), full, rtol=0, atol=2e-2)


def test_another_mask_needs_other_graphs(shipped, soft):
    flow, plan = shipped.bundle.flow, PLANS["blended"]
    mask = soft.clone()
    copies = Copies(Networks(shipped.bundle.generator, shipped.classifier))
    graphs = WalkGraphs(copies, flow, plan, mask)
    assert graphs.serves(flow, plan, mask)
    assert graphs.serves(flow, plan, soft), "a mask is known by its values"
    assert not graphs.serves(flow, plan, None)
    assert not graphs.serves(flow, plan, 1 - soft)
    mask.mul_(0.5)
    assert not graphs.serves(flow, plan, mask)


def test_a_mask_that_is_replaced_is_seen(shipped, x, soft):
    one = explainer(shipped, mask=soft)
    one.explain(x[:4], 3)
    one.mask = 1 - soft
    found = one.explain(x[:4], 3)
    wanted = explainer(shipped, mask=1 - soft).explain(x[:4], 3)
    assert torch.equal(found.counterfactual, wanted.counterfactual)
    assert torch.equal(one.engine.graphs.mask, one.mask)


def test_the_mask_is_the_explainers_own(shipped, x, soft):
    mine = soft.clone()
    one = explainer(shipped, mask=mine)
    wanted = one.explain(x[:4], 3)
    mine.zero_()
    assert torch.equal(one.explain(x[:4], 3).counterfactual, wanted.counterfactual)


# -- iterates, and what is shown of them --


def test_iterates_are_shown_as_the_classifier_saw_it(shipped, x, soft, tmp_path):
    one = explainer(shipped, mask=soft, keep_path=True, batch_size=4)
    found = one.explain(x[:6], 3)[torch.tensor([5, 0, 3])].to("cpu")
    for row, image in enumerate(x[[5, 0, 3]]):
        shown, leaps, _ = frames(found, row, one.generator)
        assert torch.equal(leaps_of(shown, soft), image[soft == 0].expand(len(shown), -1))
        torch.testing.assert_close(shown[0], found.reconstruction[row], rtol=0, atol=1e-5)
        torch.testing.assert_close(shown[-1], found.counterfactual[row], rtol=0, atol=1e-5)
        assert leaps[-1] == found.leaps[row]
    found.animate(tmp_path / "a.webp", row=1, generator=one.generator)
    with Image.open(tmp_path / "a.webp") as film:
        assert film.n_frames == int(found.leaps[1]) + 1
    with pytest.raises(InputError, match="the iterates were not kept"):
        explainer(shipped, mask=soft).explain(x[:1], 3).iterates(0, [0], one.generator)


def leaps_of(shown, mask):
    return shown[:, mask == 0]


def test_a_mask_of_change_has_no_specks():
    before, after = torch.zeros(1, 1, 40, 40), torch.zeros(1, 1, 40, 40)
    after[..., 10:20, 10:20] = 0.5
    after[..., 14, 14] = 0.0
    after[..., 35, 35] = 1.0
    change = masks.Change()
    change.add(before, after)
    specks, whole = (change.mask(0.05, radius=0, around=r)[0] == 1 for r in (0, 2))
    assert specks[35, 35]
    assert not specks[14, 14]
    assert not whole[30:, 30:].any()
    assert whole[12:18, 12:18].all()


def test_a_bundle_explains_in_a_mask(shipped, x, soft):
    found = shipped.bundle.explainer(shipped.classifier, mask=soft).explain(x[:4], 3)
    assert torch.equal(found.counterfactual[:, soft == 0], x[:4][:, soft == 0])


def test_a_job_in_a_mask_is_a_job_of_its_own(shipped, soft, tmp_path):
    for n in range(5):
        pixels = (shipped.digits.images[n, 0] * 255).round().byte().numpy()
        Image.fromarray(pixels).save(tmp_path / f"{n}.png")
    digits = lf.data.open_images(sorted(tmp_path.glob("*.png")))
    parts = {
        "bundle": shipped.bundle,
        "classifier": shipped.classifier,
        "images": digits,
        "pairs": [(n, 3) for n in range(5)],
        "plan": PLANS["blended"],
    }
    out = tmp_path / "out"
    explain_all(Job(**parts, mask=soft), out)
    row = json.loads((out / "results.json").read_text())["rows"][4]
    written = lf.data.read_image(out / "counterfactuals" / f"{row['file']}.png")
    assert torch.equal(written[soft == 0], digits[[4]][0][soft == 0])
    assert not torch.equal(written, digits[[4]][0])
    assert "Outside of a mask" in (out / "index.html").read_text()
    for other in (None, 1 - soft):
        with pytest.raises(InputError, match="another job, which differs in its mask"):
            explain_all(Job(**parts, mask=other), out)
    assert "mask" in json.loads((out / "job.json").read_text())


# -- making masks --


@given(st.integers(0, 5), st.integers(0, 10_000))
def test_a_soft_edge_never_reaches_beyond_the_hard_one(radius, seed):
    rng = torch.Generator().manual_seed(seed)
    mask = (torch.rand(12, 15, generator=rng) > 0.3).float()
    mask[3:9, 2:9] = 1
    soft = masks.soften(mask, radius)
    assert soft.shape == (1, 12, 15)
    assert (soft[0] <= mask).all()
    assert (soft[0][mask > 0] >= 1 / (radius + 1) - 1e-6).all()
    whole = masks.soften(masks.grow(mask, radius), radius)
    assert (whole[0][mask > 0] == 1).all(), "grown first, it keeps all that it had"
    far = torch.nn.functional.max_pool2d(mask[None], 2 * radius + 1, 1, radius)[0] == 0
    assert (whole[0][far] == 0).all()


def test_a_soft_edge_rises_in_equal_steps_and_the_pictures_border_is_none():
    mask = torch.zeros(9, 9)
    mask[:, 3:] = 1
    soft = masks.soften(mask, 3)[0]
    assert soft[4].tolist() == [0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1]
    assert (soft == soft[4]).all()
    assert torch.equal(masks.soften(mask, 0)[0], mask)


def test_the_mask_of_change_holds_most_of_the_change(shipped, x):
    found = explainer(shipped).explain(x, TARGET)
    came = found.valid & (found.source != found.target)
    change = (found.counterfactual - found.reconstruction)[came].abs().mean((0, 1))
    total = masks.Change()
    total.add(found.reconstruction[came], found.counterfactual[came])
    hard = total.mask(share=0.1, radius=0)[0]
    assert int(hard.sum()) == 78
    assert change[hard > 0].min() >= change[hard == 0].max()
    soft = total.mask(share=0.1, radius=2)[0]
    assert (soft[hard > 0] == 1).all()
    assert ((soft > 0) & (soft < 1)).any()
    sizes = [total.mask(share=s, radius=0).sum() for s in (0.01, 0.1, 0.3, 1.0)]
    assert all(a < b for a, b in pairwise(sizes))
    share = masks.inside(found.reconstruction, found.counterfactual, hard)[came]
    assert share.mean() > 0.3, "a tenth of the pixels holds far more than a tenth of the change"


def test_change_is_added_up_piece_by_piece(shipped, x):
    found = explainer(shipped).explain(x, 3)
    before, after = found.reconstruction, found.counterfactual
    whole, pieces = masks.Change(), masks.Change()
    whole.add(before, after)
    for part in range(0, len(x), 7):
        pieces.add(before[part : part + 7], after[part : part + 7])
    torch.testing.assert_close(pieces.mean, whole.mean, rtol=1e-12, atol=0)
    assert pieces.count == len(x)
    assert pieces.total.shape == (28, 28)


def test_the_share_inside_is_a_metric(shipped, x, soft):
    kept = explainer(shipped, mask=soft).explain(x, 3)
    free = explainer(shipped).explain(x, 3)
    metric = inside_metric(soft)
    assert metric.higher_is_better
    values = lf.metrics.evaluate(kept, [metric])["inside"].values
    moved = (kept.counterfactual != kept.reconstruction).flatten(1).any(1)
    assert torch.equal(values[moved], torch.ones(int(moved.sum())).double())
    assert values[~moved].isnan().all()
    assert 0.2 < lf.metrics.evaluate(free, [metric])["inside"].mean < 0.99
    both = [inside_metric(m, n) for m, n in ((soft, "in"), ((soft == 0).float(), "out"))]
    scores = lf.metrics.evaluate(free, both)
    total = scores["in"].values + scores["out"].values
    torch.testing.assert_close(total[~total.isnan()], torch.ones_like(total[~total.isnan()]))


def test_a_mask_is_read_from_a_grey_picture(tmp_path):
    pixels = torch.arange(12, dtype=torch.uint8).reshape(3, 4) * 20
    grey = Image.fromarray(pixels.numpy())
    for name, picture in (("a.png", grey), ("b.png", grey.convert("RGB"))):
        picture.save(tmp_path / name)
        assert torch.equal(masks.read(tmp_path / name)[0], pixels / 255)
    Image.new("RGB", (4, 3), (255, 0, 0)).save(tmp_path / "red.png")
    with pytest.raises(InputError, match=r"red\.png must be a grey picture.*got colours"):
        masks.read(tmp_path / "red.png")
    with pytest.raises(MissingData, match="there is no image at"):
        masks.read(tmp_path / "none.png")


# -- wrong input --

HERE = torch.rand(2, 1, 8, 8)


def changed(after):
    change = masks.Change()
    change.add(HERE, after)
    return change


class Small:
    def encode(self, x):
        return torch.zeros(len(x), 2)

    def decode(self, z):
        return torch.zeros(len(z), 1, 4, 4)


def of_points(mask):
    oracle = lf.testing.GaussianOracle(torch.eye(2), 0.5)
    parts = lf.generators.Identity(), oracle.classifier, oracle.flow(), [lf.blend(1, 0.1)]
    return lf.LeapFactual(*parts, mask=mask).explain(torch.zeros(1, 2), 1)


def of_pictures(mask, generator=None):
    generator = generator or lf.generators.VAE((1, 8, 8), 2, widths=(4, 4))
    flow = lf.Flow(lf.MLPField(2, 2))
    parts = generator, lambda x: torch.full((len(x), 2), 0.5), flow, [lf.blend(1, 0.1)]
    return lf.LeapFactual(*parts, mask=mask).explain(HERE, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: of_points(torch.ones(1, 2)), r"a mask is for images .* got rows of shape"),
        (lambda: of_pictures([[1.0]]), "`mask` must be a tensor of shape .* got list"),
        (lambda: of_pictures(torch.ones(2, 1, 8, 8)), r"got \(2, 1, 8, 8\). One mask serves"),
        (lambda: of_pictures(torch.ones(0, 8)), r"got \(0, 8\)"),
        (lambda: of_pictures(torch.ones(8, 8).int()), r"got torch\.int32. For 8-bit masks"),
        (lambda: of_pictures(2 * torch.ones(8, 8)), r"in \[0, 1\], got values in \[2, 2\]"),
        (lambda: of_pictures(torch.nan * torch.ones(8, 8)), r"got values in \[nan, nan\]"),
        (lambda: of_pictures(torch.ones(8, 9)), r"\(1, 8, 8\) .*got \(1, 8, 9\). Resize it"),
        (lambda: of_pictures(torch.ones(3, 8, 8)), r"got \(3, 8, 8\)"),
        (
            lambda: of_pictures(torch.ones(8, 8), Small()),
            r"makes images of shape \(1, 4, 4\), which cannot be pasted into images of \(1, 8",
        ),
        (lambda: masks.soften(torch.ones(8, 8), -1), "`radius` must be .* got -1"),
        (lambda: masks.grow(torch.ones(8, 8), 1.5), "`radius` must be a whole number, got 1.5"),
        (lambda: masks.Change().mean, "no change to speak of"),
        (lambda: changed(HERE).mask(), "nothing changed"),
        (lambda: changed(1 - HERE).mask(share=0), "`share` must be .* got 0"),
        (lambda: changed(HERE[:1]), r"of one shape, got \(2, 1, 8, 8\) and"),
        (
            lambda: changed(1 - HERE).add(HERE[..., 1:], HERE[..., 1:]),
            "images of 8 × 8, as those before them, got 8 × 7",
        ),
        (lambda: masks.inside(HERE, HERE * torch.nan, torch.ones(8, 8)), "`after` must be fin"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
