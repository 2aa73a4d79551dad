import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.svm import LinearSVC

import leapfactual as lf
from leapfactual.jobs import plans
from leapfactual.jobs.recipe import Part, Recipe, Run
from leapfactual.pretrained import load

PLAN_GRIDS = ["few plans", pytest.param("all plans", marks=pytest.mark.slow)]
FEW_PLANS = {
    "BLEND_STEPS": (0.2, 0.4),
    "PAPER_BLEND_STEP": 0.2,
    "INJECTION_COUNTS": (1, 4),
    "FAST_BLENDS": ((4, 0.3),),
    "FAST_INJECTIONS": (((0.3, 1.0),),),
}


class Digits:
    """scikit-learn's digits, as a set of images."""

    shape, broken, classes = (1, 8, 8), (), tuple("0123456789")

    def __init__(self, n=600):
        data = load_digits()
        self.x = torch.tensor(data.images[:n] / 16, dtype=torch.float32)[:, None]
        self.labels = torch.tensor(data.target[:n])
        self.names = [str(k) for k in range(n)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, rows):
        return self.x[rows]


class Squares:
    """Photographs of a red or a blue square on grey, as a set of images."""

    broken, classes = (), ("red", "blue")

    def __init__(self, n, height=32, width=32):
        rng = torch.Generator().manual_seed(0)
        self.shape = (3, height, width)
        self.x = 0.4 + 0.1 * torch.rand(n, *self.shape, generator=rng)
        self.labels = torch.arange(n) % 2
        for row, label in enumerate(self.labels.tolist()):
            top, left = torch.randint(0, 14, (2,), generator=rng).tolist()
            square = self.x[row, :, top : top + 18, left : left + 18]
            square[2 * label] += 0.4
            square[1] -= 0.3
        self.names = [str(n) for n in range(n)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, rows):
        return self.x[rows]


def colour(x):
    """Tells red from blue, softly."""
    redness = (x[:, 0] - x[:, 2]).flatten(1).mean(1)
    return torch.stack([50 * redness, -50 * redness], 1).softmax(1)


def run_of(tmp_path, log=lambda _: None, **recipe):
    """Returns a fit with a recipe, in a folder."""
    return Run(Recipe(**recipe), tmp_path, log, "cpu")


def part_of(images):
    """Returns all of the images to train on."""
    return Part(images, torch.arange(len(images)), "cpu")


@pytest.fixture(scope="session")
def shipped():
    return load()


@pytest.fixture(scope="session")
def folder(tmp_path_factory, shipped):
    """A flat folder with 24 of the shipped digits."""
    folder = tmp_path_factory.mktemp("digits")
    for n in range(24):
        pixels = (shipped.digits.images[n, 0] * 255).round().byte().numpy()
        Image.fromarray(pixels).save(folder / f"digit {n}.png")
    return folder


@pytest.fixture(scope="session")
def small_digits():
    return Digits()


@pytest.fixture(scope="session")
def svm(small_digits):
    model = LinearSVC(random_state=0, C=0.1)
    model.fit(small_digits.x.flatten(1), small_digits.labels)
    return lf.classifiers.from_sklearn(model)


@pytest.fixture(params=PLAN_GRIDS)
def plan_grid(request, monkeypatch):
    """Which plans the search tries, in tests of what is around it."""
    if request.param == "few plans":
        for name, values in FEW_PLANS.items():
            monkeypatch.setattr(plans, name, values)
    return request.param
