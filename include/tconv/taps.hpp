// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The arithmetic of one spatial axis of a transposed convolution: which tap of which input lands on which output.
///
/// Scatter form: input i and tap t reach output o = i*stride - padding + t*dilation, if 0 <= o < out.
///
/// *Phases.* Write o = q*stride + r with 0 <= r < stride: q is the **cell**, r the **phase**. Tap t lands on exactly one
/// phase, r = (t*dilation - padding) mod stride, and there it reads input i = q - shift, with
/// shift = floor((t*dilation - padding) / stride). All phases of a cell read the same neighbourhood of the input.
///
/// *Tap classes.* Neighbouring inputs whose landing taps are the same set form a class; there are at most 2*kernel + 1 of them per
/// axis, and a single one where nothing is cropped.
///
/// *Pooled axes.* Sums over windows of outputs are a transposed convolution again, where windows are a divisor of the stride apart:
/// its taps are sums of this one's.
///
/// Everything here is exact integer arithmetic, constexpr, for host and device.

#include "detail/config.hpp"

TCONV_NAMESPACE_BEGIN

/// floor(a / b) for b > 0.
TCONV_HOST_DEVICE constexpr int64_t floor_div(int64_t a, int64_t b)
{
  return a >= 0 ? a / b : -((-(a + 1)) / b) - 1;
}

/// ceil(a / b) for b > 0.
TCONV_HOST_DEVICE constexpr int64_t ceil_div(int64_t a, int64_t b)
{
  return a > 0 ? (a - 1) / b + 1 : a / b;
}

/// a mod b in [0, b) for b > 0.
TCONV_HOST_DEVICE constexpr int64_t floor_mod(int64_t a, int64_t b)
{
  const int64_t rest = a % b;
  return rest < 0 ? rest + b : rest;
}

/// Greatest common divisor of two positive numbers.
TCONV_HOST_DEVICE constexpr int64_t gcd(int64_t a, int64_t b)
{
  while (b != 0)
  {
    const int64_t rest = a % b;
    a                  = b;
    b                  = rest;
  }
  return a;
}

/// Inverse of a modulo m for coprime a >= 0, m >= 1 (0 for m = 1), by the extended Euclidean algorithm.
TCONV_HOST_DEVICE constexpr int64_t inverse_mod(int64_t a, int64_t m)
{
  int64_t r0 = m;
  int64_t r1 = a % m;
  int64_t s0 = 0;
  int64_t s1 = 1;
  while (r1 != 0)
  {
    const int64_t q  = r0 / r1;
    const int64_t r2 = r0 - q * r1;
    const int64_t s2 = s0 - q * s1;
    r0               = r1;
    r1               = r2;
    s0               = s1;
    s1               = s2;
  }
  return floor_mod(s0, m);
}

/// A half-open range of indices [begin, end); empty ranges are {0, 0}.
struct index_range
{
  int64_t begin = 0; ///< first index
  int64_t end   = 0; ///< one past the last index

  /// Number of indices.
  TCONV_HOST_DEVICE constexpr int64_t size() const { return end - begin; }
  /// No indices.
  TCONV_HOST_DEVICE constexpr bool empty() const { return end <= begin; }
  /// \p i is one of the indices.
  TCONV_HOST_DEVICE constexpr bool contains(int64_t i) const { return begin <= i && i < end; }
};

/// [begin, end) cut to [0, extent), normalised when empty.
TCONV_HOST_DEVICE constexpr index_range clip(int64_t begin, int64_t end, int64_t extent)
{
  index_range range{begin < 0 ? 0 : begin, end > extent ? extent : end};
  return range.empty() ? index_range{} : range;
}

/// The taps of one phase: first_tap, first_tap + tap_step, ... (count of them). The m-th reads input
/// cell - (first_shift + m * shift_step).
struct axis_phase
{
  int64_t first_tap   = 0; ///< smallest tap of the phase; meaningless where count is 0
  int64_t tap_step    = 1; ///< from one tap to the next: stride / gcd(dilation, stride)
  int64_t count       = 0; ///< number of taps, in [0, kernel]
  int64_t first_shift = 0; ///< shift of first_tap, in cells; may be negative
  int64_t shift_step  = 1; ///< from one shift to the next: dilation / gcd(dilation, stride)
};

/// Inputs [inputs.begin, inputs.end) are reached by exactly the taps [taps.begin, taps.end).
struct tap_class
{
  index_range inputs; ///< not empty
  index_range taps;   ///< may be empty: nothing lands
};

/// One spatial axis. Extents, stride, dilation and kernel are >= 1 (out may be 0), padding >= 0.
struct conv_axis
{
  int64_t in       = 1; ///< input extent
  int64_t out      = 1; ///< output extent
  int64_t kernel   = 1; ///< number of taps
  int64_t stride   = 1; ///< outputs from one input to the next
  int64_t padding  = 0; ///< outputs cropped at each end
  int64_t dilation = 1; ///< outputs from one tap to the next

  /// Phase of tap \p t, in [0, stride).
  TCONV_HOST_DEVICE constexpr int64_t tap_phase(int64_t t) const { return floor_mod(t * dilation - padding, stride); }

  /// Shift of tap \p t: on the outputs of its phase, cell q reads input q - shift. May be negative.
  TCONV_HOST_DEVICE constexpr int64_t tap_shift(int64_t t) const { return floor_div(t * dilation - padding, stride); }

  /// Smallest shift over all taps.
  TCONV_HOST_DEVICE constexpr int64_t min_shift() const { return tap_shift(0); }
  /// Largest shift over all taps.
  TCONV_HOST_DEVICE constexpr int64_t max_shift() const { return tap_shift(kernel - 1); }

  /// Number of cells: ceil(out / stride).
  TCONV_HOST_DEVICE constexpr int64_t cells() const { return ceil_div(out, stride); }

  /// Number of phases that hold at least one output.
  TCONV_HOST_DEVICE constexpr int64_t phases() const { return out < stride ? out : stride; }

  /// The taps that land on phase \p r.
  ///
  /// t*dilation = r + padding (mod stride) has solutions only if g = gcd(dilation, stride) divides r + padding; they are then
  /// one residue modulo stride / g.
  TCONV_HOST_DEVICE constexpr axis_phase phase(int64_t r) const
  {
    const int64_t g = gcd(dilation, stride);
    axis_phase result;
    result.tap_step   = stride / g;
    result.shift_step = dilation / g;
    if ((r + padding) % g != 0)
    {
      return result;
    }
    const int64_t m  = result.tap_step;
    result.first_tap = multiply_mod(((r + padding) / g) % m, inverse_mod(dilation / g, m), m);
    if (result.first_tap < kernel)
    {
      result.count       = (kernel - 1 - result.first_tap) / m + 1;
      result.first_shift = tap_shift(result.first_tap);
    }
    return result;
  }

  /// Taps that land when the input index is \p i.
  TCONV_HOST_DEVICE constexpr index_range landing_taps(int64_t i) const
  {
    const int64_t origin = i * stride - padding;
    return clip(ceil_div(-origin, dilation), floor_div(out - 1 - origin, dilation) + 1, kernel);
  }

  /// Inputs that land when the tap is \p t.
  TCONV_HOST_DEVICE constexpr index_range landing_inputs(int64_t t) const
  {
    const int64_t origin = t * dilation - padding;
    return clip(ceil_div(-origin, stride), floor_div(out - 1 - origin, stride) + 1, in);
  }

  /// The tap class that contains input \p i, starting at \p i: the largest run i, i+1, ... with the same landing taps.
  ///
  /// Both ends of the landing interval fall as i grows, so the run ends at the first index where either one moves.
  TCONV_HOST_DEVICE constexpr tap_class class_from(int64_t i) const
  {
    tap_class result;
    result.taps         = landing_taps(i);
    result.inputs.begin = i;
    int64_t end         = in;
    if (result.taps.empty())
    {
      // Nothing lands: below the output, past it, or because the dilation steps over it. The run ends where the next input
      // of any tap lands.
      for (int64_t t = 0; t < kernel; ++t)
      {
        const index_range landing = landing_inputs(t);
        if (landing.begin > i && landing.begin < end)
        {
          end = landing.begin;
        }
      }
    }
    else
    {
      if (result.taps.begin > 0)
      {
        // The lower end moves once tap (begin - 1) also reaches output 0 or more.
        const int64_t next = ceil_div(padding - (result.taps.begin - 1) * dilation, stride);
        end                = next < end ? next : end;
      }
      // The upper end moves once tap (end - 1) passes the last output.
      const int64_t next = floor_div(out - 1 + padding - (result.taps.end - 1) * dilation, stride) + 1;
      end                = next < end ? next : end;
    }
    result.inputs.end = end;
    return result;
  }

  /// Number of tap classes, at least 1.
  TCONV_HOST_DEVICE constexpr int64_t class_count() const
  {
    int64_t count = 0;
    for (int64_t i = 0; i < in; i = class_from(i).inputs.end)
    {
      ++count;
    }
    return count;
  }

  /// The \p index-th tap class, 0 <= index < class_count().
  TCONV_HOST_DEVICE constexpr tap_class class_at(int64_t index) const
  {
    int64_t i = 0;
    for (; index > 0; --index)
    {
      i = class_from(i).inputs.end;
    }
    return class_from(i);
  }

  /// The axis whose outputs are the sums of \p size >= 1 neighbouring outputs of this one, \p step apart, with \p step a divisor of
  /// the stride; windows that stick out are dropped.
  ///
  /// Output j of it sums the outputs [j*step, j*step + size). Input i and tap t reach that where 0 <= i*stride + shift - j*step < size
  /// with shift = t*dilation - padding: with i*stride = i*(stride/step)*step for the j = i*(stride/step) + u that have
  /// 0 <= shift - u*step < size. So its taps are the range of u that any t reaches, and its stride is stride/step.
  TCONV_HOST_DEVICE constexpr conv_axis pooled(int64_t size, int64_t step) const
  {
    conv_axis result;
    result.in      = in;
    result.out     = out < size ? 0 : (out - size) / step + 1;
    result.stride  = stride / step;
    result.padding = -first_pooled_tap(size, step);
    result.kernel  = floor_div((kernel - 1) * dilation - padding, step) + result.padding + 1;
    return result;
  }

  /// The taps of this axis that are summed to tap \p u of pooled(size, step).
  TCONV_HOST_DEVICE constexpr index_range pooled_taps(int64_t size, int64_t step, int64_t u) const
  {
    const int64_t origin = (first_pooled_tap(size, step) + u) * step + padding;
    return clip(ceil_div(origin, dilation), ceil_div(origin + size, dilation), kernel);
  }

  /// a * b mod m without overflow for 0 <= a, b < m < 2^62.
  TCONV_HOST_DEVICE static constexpr int64_t multiply_mod(int64_t a, int64_t b, int64_t m)
  {
    if (m <= (int64_t{1} << 31))
    {
      return a * b % m;
    }
    int64_t result = 0;
    for (; b > 0; b >>= 1)
    {
      if (b & 1)
      {
        result = (result + a) % m;
      }
      a = (a + a) % m;
    }
    return result;
  }

private:
  /// Least u with 0 <= t*dilation - padding - u*step < size for any t; never positive.
  TCONV_HOST_DEVICE constexpr int64_t first_pooled_tap(int64_t size, int64_t step) const
  {
    return floor_div(-padding - size, step) + 1;
  }
};

TCONV_NAMESPACE_END
