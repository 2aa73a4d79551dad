import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.svm import LinearSVC

import leapfactual as lf
from leapfactual.data import Table
from leapfactual.errors import InputError
from leapfactual.jobs import fit
from leapfactual.jobs.fit import PoorAgreement, Recipe, fit_bundle

from .conftest import Digits

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
        on_progress=lambda share, what: steps.add(what),
    )
    text = "\n".join(said)
    assert "Training a VAE of 8 features for 12 epochs, about" in text
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
    found = bundle.explainer(svm).explain(small_digits.x[:30], target=5)
    assert found.valid.double().mean() > 0.8
    with pytest.raises(InputError, match="there is something at .* pass --overwrite"):
        fit_bundle(
            small_digits, svm, tmp_path / "bundle", classes=small_digits.classes, recipe=RECIPE
        )


def test_it_stops_before_the_flow_when_reconstructions_are_not_recognized(
    small_digits, svm, tmp_path, monkeypatch
):
    monkeypatch.setattr(fit, "fit", lambda *_, **__: pytest.fail("a flow was trained"))
    poor = Recipe(features=1, epochs=1)
    with pytest.raises(PoorAgreement, match="nothing was spent on a flow.*--epochs 2.*--force"):
        fit_bundle(
            small_digits, svm, tmp_path / "bundle", classes=small_digits.classes, recipe=poor
        )
    assert (tmp_path / "bundle.fit" / "preview.png").exists()
    assert not (tmp_path / "bundle").exists()


def test_an_interrupted_fit_resumes_to_the_same_weights(svm, tmp_path, plan_grid):
    short = plan_grid == "few plans"
    digits, recipe = (Digits(200), SHORT) if short else (Digits(), RECIPE)

    def run(name, on_progress):
        fit_bundle(
            digits,
            svm,
            tmp_path / name,
            classes=digits.classes,
            recipe=recipe,
            force=True,
            on_progress=on_progress,
        )
        return lf.Bundle.load(tmp_path / name)

    def stop(share, what):
        if what == "training the flow" and share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("one", stop)
    steps = []
    one, two = run("one", lambda share, what: steps.append(what)), run("two", lambda *_: None)
    assert "training the generator" not in steps
    assert 0 < steps.count("training the flow") < recipe.flow_epochs / 2 + 1
    for name, value in two.flow.state_dict().items():
        assert torch.equal(value, one.flow.state_dict()[name]), name


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


def test_images_without_an_up_are_augmented_with_all_rotations(small_digits):
    part = fit._Part(Digits(60), torch.arange(60), "cpu")
    assert sum(len(batch) for batch in fit._orbits(part, fit.d4_orbit)) == 8 * 60
    with pytest.raises(InputError, match="images of 8 × 9 cannot be rotated"):
        fit._build_generator(Recipe(rotate=True), (1, 8, 9), 0.1)


def test_an_unknown_generator_is_named():
    with pytest.raises(InputError, match="must be one of auto, vae, wae, spatial, got 'gan'"):
        Recipe(generator="gan")


def test_plans_are_tried_on_images_of_all_classes_though_folders_stand_in_order():
    digits = Digits()
    order = digits.labels.argsort(stable=True)
    digits.x, digits.labels = digits.x[order], digits.labels[order]
    _, held_out = fit._split(digits, 0, "cpu")
    rows = (held_out[:, None] == digits.x[None]).flatten(2).all(2).int().argmax(1)
    assert len(held_out) == 60
    assert len(set(digits.labels[rows[:30]].tolist())) >= 8
