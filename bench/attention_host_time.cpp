// attention_host_time [calls] — what a launch of GPU attention costs the calling thread, in microseconds:
// with a plan made once, and with one made for each call. Needs a GPU, or a driver that pretends to be one
// (then the time is the library's alone): TESSERA_CUDA_LIBRARY=…/libpretended_gpu.so, and the same file as
// TESSERA_NVRTC_LIBRARY and TESSERA_CUBLASLT_LIBRARY.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ops/backend.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera {
namespace {

constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kPageSize = 16;
constexpr int kSamples = 21;

/// Of `calls` calls in a row, few enough for the driver's queue; the median of some samples. The GPU gets
/// time to empty the queue between them.
double microseconds_a_call(int calls, OpsBackend& ops, const std::function<void()>& call) {
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    ops.synchronize(ops.stream());
    const auto begin = std::chrono::steady_clock::now();
    for (int n = 0; n < calls; ++n) call();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    samples.push_back(time.count() / calls);
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

/// A step of a model over pages: `batch` sequences with a query each. All pages are the first one: lengths
/// and tables are zeros, so that the kernels have nothing to do.
AttentionProblem decode_step(std::int64_t batch, std::int64_t seq_len_kv, std::byte* memory) {
  AttentionProblem p;
  p.device = {DeviceKind::kCuda, 0};
  p.batch = batch;
  p.seq_len_q = 1;
  p.seq_len_kv = seq_len_kv;
  p.num_heads = kHeads;
  p.num_kv_heads = kKvHeads;
  p.head_dim_qk = p.head_dim_v = kHeadDim;
  constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
  p.q = attention_input(kLayout, memory, DType::kBF16, 1, kHeads, kHeadDim);
  p.k = attention_input(kLayout, memory, DType::kBF16, kPageSize, kKvHeads, kHeadDim);
  p.v = p.k;
  p.o = attention_output(kLayout, memory + (8 << 20), DType::kBF16, 1, kHeads, kHeadDim);
  p.scores.diagonal = DiagonalMask::causal();
  const auto* numbers = reinterpret_cast<const std::int32_t*>(memory);
  p.ragged_q = RaggedTokens{numbers, batch};
  const auto pages = static_cast<int>(seq_len_kv / kPageSize);
  p.paged_kv = PagedKv{numbers, numbers, 0, 1, pages, kPageSize};
  return p;
}

void run(int calls) {
  const std::unique_ptr<OpsBackend> ops = make_ops_backend("cuda");
  constexpr std::size_t kMemoryBytes = std::size_t{16} << 20;
  const DeviceBuffer memory = ops->allocate(kMemoryBytes, "tensors");
  ops->fill_zero(memory.data.get(), kMemoryBytes, ops->stream());
  const AttentionOptions options = {.backend = "cuda", .config = {}};
  fmt::print("bf16, heads {}/{}, head_dim {}, pages of {}; us a call, median of {} samples of {} calls\n",
             kHeads, kKvHeads, kHeadDim, kPageSize, kSamples, calls);
  fmt::print("{:>6} {:>8} {:>7} {:>12} {:>15}\n", "batch", "seq_len", "splits", "plan reused",
             "plan each time");
  for (const auto& [batch, seq_len_kv] : {std::pair{1, 512}, {1, 32768}, {16, 4096}, {64, 1024}}) {
    const AttentionProblem p = decode_step(batch, seq_len_kv, static_cast<std::byte*>(memory.data.get()));
    const AttentionPlan plan = plan_attention(p, options);
    const DeviceBuffer workspace = ops->allocate(plan.workspace_bytes, "workspace");
    const std::span<std::byte> bytes(static_cast<std::byte*>(workspace.data.get()), plan.workspace_bytes);
    attention_forward(p, plan, bytes, ops->stream());
    const double reused =
        microseconds_a_call(calls, *ops, [&] { attention_forward(p, plan, bytes, ops->stream()); });
    const double planned =
        microseconds_a_call(calls, *ops, [&] { attention_forward(p, options, ops->stream()); });
    fmt::print("{:>6} {:>8} {:>7} {:>12.2f} {:>15.2f}\n", batch, seq_len_kv, plan.config.num_splits, reused,
               planned);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    tessera::run(argc > 1 ? std::max(std::atoi(argv[1]), 1) : 200);
  } catch (const tessera::Error& error) {
    fmt::print(stderr, "error: {}\n", error.message());
    return 1;
  }
  return 0;
}
