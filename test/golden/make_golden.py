# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes golden.hpp: the two headline pipelines computed by PyTorch in float64 on the CPU.

    python make_golden.py            # half a minute on two cores, 3 GiB

P1: ConvTranspose3d(32 -> 64, k3, s2, p1, op1, bias) -> softmax over channels -> sigmoid
P2: ConvTranspose3d(64 -> 128, k5, bias) -> * 2 -> BatchNorm3d (eval, train) -> mean over space

The inputs are float32 values of the counter-based generator (uniform.py), so that C++ builds exactly the same ones
(golden_inputs.hpp). eps and momentum are the float32 values nearest to 1e-5 and 0.1, because tconv takes them as floats.
"""

import argparse
import pathlib
import resource
import time

import numpy as np
import torch
import torch.nn.functional as F

from uniform import sample_index, uniform

EPS = float(np.float32(1e-5))
MOMENTUM = float(np.float32(0.1))

# seed, low, high of every tensor; the generator's index is the flat index in C order.
TENSORS = {
    "p1_x": (101, 0.0, 1.0),  # [batch, 32, depth, height, width]
    "p1_weight": (102, -1.0, 1.0),  # [32, 64, 3, 3, 3]
    "p1_bias": (103, -1.0, 1.0),  # [64]
    "p2_x": (201, 0.0, 1.0),  # [batch, 64, depth, height, width]
    "p2_weight": (202, -0.015625, 0.015625),  # [64, 128, 5, 5, 5]
    "p2_bias": (203, -1.0, 1.0),  # [128]
    "p2_gamma": (204, 0.5, 1.5),  # [128]
    "p2_beta": (205, -1.0, 1.0),  # [128]
    "p2_running_mean": (206, -1.0, 1.0),  # [128], before the step
    "p2_running_var": (207, 0.5, 1.5),  # [128], before the step
}
SAMPLE_SEED = 104
SAMPLES = 4096
P1_EXTENTS = {"full": (16, 16, 32, 32), "reduced": (2, 3, 5, 4)}  # batch, depth, height, width of x
P2_EXTENTS = {"full": (16, 16, 32, 32), "reduced": (3, 2, 3, 4)}


def tensor(name, shape):
    """float64 tensor of float32 values."""
    seed, low, high = TENSORS[name]
    return torch.from_numpy(uniform(seed, shape, low, high)).double()


def run_p1(extents):
    """Logits and outputs at the sampled positions, and the mean over positions of the largest softmax value."""
    batch, depth, height, width = extents
    x = torch.from_numpy(uniform(TENSORS["p1_x"][0], (batch, 32, depth, height, width), *TENSORS["p1_x"][1:]))
    weight, bias = tensor("p1_weight", (32, 64, 3, 3, 3)), tensor("p1_bias", (64,))
    per_sample = 64 * 8 * depth * height * width
    index = sample_index(SAMPLE_SEED, SAMPLES, batch * per_sample)
    logits, outputs, peaks = np.empty(SAMPLES), np.empty(SAMPLES), []
    for n in range(batch):  # sample by sample: the whole output in float64 would be 1 GiB
        y = F.conv_transpose3d(x[n : n + 1].double(), weight, bias, stride=2, padding=1, output_padding=1)
        p = torch.softmax(y, dim=1)
        peaks.append(p.amax(dim=1).mean().item())
        here = index // per_sample == n
        flat = torch.from_numpy(index[here] - n * per_sample)
        logits[here] = y.flatten()[flat].numpy()
        outputs[here] = torch.sigmoid(p).flatten()[flat].numpy()
    return {"logits": logits, "outputs": outputs}, float(np.mean(peaks))


def run_p2(extents):
    """Outputs in eval and in train mode, and the running statistics after one step."""
    batch, depth, height, width = extents
    x = torch.from_numpy(uniform(TENSORS["p2_x"][0], (batch, 64, depth, height, width), *TENSORS["p2_x"][1:]))
    weight, bias = tensor("p2_weight", (64, 128, 5, 5, 5)), tensor("p2_bias", (128,))
    gamma, beta = tensor("p2_gamma", (128,)), tensor("p2_beta", (128,))
    mean, var = tensor("p2_running_mean", (128,)), tensor("p2_running_var", (128,))
    y = torch.cat([F.conv_transpose3d(x[n : n + 1].double(), weight, bias) * 2.0 for n in range(batch)])
    evaluated = F.batch_norm(y, mean, var, gamma, beta, training=False, eps=EPS)
    result = {"eval": evaluated.mean(dim=(2, 3, 4)).flatten().numpy()}
    del evaluated
    trained = F.batch_norm(y, mean, var, gamma, beta, training=True, momentum=MOMENTUM, eps=EPS)
    result["train"] = trained.mean(dim=(2, 3, 4)).flatten().numpy()
    result["running_mean"], result["running_var"] = mean.numpy(), var.numpy()
    return result


def array(name, values):
    # 14 significant digits: within 5e-14 relative of what PyTorch computed.
    text = [f"{v:.14g}" for v in values]
    lines, line = [], " "
    for t in text:
        t = t if any(c in t for c in ".en") else t + ".0"
        if len(line) + len(t) + 2 > 122:
            lines.append(line)
            line = " "
        line += f" {t},"
    lines.append(line)
    return f"inline constexpr double {name}[{len(values)}] = {{\n" + "\n".join(lines) + "\n};\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=pathlib.Path(__file__).with_name("golden.hpp"), type=pathlib.Path)
    arguments = parser.parse_args()
    torch.set_num_threads(2)

    arrays, notes = [], []
    for pipeline, run, table in (("p1", run_p1, P1_EXTENTS), ("p2", run_p2, P2_EXTENTS)):
        for size, extents in table.items():
            start = time.time()
            results = run(extents)
            if pipeline == "p1":
                results, peak = results
                notes.append(f"{pipeline} {size}: the largest softmax value of a row averages {peak:.3f}")
            arrays += [array(f"{pipeline}_{size}_{key}", values) for key, values in results.items()]
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(f"{pipeline} {size}: {time.time() - start:.1f} s, peak memory so far {used:.2f} GiB", flush=True)

    out = [
        "// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception",
        "#pragma once",
        "// clang-format off",
        "",
        "/// \\file",
        f"/// Generated by make_golden.py with PyTorch {torch.__version__} in float64 on the CPU; do not edit.",
        "///",
        "/// P1: ConvTranspose3d(32 -> 64, k3, s2, p1, op1, bias) -> softmax over channels -> sigmoid. logits: after the bias,",
        "/// outputs: after the sigmoid, both at the flat index sample_index(sample_seed, j, elements of y) (uniform.hpp), j = 0,",
        f"/// 1, ..., {SAMPLES - 1}, y [batch, 64, 2 * depth, 2 * height, 2 * width] channels first.",
        "///",
        "/// P2: ConvTranspose3d(64 -> 128, k5, bias) -> * 2 -> BatchNorm3d -> mean over space. eval, train: [batch, 128];",
        "/// running_mean, running_var: [128] after one step in train mode, from the buffers that the generator makes.",
        f"/// eps = {EPS!r}, momentum = {MOMENTUM!r} (1e-5 and 0.1 rounded to float).",
        "///",
        "/// Values carry 14 significant digits.",
    ]
    out += [f"/// {note}." for note in notes]
    out += [
        "///",
        "/// Inputs: every tensor is uniform(seed, flat index, low, high) with the source below, full and reduced extents alike;",
        "/// golden_inputs.hpp builds them.",
        "",
        '#include "../common/uniform.hpp"',
        "",
        "#include <cstdint>",
        "",
        "namespace tconv_test",
        "{",
        "namespace golden",
        "{",
        "",
        "/// Which values of the generator make a tensor.",
        "struct source",
        "{",
        "  std::uint32_t seed;",
        "  float low;",
        "  float high;",
        "",
        "  /// Element at flat index \\p i.",
        "  TCONV_TEST_HOST_DEVICE constexpr float operator()(std::uint64_t i) const { return uniform(seed, i, low, high); }",
        "};",
        "",
        "/// Extents of the input of a problem.",
        "struct extents",
        "{",
        "  std::int64_t batch;",
        "  std::int64_t depth;",
        "  std::int64_t height;",
        "  std::int64_t width;",
        "};",
        "",
    ]
    out += [f"inline constexpr source {n}{{{s}, {lo!r}f, {hi!r}f}};" for n, (s, lo, hi) in TENSORS.items()]
    for pipeline, table in (("p1", P1_EXTENTS), ("p2", P2_EXTENTS)):
        out += [f"inline constexpr extents {pipeline}_{n}{{{', '.join(map(str, e))}}};" for n, e in table.items()]
    out += [f"inline constexpr std::uint32_t sample_seed = {SAMPLE_SEED};", f"inline constexpr int samples = {SAMPLES};"]
    out += ["inline constexpr float p2_scale = 2.0f;", "inline constexpr float eps = 1e-5f;", "inline constexpr float momentum = 0.1f;", ""]
    text = "\n".join(out) + "\n" + "\n".join(arrays) + "\n} // namespace golden\n} // namespace tconv_test\n"
    arguments.output.write_text(text)
    print(f"{arguments.output}: {len(text) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
