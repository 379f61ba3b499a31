# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The numpy twin of test/common/uniform.hpp: random numbers as a pure function of a seed and an index."""

import numpy as np


def lowbias32(x):
    """Chris Wellons' lowbias32 on an array of uint32."""
    x = np.array(x, dtype=np.uint32)
    with np.errstate(over="ignore"):  # wrapping is the point
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x7FEB352D)
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x846CA68B)
        x ^= x >> np.uint32(16)
    return x


def random_bits(seed, count, first=0):
    """32 random bits for each of the indices first, first + 1, ..., first + count - 1."""
    index = np.arange(first, first + count, dtype=np.uint64)
    low = (index & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (index >> np.uint64(32)).astype(np.uint32)
    with np.errstate(over="ignore"):
        return lowbias32(low ^ lowbias32(np.uint32(seed) + high))


def uniform(seed, shape, low=None, high=None):
    """float32 array of the given shape, element i (in C order) from index i: in [0, 1), or in [low, high]."""
    bits = random_bits(seed, int(np.prod(shape)))
    u = (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    if low is not None:
        low, high = np.float32(low), np.float32(high)
        span = high - low
        u = (np.float64(low) + np.float64(span) * u.astype(np.float64)).astype(np.float32)
    return u.reshape(shape)


def sample_index(seed, samples, count):
    """Flat indices into a tensor of count elements: the first, the last, then random ones."""
    index = (random_bits(seed, samples).astype(np.uint64) * np.uint64(count)) >> np.uint64(32)
    index[0], index[1] = 0, count - 1
    return index.astype(np.int64)
