// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Runs one benchmarked pipeline on tensors from files and writes its output: how pytorch_compare.py sees tconv's results.
///
///     bench_dump_outputs <pipeline> <directory> batch=16 in_channels=32 out_channels=64 input=16,32,32 kernel=3,3,3 ...
///
/// Tensors are raw fp32 <name>.bin in the directory: x, w, b, and gamma, beta, mean, var where the pipeline has a BatchNorm.
/// Written: y.bin; in train mode also mean_out.bin and var_out.bin, with momentum 1: the statistics of this very batch.

#include "common/timer.hpp"

#include <tconv/tconv.cuh>

#include <fstream>
#include <map>
#include <sstream>

namespace
{

using namespace tconv_bench;
using tconv::chain;
using shape3 = tconv::conv_transpose_shape<3>;

[[noreturn]] void fail(const std::string& message)
{
  std::fprintf(stderr, "bench_dump_outputs: %s\n", message.c_str());
  std::exit(1);
}

/// "3,3,3" or "16".
std::vector<std::int64_t> integers(const std::string& text)
{
  std::vector<std::int64_t> values;
  std::istringstream stream(text);
  for (std::int64_t v = 0; stream >> v;)
  {
    values.push_back(v);
    if (stream.peek() == ',')
    {
      stream.ignore();
    }
  }
  if (values.empty() || !stream.eof())
  {
    fail("not integers: " + text);
  }
  return values;
}

shape3 parse_shape(int count, char** arguments)
{
  shape3 s;
  const std::map<std::string, std::int64_t*> scalars{
    {"batch", &s.batch}, {"in_channels", &s.in_channels}, {"out_channels", &s.out_channels}, {"groups", &s.groups}};
  const std::map<std::string, shape3::extents*> axes{{"input", &s.input},
                                                     {"kernel", &s.kernel},
                                                     {"stride", &s.stride},
                                                     {"padding", &s.padding},
                                                     {"output_padding", &s.output_padding},
                                                     {"dilation", &s.dilation}};
  for (int i = 0; i < count; ++i)
  {
    const std::string argument = arguments[i];
    const std::size_t equals   = std::min(argument.find('='), argument.size());
    const std::string name     = argument.substr(0, equals);
    const auto values          = integers(argument.substr(std::min(equals + 1, argument.size())));
    if (scalars.count(name) == 1 && values.size() == 1)
    {
      *scalars.at(name) = values[0];
    }
    else if (axes.count(name) == 1 && values.size() == 3)
    {
      std::copy(values.begin(), values.end(), axes.at(name)->begin());
    }
    else
    {
      fail("not understood: " + argument);
    }
  }
  if (const tconv::status valid = validate(s); !valid.ok())
  {
    fail(valid.message());
  }
  return s;
}

/// The .bin files of one directory as device memory.
class tensor_folder
{
public:
  explicit tensor_folder(std::string path) : path_(std::move(path)) {}

  device_array read(const std::string& name, std::int64_t count) const
  {
    const std::string file = path_ + "/" + name + ".bin";
    std::ifstream stream(file, std::ios::binary | std::ios::ate);
    if (!stream || stream.tellg() != static_cast<std::streamoff>(count * 4))
    {
      fail(file + " is not a file of " + std::to_string(count) + " floats");
    }
    std::vector<float> values(static_cast<std::size_t>(count));
    stream.seekg(0);
    stream.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
    if (!stream)
    {
      fail("cannot read " + file);
    }
    device_array result(count);
    must(cudaMemcpy(result.data(), values.data(), values.size() * 4, cudaMemcpyHostToDevice), "upload");
    return result;
  }

  void write(const std::string& name, const device_array& array, std::int64_t count) const
  {
    std::vector<float> values(static_cast<std::size_t>(count));
    must(cudaMemcpy(values.data(), array.data(), values.size() * 4, cudaMemcpyDeviceToHost), "download");
    const std::string file = path_ + "/" + name + ".bin";
    std::ofstream stream(file, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
    stream.close();
    if (!stream)
    {
      fail("cannot write " + file);
    }
  }

private:
  std::string path_;
};

/// Memory for outputs, NaN all over, so that an element that is not written cannot pass.
device_array poisoned(std::int64_t count)
{
  device_array result(count);
  must(cudaMemset(result.data(), 0xff, static_cast<std::size_t>(count) * 4), "poison");
  return result;
}

device_array workspace_of(std::size_t bytes)
{
  return device_array(static_cast<std::int64_t>((bytes + 3) / 4));
}

void finish(const tconv::status& s)
{
  if (!s.ok())
  {
    fail(s.message());
  }
  must(cudaDeviceSynchronize(), "run");
}

void softmax_sigmoid(const tensor_folder& folder, const shape3& s)
{
  const auto x = folder.read("x", s.input_elements());
  const auto w = folder.read("w", s.weight_elements());
  const auto b = folder.read("b", s.out_channels);
  const auto y = poisoned(s.output_elements());

  const auto functors = chain(tconv::bias(b.data()), tconv::channel_softmax{}, tconv::sigmoid{});
  const auto space    = workspace_of(tconv::conv_transpose_workspace_bytes(s, functors));
  finish(
    tconv::conv_transpose(x.data(), w.data(), y.data(), s, functors, tconv::options{}, space.as_workspace(), nullptr));
  folder.write("y", y, s.output_elements());
}

void scale_batch_norm_mean(const tensor_folder& folder, const shape3& s, bool train)
{
  const auto x     = folder.read("x", s.input_elements());
  const auto w     = folder.read("w", s.weight_elements());
  const auto b     = folder.read("b", s.out_channels);
  const auto gamma = folder.read("gamma", s.out_channels);
  const auto beta  = folder.read("beta", s.out_channels);
  const auto mean  = folder.read("mean", s.out_channels);
  const auto var   = folder.read("var", s.out_channels);
  const auto y     = poisoned(s.batch * s.out_channels);

  const auto before = chain(tconv::bias(b.data()), tconv::scale(2.0f));
  if (train)
  {
    tconv::batch_norm_arguments arguments{gamma.data(), beta.data(), mean.data(), var.data()};
    arguments.momentum = 1.0f;
    const auto space   = workspace_of(tconv::batch_norm_train_global_mean_workspace_bytes(s, before));
    finish(tconv::batch_norm_train_global_mean(
      x.data(), w.data(), y.data(), s, before, arguments, tconv::options{}, space.as_workspace(), nullptr));
    folder.write("mean_out", mean, s.out_channels);
    folder.write("var_out", var, s.out_channels);
  }
  else
  {
    const auto functors = chain(
      tconv::bias(b.data()), tconv::scale(2.0f), tconv::batch_norm(mean.data(), var.data(), gamma.data(), beta.data()));
    const auto space = workspace_of(tconv::global_mean_workspace_bytes(s, functors));
    finish(
      tconv::global_mean(x.data(), w.data(), y.data(), s, functors, tconv::options{}, space.as_workspace(), nullptr));
  }
  folder.write("y", y, s.batch * s.out_channels);
}

} // namespace

int main(int argc, char** argv)
{
  if (argc < 3)
  {
    fail("usage: bench_dump_outputs <pipeline> <directory> <field>=<value>...");
  }
  const std::string pipeline = argv[1];
  const tensor_folder folder(argv[2]);
  const shape3 s = parse_shape(argc - 3, argv + 3);
  if (pipeline == "softmax_sigmoid")
  {
    softmax_sigmoid(folder, s);
  }
  else if (pipeline == "scale_batch_norm_mean_eval" || pipeline == "scale_batch_norm_mean_train")
  {
    scale_batch_norm_mean(folder, s, pipeline == "scale_batch_norm_mean_train");
  }
  else
  {
    fail("no pipeline " + pipeline);
  }
  return 0;
}
