"""The figures: photographs as they come, and those that went worst."""

import math
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from leapfactual.bundle import Bundle
from leapfactual.files import atomic
from leapfactual.imaging import to_pil
from leapfactual.metrics import perceptual
from leapfactual.report.figures import change_map

from .subjects import Subject
from .tables import Meter, Walks

SHOWN, GAP, CAPTION = 12, 4, 14
# Smaller photographs are enlarged to about this size, which a caption fits above.
MIN_SIDE = 128
LINES = ("input", "reconstruction", "counterfactual", "change", "reliable", "change")


def draw(bundle: Bundle, subject: Subject, walks: Walks, meter: Meter, out: Path) -> None:
    """Draws the first twelve, and the twelve whose reliable counterfactual went worst.

    Worst are first those that the classifier does not give to the target, then those that the
    oracle does not, each by falling distance.
    """
    reliable = walks.found["reliable"]
    first = torch.arange(min(SHOWN, len(walks.x)))
    draw_rows(bundle, subject, walks, first, out / "unchosen.jpg")
    distance = perceptual(meter.lpips, "x").function(reliable)
    disputed = subject.oracle(reliable.counterfactual).argmax(1) != reliable.target
    badness = distance + 10.0 * disputed + 100.0 * ~reliable.valid
    worst = badness.argsort(descending=True)[:SHOWN]
    draw_rows(bundle, subject, walks, worst, out / "worst.jpg")


@torch.no_grad()
def draw_rows(bundle: Bundle, subject: Subject, walks: Walks, rows: Tensor, path: Path) -> None:
    """Draws some photographs: input, reconstruction, counterfactuals and what changed."""
    rows = rows.to(walks.x.device)
    plain, reliable = (walks.found[way][rows] for way in ("plain", "reliable"))
    x = plain.x
    decoded = bundle.generator.decode(plain.z)
    lines = (
        [to_pil(image) for image in x],
        [to_pil(image) for image in decoded],
        [to_pil(image) for image in plain.counterfactual],
        [change_map(a, b) for a, b in zip(x, plain.counterfactual, strict=True)],
        [to_pil(image) for image in reliable.counterfactual],
        [change_map(a, b) for a, b in zip(x, reliable.counterfactual, strict=True)],
    )
    times = math.ceil(MIN_SIDE / x.shape[3])
    height, width = (times * n for n in x.shape[2:])
    label = 90
    sheet = Image.new(
        "RGB",
        (label + len(x) * (width + GAP), CAPTION + len(lines) * (height + GAP)),
        "white",
    )
    pen = ImageDraw.Draw(sheet)
    for column in range(len(x)):
        source, target = (subject.classes[int(v[column])] for v in (plain.source, plain.target))
        left = label + column * (width + GAP)
        pen.text((left, 1), f"{source} to {target}", fill="black", font_size=10)
    for n, (name, pictures) in enumerate(zip(LINES, lines, strict=True)):
        top = CAPTION + n * (height + GAP)
        pen.text((2, top + height // 2), name, fill="black", font_size=11)
        for column, picture in enumerate(pictures):
            large = picture.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
            sheet.paste(large, (label + column * (width + GAP), top))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as temporary:
        sheet.save(temporary, format="JPEG", quality=90)
