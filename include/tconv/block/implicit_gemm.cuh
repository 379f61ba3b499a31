// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The main loop of the tensor-core engine: matrix products whose left operand is gathered from a staged input tile.
///
/// A block is persistent. One warp streams packed weights through a ring of stages, three warps stage the input of the next tile,
/// and consumer warpgroups multiply: the left operand comes from registers (any input layout, any shift, no transpose), the
/// weights from shared memory. The sum over input channels and taps may run in any order, so a lane takes four neighbouring channels
/// and the packed weights follow.
///
/// Staged input: [plane of a ring][block of 16 channels][row][even positions, then odd ones][4 lanes][lane_bytes]. Neighbouring
/// rows of a fragment are then neighbours in memory whatever the shift: two cells that follow each other along w belong to the two
/// rows of a thread.

#include "../thread/element.cuh"
#include "gemm_products.cuh"
#include "stage_input.cuh"

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// An input that the split form cannot hold exactly enough: staged as 0, its products are added one by one.
struct lost_input
{
  short plane;  ///< staged plane; known to the list where planes stay for the next tile
  short row;    ///< staged row
  int position; ///< staged position along w
  int channel;
  float value;
};

/// What the staging warps tell the consumers about a tile (or one chunk of its input channels).
struct gemm_segment
{
  int channel_tile;
  int n;
  int cell[3];     ///< first cell of the tile
  int first_plane; ///< slot of the first plane
  int exponent;    ///< inputs were multiplied by 2^exponent
  int one_by_one;  ///< the tile's products must be formed in fp32
  int lost;        ///< there are inputs that were staged as 0
};

/// What the two rows of a thread's fragments stand for.
struct alignas(8) gemm_pair
{
  int cells;  ///< see gemm_cells
  int offset; ///< bytes from the start of a staged plane to the first cell, but for its place along d
};

/// Control data of a block, at the start of its shared memory.
struct gemm_control
{
  static constexpr int most_planes   = 32; ///< of the ring
  static constexpr int lost_per_warp = 8;  ///< and plane of the ring
  static constexpr int warps         = 7;  ///< that stage, at most

  uint64_t full[tuning::implicit_gemm_max_stages];  ///< weights have arrived
  uint64_t empty[tuning::implicit_gemm_max_stages]; ///< weights have been used
  uint64_t staged[2];                               ///< the input of a segment is there
  uint64_t used[2];                                 ///< nobody reads the segment any more
  gemm_segment segment[2];
  int one_by_one;      ///< a weight does not fit the split form: no tile does
  gemm_pair pair[128]; ///< of rows
  float plane_peak[most_planes][warps];
  int lost_count[most_planes][warps];
  alignas(16) float inverse_scale[128]; ///< per column: 2^-exponent of its weights
};
static_assert(sizeof(gemm_control) <= gemm_control_bytes, "tconv: control data has outgrown its room");
static_assert(gemm_control::warps * gemm_control::lost_per_warp * static_cast<int>(sizeof(lost_input))
                == gemm_lost_bytes,
              "tconv: the plan has room for other lists");

/// The shared memory of a block. A function and no pointer that is handed around: a constant address takes no registers.
TCONV_DEVICE unsigned char* gemm_memory()
{
  extern __shared__ __align__(128) unsigned char gemm_shared[];
  return gemm_shared;
}
TCONV_DEVICE gemm_control& control_data()
{
  return *reinterpret_cast<gemm_control*>(gemm_memory());
}
/// Lists of lost inputs, one per staging warp and plane of the ring; or, where channels are staged in chunks, one per staging warp for all
/// chunks of a phase, twice in turn.
struct lost_lists
{
  int room; ///< of a list, entries

  TCONV_DEVICE explicit lost_lists(const gemm_problem& problem)
      : room(problem.chunks() == 1 ? gemm_control::lost_per_warp
                                   : gemm_control::lost_per_warp * problem.ring_planes / 2)
  {}
  /// \p number: slot of the ring, or turn.
  TCONV_DEVICE lost_input* at(int number, int warp) const
  {
    return reinterpret_cast<lost_input*>(gemm_memory() + gemm_control_bytes)
         + (number * gemm_control::warps + warp) * room;
  }
};

/// \p v of lane 0, which is that of all lanes: what the compiler needs to know before it branches around products.
TCONV_DEVICE int uniform(int v)
{
  return __shfl_sync(0xffffffffu, v, 0);
}

/// \p v, of which the compiler knows nothing: computed from again instead of kept in registers.
TCONV_DEVICE int opaque(int v)
{
  asm volatile("" : "+r"(v));
  return v;
}

#if TCONV_DETAIL_HAS_GEMM

/// Synchronises the staging warps only.
template <int Threads>
TCONV_DEVICE void synchronize_staging()
{
  asm volatile("barrier.sync 1, %0;" ::"n"(Threads) : "memory");
}

/// Synchronises the consumer warps only.
template <int Threads>
TCONV_DEVICE void synchronize_consumers()
{
  asm volatile("barrier.sync 2, %0;" ::"n"(Threads) : "memory");
}

#endif

/// Where a tile lies.
struct gemm_tile
{
  int channel_tile;
  int n;
  int cell[3];  ///< first cell
  bool follows; ///< the tile before it (index - 1) lies just in front of it along d
};

/// Tile \p index: d is the fastest digit, so that neighbouring tiles of a block share staged planes.
TCONV_DEVICE gemm_tile locate_gemm_tile(const gemm_problem& problem, int index)
{
  auto rest = static_cast<unsigned>(index);
  gemm_tile tile;
  const auto digit = [&rest](int extent) {
    const unsigned result = rest % static_cast<unsigned>(extent);
    rest /= static_cast<unsigned>(extent);
    return static_cast<int>(result);
  };
  tile.cell[0]      = digit(problem.tiles[0]) * problem.box[0];
  tile.follows      = tile.cell[0] > 0;
  tile.cell[2]      = digit(problem.tiles[2]) * problem.box[2];
  tile.cell[1]      = digit(problem.tiles[1]) * problem.box[1];
  tile.n            = digit(static_cast<int>(problem.batch));
  tile.channel_tile = static_cast<int>(rest);
  return tile;
}

// ---------------------------------------------------------------------------------------------------------------- staging

/// fp16 numbers hi and lo with v = hi + lo up to rounding.
struct split_value
{
  __half hi;
  __half lo;

  TCONV_DEVICE explicit split_value(float v) : hi(__float2half_rn(v)), lo(__float2half_rn(v - __half2float(hi))) {}
};

/// The low parts of weights are stored multiplied by 2^low_exponent; they meet high parts of inputs multiplied by 2^-low_exponent.
inline constexpr int low_exponent = 8;

/// Inputs are multiplied by 2^first_exponent until a tile says what suits it: its largest magnitude becomes 2^first_exponent or more, and less than twice that.
inline constexpr int first_exponent = 13;

/// 2^exponent for -126 <= exponent <= 127.
TCONV_DEVICE float power_of_two(int exponent)
{
  return __int_as_float((exponent + 127) << 23);
}

/// Bits that a split input loses, relative to it, in units that error bounds may be compared with: the residual of hi + lo,
/// and what hi loses where it meets low parts of weights.
TCONV_DEVICE bool is_lost(float scaled, float value, float tolerance)
{
  const split_value parts(scaled);
  const float hi       = __half2float(parts.hi);
  const float residual = fabsf(scaled - hi - __half2float(parts.lo));
  const float reduced  = hi * power_of_two(-low_exponent);
  const float rounding = fabsf(reduced - __half2float(__float2half_rn(reduced)));
  const float missing  = residual + rounding * power_of_two(low_exponent - 11);
  return value != 0.0f && (scaled == 0.0f || missing > tolerance * fabsf(scaled));
}

/// False for NaN and infinity.
TCONV_DEVICE bool is_finite(float v)
{
  return fabsf(v) <= 3.402823466e38f;
}

/// The finite magnitude of \p v, 0 for NaN and infinity.
TCONV_DEVICE float finite_magnitude(float v)
{
  return is_finite(v) ? fabsf(v) : 0.0f;
}

/// Two neighbouring 16-bit elements as one word.
TCONV_DEVICE unsigned join(__half low, __half high)
{
  return static_cast<unsigned>(__half_as_ushort(low)) | (static_cast<unsigned>(__half_as_ushort(high)) << 16);
}
TCONV_DEVICE unsigned join(__nv_bfloat16 low, __nv_bfloat16 high)
{
  return static_cast<unsigned>(__bfloat16_as_ushort(low)) | (static_cast<unsigned>(__bfloat16_as_ushort(high)) << 16);
}

/// \p v rounded to the nearest TF32 number. From compute capability 9.0 on that is one instruction, with ties to even; before, ties away from zero.
TCONV_DEVICE unsigned round_tf32(float v)
{
  unsigned result;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(result) : "f"(v));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(v));
#endif
  return result;
}

// Staging knows shared memory by 32-bit addresses: whatever a pointer costs, it costs for every few elements.

/// Copies 4, 8 or 16 bytes asynchronously, or writes zeros without reading where \p exists is false, whatever the source. The size is an
/// operand here, and not a branch as in the runtime's function.
template <int Bytes>
TCONV_DEVICE void copy_async_bytes(unsigned target, const void* source, bool exists)
{
  const unsigned read = exists ? Bytes : 0;
  if constexpr (Bytes == 16)
  {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(read) : "memory");
  }
  else
  {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(target), "l"(source), "r"(read), "n"(Bytes)
                 : "memory");
  }
}

TCONV_DEVICE void load_shared(unsigned (&words)[4], unsigned from)
{
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from));
}
TCONV_DEVICE void load_shared(unsigned (&words)[2], unsigned from)
{
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(from));
}
/// Four 8 x 8 matrices of 16 bits, transposed: a lane has elements 2 (lane % 4) and the next one of column lane / 4 of each. \p row: of the lane, 16 bytes;
/// those of matrix i lie with lanes 8 i to 8 i + 7.
TCONV_DEVICE void load_transposed(unsigned (&words)[4], unsigned row)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}
TCONV_DEVICE void store_shared(unsigned to, uint4 v)
{
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
TCONV_DEVICE void store_shared(unsigned to, uint2 v)
{
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}

/// Division by one divisor of at least 2, by one product: exact for numbers whose product with it is below 2^32.
class item_divisor
{
public:
  TCONV_DEVICE explicit item_divisor(int divisor) : factor_(0xffffffffu / static_cast<unsigned>(divisor) + 1) {}
  TCONV_DEVICE int quotient(int n) const { return static_cast<int>(__umulhi(static_cast<unsigned>(n), factor_)); }

private:
  unsigned factor_;
};

/// How x is read: what one load brings.
enum class input_vector
{
  none,            ///< an element
  positions,       ///< 4 neighbours along w of one channel
  channels,        ///< 4 channels of one position (channels last)
  eight_positions, ///< 8 of 16 bits
  eight_channels   ///< 8 of 16 bits
};

/// How \p x is read by whatever stages it.
template <class In>
TCONV_DEVICE input_vector find_input_vector(const gemm_problem& problem, const In* x)
{
  const auto aligned = [&](int elements) {
    return reinterpret_cast<unsigned long long>(x) % (elements * sizeof(In)) == 0
        && (problem.x.channels_last() ? problem.x.position % elements == 0 && problem.in_per_group % elements == 0
                                      : problem.run % elements == 0);
  };
  if (sizeof(In) == 2 && aligned(8))
  {
    return problem.x.channels_last() ? input_vector::eight_channels : input_vector::eight_positions;
  }
  return !aligned(4) ? input_vector::none
                     : (problem.x.channels_last() ? input_vector::channels : input_vector::positions);
}

/// Stages planes of a tile: items of 4 channels x 4 positions along w. Called by Warps warps together.
template <gemm_form Form, int Warps, class In>
struct plane_stager
{
  static constexpr int lane_bytes     = gemm_form_traits::of(Form).lane_bytes;
  static constexpr int position_bytes = 4 * lane_bytes;

  /// What one thread loads at once: words[c] holds 4 neighbouring elements of channel c (of 16 bits: two words of neighbours).
  struct item
  {
    unsigned words[4][sizeof(In)];

    /// fp32 tensors.
    TCONV_DEVICE float value(int c, int p) const { return __uint_as_float(words[c][p]); }
  };

  /// Where an item lies.
  struct location
  {
    int row;
    int column;  ///< of 4 positions
    int block;   ///< of 16 channels
    int quarter; ///< of the block
  };

  /// Where an item is read.
  struct item_source
  {
    int channels;   ///< of x from the item's first one on; what is beyond does not exist
    int w;          ///< first of its 4 positions
    int width;      ///< of x; 0 where the item's row is none of x
    const In* from; ///< its first element

    TCONV_DEVICE item_source(const plane_stager& stager, int number)
    {
      const gemm_problem& problem = stager.problem;
      const location at           = stager.locate(number);
      const int channel           = stager.first_channel + at.block * gemm_block_channels + 4 * at.quarter;
      const int h                 = stager.first_h + at.row;
      const auto in_w             = static_cast<int>(problem.axis[2].in);
      channels                    = static_cast<int>(problem.in_channels) - channel;
      w                           = stager.first_w + 4 * at.column;
      width = stager.plane_inside && h >= 0 && h < static_cast<int>(problem.axis[1].in) ? in_w : 0;
      // Within a sample offsets fit 32 bits, and so do those of positions just before it.
      const unsigned offset = static_cast<unsigned>(stager.corner + at.row * in_w + 4 * at.column)
                              * static_cast<unsigned>(problem.x.position)
                            + static_cast<unsigned>(channel) * static_cast<unsigned>(problem.x.channel);
      from = stager.sample + static_cast<int>(offset);
    }
    /// Whether x has channel number \p c and position number \p p of the item.
    TCONV_DEVICE bool has(int c, int p) const { return w + p >= 0 && w + p < width && c < channels; }
  };

  const gemm_problem& problem;
  const In* x;
  input_vector vector;
  int warp; ///< of those that stage
  int lane;
  // Of 64 bytes in shared memory, or 32: items are fewer than 2^15.
  item_divisor by_row;   ///< items of a staged row
  item_divisor by_block; ///< and of all rows of a block of channels

  TCONV_DEVICE plane_stager(const gemm_problem& p, const In* source, input_vector how, int staging_warp, int own_lane)
      : problem(p)
      , x(source)
      , vector(how)
      , warp(staging_warp)
      , lane(own_lane)
      , by_row(p.width)
      , by_block(p.width * p.rows)
  {}

  // Of the tile and the chunk of channels at hand.
  const In* sample;
  int first_d;
  int first_h;
  int first_w;
  int first_channel;
  int blocks; ///< of channels
  int items;  ///< of a plane
  // Of the plane at hand.
  int corner; ///< offset of the plane's first row and column
  bool plane_inside;
  int first; ///< item of lane 0: warps take turns, lest the first ones always have more

  TCONV_DEVICE location locate(int number) const
  {
    const int above = by_row.quotient(number);
    const int block = by_block.quotient(number);
    return {above - block * problem.rows, (number >> 2) - above * (problem.width >> 2), block, number & 3};
  }

  /// Bytes from a plane to where the column of item \p number is staged: 2 positions of 4 lanes each follow each other there, and the odd positions
  /// half a row further on.
  TCONV_DEVICE unsigned target_of(int number) const
  {
    return static_cast<unsigned>((number >> 2) + by_row.quotient(number) * (problem.width >> 2)) * (2 * position_bytes);
  }
  /// Bytes from there to position \p p of the first lane.
  TCONV_DEVICE unsigned unit(int p) const
  {
    return static_cast<unsigned>((p & 1) * (problem.width >> 1) * position_bytes + (p >> 1) * position_bytes);
  }
  /// Whether vectors of 16 bytes that come from one line of global memory wait in one line of shared memory, whatever lanes they are for: what a warp copies
  /// to 4 lines takes 13 passes through shared memory then, and 31 where every line gets something of each. For vectors of 8 bytes that is no gain.
  template <input_vector Vector>
  static constexpr bool in_runs = lane_bytes == 16 && Vector != input_vector::channels;
  /// Where the 4 vectors of an item that is to be converted wait for it: addresses of the first and the second one; the third and the fourth
  /// lie half a row further on. A warp copies 8 columns of 4 lanes at once, whose places are 8 runs of 8 vectors, and as many half a row further on.
  /// All lanes take their items before one stores.
  struct raw_places
  {
    unsigned first;
    unsigned second;
  };
  /// Of item \p number. \p base: the warp's first one.
  template <input_vector Vector>
  TCONV_DEVICE raw_places find_raw(int number, int base, unsigned plane) const
  {
    const int quarter = number & 3;
    if (!in_runs<Vector> || base + 32 > items)
    {
      const unsigned own = plane + target_of(number) + static_cast<unsigned>(quarter * lane_bytes);
      return {own, own + position_bytes};
    }
    // In other places for lanes that read at once, and so in other banks.
    const unsigned slot = plane + static_cast<unsigned>(((lane >> 2) ^ (2 * quarter)) * lane_bytes);
    const int run       = base + 4 * quarter;
    return {target_of(run) + slot, target_of(run + 16) + slot};
  }
  /// The address of vector \p i.
  TCONV_DEVICE unsigned raw_vector(const raw_places& raw, int i) const
  {
    return (i % 2 == 0 ? raw.first : raw.second) + static_cast<unsigned>(i / 2 * (problem.width >> 1) * position_bytes);
  }

  /// Whether vectors are staged as they come.
  template <input_vector Vector>
  static constexpr bool as_they_are = Vector == input_vector::channels && sizeof(In) == 2;

  /// Starts to copy item \p number of the warp that starts at \p base, 4 elements at once. What is to be converted, this thread alone reads there.
  template <input_vector Vector>
  TCONV_DEVICE void copy(int number, int base, unsigned plane) const
  {
    constexpr bool along_w = Vector == input_vector::positions; // else vectors of channels follow each other along w
    const item_source item(*this, number);
    const In* source   = item.from;
    const int64_t step = along_w ? problem.x.channel : problem.x.position;
    raw_places to{};
    if constexpr (as_they_are<Vector>)
    {
      to.first = plane + target_of(number) + static_cast<unsigned>((number & 3) * lane_bytes);
    }
    else
    {
      to = find_raw<Vector>(number, base, plane);
    }
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i)
    {
      copy_async_bytes<4 * static_cast<int>(sizeof(In))>(as_they_are<Vector> ? to.first + unit(i) : raw_vector(to, i),
                                                         source,
                                                         along_w ? item.has(i, 0) : item.has(0, i));
      source += step;
    }
  }
  /// Where a warp is that takes its turns with the others along the rows of a plane. Nothing is divided, and what can be is counted on: a staging warp waits for every one of its
  /// instructions.
  struct row_walk
  {
    int start; ///< along the row
    int row;

    /// \p room: along a row.
    TCONV_DEVICE row_walk(int first, int room) : start(first), row(0) { settle(room); }
    TCONV_DEVICE void advance(int step, int room)
    {
      start += step;
      settle(room);
    }

  private:
    TCONV_DEVICE void settle(int room)
    {
      while (start >= room)
      {
        start -= room;
        ++row;
      }
    }
  };

  /// What a warp stages at once of tensors of 16 bits: up to 32 positions of a row, of one block of channels after the other, lest what does not depend on the block is found out for
  /// each. Channels first, vectors of 8 positions wait where their block is staged itself: of every 4 channels the first two where the even positions will be, the other two
  /// where the odd ones will.
  struct strip
  {
    int vectors;   ///< of 8 positions: 1 to 4
    unsigned even; ///< address of the even positions of the first block
    unsigned odd;

    TCONV_DEVICE strip(const plane_stager& stager, const row_walk& at, unsigned plane)
        : vectors(min(stager.problem.width - at.start, 32) / 8)
        , even(plane + static_cast<unsigned>(at.row * stager.problem.row_bytes() + (at.start >> 1) * position_bytes))
        , odd(even + static_cast<unsigned>((stager.problem.width >> 1) * position_bytes))
    {}
    /// The address of vector \p v of the channel that has \p line of those at \p half. Eight lines are in different banks.
    TCONV_DEVICE unsigned vector(int half, int line, int v) const
    {
      const int turned = vectors == 4 ? v ^ (line >> 1) : v;
      return (half == 0 ? even : odd) + static_cast<unsigned>((line * vectors + turned) * 16);
    }
    /// The channel that has \p line of those at \p half, within its block.
    TCONV_DEVICE static int channel(int half, int line) { return 4 * (line >> 1) + 2 * half + (line & 1); }
  };

  /// Starts to copy the plane at hand in strips, 8 channels at once, which are staged as they are.
  TCONV_DEVICE void copy_eight_channels(unsigned plane) const
  {
    const auto in_w     = static_cast<int>(problem.axis[2].in);
    const int room      = (problem.width + 31) & -32;
    const int channel   = first_channel + lane % 2 * 8;
    const int own       = lane / 2; // position, and the one 16 further on
    const In* corner_at = sample + channel;
    row_walk at(first, room);
#pragma unroll 1
    for (; at.row < problem.rows; at.advance(Warps * 32, room))
    {
      const strip to(*this, at, plane);
      const int h       = first_h + at.row;
      const int w       = first_w + at.start + own;
      const bool inside = plane_inside && h >= 0 && h < static_cast<int>(problem.axis[1].in);
      const bool has[2] = {inside && w >= 0 && w < in_w, inside && w + 16 >= 0 && w + 16 < in_w};
      // As in item_source.
      const In* source = corner_at
                       + static_cast<int>(static_cast<unsigned>(corner + at.row * in_w + at.start + own)
                                          * static_cast<unsigned>(problem.x.position));
      unsigned target = (own % 2 == 0 ? to.even : to.odd)
                      + static_cast<unsigned>(own / 2 * position_bytes + lane % 2 * 16);
      int left = static_cast<int>(problem.in_channels) - channel;
#pragma unroll 2
      for (int block = 0; block < blocks; ++block)
      {
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < 2; ++i)
        {
          if (at.start + own + 16 * i < problem.width)
          {
            copy_async_bytes<16>(target + static_cast<unsigned>(i * 8 * position_bytes),
                                 source + i * 16 * problem.x.position,
                                 has[i] && left > 0);
          }
        }
        source += gemm_block_channels;
        target += static_cast<unsigned>(problem.block_bytes);
        left -= gemm_block_channels;
      }
    }
  }
  /// Starts to copy the plane at hand in strips, 8 positions at once.
  TCONV_DEVICE void copy_eight_positions(unsigned plane) const
  {
    const auto in_w    = static_cast<int>(problem.axis[2].in);
    const int room     = (problem.width + 31) & -32;
    const int v        = lane % 4;
    const int line     = lane / 4;
    const int channel  = first_channel + strip::channel(0, line);
    const int64_t step = problem.x.channel;
    const In* own      = sample + 8 * v + channel * step;
    row_walk at(first, room);
#pragma unroll 1
    for (; at.row < problem.rows; at.advance(Warps * 32, room))
    {
      const strip to(*this, at, plane);
      const int h = first_h + at.row;
      const int w = first_w + at.start + 8 * v;
      if (v < to.vectors)
      {
        const bool exists = plane_inside && h >= 0 && h < static_cast<int>(problem.axis[1].in) && w >= 0 && w < in_w;
        // What is not there is as if all channels were beyond the last.
        int left         = exists ? static_cast<int>(problem.in_channels) - channel : 0;
        const In* source = own + (corner + at.row * in_w + at.start);
        unsigned low     = to.vector(0, line, v);
        unsigned high    = to.vector(1, line, v);
#pragma unroll 2
        for (int block = 0; block < blocks; ++block)
        {
          copy_async_bytes<16>(low, source, left > 0);
          copy_async_bytes<16>(high, source + 2 * step, left > 2);
          low += static_cast<unsigned>(problem.block_bytes);
          high += static_cast<unsigned>(problem.block_bytes);
          source += gemm_block_channels * step;
          left -= gemm_block_channels;
        }
      }
    }
  }
  /// Brings the strips of the plane to where they are read.
  TCONV_DEVICE void convert_eight_positions(unsigned plane) const
  {
    const int room     = (problem.width + 31) & -32;
    const int position = lane / 4;
    __syncwarp(); // copies of other lanes
    row_walk at(first, room);
#pragma unroll 1
    for (; at.row < problem.rows; at.advance(Warps * 32, room))
    {
      const strip own(*this, at, plane);
      // A matrix is 8 channels of 8 positions; transposed, a lane has two channels of position lane / 4. Beyond the strip: its last vector again.
      unsigned from[2];
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < 2; ++i)
      {
        from[i] = own.vector(lane / 8 % 2, lane % 8, min(2 * i + lane / 16, own.vectors - 1));
      }
      unsigned to = (position % 2 == 0 ? own.even : own.odd)
                  + static_cast<unsigned>(position / 2 * position_bytes + lane % 4 * lane_bytes);
#pragma unroll 2
      for (int block = 0; block < blocks; ++block)
      {
        unsigned words[2][4];
        load_transposed(words[0], from[0]);
        load_transposed(words[1], from[1]);
        __syncwarp();
        TCONV_PRAGMA_UNROLL
        for (int v = 0; v < 4; ++v)
        {
          if (v < own.vectors)
          {
            store_shared(to + static_cast<unsigned>(v * 4 * position_bytes),
                         make_uint2(words[v / 2][v % 2 * 2], words[v / 2][v % 2 * 2 + 1]));
          }
        }
        from[0] += static_cast<unsigned>(problem.block_bytes);
        from[1] += static_cast<unsigned>(problem.block_bytes);
        to += static_cast<unsigned>(problem.block_bytes);
      }
    }
  }

  /// Copies item \p number one element at a time, as positions would bring them; of 4 bytes, fewer cannot be copied so.
  TCONV_DEVICE void copy_elements(int number, int base, unsigned plane) const
  {
    const item_source item(*this, number);
    const In* source    = item.from;
    const raw_places to = find_raw<input_vector::none>(number, base, plane);
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < 4; ++c)
    {
      const In* element = source;
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < 4; ++p)
      {
        copy_async_bytes<4>(raw_vector(to, c) + 4 * p, element, item.has(c, p));
        element += problem.x.position;
      }
      source += problem.x.channel;
    }
  }
  /// Takes an item that has been copied to \p raw and is to be converted.
  template <input_vector Vector>
  TCONV_DEVICE void take(item& of, const raw_places& raw) const
  {
    static_assert(!as_they_are<Vector>, "tconv: 4 channels of 16 bits are staged as they are");
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i)
    {
      unsigned parts[sizeof(In)];
      load_shared(parts, raw_vector(raw, i));
      TCONV_PRAGMA_UNROLL
      for (int k = 0; k < static_cast<int>(sizeof(In)); ++k)
      {
        of.words[Vector == input_vector::channels ? k : i][Vector == input_vector::channels ? i : k] = parts[k];
      }
    }
  }

  /// Loads item \p number of 16-bit elements, one at a time.
  TCONV_DEVICE void load(item& of, int number) const
  {
    const item_source item(*this, number);
    const In* source = item.from;
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < 4; ++c)
    {
      In values[4];
      const In* element = source;
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < 4; ++p)
      {
        values[p] = from_float<In>(0.0f);
        if (item.has(c, p))
        {
          values[p] = *element;
        }
        element += problem.x.position;
      }
      of.words[c][0] = join(values[0], values[1]);
      of.words[c][1] = join(values[2], values[3]);
      source += problem.x.channel;
    }
  }

  /// Stores an item whose first position is staged at \p at, converted.
  TCONV_DEVICE void store(const item& of, unsigned at, float scale) const
  {
    TCONV_PRAGMA_UNROLL
    for (int p = 0; p < 4; ++p)
    {
      const unsigned to = at + unit(p);
      if constexpr (Form == gemm_form::split)
      {
        const float t[4] = {
          of.value(0, p) * scale, of.value(1, p) * scale, of.value(2, p) * scale, of.value(3, p) * scale};
        unsigned hi[2];
        unsigned lo[2];
        TCONV_PRAGMA_UNROLL
        for (int i = 0; i < 2; ++i)
        {
          const __half2 high = __floats2half2_rn(t[2 * i], t[2 * i + 1]);
          const float2 back  = __half22float2(high);
          hi[i]              = *reinterpret_cast<const unsigned*>(&high);
          lo[i]              = pack_pair<__half>(t[2 * i] - back.x, t[2 * i + 1] - back.y);
        }
        store_shared(to, make_uint4(hi[0], hi[1], lo[0], lo[1]));
      }
      else if constexpr (Form == gemm_form::tf32)
      {
        store_shared(to,
                     make_uint4(round_tf32(of.value(0, p)),
                                round_tf32(of.value(1, p)),
                                round_tf32(of.value(2, p)),
                                round_tf32(of.value(3, p))));
      }
      else
      {
        constexpr unsigned low  = 0x5410;
        constexpr unsigned high = 0x7632;
        store_shared(to,
                     make_uint2(__byte_perm(of.words[0][p / 2], of.words[1][p / 2], p % 2 == 0 ? low : high),
                                __byte_perm(of.words[2][p / 2], of.words[3][p / 2], p % 2 == 0 ? low : high)));
      }
    }
  }

  /// Collects the largest finite magnitude of an item; true if an input may have to be listed: it is not zero, but below \p threshold, or it is not
  /// finite and the tile has columns that do not read it.
  TCONV_DEVICE bool inspect(const item& of, float threshold, float& peak) const
  {
    // Bits without the sign, less one: zeros, which are common (padding, rectified inputs), come last. Infinities and NaNs are rare.
    const auto rank   = [](float v) { return 2 * __float_as_uint(v) - 1; };
    float largest     = 0.0f;
    unsigned smallest = 0xffffffffu;
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < 4; ++c)
    {
      const float of_channel = fmaxf(
        fmaxf(fabsf(of.value(c, 0)), fabsf(of.value(c, 1))), fmaxf(fabsf(of.value(c, 2)), fabsf(of.value(c, 3))));
      largest = fmaxf(largest, of_channel);
      // Not one chain: a warp is short of independent instructions.
      const unsigned pair = min(rank(of.value(c, 0)), rank(of.value(c, 1)));
      smallest            = min(smallest, __vimin3_u32(pair, rank(of.value(c, 2)), rank(of.value(c, 3))));
    }
    // A NaN among numbers does not come through: it is the last of the ranks but for zeros.
    if (!(largest <= 3.402823466e38f))
    {
      largest = 0.0f;
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < 4; ++c)
      {
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < 4; ++p)
        {
          largest = fmaxf(largest, finite_magnitude(of.value(c, p)));
        }
      }
    }
    peak = fmaxf(peak, largest);
    return smallest < rank(threshold) || (problem.groups > 1 && has_nonfinite(of));
  }

  /// Whether a NaN or an infinity is in an item.
  TCONV_DEVICE static bool has_nonfinite(const item& of)
  {
    unsigned most = 0; // of the bits without the sign
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < 4; ++c)
    {
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < 4; ++p)
      {
        most = max(most, 2 * __float_as_uint(of.value(c, p)));
      }
    }
    return most >= 2 * 0x7f800000u;
  }

  /// Lists the inputs of this warp's items that the split form loses, behind \p lost_count others, and replaces them by 0 where they are
  /// staged. Returns how many are listed or would be if there were room. \p turns: bit i is set where turn i of this warp, or one from 31 on, has something suspicious. Rare, and
  /// so one by one: registers are for the loop that has to be fast.
  TCONV_DEVICE int
  list_lost(int slot, int e, unsigned turns, float scale, lost_input* lost, int most, int lost_count) const
  {
    unsigned char* const plane = gemm_memory() + (problem.staged_at + slot * problem.plane_bytes());
    const auto in_h            = static_cast<int>(problem.axis[1].in);
    const auto in_w            = static_cast<int>(problem.axis[2].in);
#pragma unroll 1
    for (int base = first, turn = 0; base < items; base += Warps * 32, ++turn)
    {
      if ((turns >> (turn < 31 ? turn : 31) & 1) == 0)
      {
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < 16; ++i)
      {
        const int number   = opaque(base + lane);
        const location at  = locate(number);
        const int channel  = first_channel + at.block * gemm_block_channels + 4 * at.quarter + (i & 3);
        const int position = 4 * at.column + (i >> 2);
        const int h        = first_h + at.row;
        const int w        = first_w + position;
        float v            = 0.0f;
        if (number < items && plane_inside && h >= 0 && h < in_h && w >= 0 && w < in_w
            && channel < static_cast<int>(problem.in_channels))
        {
          v = to_float(
            sample[static_cast<unsigned>(corner + at.row * in_w + position) * static_cast<unsigned>(problem.x.position)
                   + static_cast<unsigned>(channel) * static_cast<unsigned>(problem.x.channel)]);
        }
        const bool gone      = is_lost(v * scale, v, problem.lost) || (problem.groups > 1 && !is_finite(v));
        const unsigned whose = __ballot_sync(0xffffffffu, gone);
        const int place      = lost_count + __popc(whose & ((1u << lane) - 1));
        if (gone)
        {
          if (place < most)
          {
            lost[place] = {static_cast<short>(e), static_cast<short>(at.row), position, channel, v};
          }
          const int staged    = (position & 1) * (problem.width >> 1) + (position >> 1);
          auto* halves        = reinterpret_cast<unsigned short*>(plane
                                                           + (at.block * problem.rows + at.row) * problem.row_bytes()
                                                           + staged * position_bytes + at.quarter * lane_bytes);
          halves[i & 3]       = 0;
          halves[4 + (i & 3)] = 0;
        }
        lost_count += __popc(whose);
      }
    }
    return lost_count;
  }

  /// Inspects and stores the items of this warp, copied before unless they are single elements of 16 bits; bit i of the result is set where an input of turn i
  /// may be lost.
  template <input_vector Vector>
  TCONV_DEVICE unsigned convert_items(unsigned plane, float threshold, float scale, float& peak) const
  {
    constexpr bool copied = Vector != input_vector::none || sizeof(In) == 4;
    // Two items at a time where there is most to do and few warps do it: they are short of independent instructions. (Seven warps: L1_57, L1_61 and
    // L1_70 2 to 4 % slower, L1_68 1 % faster.)
    constexpr int together = Form == gemm_form::split && Warps <= 3 ? 2 : 1;
    unsigned suspicious    = 0;
    unsigned turn          = 1;
#pragma unroll 1
    for (int base = first; base < items; base += together * Warps * 32)
    {
      item now[together];
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < together; ++i)
      {
        const int start  = base + i * Warps * 32; // the same for all lanes
        const int number = start + lane;
        if (number < items)
        {
          if constexpr (copied)
          {
            take<Vector>(now[i], find_raw<Vector>(number, start, plane));
          }
          else
          {
            load(now[i], number);
          }
        }
      }
      // Lanes have taken their items from each other's places.
      if constexpr (copied)
      {
        __syncwarp();
      }
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < together; ++i)
      {
        const int number = base + i * Warps * 32 + lane;
        if (number < items)
        {
          if constexpr (Form == gemm_form::split)
          {
            suspicious |= inspect(now[i], threshold, peak) ? turn : 0;
          }
          store(now[i], plane + target_of(number) + static_cast<unsigned>((number & 3) * lane_bytes), scale);
        }
        turn = turn < 0x80000000u ? turn << 1 : turn;
      }
    }
    return suspicious;
  }

  /// Takes up the planes of chunk \p chunk of tile \p index.
  TCONV_DEVICE void aim(int index, int chunk)
  {
    const gemm_tile tile = locate_gemm_tile(problem, index);
    sample               = x + tile.n * problem.x.sample;
    first_d              = tile.cell[0] - problem.most_shift[0];
    first_h              = tile.cell[1] - problem.most_shift[1];
    first_w              = tile.cell[2] - problem.left;
    first_channel        = problem.first_input(tile.channel_tile) + chunk * problem.chunk_blocks * gemm_block_channels;
    blocks               = problem.blocks_of(chunk);
    items                = blocks * problem.rows * (problem.width >> 2) * 4;
  }

  /// Starts to copy plane number \p e into slot \p slot of the ring.
  TCONV_DEVICE void copy_plane(int e, int slot)
  {
    aim_plane(e);
    const unsigned plane = room(slot);
    if constexpr (sizeof(In) == 2)
    {
      switch (vector)
      {
        case input_vector::positions: copy_items<input_vector::positions>(plane); break;
        case input_vector::channels: copy_items<input_vector::channels>(plane); break;
        case input_vector::eight_positions: copy_eight_positions(plane); break;
        case input_vector::eight_channels: copy_eight_channels(plane); break;
        default: break; // loaded when they are converted
      }
    }
    else if (vector == input_vector::positions)
    {
      copy_items<input_vector::positions>(plane);
    }
    else if (vector == input_vector::channels)
    {
      copy_items<input_vector::channels>(plane);
    }
    else
    {
      copy_items<input_vector::none>(plane);
    }
  }

  /// Waits for all copies of this thread.
  TCONV_DEVICE static void await_copies()
  {
    copy_async_commit();
    copy_async_wait<0>();
  }

  /// Stages plane number \p e, which has been copied to slot \p slot. \p peak collects the largest finite magnitude. Inputs of
  /// this warp that are lost are listed at \p lost, which has room for \p most and holds \p lost_count; returns how many there are then.
  TCONV_DEVICE int convert_plane(int e, int slot, int exponent, float& peak, lost_input* lost, int most, int lost_count)
  {
    aim_plane(e);
    const unsigned plane  = room(slot);
    const float scale     = power_of_two(exponent);
    const float threshold = power_of_two(-2 - exponent);
    unsigned suspicious   = 0;
    switch (vector)
    {
      case input_vector::positions:
        suspicious = convert_items<input_vector::positions>(plane, threshold, scale, peak);
        break;
      case input_vector::channels:
        if constexpr (sizeof(In) == 4) // else they are staged as they are
        {
          suspicious = convert_items<input_vector::channels>(plane, threshold, scale, peak);
        }
        break;
      case input_vector::eight_positions:
        if constexpr (sizeof(In) == 2)
        {
          convert_eight_positions(plane);
        }
        break;
      case input_vector::eight_channels: break;
      case input_vector::none: suspicious = convert_items<input_vector::none>(plane, threshold, scale, peak); break;
    }
    if constexpr (Form == gemm_form::split)
    {
      const unsigned turns = __reduce_or_sync(0xffffffffu, suspicious);
      if (turns != 0)
      {
        lost_count = list_lost(slot, e, turns, scale, lost, most, lost_count);
      }
    }
    return lost_count;
  }

private:
  template <input_vector Vector>
  TCONV_DEVICE void copy_items(unsigned plane) const
  {
#pragma unroll 1
    for (int base = first; base < items; base += Warps * 32)
    {
      if (base + lane < items)
      {
        if constexpr (Vector == input_vector::none)
        {
          copy_elements(base + lane, base, plane);
        }
        else
        {
          copy<Vector>(base + lane, base, plane);
        }
      }
    }
  }
  /// The address of slot \p slot of the ring.
  TCONV_DEVICE unsigned room(int slot) const
  {
    return static_cast<unsigned>(__cvta_generic_to_shared(gemm_memory()))
         + static_cast<unsigned>(problem.staged_at + slot * problem.plane_bytes());
  }
  TCONV_DEVICE void aim_plane(int e)
  {
    const auto in_h = static_cast<int>(problem.axis[1].in);
    const auto in_w = static_cast<int>(problem.axis[2].in);
    const int depth = first_d + e;
    corner          = (depth * in_h + first_h) * in_w + first_w;
    plane_inside    = depth >= 0 && depth < static_cast<int>(problem.axis[0].in);
    first           = (warp + e) % Warps * 32;
  }
};

#if TCONV_DETAIL_HAS_GEMM

// --------------------------------------------------------------------------------------------------------------- consumers

/// The cells of a thread: two neighbours along w, in the rows lane / 4 and lane / 4 + 8 of its warp's fragments. Kept as one
/// number: registers are for accumulators, and what spills to local memory comes back from L2.
struct gemm_cells
{
  int cell[3]; ///< first cell, relative to the tile
  bool active; ///< false for threads without cells; they repeat cell 0

  TCONV_DEVICE static gemm_pair pack(const gemm_problem& problem, int pair)
  {
    const int wide    = problem.box[2] / 2;
    const bool active = pair < wide * problem.box[1] * problem.box[0];
    pair              = active ? pair : 0;
    const int j       = pair % wide;
    pair /= wide;
    const int h = pair % problem.box[1];
    return {(active ? 1 : 0) << 30 | pair / problem.box[1] << 20 | h << 10 | 2 * j,
            h * problem.row_bytes() + j * problem.position_bytes()};
  }
  TCONV_DEVICE explicit gemm_cells(const gemm_pair& pair)
      : cell{pair.cells >> 20 & 1023, pair.cells >> 10 & 1023, pair.cells & 1023}
      , active(pair.cells >> 30 != 0)
  {}
};

/// The calling thread's number, asked for anew: cheaper than what is derived from it and then spilled.
TCONV_DEVICE int own_thread()
{
  return opaque(static_cast<int>(threadIdx.x));
}

/// The number of the calling thread's pair of cells.
TCONV_DEVICE int own_pair()
{
  const int thread = own_thread();
  return thread / 32 * 8 + thread % 32 / 4;
}

/// What a lane reads of one staged position: 4 channels.
template <gemm_form Form>
struct staged_words
{
  static constexpr int count = gemm_form_traits::of(Form).lane_bytes / 4;
  unsigned of[count];

  TCONV_DEVICE explicit staged_words(const unsigned char* from)
  {
    if constexpr (count == 2)
    {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      of[0]         = v.x;
      of[1]         = v.y;
    }
    else
    {
      const uint4 v = *reinterpret_cast<const uint4*>(from);
      of[0]         = v.x;
      of[1]         = v.y;
      of[2]         = v.z;
      of[3]         = v.w;
    }
  }
};

/// The left operand of one step in registers: two instructions' worth for tf32, the parts for split.
template <gemm_form Form>
struct gemm_fragment
{
  static constexpr int count = gemm_form_traits::registers(Form) / 4;
  unsigned a[count][4];

  /// \p first, \p second: staged input of the thread's cells at the step's shift.
  TCONV_DEVICE void set(const staged_words<Form>& first, const staged_words<Form>& second)
  {
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < staged_words<Form>::count; ++i)
    {
      a[i / 2][i % 2 * 2]     = first.of[i];
      a[i / 2][i % 2 * 2 + 1] = second.of[i];
    }
  }

  /// Completes a loaded operand.
  TCONV_DEVICE void complete()
  {
    if constexpr (Form == gemm_form::split)
    {
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i)
      {
        a[2][i] = reduced(a[0][i]);
      }
    }
  }

private:
  /// Two fp16 numbers times 2^-low_exponent.
  TCONV_DEVICE static unsigned reduced(unsigned pair)
  {
    const __half2 product = __hmul2(
      *reinterpret_cast<const __half2*>(&pair), __float2half2_rn(power_of_two(-low_exponent)));
    return *reinterpret_cast<const unsigned*>(&product);
  }
};

/// Accumulators of a thread; see wgmma.cuh for which output is where.
template <class Policy>
using gemm_accumulators = float[Policy::sets][Policy::columns / 2];

/// Where the next stage of weights lies: a position in the ring and how often it has been filled.
struct ring_place
{
  int slot        = 0;
  unsigned parity = 0;

  TCONV_DEVICE void advance(int stages)
  {
    if (++slot == stages)
    {
      slot = 0;
      parity ^= 1;
    }
  }
};

/// Where packed weights lie, as the policy's instructions take it.
template <class Policy>
using packed_weights = typename gemm_products<Policy::instruction>::weights;

/// Multiplies Count steps, whose weights begin at \p b and move on; step i for those units whose bits Policy::units * i + unit of Present are set. The
/// products are a group that is under way on return.
template <class Policy, gemm_form Form, uint64_t Present, int Count>
TCONV_DEVICE void
start_steps(gemm_accumulators<Policy>& sums, gemm_fragment<Form> (&fragments)[Count], packed_weights<Policy>& b)
{
  using products                         = gemm_products<Policy::instruction>;
  constexpr packed_weights<Policy> piece = gemm_form_traits::of(Form).terms * Policy::unit_columns * 32 / 16;
  TCONV_PRAGMA_UNROLL
  for (gemm_fragment<Form>& fragment : fragments)
  {
    fragment.complete();
  }
  products::begin(fragments);
  TCONV_PRAGMA_UNROLL
  for (int i = 0; i < Count; ++i)
  {
    TCONV_PRAGMA_UNROLL
    for (int unit = 0; unit < Policy::units; ++unit)
    {
      if ((Present >> (Policy::units * i + unit) & 1) != 0)
      {
        // Sets that follow each other, and their columns.
        auto& of_unit = reinterpret_cast<float(&)[Policy::unit_columns / 2]>(sums[unit * Policy::unit]);
        products::template multiply<Form, Policy::unit_columns>(of_unit, fragments[i].a, b);
        b += piece;
      }
    }
  }
  products::commit();
}

/// The same, complete on return.
template <class Policy, gemm_form Form, uint64_t Present, int Count>
TCONV_DEVICE void
multiply_steps(gemm_accumulators<Policy>& sums, gemm_fragment<Form> (&fragments)[Count], packed_weights<Policy>& b)
{
  start_steps<Policy, Form, Present>(sums, fragments, b);
  gemm_products<Policy::instruction>::template await<0>();
}

/// Split form: multiplies a step for set number \p Set, whose weights begin at \p b and move on. The products join the sums outside of the tensor core,
/// which truncates.
template <class Policy, gemm_form Form, int Set>
TCONV_DEVICE void
multiply_promoted(gemm_accumulators<Policy>& sums, gemm_fragment<Form> (&fragment)[1], packed_weights<Policy>& b)
{
  using products = gemm_products<Policy::instruction>;
  float now[Policy::unit_columns / 2];
  TCONV_PRAGMA_UNROLL
  for (float& v : now)
  {
    v = 0.0f;
    asm volatile("" : "+f"(v)); // in its register before products begin
  }
  products::begin(fragment);
  products::template multiply<Form, Policy::unit_columns>(now, fragment[0].a, b);
  products::commit();
  products::template await<0>();
  TCONV_PRAGMA_UNROLL
  for (int i = 0; i < Policy::unit_columns / 2; ++i)
  {
    sums[Set][i] += now[i];
  }
  b += gemm_form_traits::of(Form).terms * Policy::unit_columns * 32 / 16;
}

/// The table of steps; those of phase group g begin at g * row_steps.
TCONV_DEVICE gemm_step* step_table(const gemm_problem& problem)
{
  return reinterpret_cast<gemm_step*>(gemm_memory() + problem.steps_at);
}

/// The steps of a row as the table has them, whatever their shifts. All but next is uniform, and provably so: products must not stand behind
/// a branch that the compiler thinks lanes may take differently.
template <class Policy, gemm_form Form>
struct tabulated_steps
{
  static constexpr bool ahead = false;

  const unsigned char* row; ///< the thread's staged input for the taps at hand
  const gemm_step* entry;   ///< of the next step
  gemm_step next;           ///< read ahead
  uint64_t present;         ///< several sets: those of the next step in the lowest bits
  int left;                 ///< shifts until the next block of channels begins

  TCONV_DEVICE tabulated_steps(const gemm_problem& problem, const gemm_phase& phase, const unsigned char* staged)
      : row(staged)
      , entry(step_table(problem) + phase.first_step)
      , next(*entry)
      , present(problem.present)
      , left(phase.shifts)
  {}

  /// Multiplies the next \p steps steps, whose weights begin at \p b. Called by a warpgroup; on return the products are complete.
  TCONV_DEVICE void multiply(gemm_accumulators<Policy>& sums,
                             const gemm_problem& problem,
                             const gemm_phase& phase,
                             int steps,
                             packed_weights<Policy> b)
  {
    if constexpr (Policy::units == 1)
    {
      constexpr int most = Policy::steps_at_once(gemm_form_traits::registers(Form));
      if constexpr (most >= 4)
      {
        multiply_groups<4>(sums, steps, b);
      }
      if constexpr (most >= 2)
      {
        multiply_groups<2>(sums, steps, b);
      }
      multiply_groups<1>(sums, steps, b);
    }
    else
    {
#  pragma unroll 1
      for (; steps > 0; --steps)
      {
        // No second operand is loaded ahead: its registers are worth more, and the other warpgroups keep the tensor cores busy.
        gemm_fragment<Form> fragment[1];
        fragment[0].set(staged_words<Form>(row + next.first), staged_words<Form>(row + next.second));
        advance(1);
        const int sets = advance_sets(problem, phase.shifts);
        // A branch around each case as a whole: products must not straddle one.
        if constexpr (Form == gemm_form::split && Policy::promoted_steps)
        {
          fragment[0].complete();
          multiply_each<0, Policy::units>(sums, fragment, sets, b);
        }
        else if constexpr (Policy::units > 2)
        {
          multiply_sets<0>(sums, fragment, sets, b);
        }
        else if (sets == 3)
        {
          multiply_steps<Policy, Form, 3>(sums, fragment, b);
        }
        else if (sets == 1)
        {
          multiply_steps<Policy, Form, 1>(sums, fragment, b);
        }
        else
        {
          multiply_steps<Policy, Form, 2>(sums, fragment, b);
        }
      }
    }
  }

private:
  TCONV_DEVICE void advance(int steps)
  {
    entry += steps;
    next = *entry;
  }
  /// Several sets: which of them the next step has weights for.
  TCONV_DEVICE int advance_sets(const gemm_problem& problem, int shifts)
  {
    const int sets = static_cast<int>(present) & ((1 << Policy::units) - 1);
    present >>= Policy::units;
    if (--left == 0)
    {
      left    = shifts;
      present = problem.present;
    }
    return sets;
  }
  /// A step for those of four sets from First on that are in \p sets, at once where they are the first ones of the four; and so on.
  template <int First>
  TCONV_DEVICE static void multiply_sets(gemm_accumulators<Policy>& sums,
                                         gemm_fragment<Form> (&fragment)[1],
                                         int sets,
                                         packed_weights<Policy>& b)
  {
    switch (sets >> First & 15)
    {
      case 0: break;
      case 15: multiply_steps<Policy, Form, uint64_t{15} << First>(sums, fragment, b); break;
      case 7: multiply_steps<Policy, Form, uint64_t{7} << First>(sums, fragment, b); break;
      default: multiply_each<First, First + 4>(sums, fragment, sets, b);
    }
    if constexpr (First + 4 < Policy::units)
    {
      multiply_sets<First + 4>(sums, fragment, sets, b);
    }
  }
  template <int First, int Last>
  TCONV_DEVICE static void multiply_each(gemm_accumulators<Policy>& sums,
                                         gemm_fragment<Form> (&fragment)[1],
                                         int sets,
                                         packed_weights<Policy>& b)
  {
    if ((sets >> First & 1) != 0)
    {
      if constexpr (Form == gemm_form::split && Policy::promoted_steps)
      {
        multiply_promoted<Policy, Form, First>(sums, fragment, b);
      }
      else
      {
        multiply_steps<Policy, Form, uint64_t{1} << First>(sums, fragment, b);
      }
    }
    if constexpr (First + 1 < Last)
    {
      multiply_each<First + 1, Last>(sums, fragment, sets, b);
    }
  }
  /// Groups of Count steps of one set, as many as \p steps has, which are taken off it; \p b moves on. The products of a group are waited for
  /// once: so few of them take less time than the way to the next wait.
  template <int Count>
  TCONV_DEVICE void multiply_groups(gemm_accumulators<Policy>& sums, int& steps, packed_weights<Policy>& b)
  {
#  pragma unroll 1
    for (; steps >= Count; steps -= Count)
    {
      gemm_fragment<Form> fragments[Count];
      TCONV_PRAGMA_UNROLL
      for (int i = 0; i < Count; ++i)
      {
        const gemm_step at = i == 0 ? next : entry[i];
        fragments[i].set(staged_words<Form>(row + at.first), staged_words<Form>(row + at.second));
      }
      advance(Count);
      multiply_steps<Policy, Form, ~uint64_t{0}>(sums, fragments, b);
    }
  }
};

/// What a thread reads at Count shifts that follow each other. \p first, \p second: staged input of its cells at the first of them; what the
/// second cell reads, the first one reads at the next shift. Positions of one parity follow each other, so that all offsets are constants.
template <int Count, gemm_form Form>
TCONV_DEVICE void
load_neighbours(gemm_fragment<Form>* fragments, const unsigned char* first, const unsigned char* second)
{
  constexpr int bytes = gemm_form_traits::of(Form).position_bytes();
  staged_words<Form> right(second);
  TCONV_PRAGMA_UNROLL
  for (int j = 0; j < Count; ++j)
  {
    const staged_words<Form> left(j % 2 == 0 ? first - j / 2 * bytes : second - (j + 1) / 2 * bytes);
    fragments[j].set(left, right);
    right = left;
  }
}

/// Steps whose shifts follow each other, in stages of whole blocks of channels; Present: one of gemm_known_rows.
template <class Policy, gemm_form Form, unsigned Present>
struct neighbouring_steps
{
  static constexpr int shifts = detail::count_digits(Present, Policy::units);
  static constexpr int most   = Policy::steps_at_once(gemm_form_traits::registers(Form));
  static constexpr gemm_group<Policy> at_once{Form, Present};
  static constexpr int blocks        = at_once.blocks;
  static constexpr int group         = blocks * shifts; ///< steps
  static constexpr bool ahead        = at_once.ahead;
  static constexpr uint64_t of_group = detail::repeat_bits(Present, Policy::units* shifts, blocks);

  const unsigned char* first; ///< staged input of the thread's first cell at the first shift of the next block
  const unsigned char* second;

  TCONV_DEVICE neighbouring_steps(const gemm_problem& problem, const gemm_phase&, const unsigned char* row)
      : first(row + problem.first_step.first)
      , second(row + problem.first_step.second)
  {}

  /// Starts to multiply the next group of steps, whose weights begin at \p b.
  TCONV_DEVICE void start(gemm_accumulators<Policy>& sums,
                          const gemm_problem& problem,
                          gemm_fragment<Form> (&fragments)[group],
                          packed_weights<Policy> b)
  {
    load_group(fragments, problem);
    start_steps<Policy, Form, of_group>(sums, fragments, b);
  }

  TCONV_DEVICE void multiply(gemm_accumulators<Policy>& sums,
                             const gemm_problem& problem,
                             const gemm_phase&,
                             int steps,
                             packed_weights<Policy> b)
  {
    if constexpr (blocks > 1)
    {
#  pragma unroll 1
      for (; steps >= blocks * shifts; steps -= blocks * shifts)
      {
        gemm_fragment<Form> fragments[group];
        load_group(fragments, problem);
        multiply_steps<Policy, Form, of_group>(sums, fragments, b);
      }
    }
#  pragma unroll 1
    for (; steps > 0; steps -= shifts)
    {
      multiply_shifts<0>(sums, b);
      advance(problem);
    }
  }

private:
  TCONV_DEVICE void load_group(gemm_fragment<Form> (&fragments)[group], const gemm_problem& problem)
  {
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < blocks; ++i)
    {
      load_neighbours<shifts>(fragments + i * shifts, first, second);
      advance(problem);
    }
  }
  TCONV_DEVICE void advance(const gemm_problem& problem)
  {
    first += problem.block_bytes;
    second += problem.block_bytes;
  }
  /// The shifts from number Done on.
  template <int Done>
  TCONV_DEVICE void multiply_shifts(gemm_accumulators<Policy>& sums, packed_weights<Policy>& b) const
  {
    constexpr int bytes = gemm_form_traits::of(Form).position_bytes();
    constexpr int count = shifts - Done < most ? shifts - Done : most;
    gemm_fragment<Form> fragments[count];
    load_neighbours<count>(fragments,
                           Done % 2 == 0 ? first - Done / 2 * bytes : second - (Done + 1) / 2 * bytes,
                           Done % 2 == 0 ? second - Done / 2 * bytes : first - Done / 2 * bytes);
    multiply_steps<Policy, Form, (Present >> (Policy::units * Done))>(sums, fragments, b);
    if constexpr (Done + count < shifts)
    {
      multiply_shifts<Done + count>(sums, b);
    }
  }
};

/// A type as a value.
template <class T>
struct type_value
{
  using type = T;
};

/// Calls visit(type_value<Steps>) with what the steps of \p problem are; \p known: rows that have code of their own. A branch around all products of a
/// phase: they must not straddle one.
template <class Policy, gemm_form Form, class Visitor>
TCONV_DEVICE void visit_steps(const gemm_problem& /*problem*/, Visitor visit, unsigned_list<> /*known*/)
{
  visit(type_value<tabulated_steps<Policy, Form>>{});
}
template <class Policy, gemm_form Form, class Visitor, unsigned First, unsigned... Rest>
TCONV_DEVICE void visit_steps(const gemm_problem& problem, Visitor visit, unsigned_list<First, Rest...> /*known*/)
{
  if (problem.neighbours == First)
  {
    visit(type_value<neighbouring_steps<Policy, Form, First>>{});
  }
  else
  {
    visit_steps<Policy, Form>(problem, visit, unsigned_list<Rest...>{});
  }
}

#endif

} // namespace block

TCONV_CUDA_NAMESPACE_END
