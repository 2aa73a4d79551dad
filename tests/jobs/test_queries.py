"""Queries that are counted, timed and kept: what is asked, and what is not asked again."""

import time

import pytest
import torch

from leapfactual.classifiers import Counted
from leapfactual.errors import ClassifierError, InputError
from leapfactual.jobs.queries import ALONE, PROBES, Queries

X = torch.rand(200, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def bright(x):
    return torch.eye(2)[(x.mean((1, 2, 3)) > 0.5).long()]


def slow(x):
    time.sleep(0.002 * len(x))
    return bright(x)


def dark(x):
    return 1 - slow(x)


def test_a_slow_classifier_is_asked_once_even_by_the_next_process(tmp_path):
    for expected in (len(X) - PROBES, 0):
        counted = Counted(slow)
        queries = Queries(counted, tmp_path / "answers.db")
        assert queries.begin(X) == 0
        assert queries.kept
        asked = counted.images
        assert asked == PROBES + ALONE
        assert torch.equal(queries(X), bright(X))
        assert counted.images - asked == expected
        queries.close()


def test_where_nothing_can_be_written_answers_are_kept_in_memory(tmp_path):
    (tmp_path / "file").write_text("no folder")
    counted = Counted(slow)
    queries = Queries(counted, tmp_path / "file" / "answers.db")
    queries.begin(X)
    asked = counted.images
    queries(X)
    queries(X)
    assert counted.images == asked + len(X) - PROBES


def test_a_fast_classifier_is_asked_again_and_nothing_is_kept(tmp_path):
    counted = Counted(bright)
    queries = Queries(counted, tmp_path / "answers.db")
    queries.begin(X)
    asked = counted.images
    queries(X)
    queries(X)
    assert counted.images == asked + 2 * len(X)
    assert not list(tmp_path.iterdir())


def test_a_changed_classifier_is_noticed_and_its_answers_forgotten(tmp_path):
    path = tmp_path / "answers.db"
    first = Queries(slow, path)
    first.begin(X)
    first(X)
    first.close()
    other = Queries(dark, path)
    assert other.begin(X) == PROBES
    assert torch.equal(other(X), 1 - bright(X))


def test_a_fast_one_is_noticed_too_where_it_is_watched(tmp_path):
    path = tmp_path / "answers.db"
    first = Queries(bright, path, watched=True)
    first.begin(X)
    assert not first.kept
    first.close()
    again = Queries(bright, path, watched=True)
    assert again.begin(X) == 0
    again.close()
    assert Queries(lambda x: 1 - bright(x), path, watched=True).begin(X) == PROBES


def test_queries_are_counted_by_stage():
    queries = Queries(slow)
    queries.stage = "first look"
    queries.begin(X)
    queries.stage = "plan"
    queries(X)
    queries(X)
    assert queries.asked == {"first look": PROBES + ALONE, "plan": len(X) - PROBES}
    assert 0.002 <= queries.seconds_each < 0.02


@pytest.mark.parametrize(
    ("classifier", "kind", "message"),
    [
        (lambda x: 1 / 0, ClassifierError, "failed on images .* ZeroDivisionError: division by"),
        (lambda x: bright(x).roll(len(x) - 1, 1), ClassifierError, "one class by itself"),
        (lambda x: bright(x) * float("nan"), InputError, "the classifier's answer"),
        (lambda x: bright(x)[1:], InputError, "the classifier's answer"),
    ],
)
def test_a_classifier_that_fails_does_so_at_the_first_look(classifier, kind, message):
    with pytest.raises(kind, match=message):
        Queries(classifier).begin(X)
