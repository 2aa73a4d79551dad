"""A picture of what a classifier recognizes: images of each class beside their reconstructions."""

from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ..imaging import to_pil

# Six of a class tell a habit from an accident; more rows than forty do not fit on a screen.
MAX_PAIRS, MAX_ROWS = 6, 40
MIN_SIDE, MAX_SIDE = 48, 96
TEXT_WIDTH, GAP, FRAME = 190, 4, 3
UNRECOGNIZED = "#d62728"


def draw_reconstructions(
    x: Tensor, x_hat: Tensor, before: Tensor, after: Tensor, classes: Sequence[str]
) -> Image.Image:
    """Draws a row for each class, the least recognized first: images, each before what it became.

    Reconstructions that the classifier gives to another class come first and have a red frame.

    Arguments:
        x: Images, with shape ``(B, C, H, W)``.
        x_hat: Their reconstructions.
        before: The classes of the images, ``(B,)``.
        after: The classes of the reconstructions, ``(B,)``.
        classes: The names of the classes.
    """
    same = (before == after).cpu()
    groups = [(before == k).nonzero()[:, 0].cpu() for k in range(len(classes))]
    kept = [same[rows].double().mean().item() for rows in groups]
    shown = sorted((k for k, rows in enumerate(groups) if len(rows)), key=lambda k: kept[k])
    shown = shown[:MAX_ROWS]
    # Small images are enlarged by a whole number, so that their pixels stay squares.
    largest = max(x.shape[2:])
    zoom = max(1, -(-MIN_SIDE // largest)) if largest < MAX_SIDE else MAX_SIDE / largest
    height, width = (max(1, round(zoom * side)) for side in x.shape[2:])
    step = height + 2 * FRAME + GAP
    pair = 2 * (width + 2 * FRAME) + 3 * GAP
    sheet = Image.new("RGB", (TEXT_WIDTH + MAX_PAIRS * pair, GAP + len(shown) * step), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for line, k in enumerate(shown):
        top, rows = GAP + line * step, groups[k]
        text = f"{classes[k][:26]}\n{round(kept[k] * len(rows))} of {len(rows)} recognized"
        draw.text((GAP, top + FRAME), text, fill="black", font=font)
        order = torch.cat([rows[~same[rows]], rows[same[rows]]])[:MAX_PAIRS]
        for column, row in enumerate(order.tolist()):
            left = TEXT_WIDTH + column * pair
            for image, recognized in ((x[row], True), (x_hat[row], same[row])):
                if not recognized:
                    corner = (left + width + 2 * FRAME - 1, top + height + 2 * FRAME - 1)
                    draw.rectangle((left, top, *corner), fill=UNRECOGNIZED)
                how = Image.Resampling.NEAREST if zoom >= 1 else Image.Resampling.BICUBIC
                picture = to_pil(image).convert("RGB").resize((width, height), how)
                sheet.paste(picture, (left + FRAME, top + FRAME))
                left += width + 2 * FRAME
    return sheet
