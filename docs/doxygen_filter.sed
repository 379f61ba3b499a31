# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# What Doxygen reads instead of a header: members that a concept asks for refer to its description. Lines keep their numbers.

# The functor concept.
s#^( *)(static constexpr bool (linear|across_channels|reduces_channels|per_sample) )#\1/** See thread/chain.hpp. */ \2#
s#^( *)(using bound )#\1/** See thread/chain.hpp. */ \2#
s#^( *)(TCONV_HOST_DEVICE [a-z_:]+ (bind\(const coordinate|operator\(\)\(float ))#\1/** See thread/chain.hpp. */ \2#

# The row concept.
s#^( *)(TCONV_HOST_DEVICE [a-z0-9_]+&? (size\(\)|operator\[\]\(int|channel\(int|valid\(int|channels\(\)|all_reduce\(float))#\1/** See thread/row.hpp. */ \2#

# The functors in double.
s#^(inline (double|void) evaluate\(const )#/** The functor in double; its formula stands with the functor. */ \1#
