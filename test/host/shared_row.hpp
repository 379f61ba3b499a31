// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

/// \file
/// A row of channels spread over four threads, for tests of channel functors.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

namespace tconv_test
{

/// Four threads, of which thread k holds channels k, k + 4, ..., plus a padding lane: what a quad of a tensor-core fragment or a
/// block looks like, on the CPU.
class shared_row
{
public:
  static constexpr int threads = 4;

  /// What one thread sees.
  class part
  {
  public:
    part(shared_row& whole, int rank) : whole_(whole), rank_(rank)
    {
      for (std::size_t c = static_cast<std::size_t>(rank); c < whole.channels_.size(); c += threads)
      {
        values_.push_back(whole.channels_[c]);
      }
      valid_ = static_cast<int>(values_.size());
      values_.push_back(std::numeric_limits<float>::quiet_NaN()); // a padding lane holds garbage
    }

    int size() const { return static_cast<int>(values_.size()); }
    float& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
    std::int64_t channel(int i) const { return rank_ + threads * i; }
    bool valid(int i) const { return i < valid_; }
    std::int64_t channels() const { return static_cast<std::int64_t>(whole_.channels_.size()); }
    template <class Op>
    float all_reduce(float v, Op op)
    {
      return whole_.all_reduce(rank_, v, op);
    }
    void store()
    {
      for (int i = 0; i < valid_; ++i)
      {
        whole_.channels_[static_cast<std::size_t>(channel(i))] = (*this)[i];
      }
    }

  private:
    shared_row& whole_;
    int rank_;
    int valid_;
    std::vector<float> values_;
  };

  explicit shared_row(const std::vector<float>& channels) : channels_(channels) {}

  /// Runs \p functor on all threads and returns the channels.
  template <class Functor>
  std::vector<float> run(const Functor& functor)
  {
    std::vector<part> parts;
    for (int rank = 0; rank < threads; ++rank)
    {
      parts.emplace_back(*this, rank);
    }
    std::vector<std::thread> running;
    for (part& p : parts)
    {
      running.emplace_back([&functor, &p] { functor(p); });
    }
    for (std::thread& t : running)
    {
      t.join();
    }
    for (part& p : parts)
    {
      p.store();
    }
    return channels_;
  }

private:
  template <class Op>
  float all_reduce(int rank, float v, Op op)
  {
    std::unique_lock<std::mutex> lock(mutex_);
    contribution_[rank] = v;
    if (++arrived_ == threads)
    {
      // A butterfly, as warp shuffles do it.
      result_  = op(op(contribution_[0], contribution_[1]), op(contribution_[2], contribution_[3]));
      arrived_ = 0;
      ++round_;
      done_.notify_all();
      return result_;
    }
    const int round = round_;
    done_.wait(lock, [&] { return round_ != round; });
    return result_;
  }

  std::vector<float> channels_;
  float contribution_[threads] = {};
  float result_                = 0;
  int arrived_                 = 0;
  int round_                   = 0;
  std::mutex mutex_;
  std::condition_variable done_;
};

} // namespace tconv_test
