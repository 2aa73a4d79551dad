"""The study of faces, on faces of 32 × 32 that are drawn by hand."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from leapfactual.data import packages
from leapfactual.demos.faces import demo
from leapfactual.demos.faces.album import Album, Line, write_sheet
from leapfactual.demos.faces.expressions import resize
from leapfactual.demos.faces.portraits import expressive
from leapfactual.errors import InputError
from leapfactual.flow import Flow
from leapfactual.generators import GAN
from leapfactual.leaps import blend
from studies import faces
from studies.faces import sampling, tables, training

SIDE, FEATURES = 32, 6
SMALL = faces.Settings(
    per_class=200,
    epochs=40,
    batch_size=64,
    width=64,
    channels=8,
    multipliers=(1,),
    tested=8,
    masks=6,
    alternatives=2,
    runs=1,
)


def synthesis(w):
    """Draws a face whose first number is its smile, and the others its looks."""
    image = torch.zeros(len(w), 3, SIDE, SIDE)
    image[:, :, 2:12] = w[:, 1:4, None, None].expand(-1, -1, 10, SIDE) / 2
    image[:, :, 20:25, 12:20] = w[:, :1, None, None]
    image[:, 0] += w[:, 4, None, None] / 4
    image[:, 2] += w[:, 5, None, None] / 4
    return image / 3


def smiling(x, channel=1):
    p = (20 * (x[:, channel, 20:25, 12:20].mean((1, 2)) - 0.5)).sigmoid()
    return torch.stack([1 - p, p], 1)


def distance(a, b):
    return (a - b).abs().flatten(1).mean(1)


@pytest.fixture(scope="module")
def gan():
    return GAN(synthesis, FEATURES, (3, SIDE, SIDE))


@pytest.fixture(scope="module")
def oracles():
    return faces.Oracles(lambda x: smiling(x, 0), distance, {"LPIPS": distance})


@pytest.fixture(scope="module")
def done(gan, oracles, tmp_path_factory):
    out = tmp_path_factory.mktemp("faces")
    said = []
    rows = study(out, gan, oracles, lambda share, what: said.append((share, what)))
    return out, rows, said


def study(out, gan, oracles, progress=lambda *_: None, settings=SMALL):
    return faces.run(
        out, gan, smiling, oracles, settings, command="x", batch_size=8, progress=progress
    )


@pytest.mark.slow
def test_the_study_writes_its_numbers_and_pictures(done):
    out, rows, said = done
    found = {(r.setting, r.method, r.metric): r for r in rows}
    assert found["paper", "LeapFactual N_b = 10", "LPIPS"].paper == 0.171
    assert found["paper", "random pairs", "SSIM"].paper == 0.070
    assert found["ours", "LeapFactual", "ACC"].paper is None
    assert found["ours", "LeapFactual", "ACC"].mean > 0.9
    agreed = [found["ours", name, "oracle"].mean for name in ("LeapFactual", "LeapFactual_R")]
    assert agreed[1] > agreed[0]
    apart = found["paper", "random pairs", "LPIPS"].mean
    assert found["ours", "LeapFactual", "LPIPS"].mean < apart / 2
    assert found["several", "everywhere", "diversity, LPIPS of 256 × 256"].mean > 0
    assert ("paper", "random pairs", "ACC") not in found
    written = json.loads((out / "faces.json").read_text())
    assert len(written["rows"]) == len(rows)
    pictures = {path.name for path in out.glob("*.jpg")}
    assert pictures == {
        "many.jpg",
        "worst.jpg",
        "masks.jpg",
        "reliable.jpg",
        "alternatives.jpg",
    }
    shares = [share for share, _ in said]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.slow
def test_a_mask_keeps_the_rest(done):
    found = {(r.setting, r.method, r.metric): r.mean for r in done[1]}
    for name in ("LeapFactual", "LeapFactual_R"):
        kept, free = (found["masks", m, "L1"] for m in (f"{name} in a mask", name))
        assert kept < free


@pytest.mark.slow
def test_an_interrupted_study_goes_on(done, gan, oracles, tmp_path):
    class Stop(Exception):
        pass

    def stop(share, what):
        if "our steps" in what:
            raise Stop

    with pytest.raises(Stop):
        study(tmp_path, gan, oracles, stop)
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    kept.pop("shipped.safetensors")
    assert set(kept) == {"faces.safetensors", "U-Net-0.safetensors", "MLP-0.safetensors"}
    rows = study(tmp_path, gan, oracles)
    assert kept == {name: (tmp_path / name).stat().st_mtime_ns for name in kept}
    wanted = {(r.setting, r.method, r.metric): r.mean for r in done[1]}
    for r in rows:
        assert r.mean == pytest.approx(wanted[r.setting, r.method, r.metric], nan_ok=True), r


@pytest.mark.slow
def test_other_distances_are_another_study(done, gan, oracles):
    other = replace(oracles, lpips={"LPIPS (AlexNet)": distance})
    with pytest.raises(InputError, match="other settings"):
        study(done[0], gan, other)


@pytest.mark.slow
def test_faces_can_be_drawn_one_by_one(done, gan, oracles):
    flow = demo.Flow.load(done[0] / "MLP-0.safetensors").requires_grad_(False)
    tested = training.sample_faces(gan, smiling, 5, 5, 1)
    found = [
        tables.explain_as_paper(
            tables.Setup(gan, smiling, flow, oracles, size), tested, lambda _: None
        )
        for size in (1, 5)
    ]
    for name, measured in found[0].items():
        assert measured.means() == pytest.approx(found[1][name].means(), rel=1e-4, nan_ok=True)
    apart = found[0]["random pairs"].of("LPIPS")
    x = gan.decode(tested.w)
    torch.testing.assert_close(apart, distance(x.roll(1, 0), x).double(), rtol=0.02, atol=0)


@pytest.mark.slow
def test_another_study_does_not_write_into_the_folder(done, gan, oracles):
    with pytest.raises(InputError, match="other settings"):
        study(done[0], gan, oracles, settings=replace(SMALL, width=32))


# -- the faces that it learns from --


def test_samples_are_balanced_and_go_on(gan, tmp_path):
    path = tmp_path / "faces.safetensors"
    some = sampling.sample(gan, smiling, 50, seed=3, path=path)
    assert some.p.argmax(1).bincount().tolist() == [50, 50]
    more = sampling.sample(gan, smiling, 400, seed=3, path=path)
    fresh = sampling.sample(gan, smiling, 400, seed=3)
    assert torch.equal(more.w, fresh.w)
    assert torch.equal(more.p, fresh.p)


def test_a_class_that_hardly_comes_up_is_said(gan):
    def never(x):
        return torch.tensor([[1.0, 0.0]]).repeat(len(x), 1)

    with pytest.raises(InputError, match="less rare"):
        sampling.sample(gan, never, 10)


def test_damaged_samples_are_said(gan, tmp_path):
    path = tmp_path / "faces.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="Delete it"):
        sampling.sample(gan, smiling, 10, path=path)


def test_no_face_is_both_learnt_from_and_shown(gan):
    learnt = torch.cat([gan.sample(5, seed) for seed in range(3)])
    for first in (faces.FIRST_TESTED_SEED, demo.FIRST_SEED):
        shown = torch.cat([gan.sample(5, first + seed) for seed in range(3)])
        assert torch.cdist(learnt, shown).min() > 1e-3


# -- measuring --


def test_means_over_batches_are_means_over_all(gan, oracles):
    flow = Flow(training.field("MLP", FEATURES, SMALL)).requires_grad_(False)
    tested = training.sample_faces(gan, smiling, 21, 5, 8)
    found = [
        tables.explain_with_plans(
            tables.Setup(gan, smiling, flow, oracles, size),
            tested,
            {"one": [blend(3, 0.5)]},
            lambda _: None,
        )["one"].means()
        for size in (4, 21)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-4, nan_ok=True)


def test_the_mask_of_expression_is_eyes_and_mouth():
    mask = expressive(100)[0]
    assert mask[68, 50] == mask[48, 38] == mask[48, 62] == 1
    assert mask[30, 50] == mask[90, 50] == mask[58, 50] == 0


# -- albums --


def test_an_album_shows_what_was_drawn_without_drawing_again(gan):
    album = Album(gan, side=8)
    w = gan.sample(3, 1)
    x = album.decode(w)
    assert torch.equal(x, gan.decode(w))
    sample_faces = []
    album.gan = type(
        "Once",
        (),
        {"decode": lambda _, z: sample_faces.append(len(z)) or gan.decode(z), "device": "cpu"},
    )()
    again = album.thumbnails.decode(w.flip(0))
    assert not sample_faces
    torch.testing.assert_close(again[2], resize(x[:1], 8)[0], rtol=0, atol=1 / 255)
    assert album.thumbnails.decode(gan.sample(1, 2)).shape == (1, 3, 8, 8)
    assert sample_faces == [1]


def test_a_sheet_has_all_lines(tmp_path):
    x = torch.rand(3, 1, 16, 16)
    write_sheet([Line("one", x), Line("two", x[:2], ["red", None])], tmp_path / "a.jpg", side=20)
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.size == (150 + 3 * 24, 2 * 24)
        red, _, blue = image.convert("RGB").getpixel((151, 34))
        assert red > blue + 60


# -- the demo --


@pytest.fixture(scope="module")
def flow(done):
    return demo.Flow.load(done[0] / "MLP-0.safetensors").requires_grad_(False)


@pytest.mark.slow
def test_the_demo_explains_faces_both_ways(gan, flow, tmp_path):
    chosen = demo.draw_faces(gan, smiling, 3, 0, lambda _: None)
    assert [face.label for face in chosen] == [0] * 3 + [1] * 3
    rows = demo.explain(tmp_path, chosen, gan, smiling, flow, command="x")
    found = {(r.setting, r.method, r.metric): r.mean for r in rows}
    assert found["from not smiling to smiling", "counterfactual", "validity"] == 1
    assert found["from smiling to not smiling", "reliable counterfactual", "validity"] == 1
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "index.html",
        "faces.jpg",
        "faces.webp",
        "faces.md",
        "faces.json",
        "pictures",
    }
    assert len(list((tmp_path / "pictures").iterdir())) == 18
    assert (tmp_path / "index.html").read_text().count('"strip"') == 6
    with Image.open(tmp_path / "faces.webp") as image:
        assert image.n_frames > 1


@pytest.mark.slow
def test_a_photograph_stays_as_it_is_outside_of_the_mask(gan, flow, tmp_path):
    photo = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    photo[:, :, 20:25, 12:20] = 0.2
    w = gan.sample(20, 0)
    w = w[(smiling(gan.decode(w)).argmax(1) == 0).nonzero()[:1, 0]]
    mask = torch.zeros(1, SIDE, SIDE)
    mask[:, 19:26, 11:21] = 1.0
    seen = []

    def query(x):
        seen.append(x)
        return smiling(x)

    face = demo.Face("me", w, 0, photo)
    demo.explain(tmp_path, [face], gan, query, flow, mask=mask, command="x")
    assert len(seen) > 2
    for x in seen:
        assert torch.equal(x * (1 - mask), (photo * (1 - mask)).expand_as(x))


def test_a_photograph_counts_as_what_is_asked_about(gan, tmp_path, monkeypatch):
    photo = torch.full((1, 3, SIDE, SIDE), 0.9)
    mask = torch.zeros(1, SIDE, SIDE)
    monkeypatch.setattr(demo, "read_face", lambda path, mesh, side: photo)
    monkeypatch.setattr(demo.SmileOracle, "load", lambda: demo.SmileOracle())
    paths = [tmp_path / "me.jpg"]
    found = demo.open_photographs(paths, gan, smiling, distance, mask, lambda *_: None)
    assert [face.label for face in found] == [1]
    assert "me.jpg: " in found[0].about
    assert found[0].name == "photo 00"


def test_a_file_that_is_no_photograph_is_named(tmp_path):
    path = tmp_path / "me.jpg"
    for content in (b"", b"no picture"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"me\.jpg cannot be explained"):
            demo.read_face(path, demo.SmileOracle().mesh, SIDE)
    with pytest.raises(InputError, match="cannot be explained"):
        demo.read_face(tmp_path / "none.jpg", demo.SmileOracle().mesh, SIDE)


def test_a_class_that_nobody_has_is_said(gan):
    def never(x):
        return torch.tensor([[1.0, 0.0]]).repeat(len(x), 1)

    with pytest.raises(InputError, match="too few are smiling"):
        demo.draw_faces(gan, never, 1, 0, lambda _: None)


def test_the_flow_of_faces_is_shipped():
    found = demo.shipped_flow()
    assert (found.features, found.classes, found.sigma) == (512, 2, training.SIGMA)
    z = torch.zeros(2, 512) + found.mean
    assert found.typicality(z, torch.tensor([0, 1])).isfinite().all()


# -- with the real networks, where they are at hand --


@pytest.mark.slow
def test_openvino_and_torch_end_alike():
    pytest.importorskip("openvino")
    for name in demo.PACKAGES:
        if not packages.present(name):
            pytest.skip(f"{name} is not in the cache: leapfactual data get {name}")
    classifier, flow = demo.SmileClassifier(demo.ExpressionNetwork.load()), demo.shipped_flow()
    chosen, found = None, {}
    for engine in ("openvino", "torch"):
        drawing = demo.portraits(engine)
        chosen = chosen or demo.draw_faces(drawing, classifier, 2, 0, lambda _: None)
        explainer = demo.LeapFactual(drawing, classifier, flow, demo.PLAN, accelerate=False)
        found[engine] = [
            explainer.explain(drawing.decode(face.w), 1 - face.label, face.w) for face in chosen
        ]
    for one, other in zip(found["openvino"], found["torch"], strict=True):
        assert one.status == other.status
        assert one.valid.all()
        assert (one.counterfactual - other.counterfactual).abs().mean() < 0.01
