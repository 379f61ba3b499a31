#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Draws the picture of the README: a page crop beside the probability of text that comes out of the head.

    ./text_detection_head data text_probability.png         # the C++ example writes the map
    python plot.py text_probability.png ../../docs/images/text_detection_head.png

The map may also be .npy, such as data/expected.npy, ONNX Runtime's result. Needs Pillow and NumPy.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

MARGIN, CAPTION = 16, 36
DATA = Path(__file__).resolve().parent / "data"


def read_map(path):
    """A map as an 8-bit grey image: from the example's .png, or from probabilities [1, 1, H, W] in .npy."""
    if path.suffix == ".npy":
        return Image.fromarray(np.rint(np.load(path)[0, 0] * 255).astype(np.uint8))
    return Image.open(path).convert("L")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("map", type=Path, help="probability map, .png or .npy")
    parser.add_argument("out", type=Path, help="picture to write, .png")
    parser.add_argument("--page", type=Path, default=DATA / "page.png",
                        help="what the map belongs to (default: %(default)s)")
    arguments = parser.parse_args()

    page = Image.open(arguments.page).convert("RGB")
    probability = read_map(arguments.map)
    if probability.size != page.size:
        raise SystemExit(f"the map's size is {probability.size}, the page's {page.size}")
    probability = ImageOps.colorize(probability, black="#10182b", white="#ffe08a")

    panels = [("page", page), ("probability of text", probability)]
    width, height = page.size
    picture = Image.new("RGB", (len(panels) * (width + MARGIN) + MARGIN, height + CAPTION + MARGIN), "white")
    draw = ImageDraw.Draw(picture)
    for column, (caption, panel) in enumerate(panels):
        left = MARGIN + column * (width + MARGIN)
        draw.text((left, 8), caption, font=ImageFont.load_default(20), fill="#333333")
        picture.paste(panel, (left, CAPTION))
        draw.rectangle((left - 1, CAPTION - 1, left + width, CAPTION + height), outline="#999999")

    # 64 colours are plenty here and a third of the bytes.
    picture.quantize(64, dither=Image.Dither.NONE).save(arguments.out, optimize=True)
    print(f"wrote {arguments.out}, {picture.width} x {picture.height}, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
