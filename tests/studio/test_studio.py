"""Questions and answers: what a studio shows is what an explainer gives."""

import io

import pytest
import torch
from PIL import Image

from leapfactual.bundle import Bundle
from leapfactual.errors import InputError, MissingData
from leapfactual.imaging import as_images, to_pil
from leapfactual.pretrained import load
from leapfactual.studio import studio as module
from leapfactual.studio.gallery import Gallery
from leapfactual.studio.opening import open_digits
from leapfactual.studio.studio import Studio
from tests.studio.conftest import found


def shown(uri):
    import base64

    return as_images(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


@pytest.mark.parametrize("number", [0, 5])
def test_a_walk_gives_what_the_explainer_gives(studio, number):
    shipped = load()
    rated = shipped.bundle.front[number]
    explainer = shipped.bundle.explainer(shipped.classifier, reliability=rated.reliability)
    for picture, target in ((0, 3), (4, 9), (10, 0)):
        answer = found(studio.walk(str(picture), target, number))
        e = explainer.explain(shipped.digits.images[picture : picture + 1], target)
        card = answer["card"]
        assert answer["event"] == "found"
        assert card["status"] == str(e.status[0])
        assert card["reason"] == e.reason[0]
        assert card["numbers"]["leaps"] == int(e.leaps)
        assert card["numbers"]["queries"] == int(e.queries)
        assert answer["p"] == pytest.approx(e.probabilities[0].tolist(), abs=1e-3)
        assert answer["oracle"] == pytest.approx(
            shipped.oracle(e.counterfactual)[0].tolist(), abs=0.02
        )
        drawn = shown(card["pictures"]["counterfactual"])
        assert (drawn - e.counterfactual).abs().max() < 0.01


def test_a_picture_is_seen_with_its_reconstruction(studio):
    (seen,) = studio.look("0")
    assert max(range(10), key=seen["p"].__getitem__) == 7 == seen["recognized"]
    assert seen["name"] == "test digit 0, a 7"
    assert seen["oracle"][7] > 0.9
    assert (shown(seen["picture"]) - load().digits.images[:1]).abs().max() < 0.01


def test_long_walks_show_their_steps(studio, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_PER_STEP", 0.0)
    events = [event for event in studio.walk("0", 3, 1) if event is not None]
    steps = events[:-1]
    assert [event["step"] for event in steps] == [*range(len(steps))]
    assert len(steps) == events[-1]["card"]["numbers"]["queries"]
    assert steps[0]["p"][7] > 0.9
    assert steps[-1]["p"] == events[-1]["p"]
    monkeypatch.setattr(module, "SECONDS_PER_STEP", 1e9)
    quiet = list(studio.walk("0", 3, 1))
    assert quiet[:-1] == [None] * len(steps), "between two steps others may have their turn"


def test_a_walk_can_be_left_at_every_step(studio):
    walk = studio.walk("0", 3, 1)
    next(walk), next(walk)
    walk.close()
    assert found(studio.walk("0", 3, 0))["card"]["status"] == "reached"


def test_a_mask_keeps_the_rest_of_the_picture(studio):
    rows, columns = 28, 28
    bits = "".join("1" if r < 14 else "0" for r in range(rows) for _ in range(columns))
    cells = f"{int(bits, 2):0{rows * columns // 4}x}"
    mask = studio.mask(cells)
    assert mask.shape == (1, 28, 28)
    assert mask[0, :13].min() == 1
    assert mask[0, 14:].max() == 0
    answer = found(studio.walk("0", 9, 0, cells))
    e, _ = studio.answer(answer["answer"])
    assert torch.equal(e.counterfactual[..., 14:, :], e.x[..., 14:, :])
    assert not torch.equal(e.counterfactual[..., :14, :], e.x[..., :14, :])
    assert studio.mask("") is None
    assert studio.mask("0" * (rows * columns // 4)) is None


@pytest.mark.parametrize("cells", ["f", "x" * 196, "f" * 197, "F" * 196])
def test_a_mask_of_another_kind_is_refused(studio, cells):
    with pytest.raises(InputError, match="28 × 28 cells"):
        studio.mask(cells)


def test_other_ways_differ_and_come_again_with_their_seed(studio):
    answers = [found(studio.other_ways("0", 3, 0, seed))["found"] for seed in (1, 1, 2)]
    assert len(answers[0]) == 4
    pictures = [[way["card"]["pictures"]["counterfactual"] for way in ways] for ways in answers]
    assert pictures[0] == pictures[1]
    assert pictures[0] != pictures[2]
    assert len(set(pictures[0])) == 4
    assert all(way["card"]["status"] == "reached" for way in answers[0])


def test_the_nearest_real_picture_is_of_the_target_class(studio):
    answer = found(studio.walk("0", 3, 5))
    nearest = int(answer["nearest"]["key"])
    labels = studio.gallery.labels
    assert labels[nearest] == 3
    e, _ = studio.answer(answer["answer"])
    small = torch.nn.functional.adaptive_avg_pool2d
    x = small(load().digits.images, 16).flatten(1)
    distance = (x - small(e.counterfactual, 16).flatten(1)).abs().mean(1)
    distance[torch.tensor(labels) != 3] = 9
    assert int(distance.argmin()) == nearest


def test_a_class_without_pictures_has_no_nearest(studio):
    twos = Gallery(load().digits.images[1:2])
    twos.look(studio.classifier)
    assert twos.nearest(torch.zeros(1, 1, 28, 28), 3) is None
    assert twos.nearest(torch.zeros(1, 1, 28, 28), 2).key == "0"
    assert twos.nearest(torch.zeros(1, 1, 28, 28), 2, but="0") is None


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (("0", 10, 0), "there is no class 10: there are 10"),
        (("0", -1, 0), "there is no class -1"),
        (("0", 3, 6), "the dial has 6 positions, got 6"),
        (("0", 3, -1), "the dial has 6 positions, got -1"),
    ],
)
def test_what_there_is_not_is_refused(studio, question, message):
    with pytest.raises(InputError, match=message):
        list(studio.walk(*question))


@pytest.mark.parametrize("key", ["200", "-1", "b0", "", "٣", "1" * 20, "../../etc/passwd"])
def test_a_picture_that_is_not_here_is_named(studio, key):
    with pytest.raises(MissingData, match="no longer here"):
        list(studio.look(key))


def test_answers_are_held_as_long_as_there_is_room(monkeypatch):
    studio = open_digits()
    studio.open()
    monkeypatch.setattr(module, "MAX_ANSWERS", 100_000)
    keys = [found(studio.walk("0", 3, 0))["answer"] for _ in range(8)]
    assert 0 < len(studio.answers) < 8
    with pytest.raises(MissingData, match="Ask again"):
        studio.answer(keys[0])
    assert studio.answer(keys[-1])[1] == "test digit 0, a 7"


def test_labels_alone_are_known_as_such():
    shipped = load()

    def labels(x):
        return torch.eye(10)[shipped.classifier(x).argmax(1)]

    studio = Studio.of(shipped.bundle, labels, Gallery(shipped.digits.images[:20]))
    studio.open()
    assert studio.describe()["labels"]
    assert studio.describe()["oracle"] is False
    assert found(studio.walk("0", 3, 0))["card"]["labels"]


def test_another_classifier_is_refused_unless_forced():
    shipped = load()
    gallery = Gallery(shipped.digits.images[:4])

    def other(x):
        return torch.eye(10)[torch.zeros(len(x), dtype=torch.long)]

    with pytest.raises(InputError, match="was made for"):
        Studio.of(shipped.bundle, other, gallery)
    Studio.of(shipped.bundle, other, gallery, force=True).open()


def test_a_bundle_without_a_front_has_one_position():
    shipped = load()
    bundle: Bundle = shipped.bundle
    plain = Bundle.make(
        bundle.generator,
        bundle.flow,
        shipped.classifier,
        shipped.digits.images[:64],
        classes=bundle.classes,
        plan=bundle.plan,
    )
    studio = Studio.of(plain, shipped.classifier, Gallery(shipped.digits.images[:4]))
    assert [p.plan for p in studio.positions] == [plain.plan]


def test_tables_are_told_where_to_go():
    with pytest.raises(InputError, match="explains a table"):
        Gallery(torch.zeros(4, 13))


def test_a_picture_brought_in_is_explained_like_any_other(studio):
    file = io.BytesIO()
    to_pil(load().digits.images[0]).save(file, format="PNG")
    picture = studio.gallery.bring(file.getvalue(), "seven.png")
    mine, theirs = (found(studio.walk(key, 3, 0)) for key in (picture.key, "0"))
    assert mine["card"]["reason"] == theirs["card"]["reason"]
    assert mine["card"]["name"] == "seven.png"
