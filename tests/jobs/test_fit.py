import io
import json
import time

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine
from sklearn.svm import LinearSVC
from torch.nn import functional as F

import leapfactual as lf
from leapfactual.data import Table
from leapfactual.errors import InputError
from leapfactual.files import fingerprint
from leapfactual.generators import Identity, SpatialAutoencoder
from leapfactual.jobs import fit, guided_plans, oracle, plans, rows, spatial
from leapfactual.jobs.consistency import Agreement
from leapfactual.jobs.fit import PoorAgreement, fit_bundle
from leapfactual.jobs.labels import Votes
from leapfactual.jobs.queries import answers_file
from leapfactual.jobs.recipe import Recipe

from .conftest import FEW_PLANS, Digits, Squares, colour, part_of, run_of

RECIPE = Recipe(features=8, epochs=12, flow_epochs=30)
SHORT = Recipe(features=4, epochs=2, flow_epochs=8)


def test_from_images_to_a_bundle_that_explains(small_digits, svm, tmp_path, plan_grid):
    said, steps = [], set()
    fitted = fit_bundle(
        small_digits,
        svm,
        tmp_path / "bundle",
        classes=small_digits.classes,
        recipe=RECIPE,
        oracle=svm,
        classifier_name="svm",
        force=True,
        log=said.append,
        on_progress=lambda share, what, left: steps.add(what),
    )
    text = "\n".join(said)
    assert "Training a VAE of 8 features for 12 epochs." in text
    assert "gives the same class to the original and to its reconstruction" in text
    assert fitted.search.why in text
    assert {"training the generator", "training the flow", "choosing a plan"} <= steps
    assert not (tmp_path / "bundle.fit").exists()
    bundle = lf.Bundle.load(tmp_path / "bundle")
    assert bundle.classifier_name == "svm"
    assert not bundle.flow.soft
    assert bundle.front[0].plan == bundle.plan
    assert bundle.operating_point(1.0).plan == fitted.search.front[-1].plan
    assert bundle.training["recipe"]["epochs"] == 12
    with Image.open(io.BytesIO(bundle.picture)) as picture:
        assert picture.height > 10 * 48, "a row for each digit"
    found = bundle.explainer(svm).explain(small_digits.x[:30], target=5)
    assert found.valid.double().mean() > 0.8
    with pytest.raises(InputError, match="there is something at .* pass --overwrite"):
        fit_bundle(
            small_digits, svm, tmp_path / "bundle", classes=small_digits.classes, recipe=RECIPE
        )


def test_it_stops_before_the_flow_when_reconstructions_are_not_recognized(
    small_digits, svm, tmp_path, monkeypatch
):
    monkeypatch.setattr(rows, "train_flow", lambda *_: pytest.fail("a flow was trained"))
    poor = Recipe(features=1, epochs=1)
    advice = r"nothing was spent on a flow.*bundle.fit/reconstructions.png.*--epochs 2.*--force"
    with pytest.raises(PoorAgreement, match=advice):
        fit_bundle(
            small_digits, svm, tmp_path / "bundle", classes=small_digits.classes, recipe=poor
        )
    assert (tmp_path / "bundle.fit" / "preview.png").exists()
    assert (tmp_path / "bundle.fit" / "reconstructions.png").exists()
    assert not (tmp_path / "bundle").exists()


def counting(train, epochs, interrupted_after):
    """Returns a training that notes its epochs, and is interrupted after some of them."""

    def counted(*given, on_epoch=None, checkpoint=None, **options):
        def finish(epoch):
            on_epoch(epoch)
            if checkpoint is not None:  # else it is only timed
                epochs.append(epoch.number)
                if len(epochs) == interrupted_after:
                    raise KeyboardInterrupt

        return train(*given, on_epoch=finish, checkpoint=checkpoint, **options)

    return counted


def test_an_interrupted_fit_resumes_to_the_same_weights(svm, tmp_path, monkeypatch, plan_grid):
    short = plan_grid == "few plans"
    digits, recipe = (Digits(200), SHORT) if short else (Digits(), RECIPE)
    first, second = [], []
    monkeypatch.setattr(rows, "fit_generator", counting(rows.fit_generator, first, 0))
    monkeypatch.setattr(rows, "fit", counting(rows.fit, second, recipe.flow_epochs // 2))

    def run(name):
        fit_bundle(digits, svm, tmp_path / name, classes=digits.classes, recipe=recipe, force=True)
        return lf.Bundle.load(tmp_path / name)

    with pytest.raises(KeyboardInterrupt):
        run("one")
    one = run("one")
    assert first == list(range(1, recipe.epochs + 1)), "no epoch was trained twice"
    assert second == list(range(1, recipe.flow_epochs + 1)), "no epoch was trained twice"
    two = run("two")
    for name, value in two.flow.state_dict().items():
        assert torch.equal(value, one.flow.state_dict()[name]), name
    queries, usual = one.training["queries"], two.training["queries"]
    assert queries["first look"] == 2 * usual["first look"], "both looks count"
    assert queries["plan"] == usual["plan"]


@pytest.mark.parametrize("late", [False, True])
def test_a_fit_that_is_interrupted_at_its_end_ends_as_it_would_have(
    svm, tmp_path, monkeypatch, late
):
    """Whether just before the bundle is there or just behind it."""
    for name, values in FEW_PLANS.items():
        monkeypatch.setattr(plans, name, values)
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("LEAPFACTUAL_CACHE", str(tmp_path / "cache"))
    digits, folder, asked = Digits(60), tmp_path / "bundle", set()

    def slow(x):
        time.sleep(0.0012 * len(x))
        keys = {fingerprint(each) for each in x}
        assert not asked & (keys - usual), "asked twice"
        asked.update(keys)
        return svm(x)

    def run(**options):
        return fit_bundle(
            digits, slow, folder, classes=digits.classes, recipe=SHORT, force=True, **options
        )

    usual = {fingerprint(each) for each in digits.x}

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if not late:
            patched.setattr(lf.Bundle, "_write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(on_saved=interrupt)
    assert folder.exists() is late
    saved = []
    first = sorted(asked)
    fitted = run(on_saved=lambda: saved.append(sorted(p.name for p in tmp_path.iterdir())))
    assert sorted(asked) == first, "nothing else was asked"
    assert saved == [["bundle", "bundle.fit", "cache"]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "cache"]
    assert answers_file(folder).exists()
    assert lf.Bundle.load(folder).plan == fitted.bundle.plan
    with pytest.raises(InputError, match="there is something at .* pass --overwrite"):
        run()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "cache"]


def test_a_table_needs_no_training_of_a_generator(tmp_path, plan_grid):
    wine = load_wine()
    rows, labels = torch.tensor(wine.data, dtype=torch.float32), torch.tensor(wine.target)
    table = Table(rows, wine.feature_names, [str(n) for n in range(178)], labels, list("abc"))
    model = LinearSVC(random_state=0, C=0.01, max_iter=20_000).fit(rows, labels)
    classifier = lf.classifiers.from_sklearn(model)
    fitted = fit_bundle(
        table,
        classifier,
        tmp_path / "wine",
        classes=table.classes,
        recipe=Recipe(flow_epochs=60),
    )
    bundle = lf.Bundle.load(tmp_path / "wine")
    assert bundle.training["columns"] == wine.feature_names
    assert fitted.agreement.overall == 1
    found = bundle.explainer(classifier).explain(rows[:20], target=1)
    assert found.valid.double().mean() > 0.9


class Blurred(Identity):
    """A generator that loses everything smaller than a few pixels."""

    def decode(self, z):
        return F.interpolate(F.avg_pool2d(z, 8), z.shape[2:])


@pytest.mark.parametrize(
    ("generator", "classifier", "stays"),
    [(Identity(), colour, True), (Blurred(), colour, False), (Identity(), "erratic", False)],
)
def test_a_generator_of_rows_stays_unless_it_blurs_or_is_not_recognized(
    generator, classifier, stays, tmp_path, monkeypatch
):
    if classifier == "erratic":
        rng = torch.Generator().manual_seed(0)

        def classifier(x):
            return torch.eye(2)[torch.randint(2, (len(x),), generator=rng)]

    monkeypatch.setattr(rows, "train_generator", lambda *_, **__: (generator, 3))
    monkeypatch.setattr(spatial, "train_generator", lambda *_, **__: ("spatial", 5))
    images, said = Squares(40), []
    run = run_of(tmp_path, said.append)
    chosen = fit._choose_generator(
        run, images, part_of(images), images.x, classifier, images.classes
    )
    assert chosen == ((generator, 3) if stays else ("spatial", 5))
    assert len(said) == (not stays)
    if not stays:
        assert "Of 40 held out it keeps the class of" in said[0]
        assert said[0].endswith("so a spatial one takes its place.")


@pytest.mark.parametrize("side", [8, 31])
def test_small_images_have_a_generator_of_rows_and_no_choice(side, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "train_generator", lambda *_, **__: ("rows", 3))
    images = Digits(60)
    images.shape = (1, 40, side)
    rest = (images, part_of(Digits(60)), images.x, colour, images.classes)
    assert fit._choose_generator(run_of(tmp_path), *rest) == ("rows", 3)
    with pytest.raises(InputError, match=f"40 × {side} are too small.*needs 32.*--generator vae"):
        fit._choose_generator(run_of(tmp_path, generator="spatial"), *rest)


def test_blur_is_a_share_of_the_distance_between_random_images():
    x = Squares(12).x

    class Other(Identity):
        def decode(self, z):
            return z.roll(6, 0)

    assert fit._blur(Identity(), x) == 0
    assert fit._blur(Other(), x) == pytest.approx(1)
    assert 0.3 < fit._blur(Blurred(), x) < 1


def test_advice_names_a_time_that_can_be_given(tmp_path):
    poor = Agreement(torch.tensor([[1.0, 9.0], [0.0, 0.0]]), torch.zeros(2))
    model = SpatialAutoencoder((3, 32, 32), 4, widths=(8, 8))
    run = run_of(tmp_path, generator="spatial", minutes=0.2)
    with pytest.raises(PoorAgreement, match=r"--minutes 0\.4, or go on"):
        fit._check_consistency(run, poor, model, 3, False)


@pytest.fixture
def tiny(monkeypatch):
    """Small networks for photographs, on a machine whose speed is known."""
    monkeypatch.setattr(spatial, "AUTOENCODER_SIZES", (16,))
    monkeypatch.setattr(spatial, "FLOW_SIZES", (16,))
    monkeypatch.setattr(spatial, "seconds_per_step", lambda _: 0.2)
    monkeypatch.setattr(oracle, "seconds_per_step", lambda _: 0.05)
    monkeypatch.setattr(oracle, "WIDTHS", (8, 16, 16))
    monkeypatch.setattr(guided_plans, "FIRST_LEAPS", ((1, 0.6, 3.0), (2, 0.35, 3.0)))
    monkeypatch.setattr(guided_plans, "INJECTIONS", ((1, 0.3, 3.0, None), (1, 0.3, 3.0, 0.6)))


def fit_squares(folder, images, classifier=colour, minutes=0.001, **options):
    recipe = Recipe(generator="spatial", minutes=minutes)
    options = {"classes": images.classes, "recipe": recipe, "force": True, **options}
    fitted = fit_bundle(images, classifier, folder, **options)
    return fitted, lf.Bundle.load(folder)


@pytest.mark.slow
def test_from_photographs_to_a_bundle_that_turns_the_class(tiny, tmp_path):
    images, said, steps = Squares(240), [], set()
    fitted, bundle = fit_squares(
        tmp_path / "bundle",
        images,
        minutes=2.0,
        force=False,
        log=said.append,
        on_progress=lambda share, what, left: steps.add(what),
    )
    text = "\n".join(said)
    assert "Training a spatial autoencoder of 8 × 8 × 8 numbers for 30 epochs" in text
    assert "a small network learnt the classifier's answers" in text
    assert fitted.search.why in text
    assert "training an oracle" in steps
    assert set(fitted.seconds) >= {"all", "generator", "flow", "oracle", "plan"}
    assert isinstance(bundle.generator, SpatialAutoencoder)
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["keep_pixels"] is fitted.search.keep_pixels is bundle.keep_pixels
    e = bundle.explainer(colour).explain(images.x[:40], target=1 - images.labels[:40])
    assert e.valid.double().mean() > 0.8
    assert not (tmp_path / "bundle.fit").exists()


@pytest.mark.slow
def test_an_interrupted_fit_of_photographs_resumes_to_the_same_weights(tiny, tmp_path):
    images = Squares(44, 32, 40)

    def stop_at(step):
        def stop(share, what, left):
            if what == step and share >= 0.5:
                raise KeyboardInterrupt

        return stop

    for step in ("training the generator", "training the flow", "training an oracle"):
        with pytest.raises(KeyboardInterrupt):
            fit_squares(tmp_path / "one", images, on_progress=stop_at(step))
    one, two = (fit_squares(tmp_path / name, images)[1] for name in ("one", "two"))
    for part in ("generator", "flow"):
        weights = getattr(one, part).state_dict()
        for name, value in getattr(two, part).state_dict().items():
            assert torch.equal(value, weights[name]), (part, name)


@pytest.mark.slow
def test_photographs_with_an_oracle_need_no_other(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(
        oracle, "train_oracle", lambda *_, **__: pytest.fail("an oracle was trained")
    )
    asked = []

    def given(x):
        asked.append(len(x))
        return colour(x)

    _, bundle = fit_squares(tmp_path / "bundle", Squares(44), oracle=given)
    assert asked
    assert bundle.front[0].reliability == 0


@pytest.mark.slow
def test_photographs_that_people_voted_on(tiny, tmp_path):
    images, said = Squares(60), []
    p = torch.eye(2)[images.labels]
    p[50:] = 0
    votes = Votes(p, images.classes, 50)
    _, bundle = fit_squares(tmp_path / "bundle", images, votes, log=said.append)
    assert "People voted on 50 images" in "\n".join(said)
    assert bundle.generator.decode(bundle.generator.encode(images.x[:2])).shape == (2, 3, 32, 32)
