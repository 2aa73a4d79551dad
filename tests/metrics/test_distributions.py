import numpy as np
import pytest
import torch

from leapfactual.errors import InputError
from leapfactual.metrics import frechet, split_half
from leapfactual.metrics.distributions import Gaussian


def rows(n, features, seed=0):
    """Correlated rows, with a mean that is not zero."""
    rng = torch.Generator().manual_seed(seed)
    mix = torch.randn(features, features, generator=rng, dtype=torch.float64)
    return torch.randn(n, features, generator=rng, dtype=torch.float64) @ mix + mix[0]


def by_eigenvalues(a, b):
    """The distance from the eigenvalues of the product of the covariances."""
    one, two = a.T.cov(), b.T.cov()
    roots = torch.linalg.eigvals(one @ two).real.clamp_min(0).sqrt()
    covariance = one.trace() + two.trace() - 2 * roots.sum()
    return ((a.mean(0) - b.mean(0)).square().sum() + covariance).item()


def by_square_root(a, b):
    """The distance from a square root of the product of the covariances, as the FID is defined."""
    linalg = pytest.importorskip("scipy.linalg")
    one, two = np.cov(a.T), np.cov(b.T)
    root = linalg.sqrtm(one @ two).real
    return np.trace(one + two - 2 * root) + ((a.mean(0) - b.mean(0)) ** 2).sum().item()


def test_the_frechet_distance_is_that_of_gaussians():
    a, b = torch.randn(4000, 3).double(), torch.randn(4000, 3).double()
    assert frechet(a, 2 * b + 1).item() == pytest.approx(3 * (1 + 1), rel=0.1)


@pytest.mark.parametrize(("n", "m", "features"), [(4000, 4000, 3), (60, 90, 20), (21, 300, 20)])
def test_it_is_that_of_covariances_of_full_rank(n, m, features):
    a, b = rows(n, features, 0), rows(m, features, 1)
    assert frechet(a, b).item() == pytest.approx(by_eigenvalues(a, b), rel=1e-8)
    assert frechet(a, b).item() == pytest.approx(by_square_root(a, b), rel=1e-8)


def test_it_is_exact_for_fewer_rows_than_features():
    """Rows in a subspace: the distance is that in the subspace, where covariances are regular."""
    a, b = rows(40, 8, 0), rows(30, 8, 1)
    basis, _ = torch.linalg.qr(torch.randn(500, 8, dtype=torch.float64))
    expected = by_square_root(a, b)
    assert frechet(a @ basis.T, b @ basis.T).item() == pytest.approx(expected, rel=1e-9)
    # Orthogonal subspaces share nothing: the traces remain.
    basis, _ = torch.linalg.qr(torch.randn(500, 16, dtype=torch.float64))
    apart = frechet((a - a.mean(0)) @ basis[:, :8].T, (b - b.mean(0)) @ basis[:, 8:].T)
    traces = a.T.cov().trace() + b.T.cov().trace()
    assert apart.item() == pytest.approx(traces.item(), rel=1e-9)


@pytest.mark.parametrize("shape", [(5, 100), (100, 5), (2, 3)])
def test_it_is_a_distance(shape):
    a, b = rows(*shape, 0), rows(*shape, 1)
    assert frechet(a, a[torch.randperm(len(a))]).item() == pytest.approx(0, abs=1e-9)
    assert frechet(a, b).item() == pytest.approx(frechet(b, a).item(), rel=1e-9)
    assert frechet(a, a + 3).item() == pytest.approx(9 * shape[1], rel=1e-9)
    assert frechet(a.repeat(2, 1), a).item() >= 0


def test_the_root_is_one_of_the_covariance():
    for n in (5, 50):
        a = rows(n, 10)
        root = Gaussian.of(a).root
        assert len(root) == min(n, 10)
        torch.testing.assert_close(root.T @ root, a.T.cov())


def test_fewer_than_two_rows_are_nowhere():
    a = rows(9, 4)
    for few in (a[:1], a[:0]):
        assert frechet(few, a).isnan()
        assert frechet(a, few).isnan()


@pytest.mark.parametrize(("n", "features"), [(100, 4), (20, 60)])
def test_a_perfect_generator_is_at_the_floor_and_others_above_it(n, features):
    perfect, floor, moved = [], [], []
    for seed in range(30):
        rng = torch.Generator().manual_seed(seed)
        made, real = torch.randn(3 * n, features, generator=rng).split([n, 2 * n])
        same, other = split_half(made, real), split_half(made + 0.5, real)
        assert same.rows == n
        assert same.floor == other.floor, "it is a matter of the real rows and their number only"
        perfect.append(same.distance)
        floor.append(same.floor)
        moved.append(other.distance)
    assert np.mean(perfect) == pytest.approx(np.mean(floor), rel=0.1)
    assert np.mean(moved) - np.mean(floor) == pytest.approx(features / 4, rel=0.1)


def test_both_sides_have_as_many_rows():
    real = torch.randn(100, 30)
    assert split_half(torch.randn(20, 30), real).rows == 20
    assert split_half(torch.randn(500, 30), real).rows == 50
    few, many = split_half(torch.randn(10, 30), real), split_half(torch.randn(50, 30), real)
    assert few.floor > 1.5 * many.floor, "the bias is that of the rows that are compared"


def test_splits_are_disjoint_and_seeded():
    real = torch.arange(8.0)[:, None]
    a, b = (split_half(real, real, splits=1, seed=3) for _ in range(2))
    assert a == b
    assert split_half(real, real, seed=4) != a
    both = torch.cat([torch.zeros(2, 1), torch.ones(2, 1)])
    floors = {round(split_half(both, both, splits=1, seed=n).floor, 6) for n in range(20)}
    assert floors == {0.0, 1.0}, "of two zeros and two ones, halves are alike or opposite"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: split_half(torch.rand(9, 3), torch.rand(9, 4)), r"got \(9, 3\) and \(9, 4\)"),
        (lambda: split_half(torch.rand(9, 3, 1, 1), torch.rand(9, 3)), r"must be rows \(B, F\)"),
        (lambda: split_half(torch.rand(1, 3), torch.rand(9, 3)), "at least 2 rows .* got 1, 9"),
        (lambda: split_half(torch.rand(9, 3), torch.rand(3, 3)), "4 real ones .* got 9, 3"),
        (lambda: split_half(torch.rand(9, 3), torch.rand(9, 3), splits=0), "1 split, .* and 0"),
        (lambda: split_half(torch.full((9, 3), torch.nan), torch.rand(9, 3)), "`made` must be fi"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
