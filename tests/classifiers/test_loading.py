"""Classifiers by name: the first answer tells what they return."""

import math

import pytest
import torch

from leapfactual.classifiers import open_classifier, undo_stretch
from leapfactual.classifiers.loading import OUTPUT_TYPES
from leapfactual.errors import InputError
from leapfactual.imaging import stretch

ANSWERS = """
import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

ROWS = np.random.default_rng(0).random((40, 4))
estimator = LogisticRegression().fit(ROWS, ["cat", "dog"] * 20)
module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2), torch.nn.Dropout(0.9))


def labels(x):
    return [1] * len(x)


def arrays(x):
    return np.ones((len(x), 1), dtype=np.int64)


def names(x):
    return ["dog"] * len(x)


def encoded(x):
    return np.array([b"dog"] * len(x))


def probabilities(x):
    return np.tile([0.25, 0.75], (len(x), 1))


def logits(x):
    return torch.tensor([[0.0, 3.0]]).expand(len(x), 2)


def fractions(x):
    return [0.5] * len(x)


def cubes(x):
    return np.zeros((len(x), 2, 2))


def too_few(x):
    return [1]


def strange(x):
    return ["cat"] * (len(x) - 1) + ["cow"]


def nothing(x):
    return None


def ragged(x):
    return [[1.0, 0.0], [1.0]] * (len(x) // 2)


def dicts(x):
    return [{"cat": 0.1, "dog": 0.9} for _ in x]


def bfloats(x):
    return torch.tensor([[0.25, 0.75]], dtype=torch.bfloat16).expand(len(x), 2)


def words(x):
    return np.array(["dog"] * len(x), dtype=object)


number = 3
"""


@pytest.fixture
def answers(tmp_path, monkeypatch):
    (tmp_path / "answers.py").write_text(ANSWERS)
    monkeypatch.chdir(tmp_path)
    return torch.rand(4, 1, 2, 2)


@pytest.mark.parametrize(
    "name",
    [
        *("labels", "arrays", "names", "encoded", "words", "probabilities", "bfloats", "logits"),
        *("estimator", "module"),
    ],
)
def test_the_first_answer_tells_what_a_classifier_returns(answers, name):
    classifier = open_classifier(f"answers.py:{name}", answers, ["cat", "dog"])
    p = classifier(answers)
    assert p.shape == (4, 2)
    torch.testing.assert_close(p.sum(1), torch.ones(4), atol=1e-5, rtol=0)
    if name not in ("estimator", "module"):
        assert (p.argmax(1) == 1).all()
    assert torch.equal(classifier(answers), p)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fractions", "one number with a fraction for each image"),
        ("cubes", "must answer with labels .* of shape .4, 2, 2."),
        ("too_few", "4 were given, 1 came back"),
        ("nothing", "must answer with numbers, a label or a row for each image, got None"),
        ("ragged", "got a list of lists of different lengths"),
        ("dicts", "got a list of dict"),
        ("number", "must be a function of images, a torch module or .* got int"),
    ],
)
def test_answers_that_are_none_are_named(answers, name, message):
    with pytest.raises(InputError, match=message):
        open_classifier(f"answers.py:{name}", answers, ["cat", "dog"])


@pytest.mark.parametrize("output_type", OUTPUT_TYPES)
@pytest.mark.parametrize("name", ["nothing", "ragged", "dicts", "fractions"])
def test_answers_of_another_kind_than_was_said_are_named(answers, name, output_type):
    spec = f"answers.py:{name}"
    with pytest.raises(InputError, match="number|none of the classes|rows of|logits of|whole"):
        open_classifier(spec, answers, ["cat", "dog"], output_type=output_type)(answers)


def test_names_that_are_no_classes_are_named(answers):
    classifier = open_classifier("answers.py:strange", answers, ["cat", "dog"])
    with pytest.raises(InputError, match="answers 'cow', which is none of the classes cat, dog"):
        classifier(answers)
    with pytest.raises(InputError, match="answers with names, so the classes must be known"):
        open_classifier("answers.py:names", answers)


def test_one_may_say_what_is_given(answers):
    soft = open_classifier("answers.py:probabilities", answers, output_type="logits")(answers)
    assert soft[0, 1].item() == pytest.approx(1 / (1 + math.exp(-0.5)))
    with pytest.raises(InputError, match="`output_type` must be one of labels, names"):
        open_classifier("answers.py:labels", answers, output_type="votes")


@pytest.mark.parametrize("kind", ["none", "sqrt", "asinh", "log"])
def test_a_stretch_is_undone_before_the_classifier_is_queried(kind):
    x = torch.rand(3, 1, 4, 4)
    seen = undo_stretch(lambda x: x, kind)(stretch(x, kind))
    torch.testing.assert_close(seen, x, atol=1e-6, rtol=1e-5)
