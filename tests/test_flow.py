"""The flow: transports, conditions, the objective, density and files."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import leapfactual as lf
from leapfactual.bases import Uniform
from leapfactual.errors import InputError, IntegrationError, MissingData
from leapfactual.testing import GaussianOracle
from leapfactual.walk import CountingSolver


def random_flow(features=3, classes=4, **options):
    return lf.Flow(lf.MLPField(features, classes, width=16, depth=2), **options).double()


def random_rows(rows, features=3, classes=4):
    y = torch.arange(rows) % classes
    return torch.randn(rows, features).double(), torch.eye(classes).double()[y]


@given(
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(1, 5),
    st.floats(0, 1.5),
)
def test_land_undoes_lift(rows, features, classes, gamma):
    flow = random_flow(features, classes).with_solver(lf.RK4(40))
    z, c = random_rows(rows, features, classes)
    torch.testing.assert_close(
        flow.land(flow.lift(z, c, gamma), c, gamma), z, rtol=1e-6, atol=1e-6
    )


@given(st.integers(2, 8), st.floats(0.01, 1.0))
def test_rows_depend_neither_on_batch_mates_nor_on_their_order(rows, gamma):
    flow, (z, c) = random_flow(), random_rows(rows)
    whole = flow.land(z, c, gamma)
    order = torch.randperm(rows)
    torch.testing.assert_close(
        flow.land(z[order], c[order], gamma), whole[order], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(flow.land(z[:1], c[:1], gamma), whole[:1], rtol=0, atol=1e-12)


def test_inputs_are_left_alone_and_a_zero_step_does_nothing():
    flow, (z, c) = random_flow(), random_rows(5)
    before = z.clone(), c.clone()
    flow.lift(z, c, 0.5)
    flow.land(z, c, 0.5)
    still = flow.land(z, c, 0.0)
    assert torch.equal(z, before[0])
    assert torch.equal(c, before[1])
    assert torch.equal(still, z)
    assert still.data_ptr() != z.data_ptr()


def test_lifting_goes_back_and_landing_forward():
    oracle = GaussianOracle(torch.tensor([[2.0, 0.0], [0.0, 3.0]]).double(), 0.5)
    flow = oracle.flow(lf.RK4(50))
    z, y = oracle.sample(4000)
    lifted = flow.lift(z, flow.one_hot(y))
    for label in (0, 1):
        torch.testing.assert_close(
            lifted[y == label].mean(0), torch.zeros(2).double(), rtol=0, atol=0.06
        )
        torch.testing.assert_close(
            lifted[y == label].std(0), torch.ones(2).double(), rtol=0, atol=0.06
        )
    landed = flow.land(torch.randn(4000, 2).double(), flow.one_hot(torch.ones(4000).long()))
    torch.testing.assert_close(landed.mean(0), oracle.means[1], rtol=0, atol=0.06)


def test_float32_and_float64_agree():
    flow, (z, c) = random_flow(), random_rows(5)
    wide = flow.lift(z, c, 0.7)
    narrow = flow.float().lift(z.float(), c.float(), 0.7)
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-5, atol=1e-5)


def test_condition_is_hard_or_soft():
    p = torch.tensor([[0.2, 0.5, 0.2, 0.1]]).double()
    assert random_flow().condition(p).tolist() == [[0, 1, 0, 0]]
    assert torch.equal(random_flow(soft=True).condition(p), p)


def test_trace_passes_through_the_transport():
    flow, (z, c) = random_flow(solver=lf.RK4(40)), random_rows(5)
    points = flow.trace(z, c, 0.6, [1.0, 0.5, 0.0])
    assert torch.equal(points[0], z)
    torch.testing.assert_close(points[-1], flow.lift(z, c, 0.6), rtol=1e-7, atol=1e-7)


def test_loss_is_the_objective():
    """With the exact velocity the loss is what is left: the variance of z1 - z0 given z and t."""
    oracle = GaussianOracle(torch.zeros(1, 1).double(), 1.0)
    z, y = oracle.sample(100_000, seed=1)
    flow = oracle.flow()
    loss = flow.loss(z, flow.one_hot(y), rng=torch.Generator().manual_seed(0))
    t = torch.linspace(0, 1, 20_001).double()
    expected = (1 / (t**2 + (1 - t) ** 2)).mean()
    torch.testing.assert_close(loss, expected, rtol=0.02, atol=0)


def test_sigma_widens_the_path():
    z, c = random_rows(400)
    plain, wide = (random_flow(sigma=s) for s in (0.0, 2.0))
    wide.load_state_dict(plain.state_dict())
    losses = [f.loss(z, c, rng=torch.Generator().manual_seed(0)) for f in (plain, wide)]
    assert losses[0] != losses[1]


def test_standardised_flow_works_in_units_of_the_spread():
    flow, (z, c) = random_flow(), random_rows(6)
    scale, mean = torch.tensor([2.0, 30.0, 0.5]).double(), torch.tensor([1.0, -5.0, 0.0]).double()
    plain = flow.lift(z, c, 0.4)
    flow.scale.copy_(scale)
    flow.mean.copy_(mean)
    torch.testing.assert_close(flow.lift(z * scale + mean, c, 0.4), plain * scale + mean)


def test_standardise_reads_mean_and_spread_and_leaves_constant_features():
    flow = random_flow()
    z = torch.randn(1000, 3).double() * torch.tensor([3.0, 0.0, 0.1]) + 5
    flow.standardize(z)
    torch.testing.assert_close(flow.mean, z.mean(0))
    torch.testing.assert_close(
        flow.scale, z.std(0, correction=0).where(torch.tensor([True, False, True]), 1.0)
    )


@given(st.floats(1, 4), st.floats(0, 1))
def test_guided_landing_follows_the_extrapolated_velocity(guidance, gamma):
    flow, (z, c) = random_flow(solver=lf.Euler(1)), random_rows(5)
    flow.scale.copy_(torch.tensor([2.0, 30.0, 0.5]))
    flow.mean.copy_(torch.tensor([1.0, -5.0, 0.0]))
    other, u = c.roll(1, 0), (z - flow.mean) / flow.scale
    away, towards = (flow.field(torch.tensor(0.0), u, each) for each in (other, c))
    expected = z + gamma * (away + guidance * (towards - away)) * flow.scale
    moved = flow.land(z, c, gamma, guidance=guidance, other=other)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-10)


def test_landing_with_a_guidance_of_one_is_landing_bit_for_bit():
    flow, (z, c) = random_flow(), random_rows(5)
    plain = flow.land(z, c, 0.5)
    assert torch.equal(flow.land(z, c, 0.5, guidance=1.0), plain)
    assert torch.equal(flow.land(z, c, 0.5, guidance=1, other=c.roll(1, 0)), plain)


def test_guidance_away_from_the_same_class_changes_nothing():
    flow, (z, c) = random_flow(), random_rows(5)
    moved = flow.land(z, c, 0.5, guidance=3, other=c)
    torch.testing.assert_close(moved, flow.land(z, c, 0.5), rtol=0, atol=1e-12)


def test_guided_rows_do_not_depend_on_batch_mates():
    flow, (z, c) = random_flow(), random_rows(5)
    whole = flow.land(z, c, 0.5, guidance=2, other=c.roll(1, 0))
    alone = flow.land(z[2:3], c[2:3], 0.5, guidance=2, other=c.roll(1, 0)[2:3])
    torch.testing.assert_close(alone, whole[2:3], rtol=0, atol=1e-12)


def test_a_guided_leap_is_evaluated_twice_and_counted_twice():
    class Noted(lf.MLPField):
        rows = 0

        def forward(self, t, z, c):
            self.rows += len(z)
            return super().forward(t, z, c)

    field = Noted(3, 4)
    counter = CountingSolver(lf.RK4(3))
    flow, (z, c) = lf.Flow(field, counter).double(), random_rows(5)
    sizes = {"lift": 0.2, "land": 0.2}
    lf.leap(flow, z, c, c.roll(1, 0), **sizes)
    assert (counter.nfe, field.rows) == (24, 24 * 5)
    lf.leap(flow, z, c, c.roll(1, 0), **sizes, guidance=2)
    assert (counter.nfe, field.rows) == (24 + 36, (24 + 36) * 5), "lifting once, landing twice"


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_maps_are_standardized_by_channel(channels, height, width):
    field = lf.fields.UNet2dField(
        (channels, height, width), 2, channels=4, multipliers=(1,), blocks=1
    )
    flow = lf.Flow(field).double()
    spread, offset = torch.tensor([3.0, 0.2, 40.0]), torch.tensor([5.0, 0.0, -100.0])
    maps = torch.randn(50, channels, height, width).double()
    maps = maps * spread[:channels, None, None] + offset[:channels, None, None]
    z = maps.permute(0, 2, 3, 1).flatten(1)
    flow.standardize(z)
    for buffer, expected in (
        (flow.mean, maps.mean((0, 2, 3))),
        (flow.scale, maps.std((0, 2, 3), correction=0)),
    ):
        by_place = buffer.reshape(height * width, channels)
        torch.testing.assert_close(by_place, expected.expand(height * width, -1))


def test_what_differs_from_place_to_place_of_a_map_stays_when_it_is_standardized():
    flow = lf.Flow(
        lf.fields.UNet2dField((1, 2, 2), 2, channels=4, multipliers=(1,), blocks=1)
    ).double()
    z = torch.randn(500, 4).double() + torch.tensor([-3.0, -1.0, 1.0, 3.0])
    flow.standardize(z)
    u = (z - flow.mean) / flow.scale
    assert u.mean(0).tolist() == pytest.approx([-1.22, -0.41, 0.41, 1.22], abs=0.1)
    rows = lf.Flow(lf.MLPField(4, 2)).double()
    rows.standardize(z)
    torch.testing.assert_close(rows.mean, z.mean(0))


@pytest.mark.parametrize("features", [1, 2, 5])
@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0])
def test_log_prob_agrees_with_the_exact_density(features, scale):
    oracle = GaussianOracle(torch.randn(3, features).double(), scale)
    z, y = oracle.sample(4)
    flow = oracle.flow()
    torch.testing.assert_close(
        flow.log_prob(z, flow.one_hot(y)), oracle.log_prob(z, y), rtol=0, atol=1e-4
    )


def test_log_prob_counts_the_standardisation_and_the_base():
    """A flow that stands still has the base's density, stretched."""
    flow = lf.Flow(lf.MLPField(2, 1), base=Uniform()).double()
    torch.nn.init.zeros_(flow.field.layers[-1].weight)
    torch.nn.init.zeros_(flow.field.layers[-1].bias)
    flow.scale.copy_(torch.tensor([2.0, 4.0]))
    c = torch.ones(2, 1).double()
    log_prob = flow.log_prob(torch.tensor([[0.9, 1.9], [1.1, 0.0]]).double(), c)
    assert log_prob.exp().tolist() == pytest.approx([1 / 8, 0])


def test_hutchinson_agrees_with_the_exact_divergence_and_rows_stay_independent():
    flow, (z, c) = random_flow(features=6), random_rows(5, features=6)
    exact, estimate = flow.log_prob(z, c), flow.log_prob(z, c, probes=400)
    torch.testing.assert_close(estimate, exact, rtol=0, atol=0.1)
    torch.testing.assert_close(
        flow.log_prob(z[2:3], c[2:3], probes=4), flow.log_prob(z, c, probes=4)[2:3]
    )


def test_large_dimensions_take_hutchinson_by_themselves():
    oracle = GaussianOracle(torch.randn(2, 80).double(), 0.7)
    z, y = oracle.sample(3)
    flow = oracle.flow()
    torch.testing.assert_close(
        flow.log_prob(z, flow.one_hot(y)), oracle.log_prob(z, y), rtol=1e-3, atol=0
    )


def test_typicality_is_the_percentile_among_the_classes_own_latents():
    oracle = GaussianOracle(torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 9.0]]).double(), 0.5)
    z, y = oracle.sample(600)
    seen = y < 2
    flow = oracle.flow()
    flow.fit_typicality(z[seen], flow.one_hot(y[seen]))
    fresh, label = oracle.sample(600, seed=1)
    percent = flow.typicality(fresh[label < 2], label[label < 2])
    torch.testing.assert_close(
        percent.quantile(torch.tensor([0.1, 0.5, 0.9]).double()),
        torch.tensor([10.0, 50.0, 90.0]).double(),
        rtol=0,
        atol=5,
    )
    centre, far = oracle.means[0:1], torch.tensor([[30.0, 30.0]]).double()
    assert flow.typicality(centre, torch.tensor([0])).item() > 99
    assert flow.typicality(far, torch.tensor([0])).item() == 0
    assert flow.typicality(centre, torch.tensor([1])).item() == 0
    assert flow.typicality(centre, torch.tensor([2])).isnan().item()


def test_typicality_of_latents_that_the_base_does_not_reach_is_zero():
    """With a bounded base some training latents may have no density at all."""
    flow = lf.Flow(lf.MLPField(2, 2), base=Uniform()).double()
    torch.nn.init.zeros_(flow.field.layers[-1].weight)
    torch.nn.init.zeros_(flow.field.layers[-1].bias)
    z = torch.linspace(-0.7, 0.7, 60).double()[:, None].repeat(1, 2)
    flow.fit_typicality(z, flow.one_hot(torch.zeros(60).long()))
    percent = flow.typicality(z, torch.zeros(60).long())
    assert not percent.isnan().any()
    inside = z.abs().max(1).values <= 0.5
    assert (percent[~inside] == 0).all()
    assert (percent[inside] > 50).all()


def test_typicality_of_a_soft_flow_is_that_of_the_class_itself():
    oracle = GaussianOracle(torch.tensor([[-0.5], [0.5]]).double(), 0.7)
    z, _ = oracle.sample(400)
    flow = lf.Flow(oracle.flow().field, soft=True).double()
    flow.fit_typicality(z, oracle.classifier(z))
    assert flow.typicality(z, oracle.classifier(z).argmax(1)).median().item() == pytest.approx(
        50, abs=5
    )


def test_equal_latents_are_as_typical_as_the_median():
    flow, z = random_flow(), torch.zeros(7, 3).double()
    flow.fit_typicality(z, flow.one_hot(torch.zeros(7).long()))
    assert flow.typicality(z[:1], torch.tensor([0])).item() == 50


def test_what_was_calibrated_is_forgotten_when_the_flow_changes():
    flow, (z, c) = random_flow(), random_rows(40)
    flow.fit_typicality(z, c)
    flow.fit_typicality(z[:1], c[:1])
    assert flow.quantiles.isnan().any(1).tolist() == [False, True, True, True]
    flow.standardize(z)
    assert flow.quantiles.isnan().all()
    flow.fit_typicality(z, c)
    lf.fit(flow, z, c, epochs=1)
    assert flow.quantiles.isnan().all()


def test_log_prob_works_in_inference_mode_and_for_fields_that_ignore_z():
    class Constant(lf.VelocityField):
        def forward(self, t, z, c):
            return torch.ones_like(z)

    flow = lf.Flow(Constant(2, 1)).double()
    z = torch.randn(3, 2).double()
    with torch.inference_mode():
        log_prob = flow.log_prob(z, torch.ones(3, 1).double())
    torch.testing.assert_close(log_prob, flow.base.log_prob(z - 1))


def test_a_field_needs_forward_and_nothing_else_until_it_is_saved(tmp_path):
    class Drift(lf.VelocityField):
        def forward(self, t, z, c):
            return c @ torch.tensor([[-1.0, 0.0], [1.0, 0.0]])

    class Kept(Drift):
        def config(self):
            return {"features": self.features, "classes": self.classes}

    z, c = torch.zeros(1, 2), torch.eye(2)
    moved = lf.leap(lf.Flow(Drift(2, 2)), z, c[:1], c[1:], lift=1.0, land=1.0)
    torch.testing.assert_close(moved, torch.tensor([[2.0, 0.0]]))
    with pytest.raises(InputError, match=r"Drift cannot be saved.*config\(\) that returns"):
        lf.Flow(Drift(2, 2)).save(tmp_path / "flow.safetensors")
    assert not list(tmp_path.iterdir()), "nothing is half-written"
    lf.Flow(Kept(2, 2)).save(tmp_path / "flow.safetensors")
    again = lf.Flow.load(tmp_path / "flow.safetensors", field=Kept(2, 2))
    assert torch.equal(again.lift(z, c[:1]), lf.Flow(Kept(2, 2)).lift(z, c[:1]))


def test_typicality_needs_a_scale():
    with pytest.raises(InputError, match=r"Call flow\.fit_typicality"):
        random_flow().typicality(torch.zeros(1, 3).double(), torch.tensor([0]))


@pytest.mark.parametrize(
    "flow",
    [
        lf.Flow(
            lf.MLPField(3, 4, width=8), lf.Midpoint(3), soft=True, base=Uniform(2.0), sigma=0.1
        ),
        lf.Flow(lf.fields.UNet1dField(3, 4, channels=8), lf.Dopri5(1e-3, 1e-3)),
        lf.Flow(lf.MLPField(3, 4, width=8)).double(),
    ],
)
def test_save_then_load_is_equal(flow, tmp_path):
    flow.standardize(torch.randn(50, 3).to(flow.mean.dtype) * 4)
    flow.save(tmp_path / "flow.safetensors")
    other = lf.Flow.load(tmp_path / "flow.safetensors")
    z, c = (v.to(flow.mean.dtype) for v in random_rows(5))
    assert torch.equal(flow.lift(z, c, 0.3), other.lift(z, c, 0.3))
    assert (other.solver, other.soft, other.base, other.sigma) == (
        flow.solver,
        flow.soft,
        flow.base,
        flow.sigma,
    )
    assert [p.name for p in tmp_path.iterdir()] == ["flow.safetensors"]


def test_a_field_of_ones_own_is_loaded_when_given(tmp_path):
    oracle = GaussianOracle(torch.randn(2, 3), 0.5)
    oracle.flow().save(tmp_path / "own.safetensors")
    with pytest.raises(InputError, match=r"GaussianField.*pass field="):
        lf.Flow.load(tmp_path / "own.safetensors")
    blank = GaussianOracle(torch.zeros(2, 3), 0.5).flow().field
    loaded = lf.Flow.load(tmp_path / "own.safetensors", field=blank)
    assert torch.equal(loaded.field.means, oracle.means)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "flow.safetensors"
    with pytest.raises(MissingData, match="there is no flow at"):
        lf.Flow.load(path)
    lf.Flow(lf.MLPField(3, 4)).save(path)
    whole = path.read_bytes()
    for n in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:n])
        with pytest.raises(InputError, match="no whole safetensors file"):
            lf.Flow.load(path)
    path.write_bytes(whole)
    tensors = load_file(path)
    save_file(tensors, path)
    with pytest.raises(InputError, match="must be a `leapfactual flow 1`, got `None`"):
        lf.Flow.load(path)
    config = {
        "field": {"kind": "MLPField", "features": 3, "classes": 5},
        "soft": False,
        "sigma": 0,
    }
    config |= {"solver": {"kind": "RK4", "steps": 4}, "base": {"kind": "Gaussian"}}
    for wrong in (config, {}, config | {"field": {"kind": "os.system"}}, config | {"sigma": "x"}):
        save_file(tensors, path, {"format": "leapfactual flow 1", "config": json.dumps(wrong)})
        with pytest.raises(InputError, match="does not describe a flow"):
            lf.Flow.load(path)


class Shrinking(lf.VelocityField):
    def forward(self, t, z, c):
        return z[:, :-1]


class Exploding(Shrinking):
    def forward(self, t, z, c):
        return 1e30 * z**3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda f, z, c: f.lift(z[:, :2], c),
            r"`z` must have 3 features.*got \(5, 2\).*features=2",
        ),
        (lambda f, z, c: f.lift(z[0], c), r"latents of shape \(B, 3\), got \(3,\)"),
        (lambda f, z, c: f.lift(z * torch.nan, c), "NaN or infinite values in 5 of 5 rows"),
        (
            lambda f, z, c: f.lift(z.float(), c),
            r"type of the flow, torch\.float64, got torch\.float32",
        ),
        (lambda f, z, c: f.lift(z, c[:, :2]), r"`c` must have shape \(5, 4\).*got \(5, 2\)"),
        (lambda f, z, c: f.lift(z, c * 2), "sums off by up to 1"),
        (lambda f, z, c: f.lift(z, c, -0.1), "`gamma` must be a number of at least 0, got -0.1"),
        (lambda f, z, c: f.lift(z, c, float("nan")), "got nan"),
        (lambda f, z, c: f.lift(z, c, None), "`gamma` must be a number, got None"),
        (
            lambda f, z, c: f.land(z, c, guidance=0.5, other=c),
            "`guidance` must be a number of at least 1, got 0.5",
        ),
        (lambda f, z, c: f.land(z, c, guidance=float("inf"), other=c), "at least 1, got inf"),
        (lambda f, z, c: f.land(z, c, guidance="2", other=c), "must be a number, got '2'"),
        (
            lambda f, z, c: f.land(z, c, guidance=2),
            r"guidance=2 leads away from a class: pass it as other=…, with shape \(5, 4\)",
        ),
        (
            lambda f, z, c: f.land(z, c, guidance=2, other=c[:, :2]),
            r"`other` must have shape \(5, 4\).*got \(5, 2\)",
        ),
        (lambda f, z, c: f.land(z, c, guidance=2, other=2 * c), "`other` must be probabilities"),
        (lambda f, z, c: f.with_solver(lf.RK4), "`solver` must be a solver"),
        (
            lambda f, z, c: lf.Flow(f.field, base=Uniform),
            r"`base` must be a base such as Uniform\(\)",
        ),
        (lambda f, z, c: lf.Flow(f.field, soft="yes"), "`soft` must be True or False, got 'yes'"),
        (lambda f, z, c: lf.Flow(torch.nn.Linear(2, 2)), "`field` must be .* got Linear"),
        (lambda f, z, c: f.one_hot(torch.tensor([4])), "`target` 4 is not a class"),
        (lambda f, z, c: f.condition(None), "got NoneType"),
        (lambda f, z, c: f.standardize(z[:0]), "at least one latent"),
        (lambda f, z, c: f.log_prob(z, c, probes=-1), "`probes` must be at least 0"),
        (lambda f, z, c: f.fit_typicality(z, c, per_class=0), "`per_class` must be .* got 0"),
        (lambda f, z, c: lf.Flow(f.field, sigma=-1), "`sigma` must be .* got -1"),
        (lambda f, z, c: lf.Flow(f.field, "rk4"), "must be a solver such as .* got 'rk4'"),
        (
            lambda f, z, c: lf.Flow(Shrinking(3, 4)).double().lift(z, c),
            r"Shrinking returned \(5, 2\) for latents \(5, 3\)",
        ),
        (
            lambda f, z, c: (
                lf.Flow(Shrinking(3, 4)).double().land(z, c, guidance=2, other=c.roll(1, 0))
            ),
            r"Shrinking returned \(10, 2\) for latents \(5, 3\)",
        ),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call(random_flow(), *random_rows(5))


def test_a_diverging_integration_is_named():
    z, c = random_rows(5)
    with pytest.raises(
        IntegrationError, match=r"t = 1 to 0 with gamma = 0.5 and RK4.*5 of 5 latents"
    ):
        lf.Flow(Exploding(3, 4)).double().lift(z, c, 0.5)


def test_an_empty_batch_stays_empty():
    z, c = random_rows(0)
    assert random_flow().lift(z, c).shape == (0, 3)


def test_print_says_what_it_is():
    text = str(random_flow(soft=True))
    assert "soft conditions" in text
    assert "RK4(steps=10)" in text
