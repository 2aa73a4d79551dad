"""The study of photographs: its parts against exact answers, and the whole at a small size."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

import leapfactual as lf
from leapfactual.data import open_images
from leapfactual.errors import InputError
from leapfactual.imaging import to_pil
from leapfactual.metrics import LPIPS, EfficientNetLite0
from studies import photographs
from studies.photographs import subjects, tables
from studies.photographs.subjects import Schooling, Subject
from studies.photographs.tables import Meter, ghosts


def blobs(folder, n, seed):
    """Writes grey pictures of noise with a red or a blue spot."""
    rng = torch.Generator().manual_seed(seed)
    for k in range(n):
        kind = k % 2
        x = 0.4 + 0.1 * torch.rand(3, 32, 32, generator=rng)
        top, left = torch.randint(4, 18, (2,), generator=rng).tolist()
        x[2 * kind, top : top + 10, left : left + 10] += 0.45
        path = folder / ("red", "blue")[kind] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        to_pil(x).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spots")
    blobs(folder / "train", 120, 0)
    blobs(folder / "test", 16, 1)
    return folder


def color(x):
    """Tells blue from red, softly."""
    blueness = (x[:, 2] - x[:, 0]).flatten(1).mean(1)
    return torch.stack([100 * blueness, -100 * blueness], 1).softmax(1)


def open_folder(folder, cache, **options):
    options = {
        "size": 32,
        "schooling": Schooling(steps=3, width=4),
        "reference": None,
        "device": "cpu",
        "seed": 0,
    } | options
    return subjects.folder(folder, cache=cache, **options)


def test_images_are_taken_to_the_reference_and_its_own_to_any_other():
    subject = Subject("toy", None, None, tuple("abcd"), None, None, reference=2)
    source = torch.tensor([0, 1, 2, 3, 2, 2, 2, 2])
    target = subject.targets(source, seed=0)
    assert (target[source != 2] == 2).all()
    assert (target[source == 2] != 2).all()
    assert len(set(target[source == 2].tolist())) > 1


def test_faces_are_drawn_once_each_into_train_and_test(tmp_path):
    decoded = []

    class Gan:
        def sample(self, n, seed):
            return seed + torch.arange(n) / n

        def decode(self, w):
            decoded.extend(w.tolist())
            return (w % 1)[:, None, None, None].expand(-1, 3, 8, 8)

    def bright(x):
        return torch.eye(2)[(x.mean((1, 2, 3)) > 0.005).long()]

    def draw(trained, tested):
        options = {"gan": Gan, "classifier": bright, "batch_size": 3}
        subjects.draw_faces(tmp_path, trained, tested, **options)

    draw(4, 3)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*/*.png"))
    assert names == [f"test/smiling/0000{n}.png" for n in (4, 5, 6)] + [
        *(f"train/not smiling/0000{n}.png" for n in (0, 1, 2)),
        "train/smiling/00003.png",
    ]
    path = tmp_path / "train" / "not smiling" / "00002.png"
    with Image.open(path) as image:
        assert image.size == (128, 128)
    path.unlink()
    path.with_name(".00002.png.half-written.png").touch()
    decoded.clear()
    draw(4, 3)
    assert decoded == pytest.approx([1000 + 2 / 500])
    draw(4, 3)
    assert len(decoded) == 1


def test_a_ghost_is_what_is_put_back_where_the_picture_changed():
    x = torch.full((1, 1, 8, 8), 0.5)
    generator = _Flat()
    z = generator.encode(x)
    moved = z.clone()
    moved[:, :8] += 0.3
    e = _explanation(x, z, moved, generator.decode(moved) + 0.1)
    assert ghosts(e, generator) == pytest.approx(0.1, abs=1e-6)
    assert ghosts(_explanation(x, z, moved, generator.decode(moved)), generator) == 0
    assert ghosts(_explanation(x, z, z, x + 0.1), generator) == 0


class _Flat:
    def encode(self, x):
        return x.flatten(1)

    def decode(self, z):
        return z.reshape(-1, 1, 8, 8)


def _explanation(x, z, moved, shown):
    y = torch.zeros(1, dtype=torch.long)
    return lf.Explanation(
        x=x,
        reconstruction=x,
        counterfactual=shown,
        z=z,
        z_counterfactual=moved,
        source=y,
        target=y + 1,
        label=y + 1,
        probabilities=torch.tensor([[0.0, 1.0]]),
        leaps=y,
        first=y,
        queries=y,
        nfe=y,
        seconds=torch.zeros(1),
    )


def test_networks_are_trained_once_and_read_again(folder, tmp_path, monkeypatch):
    cache = tmp_path / "networks.safetensors"
    first = open_folder(folder, cache)
    monkeypatch.setattr(subjects, "train_classifier", lambda *_, **__: pytest.fail("trained"))
    again = open_folder(folder, cache)
    x = first.test[:]
    for name in ("classifier", "oracle"):
        assert torch.equal(getattr(first, name)(x), getattr(again, name)(x))
    assert first.rows is None
    assert first.classes == ("blue", "red")


def test_a_weak_classifier_learns_from_a_share_of_the_labels(folder, tmp_path):
    subject = open_folder(
        folder, tmp_path / "n.safetensors", schooling=Schooling(share=0.25, steps=2, width=4)
    )
    assert len(subject.rows) == 30
    assert len(subject.filters) == 4


def test_class_folders_without_a_split_are_split(folder, tmp_path):
    subject = open_folder(
        folder / "train", tmp_path / "n.safetensors", schooling=Schooling(steps=1, width=4)
    )
    assert (len(subject.train), len(subject.test)) == (96, 24)
    assert set(subject.train.names).isdisjoint(subject.test.names)
    with pytest.raises(InputError, match="`green` is not a class: there are blue, red"):
        open_folder(folder, tmp_path / "n.safetensors", reference="green")


def test_a_centre_is_a_set_of_its_own(folder, tmp_path):
    whole, centre = (
        open_folder(folder, tmp_path / f"{crop}.safetensors", crop=crop) for crop in (None, 16)
    )
    assert centre.name == f"{whole.name}, centre 16"
    assert centre.test[:].shape == whole.test[:].shape
    assert not torch.equal(centre.test[:], whole.test[:])


def test_some_images_of_a_set_are_a_set(folder):
    images = open_images(folder / "train")
    some = images.take(torch.tensor([5, 0]))
    assert torch.equal(some[:], images[[5, 0]])
    assert some.names == [images.names[5], images.names[0]]
    assert some.labels.tolist() == images.labels[[5, 0]].tolist()


@pytest.mark.slow
def test_the_whole_study_at_a_small_size(folder, tmp_path, monkeypatch):
    meter = Meter(LPIPS(), EfficientNetLite0())
    settings = photographs.Settings(("vae", "spatial"), 0.3, 8, Schooling(0.5, 4, 4), leaps=True)
    monkeypatch.setattr(tables, "TAILS", tables.TAILS[1:3])
    said = []

    def subject(seed):
        options = {"schooling": settings.schooling, "reference": "red", "seed": seed}
        opened = open_folder(folder, tmp_path / f"{seed}.safetensors", **options)
        return replace(opened, classifier=color, oracle=color, filters=(color,))

    def run(**options):
        return photographs.run(
            tmp_path / "out",
            subject,
            settings,
            meter,
            seeds=[0],
            command="test",
            device="cpu",
            log=said.append,
            progress=lambda share, what: None,
            **options,
        )

    rows = run()
    own = tmp_path / "out" / f"{folder.name}-32x32"
    for kind in settings.generators:
        assert (own / f"{kind}-0.json").exists()
        for name in ("unchosen", "worst"):
            with Image.open(own / f"{kind}-0.figures" / f"{name}.jpg") as image:
                assert image.width > 300
    found = {(r.setting.split(": ")[1], r.method, r.metric): r.mean for r in rows}
    assert 0 <= found["counterfactuals", "spatial, reliable", "oracle"] <= 1
    assert found["reconstructions", "spatial", "SSIM to input"] > 0.3
    assert found["own pixels, plain", "spatial, not kept", "ghosts"] == pytest.approx(0, abs=1e-4)
    assert found["retraining", "spatial, weak, longer", "lead in ACC"] == 0
    assert found["cost", "vae, plain", "ms alone"] > 0
    for way in ("tighten(5)", "focus(0.6), tighten(5)"):
        assert found["leaps", "spatial, LPIPS, share of random pairs", way] > 0
    assert json.loads((tmp_path / "out" / "photographs.json").read_text())["command"] == "test"
    monkeypatch.setattr(photographs, "fit_bundle", lambda *_, **__: pytest.fail("fitted again"))
    assert run() == rows
