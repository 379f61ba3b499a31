// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// Moments of a transposed convolution's outputs from lagged products of its input: which sums there are, and what
/// becomes of them.
///
/// Per axis, tap t brings input i to the output that tap u brings input i + lag(t, u) to, where both are of one phase;
/// both land for i in a range. Over all axes the sum over outputs of z^2 is therefore
///
///     sum over (ci, t), (cj, u) of w[ci, t] w[cj, u] * (sum over i in a box of x[ci, i] x[cj, i + lag]).
///
/// Ranges of the same lag overlap: cut where any begins or ends they are unions of *segments*, boxes unions of *cells*.
/// Products of x are summed cell by cell, once for all output channels. The cell of -lag mirrors that of lag with
/// channels exchanged, so half of them are summed.

#include "../layout.hpp"
#include "../shape.hpp"
#include "../tuning/lagged.hpp"

TCONV_NAMESPACE_BEGIN

/// Inputs [begin, end) of an axis, each with the one \p lag further on, which exists.
struct lag_segment
{
  int lag    = 0;
  int begin  = 0;
  int end    = 0;
  int mirror = 0; ///< number of the segment of -lag that pairs the same inputs

  /// Pairs.
  TCONV_HOST_DEVICE int size() const { return end - begin; }
};

/// Taps \p first and \p second of an axis, of one phase, and the segments [from, to) in which both land.
struct tap_pair
{
  short first  = 0;
  short second = 0;
  short from   = 0;
  short to     = 0;
};

/// Pairs of taps of an axis and segments, sorted by lag and begin.
struct lagged_axis
{
  static constexpr int most_taps     = tuning::lagged_policy::most_taps;
  static constexpr int most_segments = tuning::lagged_policy::most_segments;

  int in       = 1;
  int kernel   = 1;
  int pairs    = 0;
  int segments = 0;
  tap_pair pair[most_taps * most_taps];
  lag_segment segment[most_segments];
};

/// What the kernels need besides pointers. Channels are taken in tiles of \p tile; a *cell* is a segment of each axis.
struct lagged_problem
{
  lagged_axis axis[3];
  tensor_strides x;
  int64_t batch        = 0;
  int64_t in_channels  = 1;
  int64_t out_channels = 1;
  double outputs       = 0; ///< values of an output channel
  int tile             = 1;
  int tiles            = 1;         ///< of channels
  int parts[3]         = {1, 1, 1}; ///< pieces of a sample along each axis
  int reach[3]         = {};        ///< the largest lag of each axis
  /// Sums of a cell and a pair of tiles: products, then values of the first and of the second tile.
  TCONV_HOST_DEVICE int sums_per_item() const { return tile * (tile + 2); }
  TCONV_HOST_DEVICE int cells() const { return axis[0].segments * axis[1].segments * axis[2].segments; }
  TCONV_HOST_DEVICE int items() const { return cells() * tiles * tiles; }
  /// Sums of all items.
  TCONV_HOST_DEVICE int64_t sums() const { return static_cast<int64_t>(items()) * sums_per_item(); }
  TCONV_HOST_DEVICE int64_t pieces() const { return batch * parts[0] * parts[1] * parts[2]; }
  /// Inputs along axis \p a that pieces have at most, and with what lags reach beyond: forward alone along the first
  /// axis, see summed().
  TCONV_HOST_DEVICE int piece_extent(int a) const { return (axis[a].in - 1) / parts[a] + 1; }
  TCONV_HOST_DEVICE int staged_extent(int a) const
  {
    const int reached = piece_extent(a) + (a == 0 ? 1 : 2) * reach[a];
    return reached < axis[a].in ? reached : axis[a].in;
  }
  /// Bytes of a piece in shared memory: four floats per tile and position.
  TCONV_HOST_DEVICE int64_t staged_bytes() const
  {
    return static_cast<int64_t>(16) * tiles * staged_extent(0) * staged_extent(1) * staged_extent(2);
  }
  /// Pairs of taps of all axes.
  TCONV_HOST_DEVICE int pairs() const { return axis[0].pairs * axis[1].pairs * axis[2].pairs; }
  /// Elements of the Gram matrix.
  TCONV_HOST_DEVICE int64_t gram_elements() const { return pairs() * in_channels * in_channels; }

  /// Segment of axis \p a in cell number \p cell.
  TCONV_HOST_DEVICE int segment_of(int cell, int a) const
  {
    return a == 2 ? cell % axis[2].segments
         : a == 1 ? cell / axis[2].segments % axis[1].segments
                  : cell / axis[2].segments / axis[1].segments;
  }
  /// The cell that is segments \p d, \p h and \p w.
  TCONV_HOST_DEVICE int cell_of(int d, int h, int w) const { return (d * axis[1].segments + h) * axis[2].segments + w; }
  /// Of a cell and its mirror one is summed: that whose first lag other than 0 is positive.
  TCONV_HOST_DEVICE bool summed(int cell) const
  {
    for (int a = 0; a < 3; ++a)
    {
      const int lag = axis[a].segment[segment_of(cell, a)].lag;
      if (lag != 0)
      {
        return lag > 0;
      }
    }
    return true;
  }

  /// Taps of all axes in pair number \p pair: the first of each where \p second is false.
  TCONV_HOST_DEVICE int64_t tap_of(int pair, bool second) const
  {
    int64_t tap = 0;
    for (int a = 0; a < 3; ++a)
    {
      const tap_pair p = pair_of(pair, a);
      tap              = tap * axis[a].kernel + (second ? p.second : p.first);
    }
    return tap;
  }

  /// Where the sum number \p k of item (\p cell, tiles \p first and \p second) stands among all.
  TCONV_HOST_DEVICE int64_t sum_of(int cell, int first, int second, int k) const
  {
    return ((static_cast<int64_t>(cell) * tiles + first) * tiles + second) * sums_per_item() + k;
  }

  /// Cells that the box of \p pair consists of.
  TCONV_HOST_DEVICE int cells_of(int pair) const
  {
    int count = 1;
    for (int a = 0; a < 3; ++a)
    {
      const tap_pair p = pair_of(pair, a);
      count *= p.to - p.from;
    }
    return count;
  }
  /// What cell number \p number of its box adds to element (pair, ci, cj) of the Gram matrix, the sum over the box of
  /// x[ci, i] x[cj, i + lag], from the sums of x - centre. \p sums [sum_of()].
  TCONV_HOST_DEVICE double gram(const double* sums, const float* centres, int pair, int ci, int cj, int number) const
  {
    const box_cell at   = cell_in_box(pair, number);
    const int cell      = cell_of(at.segment[0], at.segment[1], at.segment[2]);
    const bool straight = summed(cell);
    const int from      = straight ? cell
                                   : cell_of(axis[0].segment[at.segment[0]].mirror,
                                        axis[1].segment[at.segment[1]].mirror,
                                        axis[2].segment[at.segment[2]].mirror);
    const int first     = straight ? ci : cj;
    const int second    = straight ? cj : ci;
    const int row       = first % tile;
    const int column    = second % tile;
    const double* s     = sums + sum_of(from, first / tile, second / tile, 0);

    const double first_sum  = s[tile * tile + row];
    const double second_sum = s[tile * tile + tile + column];
    const double sum_i      = straight ? first_sum : second_sum;
    const double sum_j      = straight ? second_sum : first_sum;
    const auto centre_i     = static_cast<double>(centres[ci]);
    const auto centre_j     = static_cast<double>(centres[cj]);
    return s[row * tile + column] + centre_j * sum_i + centre_i * sum_j + centre_i * centre_j * at.count;
  }
  /// What it adds to the sum over the inputs that the tap of \p pair, which is a tap twice, brings to an output, of
  /// x[ci, i].
  TCONV_HOST_DEVICE double input_sum(const double* sums, const float* centres, int pair, int ci, int number) const
  {
    const box_cell at = cell_in_box(pair, number);
    const int cell    = cell_of(at.segment[0], at.segment[1], at.segment[2]);
    return sums[sum_of(cell, ci / tile, ci / tile, tile * tile + ci % tile)]
         + static_cast<double>(centres[ci]) * at.count;
  }

private:
  /// A cell of a box, and its pairs of inputs over all samples.
  struct box_cell
  {
    int segment[3];
    double count;
  };
  TCONV_HOST_DEVICE tap_pair pair_of(int pair, int a) const
  {
    return axis[a].pair[a == 2   ? pair % axis[2].pairs
                        : a == 1 ? pair / axis[2].pairs % axis[1].pairs
                                 : pair / axis[2].pairs / axis[1].pairs];
  }
  TCONV_HOST_DEVICE box_cell cell_in_box(int pair, int number) const
  {
    box_cell at;
    at.count = static_cast<double>(batch);
    for (int a = 2; a >= 0; --a)
    {
      const tap_pair p = pair_of(pair, a);
      const int width  = p.to - p.from;
      at.segment[a]    = p.from + number % width;
      number /= width;
      at.count *= static_cast<double>(axis[a].segment[at.segment[a]].size());
    }
    return at;
  }
};

/// A piece of a sample: inputs [begin, end) of each axis, and what is staged of x, with what lags reach beyond.
struct lagged_piece
{
  int begin[3];
  int end[3];
  int origin[3]; ///< first that is staged
  int extent[3]; ///< staged

  /// Piece number \p part of a sample.
  TCONV_HOST_DEVICE static lagged_piece of(const lagged_problem& problem, int part)
  {
    lagged_piece piece;
    const int number[3] = {
      part / problem.parts[2] / problem.parts[1], part / problem.parts[2] % problem.parts[1], part % problem.parts[2]};
    TCONV_PRAGMA_UNROLL
    for (int a = 0; a < 3; ++a)
    {
      const int64_t in = problem.axis[a].in;
      const int reach  = problem.reach[a];
      piece.begin[a]   = static_cast<int>(in * number[a] / problem.parts[a]);
      piece.end[a]     = static_cast<int>(in * (number[a] + 1) / problem.parts[a]);
      const int from   = a == 0 ? piece.begin[a] : piece.begin[a] - reach;
      const int to     = piece.end[a] + reach;
      piece.origin[a]  = from > 0 ? from : 0;
      piece.extent[a]  = (to < in ? to : static_cast<int>(in)) - piece.origin[a];
    }
    return piece;
  }
  TCONV_HOST_DEVICE int positions() const { return extent[0] * extent[1] * extent[2]; }
};

/// The part of a cell that lies in a piece, as one lane of a warp walks over it: every 32nd position. Steps are sums of
/// digits, so that nothing is divided on the way.
struct lagged_walk
{
  bool any    = false; ///< the piece has a part of the cell
  int left    = 0;     ///< positions that the lane has yet to visit
  int at      = 0;     ///< staged position
  int further = 0;     ///< from there to the one behind the lags
  int h       = 0;     ///< digits of the position within the box
  int w       = 0;
  int height  = 1; ///< of the box
  int width   = 1;
  int step_h  = 0; ///< digits of 32
  int step_w  = 0;
  int step    = 0; ///< the same in staged positions
  int carry_w = 0; ///< staged positions more where w passes the width,
  int carry_h = 0; ///< and h the height

  TCONV_HOST_DEVICE static lagged_walk of(const lagged_problem& problem, const lagged_piece& piece, int cell, int lane)
  {
    int from[3];
    int size[3];
    int lag[3];
    TCONV_PRAGMA_UNROLL
    for (int a = 0; a < 3; ++a)
    {
      const lag_segment& s = problem.axis[a].segment[problem.segment_of(cell, a)];
      from[a]              = piece.begin[a] > s.begin ? piece.begin[a] : s.begin;
      const int to         = piece.end[a] < s.end ? piece.end[a] : s.end;
      size[a]              = to - from[a];
      lag[a]               = s.lag;
    }
    lagged_walk walk;
    if (size[0] <= 0 || size[1] <= 0 || size[2] <= 0)
    {
      return walk;
    }
    const int row   = piece.extent[2];
    const int plane = piece.extent[1] * row;
    walk.any        = true;
    walk.height     = size[1];
    walk.width      = size[2];
    walk.further    = lag[0] * plane + lag[1] * row + lag[2];
    walk.w          = lane % size[2];
    walk.h          = lane / size[2] % size[1];
    const int d     = lane / size[2] / size[1];
    walk.at         = (from[0] - piece.origin[0] + d) * plane + (from[1] - piece.origin[1] + walk.h) * row + from[2]
            - piece.origin[2] + walk.w;
    const int positions = size[0] * size[1] * size[2];
    walk.left           = positions > lane ? (positions - lane - 1) / 32 + 1 : 0;
    walk.step_w         = 32 % size[2];
    walk.step_h         = 32 / size[2] % size[1];
    walk.step           = 32 / size[2] / size[1] * plane + walk.step_h * row + walk.step_w;
    walk.carry_w        = row - size[2];
    walk.carry_h        = plane - size[1] * row;
    return walk;
  }
  TCONV_HOST_DEVICE void advance()
  {
    w += step_w;
    h += step_h;
    at += step;
    if (w >= width)
    {
      w -= width;
      ++h;
      at += carry_w;
    }
    if (h >= height)
    {
      h -= height;
      at += carry_h;
    }
    --left;
  }
};

namespace detail
{

/// Pairs and segments of \p axis; false where the tables do not hold them, or an input has no tap that lands (a NaN
/// there would count).
inline bool plan_lagged_axis(const conv_axis& axis, lagged_axis& plan)
{
  if (axis.kernel > lagged_axis::most_taps || axis.in > (int64_t{1} << 30))
  {
    return false;
  }
  for (int64_t i = 0; i < axis.in;)
  {
    const tap_class c = axis.class_from(i);
    if (c.taps.empty())
    {
      return false;
    }
    i = c.inputs.end;
  }
  plan.in     = static_cast<int>(axis.in);
  plan.kernel = static_cast<int>(axis.kernel);
  struct range
  {
    int first;
    int second;
    int lag;
    int begin;
    int end;
  };
  range ranges[lagged_axis::most_taps * lagged_axis::most_taps];
  int count = 0;
  for (int t = 0; t < plan.kernel; ++t)
  {
    for (int u = 0; u < plan.kernel; ++u)
    {
      if (axis.tap_phase(t) != axis.tap_phase(u))
      {
        continue;
      }
      const int64_t lag       = axis.tap_shift(t) - axis.tap_shift(u);
      const index_range here  = axis.landing_inputs(t);
      const index_range there = axis.landing_inputs(u);
      const int64_t begin     = there.begin - lag > here.begin ? there.begin - lag : here.begin;
      const int64_t end       = there.end - lag < here.end ? there.end - lag : here.end;
      if (!here.empty() && !there.empty() && begin < end)
      {
        ranges[count++] = {t, u, static_cast<int>(lag), static_cast<int>(begin), static_cast<int>(end)};
      }
    }
  }
  // Segments: each lag in turn, cut at all ends of its ranges.
  for (int64_t lag = axis.min_shift() - axis.max_shift(); lag <= axis.max_shift() - axis.min_shift(); ++lag)
  {
    int from = 0;
    while (true)
    {
      int begin = -1; // the least end of a range that is not below from and has a range behind it
      int end   = -1;
      for (int r = 0; r < count; ++r)
      {
        if (ranges[r].lag == lag && ranges[r].end > from)
        {
          const int starts = ranges[r].begin > from ? ranges[r].begin : from;
          begin            = begin < 0 || starts < begin ? starts : begin;
        }
      }
      if (begin < 0)
      {
        break;
      }
      for (int r = 0; r < count; ++r)
      {
        for (const int edge : {ranges[r].begin, ranges[r].end})
        {
          if (ranges[r].lag == lag && edge > begin && (end < 0 || edge < end))
          {
            end = edge;
          }
        }
      }
      if (plan.segments == lagged_axis::most_segments)
      {
        return false;
      }
      plan.segment[plan.segments++] = {static_cast<int>(lag), begin, end, -1};
      from                          = end;
    }
  }
  for (int s = 0; s < plan.segments; ++s)
  {
    const lag_segment& own = plan.segment[s];
    for (int m = 0; m < plan.segments; ++m)
    {
      const lag_segment& other = plan.segment[m];
      if (other.lag == -own.lag && other.begin == own.begin + own.lag && other.end == own.end + own.lag)
      {
        plan.segment[s].mirror = m;
      }
    }
  }
  for (int r = 0; r < count; ++r)
  {
    int from = plan.segments;
    int to   = 0;
    for (int s = 0; s < plan.segments; ++s)
    {
      const lag_segment& segment = plan.segment[s];
      if (segment.lag == ranges[r].lag && segment.begin >= ranges[r].begin && segment.end <= ranges[r].end)
      {
        from = s < from ? s : from;
        to   = s + 1;
      }
    }
    plan.pair[plan.pairs++] = {static_cast<short>(ranges[r].first),
                               static_cast<short>(ranges[r].second),
                               static_cast<short>(from),
                               static_cast<short>(to)};
  }
  return true;
}

/// How moments come from lagged products, if they do.
struct lagged_plan
{
  lagged_problem problem;
  bool possible   = false;
  double products = 0; ///< of x, and sums beside them

  double milliseconds() const
  {
    using policy = tuning::lagged_policy;
    return products / policy::products_per_ms + policy::launches_ms;
  }
  /// Estimated to be faster than a pass over the outputs on CUDA cores, which has \p landing products.
  bool pays(double landing) const
  {
    using policy = tuning::lagged_policy;
    return possible && landing >= policy::least_products && products < policy::worth * landing;
  }
};

/// For the canonical \p shape with x in \p order.
inline lagged_plan plan_lagged(const conv_transpose_shape<3>& shape, layout order)
{
  using policy = tuning::lagged_policy;
  lagged_plan plan;
  lagged_problem& p = plan.problem;
  if (shape.groups != 1 || shape.batch == 0 || shape.output_positions() == 0)
  {
    return plan;
  }
  int64_t cells = 1;
  for (int a = 0; a < 3; ++a)
  {
    lagged_axis& axis = p.axis[a];
    if (!plan_lagged_axis(shape.axis(a), axis))
    {
      return plan;
    }
    cells *= axis.segments;
    for (int s = 0; s < axis.segments; ++s)
    {
      p.reach[a] = axis.segment[s].lag > p.reach[a] ? axis.segment[s].lag : p.reach[a];
    }
  }
  p.x            = tensor_strides::of(order, shape.input_slice.total(shape.in_channels), shape.input_positions());
  p.batch        = shape.batch;
  p.in_channels  = shape.in_channels;
  p.out_channels = shape.out_channels;
  p.outputs      = static_cast<double>(shape.batch) * static_cast<double>(shape.output_positions());
  if (cells > policy::most_cells || shape.in_channels > policy::most_channels)
  {
    return plan;
  }
  p.tile               = static_cast<int>(shape.in_channels < 4 ? shape.in_channels : 4);
  p.tiles              = static_cast<int>(ceil_div(shape.in_channels, p.tile));
  const auto positions = [&p] { return int64_t{p.piece_extent(0)} * p.piece_extent(1) * p.piece_extent(2); };
  while (p.staged_bytes() > policy::piece_bytes
         || (p.pieces() < policy::wanted_pieces && positions() >= 2 * policy::least_piece))
  {
    // The slowest axis that keeps enough, so that rows stay long; else the longest.
    int cut = 2;
    for (int a = 2; a >= 0; --a)
    {
      cut = p.piece_extent(a) > p.piece_extent(cut) ? a : cut;
    }
    for (int a = 2; a >= 0; --a)
    {
      cut = p.piece_extent(a) >= 2 * policy::least_extent ? a : cut;
    }
    if (p.piece_extent(cut) == 1)
    {
      return plan;
    }
    p.parts[cut] *= 2;
  }
  for (int cell = 0; cell < p.cells(); ++cell)
  {
    if (p.summed(cell))
    {
      double pairs = static_cast<double>(p.batch) * static_cast<double>(p.tiles * p.tiles * p.sums_per_item());
      for (int a = 0; a < 3; ++a)
      {
        pairs *= p.axis[a].segment[p.segment_of(cell, a)].size();
      }
      plan.products += pairs;
    }
  }
  plan.possible = static_cast<double>(p.sums()) * static_cast<double>(p.pieces())
                 <= static_cast<double>(policy::most_sums)
               && p.gram_elements() <= policy::most_sums;
  return plan;
}

} // namespace detail

TCONV_NAMESPACE_END
