"""The images and the classifier, before anything is trained."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leapfactual.data import Images, open_images
from leapfactual.data.sources import Broken
from leapfactual.errors import InputError
from leapfactual.jobs.fit import fit_bundle
from leapfactual.jobs.job import open_inputs
from leapfactual.jobs.labels import Votes
from leapfactual.jobs.recipe import Recipe
from leapfactual.jobs.subject import (
    choose_stretch,
    describe_conversions,
    open_subject,
    summarize_data,
)

from .conftest import Digits

CLASSIFIERS = """
from leapfactual.pretrained import load

explained, strong = load().classifier, load().oracle
"""


def test_the_summary_has_size_classes_balance_and_accuracy(small_digits, svm):
    summary, lines = summarize_data(small_digits, svm, small_digits.classes)
    text = " ".join(lines)
    assert "600 images of 1 × 8 × 8" in text
    assert "gives labels" in text
    assert "agrees with the labels that came with the data on 9" in text
    assert summary["answers"] == "labels"
    assert sum(summary["shares"].values()) == pytest.approx(1, abs=0.01)


def test_a_classifier_with_one_answer_is_refused(small_digits):
    def one(x):
        return torch.eye(10)[[4] * len(x)]

    with pytest.raises(InputError, match="gives one class, 4, to all of 500 images"):
        summarize_data(small_digits, one, small_digits.classes)


def test_too_few_images_are_refused(svm):
    with pytest.raises(InputError, match="there are 20 images to learn from, too few"):
        summarize_data(Digits(20), svm, Digits.classes)


def test_images_left_out_are_named_where_too_few_are_left(svm):
    few = Digits(20)
    few.broken = [Broken("a.png", "it has 9 × 9 pixels"), Broken("b.png", "b.png is damaged")]
    with pytest.raises(
        InputError, match=r"at least 40.* Left out 2: a\.png: it has .*; b\.png is"
    ):
        summarize_data(few, svm, Digits.classes)


def sized(height, width):
    images = Digits(60)
    images.shape = (1, height, width)
    return images


def test_large_images_are_told_what_size_does(svm):
    _, lines = summarize_data(sized(300, 600), svm, Digits.classes)
    assert "Images of 300 × 600 take long to learn from. --size 128 256 resizes them" in lines[1]
    _, lines = summarize_data(sized(256, 600), svm, Digits.classes)
    assert "--size" not in " ".join(lines)


def test_huge_images_are_refused_before_the_classifier_is_asked():
    def classifier(x):
        pytest.fail("the classifier was asked")

    with pytest.raises(InputError, match="3000 × 4000 are too large .* --size 192 256 resizes"):
        summarize_data(sized(3000, 4000), classifier, Digits.classes)


def test_huge_images_are_refused_before_they_are_read(folder, monkeypatch):
    monkeypatch.setattr(Images, "__getitem__", lambda *_: pytest.fail("read"))
    with pytest.raises(InputError, match="images of 5000 × 4000 are too large to learn from"):
        open_subject([folder], classifier="my_models.py:predict", size=(5000, 4000))


def test_a_class_folder_without_images_is_named_where_names_are_missing(tmp_path):
    for kind in ("cats", "dogs", "owls"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
    for n in range(4):
        pixels = np.full((8, 8), 10 * n, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pets" / ("cats", "owls")[n % 2] / f"{n}.png")
    (tmp_path / "three.py").write_text("predict = lambda x: x[:, 0, 0, :3].softmax(1)")
    with pytest.raises(InputError, match="3 classes apart, .* 2 names.* without images: dogs"):
        open_subject([tmp_path / "pets"], classifier=f"{tmp_path / 'three.py'}:predict")


def test_dark_images_are_stretched_and_others_are_not(small_digits):
    class Dark(Digits):
        def __getitem__(self, rows):
            return (super().__getitem__(rows) - 0.9).clamp(0, 1) * 0.1

    assert choose_stretch(small_digits) == "none"
    assert choose_stretch(Dark()) == "sqrt"


def test_a_subject_is_opened_with_names_and_an_oracle(shipped, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CLASSIFIERS)
    looked = []
    subject = open_subject(
        [folder],
        classifier="mine.py:explained",
        oracle="mine.py:strong",
        on_image=lambda *told: looked.append(told),
    )
    assert looked[-1] == (len(subject.images), len(subject.images)) == (len(looked),) * 2
    assert subject.classes == tuple("0123456789")
    assert subject.classifier_name == "mine.py:explained"
    x = subject.images[[0, 1]]
    assert x.shape == (2, 1, 28, 28)
    torch.testing.assert_close(subject.classifier(x), shipped.classifier(x))
    torch.testing.assert_close(subject.oracle(x), shipped.oracle(x))
    with pytest.raises(InputError, match="tells 10 classes apart, but there are 2 names: a, b"):
        open_subject([folder], classifier="mine.py:explained", classes=["a", "b"])


def test_a_subject_may_be_the_votes_of_people(folder, tmp_path):
    votes = tmp_path / "votes.csv"
    votes.write_text("image,label\ndigit 1.png,round\ndigit 2.png,straight\n")
    subject = open_subject([folder], votes=votes)
    assert isinstance(subject.classifier, Votes)
    assert subject.classes == ("round", "straight")
    assert subject.classifier_name == "people, Votes(2 on 2 of 24 images)"
    for options in ({}, {"votes": votes, "classifier": "mine.py:explained"}):
        with pytest.raises(InputError, match="--classifier NAME, or --votes FILE.csv"):
            open_subject([folder], **options)


def test_the_column_of_the_classes_is_kept_for_explaining(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{(-1) ** k * k},{k % 7},{'cat' if k % 2 else 'wolf'}" for k in range(60)]
    Path("t.csv").write_text("\n".join(["petal,stem,species", *rows]))
    Path("new.csv").write_text("petal,stem\n1,2\n2,1\n")
    Path("mine.py").write_text("def f(x):\n    return (x[:, 0] > 0).long()\n")
    subject = open_subject([Path("t.csv")], classifier="mine.py:f", label="species")
    assert subject.classes == ("cat", "wolf")
    recipe = Recipe(flow_epochs=1, minutes=0.01)
    fit_bundle(
        subject.images,
        subject.classifier,
        "bundle",
        classes=subject.classes,
        recipe=recipe,
        force=True,
    )
    for name, count in (("t.csv", 60), ("new.csv", 2)):
        assert len(open_inputs("bundle", [Path(name)], "mine.py:f").images) == count


def test_conversions_are_said(tmp_path):
    for n in range(4):
        Image.new("RGB", (9, 9), "red").save(tmp_path / f"{n}.png")
    images = open_images(tmp_path, size=(8, 8), channels=1)
    said = "Converted: 4 resized to 8 × 8, 4 turned from colour to grey."
    assert describe_conversions(images) == [said]
    assert describe_conversions(open_images(tmp_path)) == []
