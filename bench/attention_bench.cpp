// Times an attention backend of the CPU by itself on one shape: a short loop for whoever tunes its kernels.
//
//   attention_bench DTYPE BATCH SEQ_LEN_Q SEQ_LEN_KV NUM_HEADS NUM_KV_HEADS HEAD_DIM
//                   [causal] [bhsd] [invariant] [block_m=N] [block_n=N] [splits=N] [threads=N] [backend=NAME]
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "backends/cpu/ceilings.h"
#include "core/block_format.h"
#include "core/parallel.h"
#include "tessera/error.h"

namespace {

using namespace tessera;

std::vector<std::byte> random_tensor(DType dtype, std::size_t elements, std::uint32_t seed) {
  std::vector<std::byte> bytes(dtype_bytes(dtype, elements));
  std::uint32_t state = seed;
  for (std::size_t i = 0; i < elements; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
    dispatch_activation(dtype, [&]<class T>() {
      const T rounded(value);
      std::memcpy(bytes.data() + i * sizeof(T), &rounded, sizeof(T));
    });
  }
  return bytes;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 7) {
    fmt::print(
        stderr,
        "usage: attention_bench DTYPE BATCH SEQ_LEN_Q SEQ_LEN_KV NUM_HEADS NUM_KV_HEADS HEAD_DIM [causal] "
        "[bhsd] [invariant] [block_m=N] [block_n=N] [splits=N] [threads=N] [backend=NAME]\n");
    return 2;
  }
  AttentionProblem p;
  const DType dtype = parse_dtype(arguments[0]);
  p.batch = std::stol(arguments[1]);
  p.seq_len_q = std::stol(arguments[2]);
  p.seq_len_kv = std::stol(arguments[3]);
  p.num_heads = std::stoi(arguments[4]);
  p.num_kv_heads = std::stoi(arguments[5]);
  p.head_dim_qk = p.head_dim_v = std::stoi(arguments[6]);
  AttentionConfig config;
  std::string backend_name = "cpu";
  AttentionLayout layout = AttentionLayout::kBatchSeqHeads;
  for (std::size_t i = 7; i < arguments.size(); ++i) {
    const std::string& a = arguments[i];
    if (a == "causal") p.scores.diagonal = DiagonalMask::causal();
    if (a == "bhsd") layout = AttentionLayout::kBatchHeadsSeq;
    if (a == "invariant") p.batch_invariant = true;
    if (a.starts_with("block_m=")) config.block_m = std::stoi(a.substr(8));
    if (a.starts_with("block_n=")) config.block_n = std::stoi(a.substr(8));
    if (a.starts_with("backend=")) backend_name = a.substr(8);
    if (a.starts_with("threads=")) set_num_threads(std::stoi(a.substr(8)));
    if (a.starts_with("splits=")) config.num_splits = std::stoi(a.substr(7));
  }
  const auto q_elements = static_cast<std::size_t>(p.batch * p.seq_len_q * p.num_heads * p.head_dim_qk);
  const auto kv_elements = static_cast<std::size_t>(p.batch * p.seq_len_kv * p.num_kv_heads * p.head_dim_qk);
  const auto q = random_tensor(dtype, q_elements, 1);
  const auto k = random_tensor(dtype, kv_elements, 2);
  const auto v = random_tensor(dtype, kv_elements, 3);
  std::vector<std::byte> o(q.size());
  p.q = attention_input(layout, q.data(), dtype, p.seq_len_q, p.num_heads, p.head_dim_qk);
  p.k = attention_input(layout, k.data(), dtype, p.seq_len_kv, p.num_kv_heads, p.head_dim_qk);
  p.v = attention_input(layout, v.data(), dtype, p.seq_len_kv, p.num_kv_heads, p.head_dim_qk);
  p.o = attention_output(layout, o.data(), dtype, p.seq_len_q, p.num_heads, p.head_dim_qk);

  const AttentionBackend& backend = find_attention_backend(backend_name);
  const AttentionPlan plan = backend.plan(p, config);
  const auto workspace = backend.allocate_workspace({}, plan.workspace_bytes, {});
  const Ceilings ceilings = measure_ceilings(dtype, 0.2);
  std::vector<double> seconds;
  double total = 0;
  for (int i = 0; i < 3 || (total < 1.5 && i < 1000000); ++i) {
    const auto start = std::chrono::steady_clock::now();
    attention_forward(p, plan, {workspace.get(), plan.workspace_bytes});
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    total += seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double flops = attention_flops(p) / median;
  const double bytes = attention_bytes(p) / median;
  fmt::print(
      "{} block_m {} block_n {} splits {} workspace {} KiB | median {:.3f} ms, min {:.3f}, max {:.3f} | "
      "{:.1f} GFLOP/s, {:.1f} % of {:.0f} | {:.1f} GB/s, {:.1f} % of {:.1f}\n",
      plan.kernel, plan.config.block_m, plan.config.block_n, plan.config.num_splits,
      plan.workspace_bytes / 1024, median * 1e3, seconds.front() * 1e3, seconds.back() * 1e3, flops * 1e-9,
      100 * flops / ceilings.flops_per_s, ceilings.flops_per_s * 1e-9, bytes * 1e-9,
      100 * bytes / ceilings.bytes_per_s, ceilings.bytes_per_s * 1e-9);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.message());
    return 1;
  }
}
