// Times the ops of the cpu backend beside the machine's rates, and says what they err by as a share of the
// bound that they must keep: a short loop for whoever tunes their kernels.
//
//   ops_bench [part of "kernel dtype shape"] [seconds for each]
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "backends/cpu/ceilings.h"
#include "ops_bench.h"
#include "tessera/error.h"

namespace {

using namespace tessera;

int run(const std::string& part, double seconds) {
  const std::unique_ptr<OpsBackend> backend = make_ops_backend("cpu");
  const double copy_rate = bench::measure_copy_bytes_per_s();
  const Ceilings f32 = cpu_ceilings(DType::kF32);
  const Ceilings bf16 = cpu_ceilings(DType::kBF16);
  fmt::print("read {:.1f} GB/s, copy {:.1f} GB/s, fp32 {:.0f} GFLOP/s, bf16 {:.0f} GFLOP/s\n",
             f32.bytes_per_s * 1e-9, copy_rate * 1e-9, f32.flops_per_s * 1e-9, bf16.flops_per_s * 1e-9);
  fmt::print("{:18} {:5} {:38} {:>10} {:>10} {:>8} {:>9} {:>6} {:>6}\n", "kernel", "dtype", "shape",
             "median ms", "min ms", "GB/s", "GFLOP/s", "share", "error");
  for (const bench::OpsBenchCase& c : bench::ops_bench_cases()) {
    const std::string name = fmt::format("{} {} {}", c.kernel, dtype_name(c.dtype), c.shape);
    if (name.find(part) == name.npos) continue;
    const bench::OpsBench b = c.make(*backend);
    const bench::OpsCheck check = b.check();
    if (!check.passed()) {
      fmt::print("{} is wrong and is not measured: error {:.3g}, bound {:.3g}\n", name, check.error,
                 check.bound);
      return 1;
    }
    std::vector<double> samples;
    double total = 0;
    while (total < seconds || samples.size() < 3) {
      const auto start = std::chrono::steady_clock::now();
      b.run();
      samples.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      total += samples.back();
    }
    std::sort(samples.begin(), samples.end());
    const double median = samples[samples.size() / 2];
    // The time that the machine's rates allow, over the time taken.
    const double least = std::max(b.flops / (c.dtype == DType::kBF16 ? bf16 : f32).flops_per_s,
                                  b.bytes / (b.writes ? copy_rate : f32.bytes_per_s));
    fmt::print("{:18} {:5} {:38} {:10.3f} {:10.3f} {:8.1f} {:9.1f} {:5.0f}% {:5.0f}%\n", c.kernel,
               dtype_name(c.dtype), c.shape, median * 1e3, samples[0] * 1e3, b.bytes / median * 1e-9,
               b.flops / median * 1e-9, 100 * least / median,
               check.bound > 0 ? 100 * check.error / check.bound : 0.0);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "", argc > 2 ? std::stod(argv[2]) : 0.3);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
