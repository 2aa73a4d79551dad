"""What the work is at least, what the machine can do, and what share of that we get.

Two floors are given. The *least* time needs every multiplication once, at the machine's best rate,
and every image and weight moved once, at its best bandwidth; what is between two layers would
never leave the chip. The *layered* time lets every layer write its output to memory and the next
one read it again, as layers that run one by one must.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.suite.clock import seconds
from benchmarks.suite.published import Work
from leapfactual._engine.copies import Copies, Networks
from leapfactual._engine.replay import half_precision
from leapfactual.classifiers import Network
from leapfactual.fields import MLPField, expand_time
from leapfactual.report.tables import Row, row

SAMPLE = 256
SINGLE = "billion operations a second, single"
HALF = "billion operations a second, half"
MOVED = "GB a second"
LEAVES = (
    nn.Conv2d,
    nn.ConvTranspose2d,
    nn.Linear,
    nn.LeakyReLU,
    nn.ReLU,
    nn.SiLU,
    nn.PixelShuffle,
)


@dataclass(frozen=True)
class Cost:
    """The cost of one call per image: operations, and bytes between layers."""

    operations: float
    traffic: float


@torch.no_grad()
def cost(modules: list[nn.Module], call: Callable[[], object], rows: int) -> Cost:
    """Counts the operations of a call and the bytes that its layers write and read again."""
    outputs: list[int] = []

    def note(_: nn.Module, __: object, out: Tensor) -> None:
        outputs.append(out.numel() * out.element_size())

    handles = [
        part.register_forward_hook(note)
        for module in modules
        for part in module.modules()
        if isinstance(part, LEAVES)
    ]
    try:
        with FlopCounterMode(display=False) as counter:
            call()
    finally:
        for handle in handles:
            handle.remove()
    return Cost(counter.get_total_flops() / rows, 2 * sum(outputs) / rows)


def ceilings(device: str) -> dict[str, float]:
    """Measures the most that this machine gives: billions of operations and bytes a second."""
    side = 1536 if device == "cpu" else 8192
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    found = {SINGLE: 2e-9 * side**3 / min(seconds(lambda: a @ b, device))}
    if device != "cpu":
        c, d = a.half(), b.half()
        found[HALF] = 2e-9 * side**3 / min(seconds(lambda: c @ d, device))
    large = torch.empty(2**26 if device == "cpu" else 2**29, device=device)
    there = torch.empty_like(large)
    took = min(seconds(lambda: there.copy_(large), device))
    found[MOVED] = 8e-9 * large.numel() / took
    return found


@torch.no_grad()
def profile(work: Work, setting: str) -> list[Row]:
    """Returns what one image costs in each part, for networks as they are and for fused copies."""
    copies = _copies(work)
    x, n = work.x[:10_000], min(len(work.x), 10_000)
    n = min(n, 256) if work.device == "cpu" else n
    x = x[:n]
    flow = work.bundle.flow
    t, c = torch.tensor(0.5, device=x.device), flow.one_hot(work.target[:n])
    pairs = {"networks as they are": copies.originals, "fused copies": copies.networks}
    if work.device != "cpu":
        pairs["fused copies, half precision"] = copies.networks.fuse(torch.float16)
    rows = []
    for method, pair in pairs.items():
        field = half_precision(flow).field if "half" in method else flow.field
        z = pair.generator.encode(x)
        image = pair.generator.decode(z)
        parts: dict[str, Callable[[], object]] = {
            "decode": lambda: pair.generator.decode(z),  # noqa: B023
            "classify": lambda: pair.classifier(image),  # noqa: B023
            "evaluate the field": lambda: field(t, z, c),  # noqa: B023
        }
        for part, call in parts.items():
            took = [1e6 * s / n for s in seconds(call, work.device)]
            rows.append(row(setting, method, f"microseconds, {part}", took))
    return rows


def measure(work: Work, setting: str) -> list[Row]:
    """Returns least work, ceilings, floors, and our share."""
    explainer = work.explainer()
    took = min(seconds(lambda: explainer.explain(work.x, work.target), work.device)) / len(work.x)
    found = explainer.explain(work.x[:SAMPLE], work.target[:SAMPLE])
    queries = found.queries.double().mean().item()
    nfe = found.nfe.double().mean().item()
    encode, decode, classify, field = _costs(work)
    operations = (
        encode.operations
        + queries * (decode.operations + classify.operations)
        + nfe * field.operations
    )
    traffic = encode.traffic + queries * (decode.traffic + classify.traffic) + nfe * field.traffic
    half = work.device != "cpu"
    limits = ceilings(work.device)
    rate, bandwidth = 1e9 * limits[HALF if half else SINGLE], 1e9 * limits[MOVED]
    image = math.prod(work.x.shape[1:]) * 4
    least = max(operations / rate, 3 * image / bandwidth)
    layered = max(operations / rate, traffic / (2 if half else 1) / bandwidth)
    values = {
        "million operations": 1e-6 * operations,
        "kB between layers": 1e-3 * traffic,
        **limits,
        "microseconds, least": 1e6 * least,
        "microseconds, layered": 1e6 * layered,
        "microseconds, ours": 1e6 * took,
        "share of the least": least / took,
        "share of the layered": layered / took,
    }
    return [row(setting, "fast plan", metric, [value]) for metric, value in values.items()]


def _copies(work: Work) -> Copies:
    copies = Copies(Networks(work.bundle.generator, work.shipped.classifier))
    with torch.no_grad():
        copies.refresh(work.bundle.generator.encode(work.x[:SAMPLE]))
    return copies


@torch.no_grad()
def _costs(work: Work) -> tuple[Cost, Cost, Cost, Cost]:
    """Returns what encoding, decoding, classifying and one velocity cost, per image."""
    pair, flow = _copies(work).originals, work.bundle.flow
    vae, network = pair.generator, pair.classifier
    assert isinstance(vae, nn.Module)
    assert isinstance(network, Network)
    assert isinstance(network.network, nn.Module)
    x = work.x[:SAMPLE]
    z, n = pair.generator.encode(x), len(x)
    c, t = flow.one_hot(work.target[:n]), torch.tensor(0.5, device=x.device)
    image = pair.generator.decode(z)
    assert isinstance(flow.field, MLPField)
    layers = flow.field.layers
    return (
        cost([vae], lambda: pair.generator.encode(x), n),
        cost([vae], lambda: pair.generator.decode(z), n),
        cost([network.network], lambda: network(image), n),
        cost([layers], lambda: layers(torch.cat([z, c, expand_time(t, z)], 1)), n),
    )
