// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Arguments that every launcher must reject before its first launch, with the right code and a message that names the
/// argument. Rejecting needs no device: suite `arguments` works on made-up addresses that nobody may touch, suite
/// `arguments_gpu` repeats it in device memory and looks whether anything was written.

#include "common/conv_case.hpp"
#include "common/device.hpp"

#include <tconv/tconv.cuh>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

namespace
{

using namespace tconv_test;
using tconv::chain;
using tconv::status_code;

/// A tensor argument of a call. Optional ones may be null.
struct tensor
{
  std::string name; ///< as messages call it
  std::int64_t bytes   = 0;
  bool output          = false;
  bool optional        = false;
  std::uintptr_t begin = 0;

  std::uintptr_t end() const { return begin + static_cast<std::uintptr_t>(bytes); }
};

/// One call of a launcher with all its arguments, ready to be spoilt.
struct launcher_call
{
  std::string launcher;
  bool takes_shape = true;
  bool tensor_only = false; ///< takes the shape of a tensor, which is \p existing
  bool batch_norm  = false; ///< takes batch_norm_arguments
  bool train       = false;
  shape2 shape;
  tconv::tensor_shape<2> existing;
  std::int64_t channels = 0; ///< where there is no shape
  float eps             = 1e-5f;
  float momentum        = 0.1f;
  std::vector<tensor> tensors;
  std::uintptr_t workspace_begin = 0;
  std::size_t workspace_needed   = 0; ///< what the query says
  std::size_t workspace_bytes    = 0; ///< what the call passes
  tconv::options options;
  std::function<tconv::status(const launcher_call&, cudaStream_t)> launch;

  tconv::status operator()(cudaStream_t stream = nullptr) const { return launch(*this, stream); }

  tensor& at(const std::string& name)
  {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const tensor& t) { return t.name == name; });
  }
  /// Null for a tensor that the launcher does not have.
  float* data(const std::string& name) const
  {
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const tensor& t) { return t.name == name; });
    return found != tensors.end() ? reinterpret_cast<float*>(found->begin) : nullptr;
  }
  tconv::workspace space() const { return {reinterpret_cast<void*>(workspace_begin), workspace_bytes}; }
  tconv::batch_norm_arguments layer() const
  {
    return {data("batch_norm.gamma"),
            data("batch_norm.beta"),
            data("batch_norm.running_mean"),
            data("batch_norm.running_var"),
            eps,
            momentum};
  }
};

/// Tensors lie far enough apart that one can be moved around another without meeting a third.
constexpr std::uintptr_t slot_bytes = 1 << 16;
constexpr int slots                 = 12;
constexpr std::uintptr_t most_bytes = slot_bytes / 4;

/// Adds the tensors of \p call to the arena at \p base, and its workspace behind them.
void place(launcher_call& call, std::uintptr_t base, const std::vector<tensor>& tensors, std::size_t workspace_bytes)
{
  call.tensors           = tensors;
  std::uintptr_t address = base + slot_bytes;
  for (tensor& t : call.tensors)
  {
    t.begin = address;
    address += slot_bytes;
    ASSERT_LE(static_cast<std::uintptr_t>(t.bytes), most_bytes) << call.launcher << ' ' << t.name;
  }
  call.workspace_needed = workspace_bytes;
  call.workspace_bytes  = workspace_bytes;
  call.workspace_begin  = workspace_bytes > 0 ? address : 0;
  ASSERT_LE(workspace_bytes, most_bytes) << call.launcher;
  ASSERT_LE(call.tensors.size() + 3, std::size_t{slots});
}

/// A valid call of every launcher; \p base a multiple of 256, the first of slots * slot_bytes bytes.
std::vector<launcher_call> valid_calls(std::uintptr_t base)
{
  const shape2 shape        = make_shape<2>({2, 4, 6, 2}, {3, 5}, {3, 2}, {2, 1}, {1, 0}, {1, 0});
  const std::int64_t x      = 4 * shape.input_elements();
  const std::int64_t w      = 4 * shape.weight_elements();
  const std::int64_t y      = 4 * shape.output_elements();
  const std::int64_t c      = 4 * shape.out_channels;
  const auto functors       = chain(tconv::bias(nullptr));
  const tensor gamma        = {"batch_norm.gamma", c, false, true};
  const tensor beta         = {"batch_norm.beta", c, false, true};
  const tensor running_mean = {"batch_norm.running_mean", c, false, false};
  const tensor running_var  = {"batch_norm.running_var", c, false, false};
  const tensor tracked_mean = {"batch_norm.running_mean", c, true, true};
  const tensor tracked_var  = {"batch_norm.running_var", c, true, true};

  std::vector<launcher_call> calls(6);
  for (launcher_call& call : calls)
  {
    call.shape    = shape;
    call.channels = shape.out_channels;
  }

  calls[0].launcher = "conv_transpose";
  calls[0].launch   = [functors](const launcher_call& a, cudaStream_t stream) {
    return tconv::conv_transpose(
      a.data("x"), a.data("w"), a.data("y"), a.shape, functors, a.options, a.space(), stream);
  };
  place(calls[0], base, {{"x", x}, {"w", w}, {"y", y, true}}, tconv::conv_transpose_workspace_bytes(shape, functors));

  calls[1].launcher = "global_mean";
  calls[1].launch   = [functors](const launcher_call& a, cudaStream_t stream) {
    return tconv::global_mean(a.data("x"), a.data("w"), a.data("y"), a.shape, functors, a.options, a.space(), stream);
  };
  place(calls[1],
        base,
        {{"x", x}, {"w", w}, {"y", shape.batch * c, true}},
        tconv::global_mean_workspace_bytes(shape, functors));

  calls[2].launcher   = "batch_norm_train_global_mean";
  calls[2].batch_norm = true;
  calls[2].train      = true;
  calls[2].launch     = [functors](const launcher_call& a, cudaStream_t stream) {
    return tconv::batch_norm_train_global_mean(
      a.data("x"), a.data("w"), a.data("y"), a.shape, functors, a.layer(), a.options, a.space(), stream);
  };
  place(calls[2],
        base,
        {{"x", x}, {"w", w}, {"y", shape.batch * c, true}, gamma, beta, tracked_mean, tracked_var},
        tconv::batch_norm_train_global_mean_workspace_bytes(shape, functors));

  calls[3].launcher    = "fold_batch_norm into an affine";
  calls[3].takes_shape = false;
  calls[3].batch_norm  = true;
  calls[3].launch      = [](const launcher_call& a, cudaStream_t stream) {
    return tconv::fold_batch_norm(
      a.data("bias"), a.layer(), a.data("slopes"), a.data("offsets"), a.channels, a.options, stream);
  };
  place(calls[3],
        base,
        {{"bias", c, false, true}, gamma, beta, running_mean, running_var, {"slopes", c, true}, {"offsets", c, true}},
        0);

  calls[4].launcher   = "fold_batch_norm into weights";
  calls[4].batch_norm = true;
  calls[4].launch     = [](const launcher_call& a, cudaStream_t stream) {
    return tconv::fold_batch_norm(a.data("w"),
                                  a.data("bias"),
                                  a.layer(),
                                  a.data("folded"),
                                  a.data("slopes"),
                                  a.data("offsets"),
                                  a.shape,
                                  a.options,
                                  stream);
  };
  place(calls[4],
        base,
        {{"w", w},
         {"bias", c, false, true},
         gamma,
         beta,
         running_mean,
         running_var,
         {"folded", w, true},
         {"slopes", c, true},
         {"offsets", c, true}},
        0);

  calls[5].launcher          = "apply_chain";
  calls[5].takes_shape       = false;
  calls[5].tensor_only       = true;
  calls[5].existing.batch    = 2;
  calls[5].existing.channels = 6;
  calls[5].existing.extent   = {3, 5};
  calls[5].launch            = [functors](const launcher_call& a, cudaStream_t stream) {
    return tconv::apply_chain(a.data("x"), a.data("y"), a.existing, functors, a.options, a.space(), stream);
  };
  place(calls[5], base, {{"x", 4 * 180}, {"y", 4 * 180, true}}, 0);
  return calls;
}

/// A call that must fail with \p code and a message that begins with \p begins and contains \p contains.
struct wrong_call
{
  std::string what;
  launcher_call call;
  status_code code;
  std::string begins;
  std::string contains;
};

/// Collects wrong calls made from one valid call.
class spoiler
{
public:
  explicit spoiler(const launcher_call& valid) : valid_(valid) {}

  /// \p spoil changes a copy of the valid call.
  template <class Spoil>
  void add(const std::string& what,
           Spoil spoil,
           const std::string& begins,
           const std::string& contains = "",
           status_code code            = status_code::invalid_argument)
  {
    wrong_call wrong{valid_.launcher + ": " + what, valid_, code, begins, contains};
    spoil(wrong.call);
    list_.push_back(wrong);
  }

  const std::vector<wrong_call>& list() const { return list_; }

private:
  launcher_call valid_;
  std::vector<wrong_call> list_;
};

void add_wrong_tensor_shapes(spoiler& s)
{
  const auto add = [&](const char* what, auto change, const char* begins, const char* contains) {
    s.add(
      what, [&](launcher_call& c) { change(c.existing); }, begins, contains);
  };
  using tensor2 = tconv::tensor_shape<2>;
  add(
    "batch -1", [](tensor2& t) { t.batch = -1; }, "shape.batch = -1", "must be >= 0");
  add(
    "channels 0", [](tensor2& t) { t.channels = 0; }, "shape.channels = 0", "must be >= 1");
  add(
    "extent -1", [](tensor2& t) { t.extent[0] = -1; }, "shape.extent[h] = -1", "must be >= 0");
  add(
    "extent -1", [](tensor2& t) { t.extent[1] = -1; }, "shape.extent[w] = -1", "must be >= 0");
  add(
    "2^63 bytes", [](tensor2& t) { t.channels = std::int64_t{1} << 60; }, "shape: the bytes of", "63 bits");
}

void add_wrong_shapes(spoiler& s)
{
  const auto add = [&](const char* what, auto change, const char* begins, const char* contains) {
    s.add(
      what, [&](launcher_call& c) { change(c.shape); }, begins, contains);
  };
  add(
    "stride 0", [](shape2& p) { p.stride[0] = 0; }, "shape.stride[h] = 0", "must be >= 1");
  add(
    "kernel 0", [](shape2& p) { p.kernel[1] = 0; }, "shape.kernel[w] = 0", "must be >= 1");
  add(
    "input 0", [](shape2& p) { p.input[1] = 0; }, "shape.input[w] = 0", "must be >= 1");
  add(
    "dilation -1", [](shape2& p) { p.dilation[0] = -1; }, "shape.dilation[h] = -1", "must be >= 1");
  add(
    "padding -1", [](shape2& p) { p.padding[0] = -1; }, "shape.padding[h] = -1", "must be >= 0");
  add(
    "output_padding",
    [](shape2& p) { p.output_padding[1] = 1; },
    "shape.output_padding[w] = 1",
    "max(stride, dilation)");
  add(
    "crops all", [](shape2& p) { p.padding[0] = 40; }, "shape: the output extent of axis h", "padding[h] = 40");
  add(
    "batch -1", [](shape2& p) { p.batch = -1; }, "shape.batch = -1", "must be >= 0");
  add(
    "groups 3", [](shape2& p) { p.groups = 3; }, "shape.in_channels = 4", "divisible by groups = 3");
  add(
    "groups 4", [](shape2& p) { p.groups = 4; }, "shape.out_channels = 6", "divisible by groups = 4");
  add(
    "2^63 bytes", [](shape2& p) { p.in_channels = std::int64_t{1} << 58; }, "shape: the bytes of x", "63 bits");
  add(
    "2^63 bytes around x",
    [](shape2& p) {
      p.input_slice = {std::int64_t{1} << 58, 0};
    },
    "shape: the bytes of x",
    "63 bits");
  add(
    "2^63 bytes around y",
    [](shape2& p) {
      p.output_slice = {std::int64_t{1} << 58, 0};
    },
    "shape: the bytes of y",
    "63 bits");
}

/// \p slices_of(call): its input_slice and output_slice. \p in, \p out: their channels.
template <class Slices>
void add_wrong_slices(spoiler& s, std::int64_t in, std::int64_t out, Slices slices_of)
{
  const auto add = [&](const char* name, std::int64_t channels, int which) {
    const auto text = [](std::int64_t v) { return std::to_string(v); };
    const auto slice =
      [&](std::int64_t total, std::int64_t first, const std::string& begins, const std::string& contains) {
        s.add(
          std::string(name) + " {" + text(total) + ", " + text(first) + '}',
          [&](launcher_call& c) {
            *slices_of(c)[which] = {total, first};
          },
          "shape." + std::string(name) + begins,
          contains);
      };
    slice(2 * channels, -1, ".first_channel = -1", "must be >= 0");
    slice(0, -1, ".first_channel = -1", "must be >= 0");
    slice(2 * channels, channels + 1, ": channels " + text(channels + 1), "tensor of " + text(2 * channels));
    slice(0, 1, ": channels 1", "tensor of " + text(channels));
    slice(channels - 1, 0, ": channels 0", "tensor of " + text(channels - 1));
    slice(-channels, 0, ": channels 0", "tensor of " + text(-channels));
    slice(2 * channels, std::numeric_limits<std::int64_t>::max(), ": channels ", "tensor of " + text(2 * channels));
  };
  add("input_slice", in, 0);
  add("output_slice", out, 1);
}

/// add(how, address) for places where \p moved_bytes bytes share at least one element with \p still.
template <class Add>
void for_each_overlap(const tensor& still, std::int64_t moved_bytes, Add add)
{
  add("starting with it", still.begin);
  add("ending in its first element", still.begin + 4 - static_cast<std::uintptr_t>(moved_bytes));
  add("starting in its last element", still.end() - 4);
}

void add_overlaps(spoiler& s, const launcher_call& valid)
{
  for (const tensor& output : valid.tensors)
  {
    for (const tensor& input : valid.tensors)
    {
      if (output.output && !input.output)
      {
        for_each_overlap(output, input.bytes, [&](const char* how, std::uintptr_t address) {
          if (valid.tensor_only && address == output.begin)
          {
            return; // in place
          }
          s.add(
            input.name + " over " + output.name + ", " + how,
            [&](launcher_call& c) { c.at(input.name).begin = address; },
            output.name + ":",
            "must not overlap " + input.name);
        });
      }
    }
  }
  if (valid.workspace_needed > 0)
  {
    const tensor workspace = {
      "workspace", static_cast<std::int64_t>(valid.workspace_needed), true, false, valid.workspace_begin};
    for (const tensor& t : valid.tensors)
    {
      for_each_overlap(workspace, t.bytes, [&](const char* how, std::uintptr_t address) {
        s.add(
          t.name + " over the workspace, " + how,
          [&](launcher_call& c) { c.at(t.name).begin = address; },
          t.output ? t.name + ":" : "workspace:",
          t.output ? "must not overlap workspace" : "must not overlap " + t.name);
      });
    }
  }
}

/// Everything that must be rejected about one call.
std::vector<wrong_call> wrong_calls(const launcher_call& valid)
{
  spoiler s(valid);
  if (valid.takes_shape)
  {
    add_wrong_shapes(s);
    add_wrong_slices(s, valid.shape.in_channels, valid.shape.out_channels, [](launcher_call& c) {
      return std::array<tconv::channel_slice*, 2>{&c.shape.input_slice, &c.shape.output_slice};
    });
  }
  else if (valid.tensor_only)
  {
    add_wrong_tensor_shapes(s);
    add_wrong_slices(s, valid.existing.channels, valid.existing.channels, [](launcher_call& c) {
      return std::array<tconv::channel_slice*, 2>{&c.existing.input_slice, &c.existing.output_slice};
    });
  }
  else
  {
    s.add(
      "channels -1", [](launcher_call& c) { c.channels = -1; }, "channels = -1", "must be >= 0");
    // As for shapes, byte counts must fit 63 bits.
    for (const int bits : {61, 62})
    {
      s.add(
        "2^63 bytes", [&](launcher_call& c) { c.channels = std::int64_t{1} << bits; }, "channels", "");
    }
  }

  for (const tensor& t : valid.tensors)
  {
    if (!t.optional)
    {
      s.add(
        "null " + t.name, [&](launcher_call& c) { c.at(t.name).begin = 0; }, t.name + ":", "must not be null");
    }
    for (const std::uintptr_t off : {1, 2, 3})
    {
      s.add(
        t.name + " off by " + std::to_string(off),
        [&](launcher_call& c) { c.at(t.name).begin += off; },
        t.name + ":",
        "not a multiple of the element size 4");
    }
  }

  if (valid.workspace_needed > 0)
  {
    const auto too_small = status_code::workspace_too_small;
    s.add(
      "null workspace", [](launcher_call& c) { c.workspace_begin = 0; }, "workspace:", "needs", too_small);
    s.add(
      "no workspace", [](launcher_call& c) { c.workspace_bytes = 0; }, "workspace: 0 bytes", "needs", too_small);
    s.add(
      "workspace one byte short",
      [](launcher_call& c) { --c.workspace_bytes; },
      "workspace:",
      "needs " + std::to_string(valid.workspace_needed),
      too_small);
    for (const std::uintptr_t off : {4, 8, 16, 32, 64, 128})
    {
      s.add(
        "workspace off by " + std::to_string(off),
        [&](launcher_call& c) { c.workspace_begin += off; },
        "workspace:",
        "multiple of 256 bytes",
        status_code::workspace_misaligned);
    }
  }

  if (valid.batch_norm)
  {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const float eps : {-1e-5f, -std::numeric_limits<float>::infinity(), nan})
    {
      s.add(
        "eps", [&](launcher_call& c) { c.eps = eps; }, "batch_norm.eps", "must be >= 0");
    }
    for (const float momentum : {-0.1f, 1.01f, nan})
    {
      s.add(
        "momentum", [&](launcher_call& c) { c.momentum = momentum; }, "batch_norm.momentum", "must be in [0, 1]");
    }
  }
  if (valid.train)
  {
    s.add(
      "one value per channel",
      [](launcher_call& c) {
        c.shape = make_shape<2>({1, 4, 6, 2}, {1, 1}, {1, 1});
      },
      "shape: batch * output positions = 1",
      "at least 2 values per channel");
  }

  add_overlaps(s, valid);
  return s.list();
}

/// Makes the call and checks code and message.
void expect_rejection(const wrong_call& wrong)
{
  const tconv::status s     = wrong.call();
  const std::string message = s.message();
  EXPECT_TRUE(s.code() == wrong.code && s.cuda_error() == 0 && message.rfind(wrong.begins, 0) == 0
              && message.find(wrong.contains) != std::string::npos)
    << wrong.what << "\n  code " << static_cast<int>(s.code()) << " with \"" << message << "\"\n  should be code "
    << static_cast<int>(wrong.code) << " with \"" << wrong.begins << "...\" and in it \"" << wrong.contains << '"';
}

/// Addresses that belong to nobody.
constexpr std::uintptr_t nowhere = std::uintptr_t{1} << 40;

bool device_present()
{
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

TEST(arguments, are_checked_before_anything_is_launched)
{
  for (const launcher_call& valid : valid_calls(nowhere))
  {
    for (const wrong_call& wrong : wrong_calls(valid))
    {
      expect_rejection(wrong);
    }
  }
}

// Passing all checks leads to the first launch, which says that there is no device.
TEST(arguments, valid_ones_pass_every_check)
{
  if (device_present())
  {
    return; // never launch on these addresses; arguments_gpu makes the same calls for real
  }
  const auto expect_cuda_error = [](const std::string& what, const launcher_call& call) {
    const tconv::status s = call();
    EXPECT_EQ(static_cast<int>(s.code()), static_cast<int>(status_code::cuda_error)) << what << ": " << s.message();
    EXPECT_NE(s.cuda_error(), 0) << what;
    EXPECT_NE(std::string(s.message()).find("tconv::kernel::"), std::string::npos) << what << ": " << s.message();
  };
  for (const launcher_call& valid : valid_calls(nowhere))
  {
    expect_cuda_error(valid.launcher, valid);
    for (const tensor& t : valid.tensors)
    {
      if (t.optional)
      {
        launcher_call call    = valid;
        call.at(t.name).begin = 0;
        expect_cuda_error(valid.launcher + " without " + t.name, call);
      }
    }
    // Neighbours that touch do not overlap.
    for (const tensor& still : valid.tensors)
    {
      for (const tensor& moved : valid.tensors)
      {
        if (still.output && still.name != moved.name)
        {
          for (const std::uintptr_t address : {still.end(), still.begin - static_cast<std::uintptr_t>(moved.bytes)})
          {
            launcher_call call        = valid;
            call.at(moved.name).begin = address;
            expect_cuda_error(valid.launcher + ": " + moved.name + " beside " + still.name, call);
          }
        }
      }
      if (valid.workspace_needed > 0)
      {
        for (const std::uintptr_t address : {valid.workspace_begin + valid.workspace_needed,
                                             valid.workspace_begin - static_cast<std::uintptr_t>(still.bytes)})
        {
          launcher_call call        = valid;
          call.at(still.name).begin = address;
          expect_cuda_error(valid.launcher + ": " + still.name + " beside the workspace", call);
        }
      }
    }
    // More workspace than needed, and inputs that overlap each other.
    launcher_call call = valid;
    call.workspace_bytes += 1000;
    expect_cuda_error(valid.launcher + " with more workspace", call);
    if (valid.tensors[1].name == "w")
    {
      call.at("w").begin = call.at("x").begin;
      expect_cuda_error(valid.launcher + " with w = x", call);
    }
    if (valid.tensor_only)
    {
      call.at("y").begin = call.at("x").begin;
      expect_cuda_error(valid.launcher + " in place", call);
    }
  }
}

TEST(arguments, nothing_to_do_succeeds_without_memory)
{
  const auto expect_success = [](const launcher_call& call, const char* what) {
    const tconv::status s = call();
    EXPECT_TRUE(s.ok()) << call.launcher << ", " << what << ": " << s.message();
    EXPECT_EQ(std::string(s.message()), "");
  };
  for (launcher_call call : valid_calls(nowhere))
  {
    for (tensor& t : call.tensors)
    {
      t.begin = 0;
    }
    call.workspace_begin = 0;
    call.workspace_bytes = 0;
    if (call.tensor_only)
    {
      call.existing.batch = 0;
      expect_success(call, "batch 0");
      call.existing.batch     = 2;
      call.existing.extent[1] = 0;
      expect_success(call, "extent 0");
    }
    else if (!call.takes_shape)
    {
      call.channels = 0;
      expect_success(call, "no channels");
    }
    else if (call.launcher.rfind("fold", 0) != 0) // weights have a size whatever the batch
    {
      call.shape.batch = 0;
      expect_success(call, "batch 0");
      call.shape = make_shape<2>({2, 4, 6, 2}, {3, 5}, {2, 2}, {1, 1}, {2, 0});
      expect_success(call, "output extent 0");
    }
  }
}

TEST(arguments, nothing_to_do_needs_no_workspace)
{
  const auto functors = chain(tconv::bias(nullptr));
  const auto expect   = [&](const shape2& shape) {
    EXPECT_EQ(tconv::conv_transpose_workspace_bytes(shape, functors), 0U) << to_string(shape);
    EXPECT_EQ(tconv::global_mean_workspace_bytes(shape, functors), 0U) << to_string(shape);
    EXPECT_EQ(tconv::batch_norm_train_global_mean_workspace_bytes(shape, functors), 0U) << to_string(shape);
    EXPECT_EQ(tconv::conv_transpose_moments_workspace_bytes(shape), 0U) << to_string(shape);
  };
  expect(make_shape<2>({0, 4, 6, 2}, {3, 5}, {2, 2}));
  expect(make_shape<2>({2, 4, 6, 2}, {3, 5}, {2, 2}, {1, 1}, {2, 0}));
  expect(make_shape<2>({2, 4, 6, 4}, {3, 5}, {2, 2}));
  expect(make_shape<2>({2, 4, 6, 2}, {3, 5}, {2, 2}, {0, 1}));
}

/// \p s must be a failure with \p code and a message that begins with \p begins and contains \p contains.
void expect_failure(const tconv::status& s, status_code code, const std::string& begins, const std::string& contains)
{
  const std::string message = s.message();
  EXPECT_TRUE(s.code() == code && message.rfind(begins, 0) == 0 && message.find(contains) != std::string::npos)
    << "code " << static_cast<int>(s.code()) << " with \"" << message << "\"\n  should be code "
    << static_cast<int>(code) << " with \"" << begins << "...\" and in it \"" << contains << '"';
}

/// Where there is no device, \p launch() must come as far as the first launch.
template <class Launch>
void expect_accepted(const std::string& what, Launch launch)
{
  if (!device_present()) // never launch on made-up addresses
  {
    SCOPED_TRACE(what);
    expect_failure(launch(), status_code::cuda_error, "tconv::kernel::", "");
  }
}

/// conv_transpose on one tensor of \p total channels: x is a slice from \p x_first on, y from \p y_first on.
template <class In, class Out>
tconv::status convolve_slices(const shape2& shape,
                              std::int64_t total,
                              std::int64_t x_first,
                              std::int64_t y_first,
                              tconv::layout input,
                              tconv::layout output)
{
  shape2 s       = shape;
  s.input_slice  = {total, x_first};
  s.output_slice = {total, y_first};
  tconv::options opts;
  opts.input_layout   = input;
  opts.output_layout  = output;
  const auto functors = chain(tconv::bias(nullptr));
  const auto tensor   = nowhere + slot_bytes;
  return tconv::conv_transpose(reinterpret_cast<const In*>(tensor),
                               reinterpret_cast<const In*>(nowhere),
                               reinterpret_cast<Out*>(tensor),
                               s,
                               functors,
                               opts,
                               {reinterpret_cast<void*>(nowhere + 64 * slot_bytes),
                                tconv::conv_transpose_workspace_bytes<In, Out>(s, functors, opts)},
                               nullptr);
}

// U-Net concatenation: x and y may be slices of one tensor where no channel, and no byte, is in both.
TEST(arguments, slices_of_one_tensor)
{
  constexpr auto first = tconv::layout::channels_first;
  constexpr auto last  = tconv::layout::channels_last;
  const shape2 same    = make_shape<2>({2, 4, 6, 2}, {3, 5}, {3, 3}, {1, 1}, {1, 1});
  const auto rejected  = [&](const std::string& what, const tconv::status& s) {
    SCOPED_TRACE(what);
    expect_failure(s, status_code::invalid_argument, "y:", "must not overlap x");
  };
  for (const auto order : {first, last})
  {
    expect_accepted("y behind x", [&] { return convolve_slices<float, float>(same, 10, 0, 4, order, order); });
    expect_accepted("y before x", [&] { return convolve_slices<float, float>(same, 10, 6, 0, order, order); });
    expect_accepted("apart", [&] { return convolve_slices<float, float>(same, 20, 12, 1, order, order); });
    rejected("one channel in both", convolve_slices<float, float>(same, 10, 1, 4, order, order));
    rejected("one channel in both", convolve_slices<float, float>(same, 10, 5, 0, order, order));
    rejected("x within y", convolve_slices<float, float>(same, 10, 2, 1, order, order));
    // The same address, but tensors of different extents.
    const shape2 larger = make_shape<2>({2, 4, 6, 2}, {3, 5}, {3, 3}, {2, 2}, {1, 1});
    rejected("another tensor", convolve_slices<float, float>(larger, 10, 0, 4, order, order));
  }
  rejected("two layouts", convolve_slices<float, float>(same, 10, 0, 4, first, last));
  rejected("two layouts", convolve_slices<float, float>(same, 10, 0, 4, last, first));
  // As many bytes, of elements twice as large.
  const shape2 halved = make_shape<2>({2, 4, 6, 2}, {1, 8}, {1, 1}, {1, 1}, {0, 2});
  rejected("two types", convolve_slices<__half, float>(halved, 10, 0, 4, last, last));
}

// The alignment that an element needs, and no more.
TEST(arguments, two_byte_elements_need_two_byte_alignment)
{
  const shape2 shape  = make_shape<2>({2, 4, 6, 2}, {3, 5}, {3, 2}, {2, 1}, {1, 0}, {1, 0});
  const auto functors = chain(tconv::bias(nullptr));
  tconv::tensor_shape<2> tensor;
  tensor.channels = 6;
  tensor.extent   = {3, 5};
  struct addresses
  {
    std::uintptr_t x = nowhere + slot_bytes;
    std::uintptr_t w = nowhere + 2 * slot_bytes;
    std::uintptr_t y = nowhere + 3 * slot_bytes;
  };
  const auto convolve = [&](const addresses& a, auto out) {
    using Out = decltype(out);
    return tconv::conv_transpose(reinterpret_cast<const __half*>(a.x),
                                 reinterpret_cast<const __half*>(a.w),
                                 reinterpret_cast<Out*>(a.y),
                                 shape,
                                 functors,
                                 tconv::options{},
                                 {reinterpret_cast<void*>(nowhere + 4 * slot_bytes),
                                  tconv::conv_transpose_workspace_bytes<__half, Out>(shape, functors)},
                                 nullptr);
  };
  const auto apply = [&](const addresses& a, auto out) {
    using Out = decltype(out);
    return tconv::apply_chain(reinterpret_cast<const __half*>(a.x),
                              reinterpret_cast<Out*>(a.y),
                              tensor,
                              functors,
                              tconv::options{},
                              {},
                              nullptr);
  };
  const auto check = [&](const auto& launch, bool weights) {
    for (const std::uintptr_t off : {1U, 3U, 5U})
    {
      const std::string rule = "not a multiple of the element size 2";
      addresses a;
      a.x += off;
      expect_failure(launch(a, __half{}), status_code::invalid_argument, "x:", rule);
      addresses b;
      b.y += off;
      expect_failure(launch(b, __half{}), status_code::invalid_argument, "y:", rule);
      addresses c;
      c.w += off;
      if (weights)
      {
        expect_failure(launch(c, __half{}), status_code::invalid_argument, "w:", rule);
      }
    }
    // y has an alignment of its own.
    addresses wide;
    wide.y += 2;
    expect_failure(launch(wide, 0.0f), status_code::invalid_argument, "y:", "not a multiple of the element size 4");
    addresses narrow;
    narrow.x += 2;
    narrow.w += 6;
    expect_accepted("2-byte alignment of inputs", [&] { return launch(narrow, 0.0f); });
    narrow.y += 10;
    expect_accepted("2-byte alignment of everything", [&] { return launch(narrow, __half{}); });
  };
  check(convolve, true);
  check(apply, false);
}

// Behind a chain that reduces the channels the slice of y is one of 1 channel, in a tensor whose bytes must fit like any other's.
TEST(arguments, slices_behind_a_reduction)
{
  const auto functors = chain(tconv::channel_max{});
  const auto launch   = [&](const tconv::channel_slice& slice) {
    shape2 shape       = make_shape<2>({2, 4, 6, 2}, {3, 5}, {3, 2});
    shape.output_slice = slice;
    const auto* x      = reinterpret_cast<const float*>(nowhere + slot_bytes);
    const auto* w      = reinterpret_cast<const float*>(nowhere + 2 * slot_bytes);
    auto* y            = reinterpret_cast<float*>(nowhere + 3 * slot_bytes);
    return tconv::global_mean(
      x,
      w,
      y,
      shape,
      functors,
      tconv::options{},
      {reinterpret_cast<void*>(nowhere + 4 * slot_bytes), tconv::global_mean_workspace_bytes(shape, functors)},
      nullptr);
  };
  const auto invalid = status_code::invalid_argument;
  expect_accepted("the last of 6", [&] { return launch({6, 5}); });
  expect_accepted("the only one", [&] { return launch({1, 0}); });
  expect_failure(launch({6, 6}), invalid, "shape.output_slice: channels 6 to 6 + 1", "tensor of 6 channels");
  expect_failure(launch({0, 1}), invalid, "shape.output_slice: channels 1 to 1 + 1", "tensor of 1 channels");
  expect_failure(launch({6, -1}), invalid, "shape.output_slice.first_channel = -1", "must be >= 0");
  expect_failure(launch({-1, 0}), invalid, "shape.output_slice:", "tensor of -1 channels");
  // Without the check these addresses would be read.
  for (const int bits : device_present() ? std::vector<int>{} : std::vector<int>{60, 61, 62})
  {
    SCOPED_TRACE(bits);
    expect_failure(launch({std::int64_t{1} << bits, 0}), invalid, "shape: the bytes of y", "63 bits");
  }
}

// Every rank names its own axes.
TEST(arguments, messages_name_the_axis_of_every_rank)
{
  float* const none = nullptr;
  shape1 s1;
  s1.stride              = {0};
  const tconv::status r1 = tconv::conv_transpose(
    none, none, none, s1, chain(tconv::bias(nullptr)), tconv::options{}, tconv::workspace{}, nullptr);
  EXPECT_EQ(std::string(r1.message()), "shape.stride[w] = 0: must be >= 1");
  shape3 s3;
  s3.stride              = {0, 1, 1};
  const tconv::status r3 = tconv::conv_transpose(
    none, none, none, s3, chain(tconv::bias(nullptr)), tconv::options{}, tconv::workspace{}, nullptr);
  EXPECT_EQ(std::string(r3.message()), "shape.stride[d] = 0: must be >= 1");
}

// The runtime is asked only on request; without a device it knows no memory at all.
TEST(arguments, check_pointers_asks_the_runtime)
{
  for (launcher_call call : valid_calls(nowhere))
  {
    call.options.check_pointers = true;
    const tensor& first         = call.tensors.front();
    expect_rejection({call.launcher + ": pointers to nothing",
                      call,
                      status_code::invalid_argument,
                      first.name + ":",
                      "is not memory that the current device can access"});
    EXPECT_NE(cudaPeekAtLastError(), cudaErrorInvalidValue)
      << "the failed query must not surface in the user's next call";
  }
}

/// One piece of a plan's workspace.
struct extent
{
  std::int64_t begin;
  std::int64_t bytes;
};

void expect_partition(const std::vector<extent>& pieces, std::size_t bytes, const std::string& what)
{
  std::int64_t end = 0;
  for (const extent& piece : pieces)
  {
    ASSERT_EQ(piece.begin % 256, 0) << what;
    ASSERT_GE(piece.begin, end) << what << ": pieces overlap";
    ASSERT_GE(piece.bytes, 0) << what;
    end = piece.begin + piece.bytes;
  }
  ASSERT_LE(end, static_cast<std::int64_t>(bytes)) << what;
  ASSERT_EQ(bytes % 256, 0U) << what;
}

// Query and run share one plan; its pieces must be as large as what the kernels write.
TEST(arguments, pieces_of_the_workspace_are_aligned_and_disjoint)
{
  std::vector<shape3> shapes = awkward_shapes();
  for (std::uint32_t i = 0; i < 200; ++i)
  {
    random_stream random(i);
    shapes.push_back(random_shape(random, 100000000));
  }
  for (const shape3& shape : shapes)
  {
    const std::string name = to_string(shape);
    const auto of_gather   = [](const tconv::runtime::gather_workspace& pieces, const tconv::gather_problem& problem) {
      return std::vector<extent>{
        {pieces.packed.offset, 4 * problem.taps.floats()},
        {pieces.stages.offset, problem.stages() * static_cast<std::int64_t>(sizeof(tconv::gather_stage))},
        {pieces.nonfinite.offset, std::int64_t{4} * problem.weight_blocks}};
    };
    const auto of_collapse = [](const tconv::runtime::collapse_plan& plan) {
      const std::int64_t classes = plan.problem.class_total();
      const std::int64_t listed  = classes > tconv::class_list::tabulated ? classes : 0;
      return std::vector<extent>{{plan.list.offset, listed * static_cast<std::int64_t>(sizeof(tconv::class_box))},
                                 {plan.x_sums.offset, 8 * plan.problem.input_sums()},
                                 {plan.w_sums.offset, 8 * plan.problem.weight_sums()}};
    };

    using fused = tconv::runtime::conv_transpose_plan<chain<tconv::bias>, float, float>;
    const fused conv(shape, {}, nullptr);
    expect_partition(of_gather(conv.pieces, conv.gather.problem), conv.layout.bytes(), name);
    EXPECT_EQ(conv.layout.bytes(), tconv::conv_transpose_workspace_bytes(shape, chain(tconv::bias(nullptr))));

    tconv::detail::workspace_layout layout;
    const tconv::runtime::collapse_plan mean(layout, shape, false, {});
    expect_partition(of_collapse(mean), layout.bytes(), name);
    EXPECT_EQ(layout.bytes(), tconv::global_mean_workspace_bytes(shape));

    tconv::options opts;
    for (const auto engine : {tconv::engine::gather, tconv::engine::spectral})
    {
      opts.engine = engine;
      const tconv::runtime::batch_norm_train_plan<float> train(shape, opts);
      std::vector<extent> pieces = of_collapse(train.collapse);
      if (train.spectral)
      {
        const auto& p = train.spectrum.problem;
        pieces.push_back({train.squares.planes.offset, 8 * std::max(p.plane_spectra(), p.row_matrices())});
        pieces.push_back({train.squares.spectra.offset, 8 * std::max(2 * p.spectra(), p.matrices())});
        pieces.push_back({train.squares.taps.offset, 8 * p.tap_spectra()});
        pieces.push_back({train.squares.squares.offset, 8 * p.out_channels * p.grid_frequencies()});
      }
      else
      {
        const auto more = of_gather(train.pass_pieces.pieces, train.pass.gather.problem);
        pieces.insert(pieces.end(), more.begin(), more.end());
        pieces.push_back(
          {train.pass_pieces.partials.offset,
           shape.out_channels * train.pass.partials * static_cast<std::int64_t>(sizeof(tconv::moments<float>))});
      }
      const tconv::runtime::conv_transpose_moments_plan<float> moments(shape, opts);
      expect_partition(pieces, moments.layout.bytes(), name);
      EXPECT_EQ(moments.layout.bytes(), tconv::conv_transpose_moments_workspace_bytes(shape, opts));
      pieces.push_back({train.means.offset, 8 * shape.batch * shape.out_channels});
      expect_partition(pieces, train.layout.bytes(), name);
      EXPECT_EQ(train.layout.bytes(), tconv::batch_norm_train_global_mean_workspace_bytes(shape, chain<>{}, opts));
    }
    const tconv::runtime::output_moments_plan<float> pass(shape, opts);
    EXPECT_EQ(pass.partials * pass.gather.problem.taps.channel_tiles, pass.gather.problem.blocks()) << name;
  }
}

// Rows beyond a tile: fp32 logits where y has no room for them, and rows of scratch where they fit no block.
template <class Chain, class In, class Out>
void expect_rows_partition(const Chain& functors, std::int64_t channels, bool logits, bool scratch)
{
  for (const auto order : {tconv::layout::channels_first, tconv::layout::channels_last})
  {
    const shape3 shape = make_shape<3>({2, 3, channels, 1}, {1, 4, 7}, {1, 3, 3}, {1, 2, 2});
    tconv::options opts;
    opts.output_layout = order;
    const tconv::runtime::conv_transpose_plan<Chain, In, Out> plan(shape, opts, nullptr);
    const std::string name = to_string(shape) + ", " + std::to_string(sizeof(Out)) + " bytes";
    EXPECT_FALSE(plan.fused) << name;
    EXPECT_EQ(plan.columns.columns == 0, scratch) << name;
    const auto& gather              = plan.gather.problem;
    const std::int64_t stage_bytes  = gather.stages() * static_cast<std::int64_t>(sizeof(tconv::gather_stage));
    const std::int64_t scratch_rows = scratch ? tconv::tuning::columns_policy::scratch_blocks : 0;
    expect_partition({{plan.pieces.packed.offset, 4 * gather.taps.floats()},
                      {plan.pieces.stages.offset, stage_bytes},
                      {plan.pieces.nonfinite.offset, std::int64_t{4} * gather.weight_blocks},
                      {plan.columns.scratch.offset, 4 * scratch_rows * channels},
                      {plan.logits.offset, logits ? 4 * shape.output_elements() : 0}},
                     plan.layout.bytes(),
                     name);
    EXPECT_EQ(plan.layout.bytes(), (tconv::conv_transpose_workspace_bytes<In, Out>(shape, functors, opts))) << name;
  }
}

TEST(arguments, pieces_of_the_workspace_for_rows_beyond_a_tile)
{
  const auto softmax = chain(tconv::bias(nullptr), tconv::channel_softmax{});
  const auto most    = chain(tconv::channel_max{}, tconv::relu{});
  using softmax_type = chain<tconv::bias, tconv::channel_softmax>;
  using most_type    = chain<tconv::channel_max, tconv::relu>;
  expect_rows_partition<softmax_type, float, float>(softmax, 300, false, false);
  expect_rows_partition<softmax_type, float, float>(softmax, 30011, false, true);
  expect_rows_partition<softmax_type, __half, __half>(softmax, 300, true, false);
  expect_rows_partition<softmax_type, __half, __half>(softmax, 30011, true, true);
  expect_rows_partition<softmax_type, __nv_bfloat16, float>(softmax, 300, false, false);
  expect_rows_partition<most_type, float, float>(most, 300, true, false);
  expect_rows_partition<most_type, __half, __half>(most, 30011, true, true);
  // Up to a tile nothing is stored, whatever the types.
  const shape3 shape = make_shape<3>({2, 3, 256, 1}, {1, 4, 7}, {1, 3, 3}, {1, 2, 2});
  EXPECT_TRUE((tconv::runtime::conv_transpose_plan<softmax_type, __half, __half>(shape, {}, nullptr).fused));
  EXPECT_TRUE((tconv::runtime::conv_transpose_plan<most_type, float, float>(shape, {}, nullptr).fused));
}

/// The arena in device memory, full of poison.
class arguments_gpu : public gpu_test
{
protected:
  void SetUp() override
  {
    gpu_test::SetUp();
    if (!IsSkipped())
    {
      arena_ = std::make_unique<device_buffer<float>>(static_cast<std::int64_t>(slots * slot_bytes / 4));
    }
  }

  std::vector<launcher_call> calls() const { return valid_calls(reinterpret_cast<std::uintptr_t>(arena_->data())); }

  /// True if nothing has been written since the last poison().
  bool untouched() const
  {
    EXPECT_TRUE(cuda_ok(cudaDeviceSynchronize(), "synchronize"));
    std::vector<std::uint32_t> words(static_cast<std::size_t>(arena_->size()));
    EXPECT_TRUE(
      cuda_ok(cudaMemcpy(words.data(), arena_->data(), words.size() * 4, cudaMemcpyDeviceToHost), "download"));
    return arena_->guards_intact()
        && std::all_of(words.begin(), words.end(), [](std::uint32_t word) { return word == 0xffffffffU; });
  }

  std::unique_ptr<device_buffer<float>> arena_;
};

TEST_F(arguments_gpu, rejection_leaves_everything_untouched)
{
  for (const launcher_call& valid : calls())
  {
    for (const wrong_call& wrong : wrong_calls(valid))
    {
      expect_rejection(wrong);
      ASSERT_TRUE(untouched()) << wrong.what;
    }
  }
  EXPECT_TRUE(cuda_ok(cudaGetLastError(), "last error"));
}

// The calls that arguments.are_checked_before_anything_is_launched spoils are right in every other respect.
TEST_F(arguments_gpu, valid_ones_run)
{
  for (launcher_call call : calls())
  {
    for (const bool check_pointers : {false, true})
    {
      arena_->poison();
      call.options.check_pointers = check_pointers;
      EXPECT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) { return call(stream); })) << call.launcher;
      EXPECT_TRUE(arena_->guards_intact()) << call.launcher;
    }
    for (const tensor& t : call.tensors)
    {
      if (t.optional)
      {
        launcher_call without    = call;
        without.at(t.name).begin = 0;
        EXPECT_TRUE(run(launch_mode::direct, [&](cudaStream_t stream) { return without(stream); }))
          << call.launcher << " without " << t.name;
      }
    }
  }
}

TEST_F(arguments_gpu, nothing_to_do_writes_nothing)
{
  for (launcher_call call : calls())
  {
    if (call.takes_shape && call.launcher.rfind("fold", 0) == 0)
    {
      continue;
    }
    call.channels       = 0;
    call.shape.batch    = 0;
    call.existing.batch = 0;
    EXPECT_TRUE(run(launch_mode::graph, [&](cudaStream_t stream) { return call(stream); })) << call.launcher;
    EXPECT_TRUE(untouched()) << call.launcher;
  }
}

TEST_F(arguments_gpu, check_pointers_rejects_host_memory)
{
  std::vector<float> host(most_bytes / 4, 1.0f);
  for (const launcher_call& valid : calls())
  {
    for (const tensor& t : valid.tensors)
    {
      launcher_call call          = valid;
      call.options.check_pointers = true;
      call.at(t.name).begin       = reinterpret_cast<std::uintptr_t>(host.data());
      expect_rejection({valid.launcher + ": " + t.name + " on the host",
                        call,
                        status_code::invalid_argument,
                        t.name + ":",
                        "is not memory that the current device can access"});
      EXPECT_TRUE(cuda_ok(cudaGetLastError(), "last error"));
    }
    EXPECT_TRUE(untouched()) << valid.launcher;
  }
  EXPECT_EQ(host, std::vector<float>(host.size(), 1.0f));
}

} // namespace
