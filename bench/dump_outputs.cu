// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

/// \file
/// Runs a pipeline of common/pipeline.hpp on tensors from files and writes its output: how pytorch_compare.py sees
/// tconv's results.
///
///     bench_dump_outputs L2_49 <directory>
///     bench_dump_outputs --list              all pipelines with their shapes, as JSON
///
/// Tensors are raw fp32 <name>.bin in the directory: x, w, b, and those of offset, gamma, beta, mean, var that the
/// pipeline has. Written: y.bin; in train mode also mean_out.bin and var_out.bin, with momentum 1: the statistics of
/// this very batch.

#include "common/pipeline.hpp"
#include "common/timer.hpp"

#include <fstream>
#include <string>

namespace
{

using namespace tconv_bench;

[[noreturn]] void fail(const std::string& message)
{
  std::fprintf(stderr, "bench_dump_outputs: %s\n", message.c_str());
  std::exit(1);
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

void run(const pipeline& p, const tensor_folder& folder)
{
  const std::int64_t channels = p.shape.out_channels;
  const auto operand          = [&](const char* name, bool there) {
    return there ? folder.read(name, channels) : device_array(1);
  };
  const auto x      = folder.read("x", p.shape.input_elements());
  const auto w      = folder.read("w", p.shape.weight_elements());
  const auto b      = operand("b", true);
  const auto offset = operand("offset", p.offset);
  const auto gamma  = operand("gamma", p.batch_norm);
  const auto beta   = operand("beta", p.batch_norm);
  const auto mean   = operand("mean", p.batch_norm);
  const auto var    = operand("var", p.batch_norm);
  const auto y      = poisoned(p.outputs);
  const device_array space(static_cast<std::int64_t>((p.workspace_bytes(tconv::options{}) + 3) / 4));
  if (const tconv::status s = p.run({x.data(),
                                     w.data(),
                                     b.data(),
                                     offset.data(),
                                     gamma.data(),
                                     beta.data(),
                                     mean.data(),
                                     var.data(),
                                     y.data(),
                                     1.0f},
                                    tconv::options{},
                                    space.as_workspace(),
                                    nullptr);
      !s.ok())
  {
    fail(s.message());
  }
  must(cudaDeviceSynchronize(), "run");
  folder.write("y", y, p.outputs);
  if (p.train)
  {
    folder.write("mean_out", mean, channels);
    folder.write("var_out", var, channels);
  }
}

/// All pipelines as JSON, extents and parameters along PyTorch's axes.
void list()
{
  const char* separator = "[";
  for (const pipeline& p : pipelines())
  {
    const auto along_axes = [&](const char* name, const shape3::extents& values) {
      std::printf(", \"%s\": ", name);
      for (std::int64_t a = 3 - p.axes; a < 3; ++a)
      {
        std::printf(
          "%s%lld", a == 3 - p.axes ? "[" : ", ", static_cast<long long>(values[static_cast<std::size_t>(a)]));
      }
      std::printf("]");
    };
    std::printf("%s{\"name\": \"%s\", \"train\": %s, \"batch\": %lld, \"in_channels\": %lld, \"out_channels\": %lld",
                separator,
                p.problem,
                p.train ? "true" : "false",
                static_cast<long long>(p.shape.batch),
                static_cast<long long>(p.shape.in_channels),
                static_cast<long long>(p.shape.out_channels));
    along_axes("extents", p.shape.input);
    along_axes("kernel", p.shape.kernel);
    along_axes("stride", p.shape.stride);
    along_axes("padding", p.shape.padding);
    along_axes("output_padding", p.shape.output_padding);
    std::printf("}");
    separator = ",\n ";
  }
  std::printf("]\n");
}

} // namespace

int main(int argc, char** argv)
{
  if (argc == 2 && std::string(argv[1]) == "--list")
  {
    list();
    return 0;
  }
  if (argc != 3)
  {
    fail("usage: bench_dump_outputs --list | <problem> <directory>");
  }
  const pipeline* p = find_pipeline(argv[1]);
  if (p == nullptr)
  {
    fail(std::string("no problem ") + argv[1]);
  }
  run(*p, tensor_folder(argv[2]));
  return 0;
}
