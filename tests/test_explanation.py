from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import leapfactual as lf
from leapfactual.errors import InputError, MissingData
from leapfactual.explanation import Trajectory
from leapfactual.generators import Identity
from leapfactual.testing import GaussianOracle, check_explainer

ORACLE = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), 0.5)


def made(keep_path=True, n=3):
    z, _ = ORACLE.sample(n)
    plan = [lf.blend(15, 0.1), lf.inject(2, 0.0, 0.1)]
    return lf.LeapFactual(
        Identity(), ORACLE.classifier, ORACLE.flow(), plan, keep_path=keep_path
    ).explain(z, 1)


def test_margin_by_hand():
    found = made()
    object.__setattr__(found, "probabilities", torch.tensor([[0.3, 0.7]] * 3 + [[0.9, 0.1]] * 3))
    assert found.margin.tolist() == pytest.approx([0.4] * 3 + [-0.8] * 3)


def test_parts_and_whole():
    found = made()
    again = lf.Explanation.cat([found[:2], found[torch.tensor([2, 3])], found[4], found[-1]])
    assert torch.equal(again.z_counterfactual, found.z_counterfactual)
    assert torch.equal(again.path.z, found.path.z)
    assert again.status == found.status
    assert len(found[0]) == 1


def test_cat_refuses_what_does_not_belong_together():
    with pytest.raises(InputError, match="at least one explanation"):
        lf.Explanation.cat([])
    with pytest.raises(InputError, match="some do not"):
        lf.Explanation.cat([made(True), made(False)])
    z = torch.zeros(1, 2)
    short = lf.LeapFactual(
        Identity(), ORACLE.classifier, ORACLE.flow(), [lf.blend(2, 0.1)], keep_path=True
    ).explain(z, 1)
    with pytest.raises(InputError, match=r"plans of \[2, 17\] leaps"):
        lf.Explanation.cat([made(True), short])


def test_iteration_ends_and_wrong_rows_are_named():
    found = made()
    assert [len(one) for one in found] == [1] * 6
    assert len(found[np.int64(2)]) == 1
    for row in (6, -7):
        with pytest.raises(IndexError, match=f"there is no image {row}: there are 6"):
            found[row]


def test_one_class_has_a_margin():
    oracle = GaussianOracle(torch.zeros(1, 2), 0.5)
    found = lf.LeapFactual(
        Identity(), oracle.classifier, oracle.flow(), [lf.blend(2, 0.1)]
    ).explain(torch.zeros(2, 2), 0)
    assert found.margin.tolist() == [1, 1]


def test_print_is_useful():
    assert str(made()) == "Explanation(6 images to class 1: 6 valid, median 2 leaps)"
    assert str(made()[0]).startswith("Explanation(1 image to class 1")


def test_every_image_has_a_reason():
    found = made()
    assert len(found.reason) == 6
    assert found.reason[0].startswith("class 0 became class 1 after ")
    assert found.reason[-1].startswith("class 1 from the start")
    named = replace(found, classes=("cat", "dog"))
    assert named.reason[0].startswith("cat became dog after ")
    assert named[:2].reason == named.reason[:2]
    assert lf.Explanation.cat([named, named]).classes == ("cat", "dog")
    assert repr(named[:1]).startswith("Explanation(1 image to class dog")
    assert named.to_frame()["target"][0] == "dog"


@pytest.mark.parametrize(
    ("source", "label", "first", "leaps", "sentence"),
    [
        (0, 1, 3, 10, "cat became dog after 3 leaps; the search went on for 7 more to improve it"),
        (0, 1, 1, 1, "cat became dog after 1 leap"),
        (1, 1, 0, 0, "dog from the start, so nothing had to change"),
        (
            *(1, 1, 0, 2),
            "dog from the start, so nothing had to change; the search went on for 2 leaps all "
            "the same",
        ),
        (0, 0, -1, 4, "still cat after 4 leaps, not dog: more leaps or larger steps may help"),
        (
            *(0, 2, -1, 4),
            "cat became bird after 4 leaps, not dog: more leaps or larger steps may help",
        ),
    ],
)
def test_reasons_are_sentences_in_everyday_words(source, label, first, leaps, sentence):
    one, p = torch.ones(1, dtype=torch.long), torch.eye(3)[[label]]
    x = torch.zeros(1, 2)
    found = lf.Explanation.of(x, x, one, p, source * one)
    found = replace(found, first=first * one, leaps=leaps * one, classes=("cat", "dog", "bird"))
    assert found.reason == [sentence]


def test_it_is_frozen_and_moves_between_devices():
    found = made()
    with pytest.raises(AttributeError):
        found.label = found.target
    assert found.to("cpu").x.device.type == "cpu"


@pytest.mark.parametrize("keep_path", [True, False])
def test_save_then_load_is_equal(keep_path, tmp_path):
    found = replace(made(keep_path), classes=("cat", "dog"))
    found.save(tmp_path / "found.safetensors")
    again = lf.Explanation.load(tmp_path / "found.safetensors")
    for name in (f.name for f in fields(lf.Explanation) if f.name not in ("path", "classes")):
        assert torch.equal(getattr(again, name), getattr(found, name)), name
    assert (again.path is None) is not keep_path
    if keep_path:
        assert torch.equal(again.path.z, found.path.z)
        assert torch.equal(again.path.taken, found.path.taken)
        assert again.path.mask is None
    assert again.classes == ("cat", "dog")
    assert again.reason == found.reason


def test_a_saved_explanation_keeps_its_mask(tmp_path):
    mask = torch.ones(1, 4, 4)
    found = replace(made(), path=replace(made().path, mask=mask))
    found.save(tmp_path / "found.safetensors")
    assert torch.equal(lf.Explanation.load(tmp_path / "found.safetensors").path.mask, mask)


def test_an_explanation_holds_no_network():
    """It is data: tensors, and what can be read on a machine without the model."""
    found = made()
    for value in (*vars(found).values(), *vars(found.path).values()):
        assert isinstance(value, torch.Tensor | Trajectory | tuple | None)
    (image,) = found.iterates(0, [int(found.leaps[0])], Identity())
    torch.testing.assert_close(image, found.counterfactual[0])


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "found.safetensors"
    with pytest.raises(MissingData, match="there is no explanation at"):
        lf.Explanation.load(path)
    path.write_bytes(b"not a file")
    with pytest.raises(InputError, match="is no whole safetensors file"):
        lf.Explanation.load(path)
    found = made(keep_path=False)
    tensors = {f.name: getattr(found, f.name).clone() for f in fields(found)[:-2]}
    metadata = {"format": "leapfactual explanation 2", "classes": "[]"}
    for wrong in (
        tensors | {"z": found.z[:1].clone()},
        tensors | {"strange": found.z.clone()},
        {name: value for name, value in tensors.items() if name != "label"},
    ):
        save_file(wrong, path, metadata)
        with pytest.raises(InputError, match="does not describe an explanation"):
            lf.Explanation.load(path)
    save_file(tensors, path, metadata | {"classes": '["cat", "dog", "bird"]'})
    with pytest.raises(InputError, match="it names 3 classes"):
        lf.Explanation.load(path)


class NearestExample(lf.Explainer):
    """An explainer of one's own: the nearest example that the classifier gives to the target."""

    def __init__(self, examples, classifier):
        self.examples, self.classifier = examples, classifier

    def explain(self, x, target):
        y = torch.as_tensor(target).expand(len(x))
        other = self.classifier(self.examples).argmax(1) != y[:, None]
        near = self.examples[torch.cdist(x, self.examples).masked_fill(other, torch.inf).argmin(1)]
        p, source = self.classifier(near), self.classifier(x).argmax(1)
        return lf.Explanation.of(x, near, y, p, source)


def test_an_explainer_of_ones_own_needs_ten_lines():
    z, _ = ORACLE.sample(20)
    explainer = NearestExample(z, ORACLE.classifier)
    check_explainer(explainer, z[:6], torch.tensor([0, 1] * 3))
    found = explainer.explain(z, 1)
    assert found.valid.all()
    assert torch.equal(found.first, torch.where(found.source == 1, 0, 1))
    step = lf.metrics.Metric("step", False, lambda e: (e.z_counterfactual - e.z).norm(dim=1))
    scores = lf.metrics.evaluate(found, ["validity", "L1", step])
    assert scores["validity"].mean == 1
    assert scores["step"].values[found.source == 1].max() == 0, "they are their own examples"
    missed = lf.Explanation.of(z, z, 1 - found.source, ORACLE.classifier(z), found.source)
    assert (missed.first == -1).all()


@pytest.mark.parametrize(
    ("name", "wrong", "match"),
    [
        ("z", torch.zeros(6, 2, 1), r"`z` has the shape \(6, 2, 1\)"),
        ("seconds", torch.tensor(0.0), "`seconds` has the shape"),
        ("leaps", torch.zeros(6), "`leaps` has the shape .* expected .*int64"),
        ("counterfactual", torch.zeros(6, 3), r"makes \(6, 3\) of images of shape \(6, 2\)"),
        ("counterfactual", torch.full((6, 2), torch.nan), "`counterfactual`` must be finite"),
        ("probabilities", torch.zeros(6, 2), "each row non-negative with sum 1"),
        ("probabilities", torch.zeros(6, 0), "`path/probabilities` has the shape"),
        ("label", torch.full((6,), 7), "7 is not a class"),
        ("path/z", torch.zeros(6, 18), "`path/"),
        ("path/keeps_pixels", torch.zeros(6), "`path/keeps_pixels` has the shape"),
    ],
)
def test_tensors_of_a_file_that_do_not_fit_are_refused(name, wrong, match, tmp_path):
    path = tmp_path / "found.safetensors"
    made().save(path)
    tensors = load_file(path)
    metadata = {"format": "leapfactual explanation 2", "classes": "[]"}
    save_file({**tensors, name: wrong}, path, metadata)
    with pytest.raises(InputError, match=match):
        lf.Explanation.load(path)


def test_names_that_are_nested_without_end_are_refused(tmp_path):
    path = tmp_path / "found.safetensors"
    made().save(path)
    metadata = {"format": "leapfactual explanation 2", "classes": "[" * 200_000}
    save_file(load_file(path), path, metadata)
    with pytest.raises(InputError, match="nested more than 32 deep"):
        lf.Explanation.load(path)
