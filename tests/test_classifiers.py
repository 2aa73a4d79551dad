import pytest
import torch

from leapfactual.classifiers import from_labels, from_logits
from leapfactual.errors import InputError
from leapfactual.testing import check_classifier

X = torch.randn(4, 2)


def test_logits_become_probabilities():
    network = torch.nn.Linear(2, 3).eval()
    check_classifier(from_logits(network), X, classes=3)
    torch.testing.assert_close(from_logits(network)(X), network(X).softmax(1))


@pytest.mark.parametrize("kind", [list, torch.tensor, lambda y: torch.tensor(y).numpy()])
def test_labels_become_one_hot_rows(kind):
    classifier = from_labels(lambda x: kind([2] * len(x)), classes=3)
    check_classifier(classifier, X, classes=3)
    assert classifier(X).tolist() == [[0, 0, 1]] * 4


@pytest.mark.parametrize(
    ("classifier", "message"),
    [
        (from_logits(lambda x: x[0]), r"logits of shape \(4, K\), got \(2,\)"),
        (from_logits(lambda x: {"logits": x}), "got dict"),
        (from_labels(lambda x: [0] * 3, 2), r"one whole number per image, 4 here, got .* \(3,\)"),
        (from_labels(lambda x: [0.5] * 4, 2), r"got torch\.float32"),
        (
            from_labels(lambda x: [0, 1, 2, 0], 2),
            "the label 2 is not a class: there are 2, 0 to 1",
        ),
        (from_labels(lambda x: [0, 1, -1, 0], 2), "the label -1 is not a class"),
        (from_labels(lambda x: ["cat"] * 4, 2), "must answer with numbers, got list"),
        (from_labels(lambda x: None, 2), "must answer with numbers, got NoneType"),
    ],
)
def test_wrong_answers_are_named(classifier, message):
    with pytest.raises(InputError, match=message):
        classifier(X)


def test_wrong_number_of_classes_is_named():
    with pytest.raises(InputError, match="`classes` must be .* got 0"):
        from_labels(lambda x: x, 0)
