// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// BatchNorm in train mode behind a convolution, with a mean over all positions: layers, shapes, pairs of types, and what must come out.

#include "typed_convolution.cuh"

#include <tconv/batch_norm_arguments.hpp>
#include <tconv/reference/batch_norm.hpp>
#include <tconv/thread/affine.hpp>

#include <type_traits>

namespace tconv_test
{

/// \p Number: of the pair, so that pairs meet different arrangements of one shape.
template <class InType, class OutType, int Number>
struct pair
{
  using in                    = InType;
  using out                   = OutType;
  static constexpr int number = Number;
};
/// All types of x and y.
using pairs = testing::Types<pair<float, float, 0>,
                             pair<__half, __half, 1>,
                             pair<__half, float, 2>,
                             pair<__nv_bfloat16, __nv_bfloat16, 3>,
                             pair<__nv_bfloat16, float, 4>>;

/// Arguments of a BatchNorm layer on host and device.
struct layer
{
  static constexpr float eps = 1e-3f; ///< more than rounding beside a variance

  std::vector<float> gamma, beta, mean, var;
  device_buffer<float> d_gamma, d_beta, d_mean, d_var;

  layer(std::uint32_t seed, std::int64_t channels)
      : gamma(random_values(seed, channels, -2.0f, 2.0f))
      , beta(random_values(seed + 1, channels))
      , mean(random_values(seed + 2, channels))
      , var(random_values(seed + 3, channels, 0.1f, 4.0f))
      , d_gamma(gamma)
      , d_beta(beta)
      , d_mean(mean)
      , d_var(var)
  {}
  tconv::batch_norm_arguments host() { return {gamma.data(), beta.data(), mean.data(), var.data()}; }
  tconv::batch_norm_arguments device() { return {d_gamma.data(), d_beta.data(), d_mean.data(), d_var.data()}; }
  /// The same with eps and a momentum. Of 1: running statistics are then those of the batch.
  tconv::batch_norm_arguments device(float momentum)
  {
    return {d_gamma.data(), d_beta.data(), d_mean.data(), d_var.data(), eps, momentum};
  }
  bool guards_intact() const
  {
    return d_gamma.guards_intact() && d_beta.guards_intact() && d_mean.guards_intact() && d_var.guards_intact();
  }
};

/// Shapes where nothing is cropped: what the spectral engine takes.
inline std::vector<shape3> uncropped_shapes()
{
  std::vector<shape3> shapes = {
    make_shape<3>({1, 1, 1, 1}, {1, 1, 2}, {1, 1, 1}),
    make_shape<3>({2, 3, 5, 1}, {4, 5, 6}, {3, 3, 3}),
    make_shape<3>({1, 33, 3, 1}, {1, 1, 20}, {1, 1, 5}),
    make_shape<3>({17, 35, 70, 1}, {3, 4, 5}, {2, 3, 1}),
    make_shape<3>({33, 2, 3, 1}, {1, 2, 3}, {1, 2, 2}),
    make_shape<3>({3, 65, 9, 1}, {3, 6, 7}, {5, 7, 6}),
    make_shape<3>({2, 5, 66, 1}, {1, 37, 31}, {1, 2, 7}),
    make_shape<3>({1, 2, 2, 1}, {1, 1, 100}, {1, 1, 20}), // more frequencies than one chunk of the small grid
    make_shape<3>({1, 2, 2, 1}, {1, 90, 3}, {1, 11, 1}),
    make_shape<3>({1, 2, 2, 1}, {40, 3, 2}, {8, 1, 2}),
    make_shape<3>({2, 8, 6, 1},
                  {16, 32, 32},
                  {5, 5, 5}), // a size with a kernel of its own, also with more than a tile of channels or
    make_shape<3>({2, 33, 5, 1}, {16, 32, 32}, {5, 5, 5}), // a step of samples, and with other extents of x
    make_shape<3>({17, 3, 2, 1}, {16, 32, 32}, {5, 5, 5}),
    make_shape<3>({3, 66, 2, 1}, {16, 32, 32}, {5, 5, 5}),
    make_shape<3>({1, 2, 3, 1}, {18, 31, 34}, {3, 6, 3}),
  };
  for (std::uint32_t i = 0; i < 40; ++i)
  {
    random_stream random(5000 + i);
    // In this order: arguments of a call are evaluated in any.
    std::array<std::int64_t, 9> v{};
    for (std::size_t a = 0; a < v.size(); ++a)
    {
      constexpr std::int64_t most[9] = {4, 40, 70, 4, 9, 13, 4, 4, 6};
      v[a]                           = random.integer(1, most[a]);
    }
    shapes.push_back(make_shape<3>({v[0], v[1], v[2], 1}, {v[3], v[4], v[5] + 1}, {v[6], v[7], v[8]}));
  }
  return shapes;
}

/// Half of the spacing of the output, where that is not fp32 itself.
template <class Out>
double rounding(double value)
{
  return std::is_same<Out, float>::value ? 0.0 : ulp(value, format_of<Out>::value) / 2;
}

/// Relative to the magnitude, in units of 2^-24: 10 additions in fp32 over x (two levels and another vector of 4 in a load of 16
/// bytes, seven more loads), 2 over w, fp64 beyond.
inline constexpr double mean_error = 12 * 0x1p-24;

/// What BatchNorm in train mode makes of 2 * (convolution + b), averaged over all positions, and how far off each number may be.
///
/// Per channel: E, the contract's bound of an output, makes the variance wrong by at most 2 E sigma + E^2, and merges of moments in
/// fp32 by some 2^-16 of it; means are as global_mean's.
class trained_means
{
public:
  /// \p full: of the convolution. \p bn with layer::eps.
  trained_means(const shape3& s, const full_reference& full, const std::vector<float>& b, const layer& bn)
      : extents_{s.batch, s.out_channels}
      , gamma_(bn.gamma)
      , beta_(bn.beta)
      , of_mean_(bn.gamma.size())
      , of_variance_(bn.gamma.size())
  {
    const std::int64_t positions = s.output_positions();
    std::vector<double> value    = full.value;
    tconv::reference::apply(
      tconv::chain(tconv::bias(b.data()), tconv::scale(2.0f)), value.data(), s.batch, s.out_channels, positions);
    // Nothing is tracked: moments are compared.
    const tconv::batch_norm_arguments arguments{bn.gamma.data(), bn.beta.data(), nullptr, nullptr, layer::eps, 1.0f};
    moments_ = tconv::reference::batch_norm_train(value.data(), s.batch, s.out_channels, positions, arguments);
    y_       = tconv::reference::global_mean(value.data(), s.batch, s.out_channels, positions);

    const auto magnitude = tconv::reference::global_mean(full.magnitude.data(), s.batch, s.out_channels, positions);
    for (std::size_t c = 0; c < of_mean_.size(); ++c)
    {
      double worst = 0;
      double most  = 0;
      for (std::int64_t n = 0; n < s.batch; ++n)
      {
        const auto row = static_cast<std::size_t>(n) * of_mean_.size() + c;
        most           = std::fmax(most, magnitude[row]);
        for (std::size_t p = 0; p < static_cast<std::size_t>(positions); ++p)
        {
          const std::size_t i = row * static_cast<std::size_t>(positions) + p;
          worst = std::fmax(worst, (static_cast<double>(full.terms[i]) + 8) * 0x1p-24 * full.magnitude[i]);
        }
      }
      const double e     = 2 * worst;
      const double sigma = std::sqrt(moments_[c].biased_variance());
      of_mean_[c]        = 2 * mean_error * most;
      of_variance_[c]    = 2 * e * sigma + e * e + 0x1p-16 * sigma * sigma;
    }
  }

  /// Running statistics after a step with momentum 1.
  void check_running(const std::vector<float>& mean, const std::vector<float>& var) const
  {
    ASSERT_EQ(mean.size(), moments_.size());
    ASSERT_EQ(var.size(), moments_.size());
    for (std::size_t c = 0; c < moments_.size(); ++c)
    {
      EXPECT_NEAR(static_cast<double>(var[c]), variance(c), variance_bound(c)) << "channel " << c;
      EXPECT_NEAR(static_cast<double>(mean[c]), moments_[c].mean, mean_bound(c)) << "channel " << c;
    }
  }
  /// y, [batch][channels] of values rounded to Out.
  template <class Out>
  comparison compare(const std::vector<float>& y) const
  {
    return compare_values(y.data(), y_.data(), extents_, [&](std::int64_t i, double v) {
      return tolerance{y_bound<Out>(i, v), 0.0};
    });
  }

  /// Of element \p i of y with the expected value \p v.
  template <class Out>
  double y_bound(std::int64_t i, double v) const
  {
    const std::size_t c   = static_cast<std::size_t>(i) % of_mean_.size();
    const double radicand = moments_[c].biased_variance() + static_cast<double>(layer::eps);
    const auto gamma      = std::fabs(static_cast<double>(gamma_[c]));
    const double centred  = std::fabs(v - static_cast<double>(beta_[c]));
    // The root halves the variance's relative error to first order; the other half is room for the rest.
    const double of_root = of_variance_[c] / radicand;
    const double own     = gamma / std::sqrt(radicand) * 2 * of_mean_[c] * (1 + of_root) + centred * of_root + ulp(v);
    return own + rounding<Out>(std::fabs(v) + own);
  }
  double mean(std::size_t c) const { return moments_[c].mean; }
  double mean_bound(std::size_t c) const { return of_mean_[c] + ulp(mean(c)); }
  double variance(std::size_t c) const { return moments_[c].unbiased_variance(); }
  double variance_bound(std::size_t c) const
  {
    return of_variance_[c] * moments_[c].count / (moments_[c].count - 1) + ulp(variance(c));
  }
  const std::vector<double>& y() const { return y_; }

private:
  output_extents extents_;
  std::vector<float> gamma_, beta_;
  std::vector<tconv::moments<double>> moments_;
  std::vector<double> y_;
  std::vector<double> of_mean_;     ///< error of a mean, of 2 (y + bias)
  std::vector<double> of_variance_; ///< error of the biased variance
};

} // namespace tconv_test
