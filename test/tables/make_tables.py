# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes functor_tables.hpp: values of the functors from mpmath, in 60 digits, rounded once to double.

    python make_tables.py            # needs mpmath and numpy

Arguments and operands are fp32 numbers; a functor's exact value of that very number is what both its fp32 form and its double
reference are tested against. Definitions are written here from PyTorch's documentation, not from tconv.
"""

import math
import pathlib

import mpmath as mp
import numpy as np

mp.mp.dps = 60
INF, NAN = math.inf, math.nan

# Magnitudes of the arguments; each is used with both signs. The tails matter: where the results of sigmoid become subnormal
# (88 to 104) or 0, where the lower tails of gelu (13 to 15) and its tanh form (9 to 11) do, and the whole range of fp32.
MAGNITUDES = [
    0.0, 1.4e-45, 1e-40, 1.1754944e-38, 1e-30, 1e-10, 1e-4, 0.01, 0.1, 0.25, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 5.5,
    6.6015625, 7.33203125, 7.80078125, 7.84765625, 8.5, 9.0, 9.7, 10.0, 10.5, 12.0, 13.0, 14.0, 14.4, 15.0, 17.0, 20.0, 50.0,
    80.0, 87.3, 88.5, 95.0, 100.0, 103.0, 103.9, 104.5, 120.0, 1e3, 1e10, 1e30, 3.4e38, INF,
]  # fmt: skip


def f32(v):
    return float(np.float32(v))


def relu(v):
    return mp.mpf(max(v, 0.0))


def leaky_relu(slope):
    return lambda v: mp.mpf(v) if v >= 0 else mp.mpf(v) * mp.mpf(f32(slope))


def clamp(low, high):
    return lambda v: mp.mpf(min(max(v, low), high))


def sigmoid(v):
    return 1 / (1 + mp.exp(-mp.mpf(v)))


def gelu(v):
    v = mp.mpf(v)
    return v / 2 * mp.erfc(-v / mp.sqrt(2))


def gelu_tanh(v):
    # 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)), without the cancellation.
    v = mp.mpf(v)
    u = mp.sqrt(2 / mp.pi) * (v + mp.mpf("0.044715") * v**3)
    return v / (1 + mp.exp(-2 * u))


def silu(v):
    return mp.mpf(v) * sigmoid(v)


def hardsigmoid(v):
    return mp.mpf(min(max(mp.mpf(v) + 3, 0), 6)) / 6


def softplus(v):
    # log(1 + exp(v)) with the larger term taken out: 60 digits say nothing of exp(-1000) beside 1.
    v = mp.mpf(v)
    return max(v, mp.mpf(0)) + mp.log1p(mp.exp(-abs(v)))


def mish(v):
    # tanh(log(w)) = (w - 1/w) / (w + 1/w) with w = 1 + exp(v); w^2 - 1 = exp(v) (2 + exp(v)).
    v = mp.mpf(v)
    e = mp.exp(min(v, mp.mpf(1000)))
    return v * (e * (2 + e)) / (e * (2 + e) + 2)


def elu(alpha):
    return lambda v: mp.mpf(v) if v >= 0 else mp.mpf(f32(alpha)) * mp.expm1(mp.mpf(v))


# name, function, limits at -inf and +inf
POINTWISE = [
    ("relu", relu, 0.0, INF),
    ("leaky_relu", leaky_relu(0.01), -INF, INF),
    ("leaky_relu_02", leaky_relu(0.2), -INF, INF),
    ("sigmoid", sigmoid, 0.0, 1.0),
    ("tanh", lambda v: mp.tanh(mp.mpf(v)), -1.0, 1.0),
    ("gelu", gelu, 0.0, INF),
    ("gelu_tanh", gelu_tanh, 0.0, INF),
    ("silu", silu, 0.0, INF),
    ("clamp_0_1", clamp(0.0, 1.0), 0.0, 1.0),
    ("clamp_m2_25", clamp(-2.0, 2.5), -2.0, 2.5),
    ("clamp_2_1", clamp(2.0, 1.0), 1.0, 1.0),  # low > high: torch.clamp gives high
    ("hardsigmoid", hardsigmoid, 0.0, 1.0),
    ("hardswish", lambda v: mp.mpf(v) * hardsigmoid(v), 0.0, INF),
    ("softplus", softplus, 0.0, INF),
    ("log_sigmoid", lambda v: -softplus(-v), -INF, 0.0),
    ("mish", mish, 0.0, INF),
    ("elu", elu(1.0), -1.0, INF),
    ("elu_17", elu(1.7), -f32(1.7), INF),
    ("exponential", lambda v: mp.exp(mp.mpf(v)), 0.0, INF),
    ("minimum_m15", lambda v: mp.mpf(min(v, -1.5)), -INF, -1.5),
    ("maximum_m15", lambda v: mp.mpf(max(v, -1.5)), -1.5, INF),
]

# v, factor, offset
LINEAR = [
    (0.0, 1.0, 0.0), (1.0, 2.0, 3.0), (-1.5, 0.1, 0.2), (0.1, 0.3, -0.03), (1e-3, -7.7, 1e3), (1e30, 1e-30, 1.0),
    (1e-30, 1e30, -1.0), (123456.7, 1.0 / 3.0, -41152.2), (1e-40, 1.0, 1e-40), (1e-20, 1e-20, 1e-42), (1e38, 0.5, 1.5e38),
    (-3.25, 4.0, 13.0),
]  # fmt: skip

# v, mean, variance, gamma, beta, eps
BATCH_NORM = [
    (1.0, 0.0, 1.0, 1.0, 0.0, 0.0), (1.0, 0.0, 1.0, 1.0, 0.0, 1e-5), (53.5, 50.0, 4.0, 1.0, 0.0, 1e-5),
    (55.0, 60.0, 16.0, 2.0, 1.0, 1e-5), (259.0, 200.0, 25.0, -1.0, 2.0, 1e-5), (264.0, 210.0, 100.0, 3.0, 3.0, 1e-5),
    (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), (65536.125, 65536.0, 0.015625, 1.0, 0.0, 1e-5), (1e-3, -1e-3, 1e-12, 0.7, -0.2, 1e-5),
    (1e-3, -1e-3, 0.0, 0.7, -0.2, 1e-5), (1e15, -1e15, 1e30, 0.5, 0.25, 1e-3), (2.5, 2.5, 0.7, 1.3, -0.6, 1e-5),
    (7.0, 7.0, 0.0, 3.0, 0.125, 0.0), (9.0, 7.0, 0.0, 3.0, 0.125, 0.0), (-3.7, 1.9, 12.5, 0.0, 0.3, 1e-5),
]  # fmt: skip

# Rows of logits.
SOFTMAX = [
    [0.0], [-5.0], [0.0, 0.0], [0.0, 1.0], [1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 0.25, -0.125, 3.0],
    [88.0, 89.0, 90.0, 91.0], [-1000.0, 0.0, 1000.0], [-1e7, -1e7, -1e7 + 1], [3e38, -3e38, 3e38],
    [-40.11, 94.7, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [-80.0, -90.0, -100.0, -110.0, -180.0],
    [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [1e-40, 0.0, -1e-40], [-INF, 0.0, 1.0], [-INF, -INF, -3.0, -INF],
    [-1e7, -1e7, -1e7], [-1e7, -1e7 + 1, -1e7 + 1], [-30000.0, -30000.0, -29984.0], [3.0, -20.0, -30.0],
]  # fmt: skip

# Rows of channels for the reductions and for layer normalisation: offsets that swallow the differences, cancelling sums, tails.
CHANNELS = [
    [0.0], [-5.0], [0.25, 0.25], [1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 0.25, -0.125, 3.0], [1e30, -1e30, 1.0],
    [65536.125, 65535.875, 65536.125, 65535.875], [1e4 + 0.5, 1e4, 1e4 - 0.25, 1e4 + 1.0, 1e4], [1e-30, -2e-30, 3e-30],
    [1e-40, 0.0, -3e-40], [0.1, 0.1, 0.1], [1e7, 1e7, 1e7, 1e7, 1e7, 1e7, 1e7], [-0.7, 0.3, 0.9, -1.3, 0.2, 2.1, -0.4, 0.6],
    [1e15, -1e15, 2e15], [100.0, 0.1, -0.2, 0.3, 0.05, -0.15, 0.25, 0.0], [-3.0, -2.0], [1e-3, 2e-3, 1.0],
]  # fmt: skip
GAMMA = [1.5, -0.75, 0.3, 2.0, -1.0, 0.0, 0.125, 3.7]
BETA = [0.1, -0.2, 0.0, 4.0, -0.5, 0.7, 1e-3, 10.0]
EPS = [1e-5, 0.0]
WIDTH = max(map(len, SOFTMAX))


def softmax(row):
    peak = max(row)
    e = [mp.mpf(0) if v == -INF else mp.exp(mp.mpf(v) - mp.mpf(peak)) for v in row]
    return [v / sum(e) for v in e]


def logsumexp(row):
    peak = mp.mpf(max(row))
    return peak + mp.log(sum(mp.mpf(0) if v == -INF else mp.exp(mp.mpf(v) - peak) for v in row))


def log_softmax(row):
    # Logits are fp32 numbers: 60 digits hold their differences exactly.
    total = logsumexp(row)
    return [-INF if v == -INF else mp.mpf(v) - total for v in row]


def layer_norm(row, eps):
    row, eps = [mp.mpf(v) for v in row], mp.mpf(f32(eps))
    mean = sum(row) / len(row)
    radicand = sum((v - mean) ** 2 for v in row) / len(row) + eps
    gamma, beta = ([mp.mpf(f32(v)) for v in values] for values in (GAMMA, BETA))
    return [b if radicand == 0 else g * (v - mean) / mp.sqrt(radicand) + b for v, g, b in zip(row, gamma, beta)]


def deviation(row):
    row = [mp.mpf(v) for v in row]
    mean = sum(row) / len(row)
    return mp.sqrt(sum((v - mean) ** 2 for v in row) / len(row))


def single(v):
    v = f32(v)
    if math.isinf(v):
        return "inf" if v > 0 else "-inf"
    text = str(np.float32(v))  # the shortest decimal that reads back as this float
    return "nan" if math.isnan(v) else (text if any(c in text for c in ".e") else text + ".0") + "f"


def double(v):
    v = float(v)
    if math.isinf(v):
        return "inf" if v > 0 else "-inf"
    return "nan" if math.isnan(v) else repr(v)


def batch_norm(v, mean, variance, gamma, beta, eps):
    v, mean, variance, gamma, beta, eps = (mp.mpf(f32(x)) for x in (v, mean, variance, gamma, beta, eps))
    return beta if variance + eps == 0 else gamma * (v - mean) / mp.sqrt(variance + eps) + beta


def main():
    out = [
        "// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception",
        "#pragma once",
        "// clang-format off",
        "",
        "/// \\file",
        f"/// Generated by make_tables.py with mpmath {mp.__version__} in {mp.mp.dps} digits; do not edit.",
        "/// Values of the functors at fp32 arguments, rounded once to double.",
        "",
        "#include <limits>",
        "",
        "namespace tconv_test",
        "{",
        "namespace tables",
        "{",
        "",
        "inline constexpr float inf = std::numeric_limits<float>::infinity();",
        "inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();",
        "",
        "/// One argument and what each pointwise functor makes of it; clamp_m2_25 is clamp(-2, 2.5).",
        "struct pointwise_row",
        "{",
        "  float v;",
    ]
    out += [f"  double {name};" for name, *_ in POINTWISE]
    out += ["};", "", "inline constexpr pointwise_row pointwise[] = {"]
    for v in [f32(s * m) for m in MAGNITUDES for s in (1.0, -1.0)]:
        values = [(high if v > 0 else low) if math.isinf(v) else f(v) for _, f, low, high in POINTWISE]
        out.append("  {" + ", ".join([single(v)] + [double(x) for x in values]) + "},")
    out += ["  {" + ", ".join(["nan"] * (1 + len(POINTWISE))) + "},"]
    out += ["};", "", "/// v + offset, v * factor, factor * v + offset.", "struct linear_row", "{"]
    out += ["  float v, factor, offset;", "  double bias, scale, affine;", "};", "", "inline constexpr linear_row linear[] = {"]
    for row in LINEAR:
        v, factor, offset = (mp.mpf(f32(x)) for x in row)
        out.append("  {" + ", ".join([single(x) for x in row] + [double(x) for x in (v + offset, v * factor, factor * v + offset)]) + "},")
    out += ["};", "", "/// gamma * (v - mean) / sqrt(variance + eps) + beta, and beta where variance + eps = 0.", "struct batch_norm_row", "{"]
    out += ["  float v, mean, variance, gamma, beta, eps;", "  double value;", "};", "", "inline constexpr batch_norm_row batch_norm[] = {"]
    out += ["  {" + ", ".join([single(x) for x in row] + [double(batch_norm(*row))]) + "}," for row in BATCH_NORM]
    out += ["};", "", "/// A row of channels, its softmax, log-softmax and logsumexp.", "struct softmax_row", "{", "  int channels;"]
    out += [f"  float logits[{WIDTH}];", f"  double values[{WIDTH}];", f"  double logarithms[{WIDTH}];", "  double logsumexp;"]
    out += ["};", "", "inline constexpr softmax_row softmax[] = {"]
    for row in SOFTMAX:
        row = [f32(v) for v in row]
        logits, values, logarithms = (
            ", ".join(map(form, data)) for form, data in ((single, row), (double, softmax(row)), (double, log_softmax(row)))
        )
        out.append(f"  {{{len(row)}, {{{logits}}}, {{{values}}}, {{{logarithms}}}, {double(logsumexp(row))}}},")
    out += ["};", "", "/// Operands of the layer normalisations below."]
    for name, data in ("gamma", GAMMA), ("beta", BETA):
        out += [f"inline constexpr float layer_norm_{name}[] = {{{', '.join(map(single, data))}}};"]
    out += [f"inline constexpr float layer_norm_eps[] = {{{', '.join(map(single, EPS))}}};"]
    out += ["", "/// A row of channels, its reductions, its standard deviation (biased) and its layer normalisations, one per eps."]
    out += ["struct channel_row", "{", "  int channels;", f"  float v[{len(GAMMA)}];", "  double min, max, sum, mean, deviation;"]
    out += [f"  double layer_norm[{len(EPS)}][{len(GAMMA)}];", "};", "", "inline constexpr channel_row channels[] = {"]
    for row in CHANNELS:
        row = [f32(v) for v in row]
        total = sum(map(mp.mpf, row))
        numbers = [min(row), max(row), total, total / len(row), deviation(row)]
        norms = ", ".join("{" + ", ".join(map(double, layer_norm(row, eps))) + "}" for eps in EPS)
        out.append(f"  {{{len(row)}, {{{', '.join(map(single, row))}}}, {', '.join(map(double, numbers))}, {{{norms}}}}},")
    out += ["};", "", "} // namespace tables", "} // namespace tconv_test"]
    path = pathlib.Path(__file__).with_name("functor_tables.hpp")
    path.write_text("\n".join(out) + "\n")
    print(f"{path}: {2 * len(MAGNITUDES) + 1} arguments, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
