#include "tune_grid.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/dtype.h"

namespace tessera::cli {

namespace {

/// Larger keys and values are bound by memory whatever reads them, and take long to make.
struct Limits {
  std::size_t kv_bytes;
  std::int64_t prompt;
};

Limits limits_for(DeviceKind kind) {
  if (kind == DeviceKind::kCpu) return {std::size_t{1} << 26, 2048};
  return {std::size_t{1} << 29, 8192};
}

struct Heads {
  int num_heads;
  int num_kv_heads;
  int head_dim;
};
// Llama's and Qwen's, a larger Llama's, small models', Gemma's.
constexpr std::array kHeads = {Heads{32, 8, 128}, Heads{64, 8, 128}, Heads{32, 8, 64}, Heads{16, 8, 256}};

struct Shape {
  std::int64_t batch, seq_len_q, seq_len_kv;
};

std::size_t kv_bytes(const ProblemOptions& o) {
  const DType dtype = parse_dtype(o.kv_dtype.empty() ? o.dtype : o.kv_dtype);
  return dtype_bytes(dtype,
                     static_cast<std::size_t>(2 * o.batch * *o.seq_len_kv * o.num_kv_heads * o.head_dim));
}

void add_shapes(const ProblemOptions& base, const Heads& heads, int page_size,
                const std::vector<Shape>& shapes, std::size_t most_kv_bytes,
                std::vector<ProblemOptions>& grid) {
  for (const Shape& shape : shapes) {
    ProblemOptions o = base;
    o.batch = shape.batch;
    o.seq_len_q = shape.seq_len_q;
    o.seq_len_kv = shape.seq_len_kv;
    o.num_heads = heads.num_heads;
    o.num_kv_heads = heads.num_kv_heads;
    o.head_dim = heads.head_dim;
    o.head_dim_v = 0;
    o.causal = true;
    o.window_right.reset();
    o.ragged = false;
    o.decodes = 0;
    o.page_size = page_size;
    if (kv_bytes(o) <= most_kv_bytes) grid.push_back(o);
  }
}

}  // namespace

std::vector<ProblemOptions> tuning_grid(const ProblemOptions& base, DeviceKind kind) {
  const Limits limits = limits_for(kind);
  std::vector<Shape> decode, prompts, few_queries;
  for (const std::int64_t batch : {1, 2, 4, 8, 16, 32, 64}) {
    for (std::int64_t seq_len_kv = 512; seq_len_kv <= 32768; seq_len_kv *= 2)
      decode.push_back({batch, 1, seq_len_kv});
  }
  for (std::int64_t seq_len = 128; seq_len <= limits.prompt; seq_len *= 2)
    prompts.push_back({1, seq_len, seq_len});
  for (const std::int64_t seq_len_q : {2, 4, 8, 16, 32, 64}) {
    for (const std::int64_t batch : {1, 8}) few_queries.push_back({batch, seq_len_q, 4096});
  }
  std::vector<ProblemOptions> grid;
  for (const Heads& heads : kHeads) {
    for (const int page_size : {16, 0}) {
      add_shapes(base, heads, page_size, decode, limits.kv_bytes, grid);
      add_shapes(base, heads, page_size, prompts, limits.kv_bytes, grid);
      add_shapes(base, heads, page_size, few_queries, limits.kv_bytes, grid);
    }
  }
  return grid;
}

}  // namespace tessera::cli
