// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// The main loop of the Hopper tensor-core engine: matrix products of weights and a staged input tile.
///
/// A block is persistent. One warp streams packed weights through a ring of stages, some stage the input of the next tile, two warpgroups
/// multiply, both operands in shared memory, and others finish and store the outputs. The sum over input channels and taps may run in any
/// order.
///
/// Staged input: [plane of a ring][block of 16 channels][slab][row][position][16 bytes], see gemm_form_traits. 8 neighbouring
/// positions are a core matrix of the right operand, whatever the shift: a tap moves the address of the operand, nothing else.

#include "../thread/element.cuh"
#include "../tuning/implicit_gemm.hpp"
#include "gemm_exchange.cuh"
#include "implicit_gemm_problem.hpp"
#include "stage_input.cuh"
#include "wgmma.cuh"

#include <cuda/ptx>

TCONV_CUDA_NAMESPACE_BEGIN

namespace block
{

/// An input that the split form cannot hold exactly enough: staged as 0, its products are added one by one.
struct lost_input
{
  int row;      ///< staged row
  int position; ///< staged position along w
  int channel;
  float value;
};

/// What the staging warps say about a tile (or one chunk of its input channels).
struct gemm_segment
{
  int first_plane; ///< slot of the first plane
  int exponent;    ///< inputs were multiplied by 2^exponent
  int one_by_one;  ///< the tile's products must be formed in fp32
  int lost;        ///< there are inputs that were staged as 0
};

/// Control data of a block, at the start of its shared memory.
struct gemm_control
{
  static constexpr int most_planes   = 32; ///< of the ring
  static constexpr int lost_per_warp = 8;
  static constexpr int warps         = 7; ///< that stage, at most

  uint64_t full[tuning::implicit_gemm_max_stages];  ///< weights have arrived
  uint64_t empty[tuning::implicit_gemm_max_stages]; ///< weights have been used
  uint64_t staged[2];                               ///< the input of a segment is there
  uint64_t used[2];                                 ///< nobody reads the segment any more
  uint64_t put[2][tuning::implicit_gemm_most_room];   ///< per run: a part is there to be finished
  uint64_t taken[2][tuning::implicit_gemm_most_room]; ///< it has been finished
  gemm_segment segment[2];
  gemm_segment of_part[2][tuning::implicit_gemm_most_room]; ///< that it is of, one_by_one for all its chunks together
  int one_by_one; ///< a weight does not fit the split form: no tile does
  float plane_peak[most_planes][warps];
  int lost_count[most_planes][warps];
};
static_assert(sizeof(gemm_control) <= gemm_control_bytes, "tconv: control data has outgrown its room");

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
/// The list of lost inputs of a staging warp for a slot of the ring of planes.
TCONV_DEVICE lost_input* lost_list(int slot, int warp)
{
  return reinterpret_cast<lost_input*>(gemm_memory() + gemm_control_bytes)
       + (slot * gemm_control::warps + warp) * gemm_control::lost_per_warp;
}

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

/// Synchronises the staging warps only.
template <int Threads>
TCONV_DEVICE void synchronize_staging()
{
  asm volatile("barrier.sync 1, %0;" ::"n"(Threads) : "memory");
}

/// Synchronises the warpgroups that multiply.
TCONV_DEVICE void synchronize_multiplying()
{
  asm volatile("barrier.sync 2, 256;" ::: "memory");
}

/// Synchronises the \p Threads threads that finish run \p run.
template <int Threads>
TCONV_DEVICE void synchronize_finishing(int run)
{
  asm volatile("barrier.sync %0, %1;" ::"r"(3 + run), "n"(Threads) : "memory");
}

#if TCONV_DETAIL_HAS_WGMMA

/// Makes what this thread has written to shared memory visible to matrix instructions and bulk copies that other threads start behind a
/// barrier.
TCONV_DEVICE void publish()
{
  cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
}

/// Waits for phase \p parity of a barrier. Called by any thread.
TCONV_DEVICE void wait_barrier(uint64_t* barrier, unsigned parity)
{
  while (!cuda::ptx::mbarrier_try_wait_parity(barrier, parity))
  {}
}

/// True for one lane of the calling warp, always the same. Cheaper than to ask for the lane's number.
TCONV_DEVICE bool elected()
{
  unsigned result;
  asm volatile("{\n"
               ".reg .pred chosen;\n"
               "elect.sync _|chosen, 0xffffffff;\n"
               "selp.u32 %0, 1, 0, chosen;\n"
               "}\n"
               : "=r"(result)
               :
               : "memory");
  return result != 0;
}

/// Arrives without transactions.
TCONV_DEVICE void arrive_barrier(uint64_t* barrier)
{
  cuda::ptx::mbarrier_arrive(barrier);
}

#endif

/// Where a tile lies.
struct gemm_tile
{
  int channel_tile; ///< the first one
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
  tile.channel_tile = static_cast<int>(rest) * (problem.channel_tiles / problem.channel_groups);
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

/// The low parts of weights are stored multiplied by 2^low_exponent, lest they get lost: their products are formed first, and what has
/// been added up is then multiplied by 2^-low_exponent.
inline constexpr int low_exponent = 8;

/// 2^exponent for -126 <= exponent <= 127.
TCONV_DEVICE float power_of_two(int exponent)
{
  return __int_as_float((exponent + 127) << 23);
}

/// Whether hi + lo miss more than \p tolerance of \p scaled, the nonzero input \p value times a power of two.
TCONV_DEVICE bool is_lost(float scaled, float value, float tolerance)
{
  const split_value parts(scaled);
  const float residual = fabsf(scaled - __half2float(parts.hi) - __half2float(parts.lo));
  return value != 0.0f && (scaled == 0.0f || residual > tolerance * fabsf(scaled));
}

/// The finite magnitude of \p v, 0 for NaN and infinity.
TCONV_DEVICE float finite_magnitude(float v)
{
  const float a = fabsf(v);
  return a <= 3.402823466e38f ? a : 0.0f;
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

/// \p v rounded to the nearest TF32 number.
TCONV_DEVICE unsigned round_tf32(float v)
{
  unsigned result;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(v));
  return result;
}

/// Copies 8 or 16 bytes asynchronously, or writes zeros without reading where \p exists is false. The size is an operand here, and not
/// a branch as in the runtime's function.
template <int Bytes>
TCONV_DEVICE void copy_async_bytes(void* target, const void* source, bool exists)
{
  const auto to       = static_cast<unsigned>(__cvta_generic_to_shared(target));
  const unsigned read = exists ? Bytes : 0;
  if constexpr (Bytes == 16)
  {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source), "r"(read) : "memory");
  }
  else
  {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(source), "r"(read) : "memory");
  }
}

/// How x is read: what one load brings.
enum class input_vector
{
  none,      ///< an element
  positions, ///< 4 neighbours along w of one channel
  channels   ///< 4 channels of one position (channels last)
};

/// Stages planes of a tile: items of 4 channels x 4 positions along w. Called by the staging warps together.
template <gemm_form Form, int Warps, class In>
struct plane_stager
{
  static constexpr int slabs = gemm_form_traits::of(Form).slabs;

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

  const gemm_problem& problem;
  const In* x;
  input_vector vector;
  int warp; ///< of the staging warps
  int lane;

  // Of the plane at hand.
  const In* sample;
  int first_h;
  int first_w;
  int corner; ///< offset of the plane's first row and column
  int first_channel;
  int items;
  bool plane_inside;

  TCONV_DEVICE location locate(int number) const
  {
    const int columns = problem.width >> 2;
    const int above   = small_divisor(columns).quotient(number >> 2);
    const int block   = small_divisor(problem.rows).quotient(above);
    return {above - block * problem.rows, (number >> 2) - above * columns, block, number & 3};
  }

  /// Bytes from a plane to position 0 of an item in slab \p slab of its block; the others follow.
  TCONV_DEVICE int place(const location& at, int slab) const
  {
    return (at.block * slabs + slab) * problem.slab_bytes()
         + (at.row * problem.width + 4 * at.column) * gemm_position_bytes;
  }
  /// Where the 4 channels of an item are staged, in the first of their slabs.
  TCONV_DEVICE int target_of(const location& at) const
  {
    return Form == gemm_form::tf32 ? place(at, at.quarter) : place(at, at.quarter >> 1) + (at.quarter & 1) * 8;
  }
  /// Where the 4 channels of an item wait until they are converted, a position's room for each channel. Two items share the slabs
  /// of the split form: one waits in the first slab, the other in the second.
  TCONV_DEVICE int waiting_place(const location& at) const
  {
    return Form == gemm_form::split ? place(at, (at.quarter >> 1) + 2 * (at.quarter & 1)) : target_of(at);
  }

  /// Starts to copy item \p number, 4 elements at once, to its waiting place: vector i to the place of position i. (4 channels of 16
  /// bits are staged then: their waiting place is where they belong.)
  template <input_vector Vector>
  TCONV_DEVICE void copy(int number, unsigned char* plane) const
  {
    constexpr bool along_w  = Vector == input_vector::positions;
    const auto in_h         = static_cast<int>(problem.axis[1].in);
    const auto in_w         = static_cast<int>(problem.axis[2].in);
    const auto channel_step = static_cast<unsigned>(problem.x.channel);
    const auto step         = static_cast<unsigned>(along_w ? 1 : problem.x.position);
    const location at       = locate(number);
    const int channel       = first_channel + at.block * gemm_block_channels + 4 * at.quarter;
    const int h             = first_h + at.row;
    const int w             = first_w + 4 * at.column;
    const bool inside       = plane_inside && h >= 0 && h < in_h;
    // Offsets within a sample fit 32 bits.
    unsigned source = static_cast<unsigned>(corner + at.row * in_w + 4 * at.column) * step
                    + static_cast<unsigned>(channel) * channel_step;
    unsigned char* to = plane + waiting_place(at);
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i)
    {
      const int w_of       = along_w ? w : w + i;
      const int channel_of = along_w ? channel + i : channel;
      const bool exists    = inside && w_of >= 0 && w_of < in_w && channel_of < static_cast<int>(problem.in_channels);
      copy_async_bytes<4 * static_cast<int>(sizeof(In))>(
        to + i * gemm_position_bytes, exists ? sample + source : x, exists);
      source += along_w ? channel_step : step;
    }
  }
  /// Takes an item that has been copied and is to be converted.
  template <input_vector Vector>
  TCONV_DEVICE void take(item& of, int number, const unsigned char* plane) const
  {
    const unsigned char* from = plane + waiting_place(locate(number));
    TCONV_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i)
    {
      if constexpr (sizeof(In) == 4)
      {
        const uint4 v           = *reinterpret_cast<const uint4*>(from + i * gemm_position_bytes);
        const unsigned parts[4] = {v.x, v.y, v.z, v.w};
        TCONV_PRAGMA_UNROLL
        for (int k = 0; k < 4; ++k)
        {
          (Vector == input_vector::channels ? of.words[k][i] : of.words[i][k]) = parts[k];
        }
      }
      else
      {
        static_assert(Vector == input_vector::positions, "tconv: 4 channels of 16 bits are staged as they are");
        const uint2 v  = *reinterpret_cast<const uint2*>(from + i * gemm_position_bytes);
        of.words[i][0] = v.x;
        of.words[i][1] = v.y;
      }
    }
  }

  /// Loads item \p number, one element at a time.
  TCONV_DEVICE void load(item& of, int number) const
  {
    const auto in_h         = static_cast<int>(problem.axis[1].in);
    const auto in_w         = static_cast<int>(problem.axis[2].in);
    const auto channel_step = static_cast<unsigned>(problem.x.channel);
    const auto step         = static_cast<unsigned>(problem.x.position);
    const location at       = locate(number);
    const int channel       = first_channel + at.block * gemm_block_channels + 4 * at.quarter;
    const int h             = first_h + at.row;
    const int w             = first_w + 4 * at.column;
    const bool inside       = number < items && plane_inside && h >= 0 && h < in_h;
    unsigned source         = static_cast<unsigned>(corner + at.row * in_w + 4 * at.column) * step
                    + static_cast<unsigned>(channel) * channel_step;
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < 4; ++c)
    {
      In values[4];
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < 4; ++p)
      {
        values[p] = from_float<In>(0.0f);
        if (inside && channel + c < static_cast<int>(problem.in_channels) && w + p >= 0 && w + p < in_w)
        {
          values[p] = sample[source + p * step];
        }
      }
      if constexpr (sizeof(In) == 4)
      {
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < 4; ++p)
        {
          of.words[c][p] = __float_as_uint(to_float(values[p]));
        }
      }
      else
      {
        of.words[c][0] = join(values[0], values[1]);
        of.words[c][1] = join(values[2], values[3]);
      }
      source += channel_step;
    }
  }

  /// Stores an item, converted. fp32 values may be changed by find_lost() before.
  TCONV_DEVICE void store(const item& of, int number, unsigned char* plane, float scale) const
  {
    if (number >= items)
    {
      return;
    }
    unsigned char* at = plane + target_of(locate(opaque(number))); // again: its parts would take registers until here
    TCONV_PRAGMA_UNROLL
    for (int p = 0; p < 4; ++p)
    {
      unsigned char* to = at + p * gemm_position_bytes;
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
        *reinterpret_cast<uint2*>(to)                            = make_uint2(hi[0], hi[1]);
        *reinterpret_cast<uint2*>(to + 2 * problem.slab_bytes()) = make_uint2(lo[0], lo[1]);
      }
      else if constexpr (Form == gemm_form::tf32)
      {
        *reinterpret_cast<uint4*>(to) = make_uint4(round_tf32(of.value(0, p)),
                                                   round_tf32(of.value(1, p)),
                                                   round_tf32(of.value(2, p)),
                                                   round_tf32(of.value(3, p)));
      }
      else
      {
        *reinterpret_cast<uint2*>(to) = make_uint2(
          __byte_perm(of.words[0][p / 2], of.words[1][p / 2], p % 2 == 0 ? 0x5410 : 0x7632),
          __byte_perm(of.words[2][p / 2], of.words[3][p / 2], p % 2 == 0 ? 0x5410 : 0x7632));
      }
    }
  }

  /// Collects the largest finite magnitude of an item; true if an input may be lost: it is not zero, but below \p threshold.
  TCONV_DEVICE static bool inspect(const item& of, float threshold, float& peak)
  {
    float largest  = 0.0f;
    float smallest = threshold;
    TCONV_PRAGMA_UNROLL
    for (int c = 0; c < 4; ++c)
    {
      TCONV_PRAGMA_UNROLL
      for (int p = 0; p < 4; ++p)
      {
        largest  = fmaxf(largest, fabsf(of.value(c, p)));
        smallest = fminf(smallest, fabsf(of.value(c, p)));
      }
    }
    // Zeros are common (padding, rectified inputs), infinities are not.
    bool suspicious = false;
    if (smallest < threshold || !(largest <= 3.402823466e38f))
    {
      largest = 0.0f;
      TCONV_PRAGMA_UNROLL
      for (int c = 0; c < 4; ++c)
      {
        TCONV_PRAGMA_UNROLL
        for (int p = 0; p < 4; ++p)
        {
          const float v = of.value(c, p);
          largest       = fmaxf(largest, finite_magnitude(v));
          suspicious    = suspicious || (fabsf(v) < threshold && v != 0.0f);
        }
      }
    }
    peak = fmaxf(peak, largest);
    return suspicious;
  }

  /// Lists the inputs of this warp's items that the split form loses, and replaces them by 0 where they are staged. Returns how many
  /// are listed or would be. \p turns: bit i is set where turn i of this warp, or one from 31 on, has something suspicious. Rare, and
  /// so one by one: registers are for the loop that has to be fast.
  TCONV_DEVICE int list_lost(unsigned char* plane, unsigned turns, float scale, lost_input* lost) const
  {
    const auto in_h = static_cast<int>(problem.axis[1].in);
    const auto in_w = static_cast<int>(problem.axis[2].in);
    int lost_count  = 0;
#pragma unroll 1
    for (int base = warp * 32, turn = 0; base < items; base += Warps * 32, ++turn)
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
        const bool gone      = is_lost(v * scale, v, problem.lost);
        const unsigned whose = __ballot_sync(0xffffffffu, gone);
        const int place      = lost_count + __popc(whose & ((1u << lane) - 1));
        if (gone)
        {
          if (place < gemm_control::lost_per_warp)
          {
            lost[place] = {at.row, position, channel, v};
          }
          auto* halves = reinterpret_cast<unsigned short*>(plane + target_of(at) + (i >> 2) * gemm_position_bytes);
          TCONV_PRAGMA_UNROLL
          for (int slab = 0; slab < slabs; slab += 2)
          {
            halves[slab * problem.slab_bytes() / 2 + (i & 3)] = 0;
          }
        }
        lost_count += __popc(whose);
      }
    }
    return lost_count;
  }

  /// Loads, inspects and stores the items of this warp; bit i of the result is set where an input of turn i may be lost.
  template <input_vector Vector>
  TCONV_DEVICE unsigned stage_items(unsigned char* plane, float threshold, float scale, float& peak) const
  {
    if constexpr (Vector != input_vector::none)
    {
      // All are under way at once.
#pragma unroll 1
      for (int number = warp * 32 + lane; number < items; number += Warps * 32)
      {
        copy<Vector>(number, plane);
      }
      copy_async_commit();
      copy_async_wait<0>();
    }
    if constexpr (Vector == input_vector::channels && sizeof(In) == 2)
    {
      return 0; // staged already
    }
    else
    {
      return convert_items<Vector>(plane, threshold, scale, peak);
    }
  }

  /// Inspects and stores the items of this warp, loaded before unless Vector is none; result as of stage_items().
  template <input_vector Vector>
  TCONV_DEVICE unsigned convert_items(unsigned char* plane, float threshold, float scale, float& peak) const
  {
    unsigned suspicious = 0;
    unsigned turn       = 1;
#pragma unroll 1
    for (int base = warp * 32; base < items; base += Warps * 32)
    {
      const int number = base + lane;
      item now{};
      if constexpr (Vector == input_vector::none)
      {
        load(now, number);
      }
      else if (number < items)
      {
        take<Vector>(now, number, plane);
      }
      __syncwarp(); // two lanes share the places that are written from here on
      if constexpr (Form == gemm_form::split)
      {
        suspicious |= inspect(now, threshold, peak) ? turn : 0;
        turn = turn < 0x80000000u ? turn << 1 : turn;
      }
      store(now, number, plane, scale);
    }
    return suspicious;
  }

  /// Stages plane number \p e of tile \p index into slot \p slot of the ring. \p peak collects the largest finite magnitude. Returns
  /// how many inputs of this warp were lost.
  TCONV_DEVICE int stage(int index, int chunk, int e, int exponent, int slot, float& peak)
  {
    const gemm_tile tile  = locate_gemm_tile(problem, index);
    const int depth       = tile.cell[0] - problem.most_shift[0] + e;
    const auto in_d       = static_cast<int>(problem.axis[0].in);
    const auto in_h       = static_cast<int>(problem.axis[1].in);
    const auto in_w       = static_cast<int>(problem.axis[2].in);
    sample                = x + tile.n * problem.x.sample;
    items                 = problem.blocks_of(chunk) * problem.rows * (problem.width >> 2) * 4;
    first_h               = tile.cell[1] - problem.most_shift[1];
    first_w               = tile.cell[2] - problem.left;
    first_channel         = chunk * problem.chunk_blocks * gemm_block_channels;
    corner                = (depth * in_h + first_h) * in_w + first_w;
    plane_inside          = depth >= 0 && depth < in_d;
    unsigned char* plane  = gemm_memory() + (problem.staged_at + slot * problem.plane_bytes());
    lost_input* lost      = lost_list(slot, warp);
    const float scale     = power_of_two(exponent);
    const float threshold = power_of_two(-2 - exponent);
    int lost_count        = 0;

    unsigned suspicious = 0;
    switch (vector)
    {
      case input_vector::positions:
        suspicious = stage_items<input_vector::positions>(plane, threshold, scale, peak);
        break;
      case input_vector::channels:
        suspicious = stage_items<input_vector::channels>(plane, threshold, scale, peak);
        break;
      default: suspicious = stage_items<input_vector::none>(plane, threshold, scale, peak);
    }
    if constexpr (Form == gemm_form::split)
    {
      const unsigned turns = __reduce_or_sync(0xffffffffu, suspicious);
      if (turns != 0)
      {
        lost_count = list_lost(plane, turns, scale, lost);
      }
    }
    return lost_count;
  }
};

#if TCONV_DETAIL_HAS_WGMMA

// --------------------------------------------------------------------------------------------------------------- consumers

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

/// Multiplies by one piece of weights. Operands are addresses in units of 16 bytes, the upper halves of their descriptors apart: \p w of
/// the packed weights, whose terms are \p term apart, \p x of the staged input's first slab, whose slabs are \p slab apart.
/// \p accumulate: 0 if sums hold nothing yet.
template <gemm_form Form, int Pass>
TCONV_DEVICE void multiply_piece(float (&sums)[tuning::implicit_gemm_cells / 2],
                                 unsigned w,
                                 uint64_t w_layout,
                                 unsigned term,
                                 unsigned x,
                                 uint64_t x_layout,
                                 unsigned slab,
                                 int accumulate)
{
  const uint64_t weights = w_layout | w;
  const uint64_t inputs  = x_layout | x;
  const uint64_t beyond  = x_layout | (x + 2 * slab); // low parts; the second half of the channels
  if constexpr (Form == gemm_form::split && Pass == 0)
  {
    wgmma::multiply_fp16(sums, weights, inputs, accumulate);
  }
  else if constexpr (Form == gemm_form::split)
  {
    wgmma::multiply_fp16(sums, weights, beyond, accumulate);
    wgmma::multiply_fp16(sums, weights, inputs);
  }
  else if constexpr (Form == gemm_form::tf32)
  {
    wgmma::multiply_tf32(sums, weights, inputs, accumulate);
    wgmma::multiply_tf32(sums, w_layout | (w + term), beyond);
  }
  else if constexpr (Form == gemm_form::bf16)
  {
    wgmma::multiply_bf16(sums, weights, inputs, accumulate);
  }
  else
  {
    wgmma::multiply_fp16(sums, weights, inputs, accumulate);
  }
}

/// Starts to multiply a stage: \p blocks blocks of channels, of each the steps from \p step on. \p x: staged input for
/// the stage's taps along d and h and its first block, position 0; \p w: the weights; both in units of 16 bytes. Called by a
/// warpgroup; the products are a group that has been committed. \p holds: per set, 0 if its accumulators are to be written and not added
/// to; 1 on return where they have been.
template <class Policy, gemm_form Form, int Pass>
TCONV_DEVICE void multiply_stage(gemm_accumulators<Policy>& sums,
                                 int (&holds)[Policy::sets],
                                 const gemm_problem& problem,
                                 const gemm_phase& phase,
                                 unsigned x,
                                 unsigned w,
                                 int blocks,
                                 int step)
{
  constexpr unsigned term   = Policy::channels * 32 / 16;
  constexpr unsigned piece  = gemm_form_traits::of(Form).terms * term;
  constexpr int beside      = Policy::halves; // accumulators of a set
  constexpr unsigned w_step = Policy::halves == 2 ? tuning::implicit_gemm_rows * 32 / 16 : 0;
  const auto slab           = static_cast<unsigned>(problem.slab_bytes()) / 16;
  const uint64_t x_layout   = wgmma::describe(
    0, static_cast<unsigned>(problem.slab_bytes()), 8 * gemm_position_bytes);
  const uint64_t w_layout = wgmma::describe(0, 128, 256);
#pragma unroll 1
  for (; blocks > 0; --blocks)
  {
    int first = step;                    // of the stage in the series at hand
    int rest  = problem.steps_per_stage; // of the stage
    TCONV_PRAGMA_UNROLL
    for (int which = 0; which < gemm_series_count; ++which)
    {
      constexpr int sets = Policy::sets;
      if (gemm_problem::sets_of(sets, which) == 0)
      {
        continue;
      }
      const gemm_series& series = phase.series[which];
      int count                 = series.count - first < rest ? series.count - first : rest;
      auto at                   = x + static_cast<unsigned>(series.position + first * series.step);
      first                     = first > series.count ? first - series.count : 0;
      rest -= count > 0 ? count : 0;
#pragma unroll 1
      for (; count > 0; --count)
      {
        wgmma::fence(); // the compiler wants one wherever it comes by a branch
        TCONV_PRAGMA_UNROLL
        for (int set = 0; set < sets; ++set)
        {
          if ((gemm_problem::sets_of(sets, which) >> set & 1) != 0)
          {
            TCONV_PRAGMA_UNROLL
            for (int b = 0; b < beside; ++b)
            {
              multiply_piece<Form, Pass>(
                sums[set * beside + b], w + b * w_step, w_layout, term, at, x_layout, slab, holds[set]);
            }
            holds[set] = 1;
            w += piece;
          }
        }
        at += static_cast<unsigned>(series.step);
      }
    }
    x += static_cast<unsigned>(problem.block_bytes()) / 16;
  }
  wgmma::fence();
  wgmma::commit();
}

#endif

} // namespace block

TCONV_CUDA_NAMESPACE_END
