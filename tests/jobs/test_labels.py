"""Labels that people gave, instead of a classifier that can be queried."""

import csv

import pytest
import torch

import leapfactual as lf
from leapfactual.errors import InputError, MissingData
from leapfactual.generators import Identity
from leapfactual.jobs.fit import fit_bundle
from leapfactual.jobs.labels import NearestNeighbors, Votes, read_votes

from .conftest import Digits
from .test_fit import RECIPE


@pytest.fixture(scope="module")
def digits():
    return Digits(400)


def write(path, lines, header="image,label"):
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_votes_are_shares(digits, tmp_path):
    name, other = digits.names[:2]
    path = write(
        tmp_path / "votes.csv",
        [f"Ada,{name},3", f"Ben,{name},3", f"Cleo,{name},8", f"Ada,{other},1"],
        "annotator,image,label",
    )
    votes = read_votes(path, digits, digits.classes)
    assert votes.p[0].tolist() == pytest.approx([0, 0, 0, 2 / 3, 0, 0, 0, 0, 1 / 3, 0])
    assert votes.known.sum() == 2
    assert (votes.count, votes.people) == (4, 3)
    assert repr(votes) == "Votes(4 of 3 people on 2 of 400 images)"
    assert read_votes(path, digits).classes == ("1", "3", "8")


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        (["x,3"], "image,label", "there is no such image"),
        (["{0},cat"], "image,label", "expected one of: 0, 1"),
        (["{0},"], "image,label", "says ``"),
        (["{0},3"], "image,answer", "must have the columns"),
        (["{0},3"], "image,label", "at least two classes"),
        (["{0},3,Ada", "{0},4,Ada"], "image,label,annotator", "`Ada` votes twice"),
    ],
)
def test_votes_that_cannot_be_are_refused(digits, tmp_path, lines, header, message):
    path = write(tmp_path / "v.csv", [line.format(digits.names[0]) for line in lines], header)
    with pytest.raises(InputError, match=message):
        read_votes(path, digits, digits.classes)
    with pytest.raises(MissingData, match="no list of votes at"):
        read_votes(tmp_path / "none.csv", digits)


def test_the_surrogate_averages_votes_on_the_nearest_images():
    z = torch.cat([torch.randn(50, 2) - 4, torch.randn(50, 2) + 4])
    p = torch.eye(2)[torch.arange(100) // 50]
    surrogate = NearestNeighbors(Identity(), z, p)
    assert surrogate(torch.tensor([[-4.0, -4.0], [4.0, 4.0]])).argmax(1).tolist() == [0, 1]


def test_a_bundle_carries_the_opinion_of_those_who_voted(digits, tmp_path, plan_grid):
    """They call every seven a one; the flow learns it from them."""
    labels = digits.labels.clone()
    labels[labels == 7] = 1
    with (tmp_path / "votes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "label"])
        writer.writerows(
            [name, int(label)] for name, label in zip(digits.names[:300], labels, strict=False)
        )
    votes = read_votes(tmp_path / "votes.csv", digits, digits.classes)
    said = []
    fitted = fit_bundle(
        digits,
        votes,
        tmp_path / "bundle",
        classes=votes.classes,
        recipe=RECIPE,
        classifier_name=f"people, {votes!r}",
        force=True,
        log=said.append,
    )
    assert "People voted on 300 images" in "\n".join(said)
    bundle = lf.Bundle.load(tmp_path / "bundle")
    assert bundle.classifier_name == "people, Votes(300 on 300 of 400 images)"
    assert isinstance(votes, Votes)
    assert not bundle.answers.argmax(1).eq(7).any()
    sevens = digits.x[digits.labels == 7][:20]
    flow, z = bundle.flow, bundle.generator.encode(sevens)
    likely = [flow.log_prob(z, flow.one_hot(torch.full((len(z),), k))).mean() for k in (1, 0)]
    assert likely[0] > likely[1]
    assert fitted.search.front
