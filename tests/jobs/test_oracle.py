"""An oracle that fit trains itself: it learns what a classifier says, and resumes exactly."""

import pytest
import torch

from leapfactual.jobs import oracle
from leapfactual.jobs.oracle import OracleNetwork, train_oracle

from .conftest import Squares, colour, run_of


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(oracle, "WIDTHS", (8, 16))


def halves(n, share=0.5, channels=1):
    """Images that are bright on the left or on the right, and which of the two."""
    rng = torch.Generator().manual_seed(0)
    y = (torch.rand(n, generator=rng) < share).long()
    x = 0.3 * torch.rand(n, channels, 8, 12, generator=rng)
    x[:, :, :, :6] += 0.5 * (y == 0)[:, None, None, None]
    x[:, :, :, 6:] += 0.5 * (y == 1)[:, None, None, None]
    return x, y


def test_it_learns_what_the_classifier_says():
    x, y = halves(200)
    trained = train_oracle(x.__getitem__, torch.eye(3)[y], (1, 8, 12), epochs=20)
    p = trained(halves(40)[0])
    assert p.shape == (40, 3)
    torch.testing.assert_close(p.sum(1), torch.ones(40))
    assert torch.equal(p.argmax(1), halves(40)[1])
    assert not p.requires_grad


def test_rare_classes_are_seen_as_often_as_others():
    x, y = halves(400, share=0.05)
    seen = []

    def images(rows):
        seen.append(y[rows])
        return x[rows]

    train_oracle(images, torch.eye(2)[y], (1, 8, 12), epochs=2)
    assert torch.cat(seen).double().mean().item() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("n", [2, 65])
def test_any_number_of_images_will_do(n):
    x = torch.rand(n, 3, 5, 7)
    p = torch.eye(2)[torch.arange(n) % 2]
    assert train_oracle(x.__getitem__, p, (3, 5, 7), epochs=1)(x).isfinite().all()


def test_a_class_of_a_single_image_and_one_of_none():
    x = torch.rand(9, 1, 8, 8)
    p = torch.eye(3)[[0] * 8 + [1]]
    assert train_oracle(x.__getitem__, p, (1, 8, 8), epochs=2)(x).isfinite().all()


def test_it_resumes_to_the_same_answers(tmp_path):
    x, y = halves(130)
    p, path = torch.eye(2)[y], tmp_path / "oracle.safetensors"
    epochs = []

    def run(on_epoch=epochs.append, checkpoint=path):
        return train_oracle(
            x.__getitem__, p, (1, 8, 12), epochs=4, checkpoint=checkpoint, on_epoch=on_epoch
        )(x)

    def stop(epoch):
        if epoch.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(stop)
    resumed = run()
    assert [epoch.number for epoch in epochs] == [3, 4]
    assert torch.equal(resumed, run(checkpoint=None))


def test_the_network_takes_any_size_and_colour():
    assert OracleNetwork(3, 5)(torch.rand(2, 3, 33, 47)).shape == (2, 5)


def test_an_oracle_that_does_not_agree_is_not_asked(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(oracle, "fit_oracle", lambda *_: lambda x: colour(x).flip(1))
    images = Squares(20)
    chosen = oracle.choose_oracle(run_of(tmp_path, said.append), None, None, colour, images.x)
    assert chosen is colour
    assert "agree on 0.0% of 20 held out, too few, so the classifier is its own oracle" in said[0]
