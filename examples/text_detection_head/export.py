#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Cuts the head off a text detector and stores its tensors for the C++ example beside this file.

The detector is ch_PP-OCRv4_det_infer.onnx of PaddleOCR, as shipped in the wheel rapidocr_onnxruntime. Its last
seven nodes turn a feature map at a quarter of the page's resolution into a probability per page pixel:

    ConvTranspose k2 s2 -> Add -> BatchNormalization -> Relu -> ConvTranspose k2 s2 -> Add -> Sigmoid

This script draws (or reads) a page, runs the whole detector on it, and writes what enters the head, the head's
parameters, and the probabilities that ONNX Runtime computes from exactly that input:

    pip install numpy pillow onnx onnxruntime
    pip install --no-deps rapidocr_onnxruntime==1.4.4       # or give --model
    python export.py data --crop                            # what is checked in
    python export.py whole_page                             # the whole page, 7 MiB
    python export.py elsewhere --image scan.png --crop 64,128,640,240
"""

import argparse
import hashlib
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.utils
import onnxruntime
from onnx import numpy_helper
from PIL import Image, ImageDraw, ImageFont

MODEL_IN_WHEEL = "models/ch_PP-OCRv4_det_infer.onnx"

# Page pixels per feature pixel: the head doubles the resolution twice.
HEAD_SCALE = 4

# X,Y,WIDTH,HEIGHT of the checked-in crop of the default page.
DEFAULT_CROP = "44,92,624,240"


# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------

def draw_page():
    """A page of text, 736 x 960, a size that rapidocr does not resize. Pillow's built-in font: no font file to find."""
    page = Image.new("RGB", (736, 960), (252, 251, 247))
    draw = ImageDraw.Draw(page)
    ink, grey, blue = (28, 28, 32), (110, 110, 118), (24, 62, 120)

    def text(x, y, size, colour, line):
        draw.text((x, y), line, font=ImageFont.load_default(size), fill=colour)

    text(56, 40, 17, grey, "FIELD NOTES")
    text(560, 40, 17, grey, "page 12")

    text(56, 108, 40, blue, "Up, twice")
    draw.rectangle((440, 116, 656, 156), fill=blue)
    text(456, 124, 22, (255, 255, 255), "kernel 2, stride 2")
    paragraphs = [
        ["A detector looks at a page through a small window and", "answers at a quarter of the size. Two",
         "transposed convolutions bring the", "answer back to the pixels."],
        ["Between them stand a bias, a normalisation and a", "rectifier; behind them a bias and a sigmoid. None of",
         "these needs a pass over memory of its own: each value", "is still in a register when its turn comes."],
        ["What leaves is one number per pixel, between 0 and 1:", "how likely it is that somebody wrote here."],
    ]
    y = 180
    for paragraph in paragraphs:
        for line in paragraph:
            text(56, y, 24, ink, line)
            y += 38
        y += 26

    # A tilted note and a small table, because pages are not made of paragraphs only.
    note = Image.new("RGBA", (260, 60), (0, 0, 0, 0))
    ImageDraw.Draw(note).text((10, 12), "read me too", font=ImageFont.load_default(34), fill=(170, 40, 40, 255))
    note = note.rotate(14, Image.Resampling.BICUBIC, expand=True)
    page.paste(note, (436, 214), note)
    for row, cells in enumerate([("layer", "in", "out"), ("first", "24", "24"), ("second", "24", "1")]):
        for column, cell in enumerate(cells):
            text(64 + 110 * column, 700 + 44 * row, 22, ink, cell)
        draw.line((56, 734 + 44 * row, 356, 734 + 44 * row), fill=grey)
    text(56, 890, 14, grey, "Small print is still print: fourteen pixels high, and found all the same.")
    return page


def read_page(path):
    """An image file as RGB. For modes 1, L and RGB the same as rapidocr; it treats transparency in its own way."""
    return Image.open(path).convert("RGB")


# ---------------------------------------------------------------------------------------------------------------------
# Preprocessing: rapidocr's, without OpenCV
# ---------------------------------------------------------------------------------------------------------------------

def resize(image, height, width):
    """cv2.resize(image, (width, height)) of 8-bit images: bilinear, in OpenCV's fixed-point arithmetic, bit for bit."""
    if image.shape[:2] == (height, width):
        return image

    def neighbours(size_out, size_in):
        position = ((np.arange(size_out) + 0.5) * (size_in / size_out) - 0.5).astype(np.float32)
        low = np.floor(position).astype(np.int64)
        return low, position - low.astype(np.float32)

    def fixed_point(weight):
        return np.rint(weight * np.float32(2048)).astype(np.int64)

    x, fx = neighbours(width, image.shape[1])
    last = image.shape[1] - 1
    fx = np.where((x < 0) | (x >= last), np.float32(0), fx)
    x0, x1 = np.clip(x, 0, last), np.clip(x + 1, 0, last)
    pixels = image.astype(np.int64)
    rows = pixels[:, x0] * fixed_point(1 - fx)[:, None] + pixels[:, x1] * fixed_point(fx)[:, None]

    y, fy = neighbours(height, image.shape[0])
    last = image.shape[0] - 1
    above, below = rows[np.clip(y, 0, last)], rows[np.clip(y + 1, 0, last)]
    weight_above, weight_below = fixed_point(1 - fy)[:, None, None], fixed_point(fy)[:, None, None]
    total = ((weight_above * (above >> 4)) >> 16) + ((weight_below * (below >> 4)) >> 16)
    return np.clip((total + 2) >> 2, 0, 255).astype(np.uint8)


def resize_by(image, ratio):
    """Scales by \\p ratio and rounds both sides to multiples of 32, which the network asks for."""
    height, width = (int(round(int(side * ratio) / 32) * 32) for side in image.shape[:2])
    if height <= 0 or width <= 0:
        raise SystemExit(f"an image of {image.shape[1]} x {image.shape[0]} is too small or too narrow")
    return resize(image, height, width)


def preprocess(page):
    """What RapidOCR does before its detector runs: (the resized 8-bit BGR page, the network's input)."""
    image = np.array(page)[:, :, ::-1]  # the network was trained on BGR
    if max(image.shape[:2]) > 2000:
        image = resize_by(image, 2000 / max(image.shape[:2]))
    if min(image.shape[:2]) < 30:
        image = resize_by(image, 30 / min(image.shape[:2]))
    height, width = image.shape[:2]
    if height <= 30 or width / height > 8:  # a lone line of text: black bars above and below
        bar = abs(max(width // 8, 30) * 2 - height) // 2
        image = np.pad(image, ((bar, bar), (0, 0), (0, 0)))
    image = resize_by(image, max(1.0, 736 / min(image.shape[:2])))

    mean, deviation = np.array([0.5, 0.5, 0.5]), np.array([0.5, 0.5, 0.5])
    normalised = (image.astype("float32") * (1 / 255.0) - mean) / deviation
    return image, normalised.transpose(2, 0, 1)[np.newaxis].astype(np.float32)


# ---------------------------------------------------------------------------------------------------------------------
# The head
# ---------------------------------------------------------------------------------------------------------------------

class Head:
    """The detector's last nodes: the names of the tensors that enter and leave, and the parameters.

    Found by walking back from the output, so that other DB detectors (the server model, other languages) work as well.
    """

    def __init__(self, model):
        self._producer = {name: node for node in model.graph.node for name in node.output}
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self.nodes = []

        self.output = model.graph.output[0].name
        name = self._step(self.output, "Sigmoid").input[0]
        name, self.w2, self.b2 = self._conv_transpose(name)
        name = self._step(name, "Relu").input[0]
        batch_norm = self._step(name, "BatchNormalization")
        self.gamma, self.beta, self.mean, self.var = (self._constant(parameter) for parameter in batch_norm.input[1:5])
        self.epsilon = next((a.f for a in batch_norm.attribute if a.name == "epsilon"), 1e-5)
        self.input, self.w1, self.b1 = self._conv_transpose(batch_norm.input[0])
        self.nodes.reverse()

    def parameters(self):
        """File name -> array, float32. A bias that the model does not have is left out."""
        arrays = dict(w1=self.w1, b1=self.b1, gamma=self.gamma, beta=self.beta, mean=self.mean, var=self.var,
                      eps=np.array([self.epsilon]), w2=self.w2, b2=self.b2)
        return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items() if array is not None}

    def _step(self, name, op_type):
        """The node that makes tensor \\p name, which has to be an \\p op_type."""
        node = self._producer.get(name)
        if node is None or node.op_type != op_type:
            actual = node.op_type if node else "nowhere"
            raise SystemExit(f"not a DB head: {name} comes from {actual}, not from {op_type}")
        self.nodes.append(node)
        return node

    def _conv_transpose(self, name):
        """Walks back over ConvTranspose and the Add behind it, if any: (input's name, weights, bias or None)."""
        bias = None
        if self._producer[name].op_type == "Add":
            name, bias_name = self._step(name, "Add").input
            bias = self._constant(bias_name).reshape(-1)
        node = self._step(name, "ConvTranspose")
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        expected = dict(kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4, dilations=[1, 1], output_padding=[0, 0],
                        group=1)
        for key, value in expected.items():
            if attributes.get(key, value) != value:
                raise SystemExit(f"{node.name}: {key} = {attributes[key]}, but the example is written for {value}")
        if len(node.input) > 2:
            bias = self._constant(node.input[2])
        return node.input[0], self._constant(node.input[1]), bias

    def _constant(self, name):
        """A parameter: an initializer or, as Paddle2ONNX writes them, the output of a Constant node."""
        if name not in self._constants:
            node = self._producer[name]
            if node.op_type != "Constant":
                raise SystemExit(f"{name} comes from {node.op_type}; a constant was expected")
            self._constants[name] = numpy_helper.to_array(next(a.t for a in node.attribute if a.name == "value"))
        return self._constants[name]


def float64_head(x, p):
    """The head by its definition in float64: (probabilities, standard deviation of a float32 run around them).

    The deviation is a model of rounding, not a bound: every intermediate result v of a float32 run is off by an
    independent amount of at most 2^-24 |v|, evenly spread, and its variance passes through what follows. README.md says
    how the example's tolerance comes from it.
    """
    def up(x, w):  # kernel = stride: the taps of different inputs never meet, so that each output is one dot product
        y = np.einsum("nchw,cdij->ndhiwj", x, w)
        return y.reshape(y.shape[0], y.shape[1], y.shape[2] * 2, y.shape[4] * 2)

    def conv_transpose(x, w, b):
        """The result, and the sum of the squares of all partial sums on the way, each of which is rounded once."""
        total = squares = np.zeros(())
        for c in range(w.shape[0]):
            total = total + up(x[:, c:c + 1], w[c:c + 1])
            squares = squares + total**2
        total = total + per_channel(b)
        return total, squares + total**2

    def per_channel(v):
        return v[:, None, None]

    x, p = x.astype(np.float64), {name: array.astype(np.float64) for name, array in p.items()}
    b1, b2 = p.get("b1", np.zeros(p["w1"].shape[1])), p.get("b2", np.zeros(p["w2"].shape[1]))
    scale = p["gamma"] / np.sqrt(p["var"] + p["eps"])

    y, squares = conv_transpose(x, p["w1"], b1)
    hidden = np.maximum((y - per_channel(p["mean"])) * per_channel(scale) + per_channel(p["beta"]), 0)
    # The normalisation rounds its difference, its factor, its product and its sum.
    size = np.abs(y) + per_channel(np.abs(p["mean"]))
    variance = np.where(hidden > 0, (squares + 3 * size**2) * per_channel(scale)**2 + hidden**2, 0)

    logit, squares = conv_transpose(hidden, p["w2"], b2)
    variance = up(variance, p["w2"]**2) + squares
    probability = 1 / (1 + np.exp(-logit))
    deviation = 2.0**-24 / np.sqrt(3) * np.sqrt(variance) * probability * (1 - probability)
    return probability, deviation.max()


# ---------------------------------------------------------------------------------------------------------------------
# Running and writing
# ---------------------------------------------------------------------------------------------------------------------

def run(model, output, feed):
    """One tensor of \\p model by ONNX Runtime on one CPU thread, for the same bits every time."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run([output], feed)[0]


def with_extra_output(model, name):
    """A copy of \\p model that also returns its inner tensor \\p name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return copy


def extract_head(model_path, head):
    """The head as a model of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "head.onnx"
        onnx.utils.extract_model(str(model_path), str(path), [head.input], [head.output])
        return onnx.load(str(path))


def write_npy(path, array):
    """Format 1.0, float32, C order: all that npy.hpp reads and a little less than NumPy can."""
    assert array.dtype == np.float32 and array.flags.c_contiguous
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)


def find_model():
    """The detector inside the installed wheel. The package is not imported: that would need OpenCV."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None:
        raise SystemExit("give --model, or: pip install --no-deps rapidocr_onnxruntime==1.4.4")
    return Path(spec.submodule_search_locations[0]) / MODEL_IN_WHEEL


def parse_crop(text):
    """'X,Y,WIDTH,HEIGHT' in page pixels, on the grid of the feature map."""
    values = [int(value) for value in text.split(",")]
    if len(values) != 4 or any(value % HEAD_SCALE for value in values) or min(values[:2]) < 0 or min(values[2:]) <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not X,Y,WIDTH,HEIGHT in multiples of {HEAD_SCALE}")
    return values


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write, made if need be")
    parser.add_argument("--model", type=Path, help="the detector's ONNX file (default: from the installed wheel)")
    parser.add_argument("--image", type=Path, help="page to read (default: draw one)")
    parser.add_argument("--crop", nargs="?", const=DEFAULT_CROP, type=parse_crop, metavar="X,Y,WIDTH,HEIGHT",
                        help="keep only this part, in pixels of the resized page, multiples of 4 "
                             f"(without a value: {DEFAULT_CROP})")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    model_path = arguments.model or find_model()
    model = onnx.load(str(model_path))
    head = Head(model)
    print(f"model      {model_path.name}, sha256 {hashlib.sha256(model_path.read_bytes()).hexdigest()}")
    print(f"versions   onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, numpy {np.__version__}")
    print(f"head       {head.input} -> {' -> '.join(node.op_type for node in head.nodes)} -> {head.output}")

    # The whole page, always: the features of a crop depend on what surrounds it.
    page, network_input = preprocess(read_page(arguments.image) if arguments.image else draw_page())
    feed = {model.graph.input[0].name: network_input}
    features = run(with_extra_output(model, head.input), head.input, feed)
    whole_map = run(model, head.output, feed)

    x, y, width, height = arguments.crop or (0, 0, page.shape[1], page.shape[0])
    if x + width > page.shape[1] or y + height > page.shape[0]:
        raise SystemExit(f"the crop leaves the page, which is {page.shape[1]} x {page.shape[0]} after preprocessing")
    window = np.s_[:, :, y // HEAD_SCALE:(y + height) // HEAD_SCALE, x // HEAD_SCALE:(x + width) // HEAD_SCALE]
    head_input = np.ascontiguousarray(features[window])

    # The reference is the head run on the stored input, not a window of the whole map: the same numbers in exact
    # arithmetic, because k2 s2 never mixes neighbours, but not necessarily the same bits.
    expected = run(extract_head(model_path, head), head.output, {head.input: head_input})
    parameters = head.parameters()
    exact, deviation = float64_head(head_input, parameters)

    arguments.out.mkdir(parents=True, exist_ok=True)
    arrays = dict(head_input=head_input, **parameters, expected=expected)
    for name, array in arrays.items():
        write_npy(arguments.out / f"{name}.npy", array)
        print(f"wrote      {name}.npy {list(array.shape)}")
    Image.fromarray(page[y:y + height, x:x + width, ::-1]).save(arguments.out / "page.png", optimize=True)
    print(f"epsilon    {head.epsilon:.9g}")
    print(f"text       {(expected > 0.3).mean():.1%} of the pixels above rapidocr's threshold of 0.3")
    from_whole = np.abs(expected - whole_map[:, :, y:y + height, x:x + width]).max()
    print(f"differs    from the whole page's map by {from_whole:.2g}, from float64 by {np.abs(expected - exact).max():.2g} "
          f"(modelled standard deviation up to {deviation:.2g})")


if __name__ == "__main__":
    main()
