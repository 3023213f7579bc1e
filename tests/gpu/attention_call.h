#pragma once

#include <memory>
#include <random>
#include <vector>

#include "core/element.h"
#include "gpu/tested_gpu.h"
#include "tessera/attention.h"

namespace tessera::testing {

/// Elements between neighbours of a dimension.
struct Strides {
  std::int64_t batch, seq, head;
};

struct Shape {
  DType dtype = DType::kBF16;
  std::int64_t batch = 2, seq_len_q = 80, seq_len_kv = 100;
  int num_heads = 4, num_kv_heads = 2, head_dim = 64;

  Strides compact(std::int64_t tokens, int heads) const {
    return {tokens * heads * head_dim, std::int64_t{heads} * head_dim, head_dim};
  }
};

/// Causal attention of random numbers on the GPU.
class Call {
 public:
  /// Tensors that lie one after the other.
  Call(const Shape& shape, unsigned seed)
      : Call(shape, seed, shape.compact(shape.seq_len_q, shape.num_heads),
             shape.compact(shape.seq_len_kv, shape.num_kv_heads)) {}

  /// Tensors with these strides.
  Call(const Shape& shape, unsigned seed, const Strides& q_strides, const Strides& kv_strides)
      : shape_(shape), q_strides_(q_strides) {
    const auto span = [&](const Strides& s, std::int64_t tokens, int heads) {
      return (shape.batch - 1) * s.batch + (tokens - 1) * s.seq + (heads - 1) * s.head + shape.head_dim;
    };
    const std::int64_t q_size = span(q_strides, shape.seq_len_q, shape.num_heads);
    const std::int64_t kv_size = span(kv_strides, shape.seq_len_kv, shape.num_kv_heads);
    q_ = allocate(q_size);
    k_ = allocate(kv_size);
    v_ = allocate(kv_size);
    o_ = allocate(q_size);
    std::mt19937 generator(seed);
    fill(q_.get(), q_strides, shape.seq_len_q, shape.num_heads, generator);
    fill(k_.get(), kv_strides, shape.seq_len_kv, shape.num_kv_heads, generator);
    fill(v_.get(), kv_strides, shape.seq_len_kv, shape.num_kv_heads, generator);
    problem_.device = tested_gpu().device();
    problem_.batch = shape.batch;
    problem_.seq_len_q = shape.seq_len_q;
    problem_.seq_len_kv = shape.seq_len_kv;
    problem_.num_heads = shape.num_heads;
    problem_.num_kv_heads = shape.num_kv_heads;
    problem_.head_dim_qk = problem_.head_dim_v = shape.head_dim;
    problem_.q = {q_.get(), shape.dtype, q_strides.batch, q_strides.seq, q_strides.head};
    problem_.k = {k_.get(), shape.dtype, kv_strides.batch, kv_strides.seq, kv_strides.head};
    problem_.v = {v_.get(), shape.dtype, kv_strides.batch, kv_strides.seq, kv_strides.head};
    problem_.o = {o_.get(), shape.dtype, q_strides.batch, q_strides.seq, q_strides.head};
    problem_.scores.diagonal = DiagonalMask::causal();
    plan_ = plan_attention(problem_);
    workspace_ = tested_gpu().allocate(plan_.workspace_bytes, "test workspace");
    tested_gpu().synchronize({});
  }

  const AttentionPlan& plan() const { return plan_; }

  void run(Stream stream) const {
    attention_forward(problem_, plan_, {workspace_.get(), plan_.workspace_bytes}, {stream});
  }

  /// Plans again with these values forced.
  void force(const AttentionConfig& config) {
    AttentionOptions options;
    options.config = config;
    plan_ = plan_attention(problem_, options);
    workspace_ = tested_gpu().allocate(plan_.workspace_bytes, "test workspace");
  }

  /// Sequences of `lens_kv` keys, at most seq_len_kv, which stand in the GPU's memory. What has been captured
  /// sees them from its next replay on.
  void set_lengths(const std::vector<std::int32_t>& lens_kv) {
    const std::size_t size_bytes = lens_kv.size() * sizeof(std::int32_t);
    if (lens_kv_ == nullptr) {
      lens_kv_ = tested_gpu().allocate(size_bytes, "test lengths");
      problem_.seq_lens_kv = reinterpret_cast<const std::int32_t*>(lens_kv_.get());
      force({});
    }
    tested_gpu().upload(lens_kv_.get(), lens_kv.data(), size_bytes, {});
    tested_gpu().synchronize({});
  }

  /// Other numbers into q.
  void refill(unsigned seed) {
    std::mt19937 generator(seed);
    fill(q_.get(), q_strides_, shape_.seq_len_q, shape_.num_heads, generator);
    tested_gpu().synchronize({});
  }

  /// The bytes of o, row after row.
  std::vector<std::byte> result(Stream stream) const {
    const std::size_t row_bytes = dtype_bytes(shape_.dtype, static_cast<std::size_t>(shape_.head_dim));
    std::vector<std::byte> bytes;
    for_each_row(q_strides_, shape_.seq_len_q, shape_.num_heads, [&](std::size_t offset_bytes) {
      bytes.resize(bytes.size() + row_bytes);
      tested_gpu().download(bytes.data() + bytes.size() - row_bytes, o_.get() + offset_bytes, row_bytes,
                            stream);
    });
    tested_gpu().synchronize(stream);
    return bytes;
  }

 private:
  std::shared_ptr<std::byte> allocate(std::int64_t elements) const {
    return tested_gpu().allocate(dtype_bytes(shape_.dtype, static_cast<std::size_t>(elements)),
                                 "test tensor");
  }

  template <class F>
  void for_each_row(const Strides& strides, std::int64_t tokens, int heads, const F& f) const {
    for (std::int64_t b = 0; b < shape_.batch; ++b) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (int h = 0; h < heads; ++h) {
          const std::int64_t element = b * strides.batch + t * strides.seq + h * strides.head;
          f(dtype_bytes(shape_.dtype, static_cast<std::size_t>(element)));
        }
      }
    }
  }

  void fill(std::byte* tensor, const Strides& strides, std::int64_t tokens, int heads,
            std::mt19937& generator) const {
    std::normal_distribution<double> normal;
    std::vector<std::byte> row(dtype_bytes(shape_.dtype, static_cast<std::size_t>(shape_.head_dim)));
    for_each_row(strides, tokens, heads, [&](std::size_t offset_bytes) {
      for (int d = 0; d < shape_.head_dim; ++d) store_element(row.data(), shape_.dtype, d, normal(generator));
      // From memory that is not page-locked: it has been read when the call returns.
      tested_gpu().upload(tensor + offset_bytes, row.data(), row.size(), {});
    });
  }

  Shape shape_;
  Strides q_strides_;
  AttentionProblem problem_;
  AttentionPlan plan_;
  std::shared_ptr<std::byte> q_, k_, v_, o_, lens_kv_, workspace_;
};

inline Shape prefill_shape() { return {}; }

/// Enough keys for several splits.
inline Shape decode_shape() {
  Shape shape;
  shape.seq_len_q = 1;
  shape.seq_len_kv = 4000;
  return shape;
}

}  // namespace tessera::testing
