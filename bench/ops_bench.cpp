#include "ops_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "backends/factories.h"
#include "core/aligned_memory.h"
#include "core/element.h"
#include "core/parallel.h"
#include "core/quantize.h"

namespace tessera::bench {
namespace {

/// A matrix with memory of its own.
class Tensor {
 public:
  Tensor(DType dtype, std::int64_t rows, std::int64_t columns)
      : bytes_(static_cast<std::size_t>(rows) * dtype_bytes(dtype, static_cast<std::size_t>(columns))),
        memory_(allocate_aligned(bytes_, "a benchmark's tensor")),
        matrix_{memory_.get(), dtype, rows, columns, columns} {
    if (bytes_ > 0) std::memset(memory_.get(), 0, bytes_);
  }

  /// Numbers around 0 with a standard deviation near 1, the same for the same seed.
  void fill(std::uint32_t seed) {
    // A prime number of values repeated: drawing each of 10^8 numbers would take longer than the benchmark.
    constexpr std::size_t kValues = 8191;
    const std::vector<float> values = random_values(kValues, seed);
    if (block_format(matrix_.dtype).elements > 1) return fill_blocks(values);
    parallel_for(static_cast<std::size_t>(matrix_.rows), [&](std::size_t row) {
      const std::size_t columns = static_cast<std::size_t>(matrix_.columns);
      for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
        store_element(matrix_.data, matrix_.dtype, static_cast<std::int64_t>(i),
                      static_cast<double>(values[i % kValues]));
      }
    });
  }

  const Matrix& matrix() const { return matrix_; }
  Weight weight() const { return {matrix_.data, matrix_.dtype, matrix_.rows, matrix_.columns, memory_}; }
  double bytes() const { return static_cast<double>(bytes_); }

  static std::vector<float> random_values(std::size_t n, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& v : values) v = normal(random);
    return values;
  }

 private:
  /// A prime number of blocks repeated.
  void fill_blocks(const std::vector<float>& values) {
    constexpr std::size_t kBlocks = 1021;
    const BlockFormat& format = block_format(matrix_.dtype);
    std::vector<float> numbers(kBlocks * static_cast<std::size_t>(format.elements));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = values[i % values.size()];
    std::vector<std::byte> blocks(kBlocks * format.bytes);
    tessera::fill_blocks(matrix_.dtype, numbers, blocks.data());
    for (std::size_t at = 0; at < bytes_; at += blocks.size()) {
      std::memcpy(memory_.get() + at, blocks.data(), std::min(blocks.size(), bytes_ - at));
    }
  }

  std::size_t bytes_;
  std::shared_ptr<std::byte> memory_;
  Matrix matrix_;
};

/// Up to three rows of a matrix, the first, the middle and the last.
std::vector<std::int64_t> sample_rows(std::int64_t rows) {
  std::vector<std::int64_t> sample = {0, rows / 2, rows - 1};
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
  return sample;
}

Matrix row_of(const Matrix& m, std::int64_t row) {
  Matrix one = m;
  one.data =
      static_cast<std::byte*>(m.data) + dtype_bytes(m.dtype, static_cast<std::size_t>(row * m.row_stride));
  one.rows = 1;
  return one;
}

/// A row as fp64, with memory of its own.
Tensor row_in_f64(const Matrix& m, std::int64_t row) {
  Tensor copy(DType::kF64, 1, m.columns);
  for (std::int64_t c = 0; c < m.columns; ++c) {
    store_element(copy.matrix().data, DType::kF64, c, load_element(m.data, m.dtype, row * m.row_stride + c));
  }
  return copy;
}

/// Adds the largest difference of two rows, and the bound that follows from the largest exact value: two
/// roundings to the result's dtype and the fp32 roundings of a formula of some ten steps.
void compare_row(const Matrix& got, const Matrix& exact, OpsCheck& check) {
  double largest = 0;
  for (std::int64_t c = 0; c < exact.columns; ++c) {
    const double expected = load_element(exact.data, exact.dtype, c);
    const double difference = std::abs(load_element(got.data, got.dtype, c) - expected);
    if (!(difference <= check.error)) check.error = difference;
    largest = std::max(largest, std::abs(expected));
  }
  check.bound = std::max(check.bound, largest * (2 * unit_roundoff(got.dtype) + 32 * 0x1p-24));
}

/// out = kernel(in) row by row: the sampled rows with the reference.
template <class Call>
OpsCheck check_rows(const Matrix& out, Call reference_row) {
  OpsCheck check;
  for (const std::int64_t row : sample_rows(out.rows)) {
    const Tensor exact(DType::kF64, 1, out.columns);
    reference_row(row, exact.matrix());
    compare_row(row_of(out, row), exact.matrix(), check);
  }
  return check;
}

// ---- gemm

/// Sampled results against the sum in fp64; twice the error of the plain fp32 sum may be reached.
OpsCheck check_gemm(const GemmArguments& a) {
  OpsCheck check;
  double naive_error = 0;
  double largest = 0;
  const auto reference = make_reference_ops();
  for (const std::int64_t row : sample_rows(a.x.rows)) {
    const Tensor x = row_in_f64(a.x, row);
    for (const std::int64_t column : {std::int64_t{0}, a.weight.rows / 3, a.weight.rows - 16}) {
      Weight w = a.weight;
      w.rows = 16;
      w.data = static_cast<const std::byte*>(w.data) +
               static_cast<std::size_t>(column) * dtype_bytes(w.dtype, static_cast<std::size_t>(w.columns));
      const Tensor exact(DType::kF64, 1, w.rows);
      reference->gemm({x.matrix(), w, std::nullopt, exact.matrix(), false, false}, {});
      const Tensor w_values(DType::kF64, w.rows, w.columns);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(w.rows));
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
      reference->embedding({ids.data(), w, w_values.matrix()}, {});
      for (std::int64_t n = 0; n < w.rows; ++n) {
        float sum = 0;
        for (std::int64_t k = 0; k < w.columns; ++k) {
          sum += static_cast<float>(load_element(x.matrix().data, DType::kF64, k)) *
                 static_cast<float>(load_element(w_values.matrix().data, DType::kF64, n * w.columns + k));
        }
        double naive = 0;
        store_element(&naive, a.out.dtype, 0, static_cast<double>(sum));
        naive = load_element(&naive, a.out.dtype, 0);
        const double expected = load_element(exact.matrix().data, DType::kF64, n);
        const double got = load_element(a.out.data, a.out.dtype, row * a.out.row_stride + column + n);
        if (!(std::abs(got - expected) <= check.error)) check.error = std::abs(got - expected);
        naive_error = std::max(naive_error, std::abs(naive - expected));
        largest = std::max(largest, std::abs(expected));
      }
    }
  }
  check.bound = 2 * naive_error + 2 * unit_roundoff(a.out.dtype) * largest;
  return check;
}

/// x and out are of w's type unless that is Q8_0.
OpsBenchCase gemm_case(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k, bool batch_invariant,
                       DType beside_q8 = DType::kF32) {
  const DType activation = block_format(dtype).elements > 1 ? beside_q8 : dtype;
  const auto make = [=](OpsBackend& backend) {
    Tensor x(activation, m, k), w(dtype, n, k);
    const Tensor out(activation, m, n);
    x.fill(1);
    w.fill(2);
    const GemmArguments a{x.matrix(), w.weight(), std::nullopt, out.matrix(), false, batch_invariant};
    OpsBench bench;
    bench.bytes = x.bytes() + w.bytes() + out.bytes();
    bench.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    bench.run = [=, &backend] { backend.gemm(a, {}); };
    bench.check = [=, &backend, keep = std::pair(x, out)] {
      backend.gemm(a, {});
      return check_gemm(a);
    };
    return bench;
  };
  return {"gemm",
          fmt::format("{} x {} x {}{}{}", m, n, k, beside_q8 == DType::kF32 ? "" : ", bf16 x",
                      batch_invariant ? ", batch-invariant" : ""),
          dtype, make};
}

// ---- The other kernels

OpsBenchCase rms_norm_case(DType dtype, std::int64_t rows, std::int64_t columns, bool residual) {
  const auto make = [=](OpsBackend& backend) {
    Tensor x(dtype, rows, columns), weight(dtype, 1, columns), sum(dtype, residual ? rows : 0, columns);
    const Tensor out(dtype, rows, columns);
    x.fill(1);
    weight.fill(2);
    RmsNormArguments a{x.matrix(), out.matrix(), weight.weight(), 1e-5f, std::nullopt, 1, 0};
    if (residual) a.residual = sum.matrix();
    OpsBench bench;
    bench.bytes = x.bytes() + out.bytes() + 2 * sum.bytes();
    bench.writes = true;
    bench.run = [=, &backend] { backend.rms_norm(a, {}); };
    bench.check = [=, &backend, keep = std::tuple(x, weight, sum, out)]() mutable {
      std::get<2>(keep).fill(3);
      backend.rms_norm(a, {});
      return check_rows(out.matrix(), [&](std::int64_t row, const Matrix& exact) {
        // The residual holds the sum by now, and that is what is normalised.
        const Tensor in = row_in_f64(residual ? *a.residual : a.x, row);
        make_reference_ops()->rms_norm({in.matrix(), exact, a.weight, a.eps, std::nullopt, 1, 0}, {});
      });
    };
    return bench;
  };
  return {"rms_norm", fmt::format("{} x {}{}", rows, columns, residual ? ", residual" : ""), dtype, make};
}

OpsBenchCase gated_case(DType dtype, GatedActivation kind, std::string_view name, std::int64_t rows,
                        std::int64_t columns) {
  const auto make = [=](OpsBackend& backend) {
    Tensor gate(dtype, rows, columns), up(dtype, rows, columns);
    const Tensor out(dtype, rows, columns);
    gate.fill(1);
    up.fill(2);
    const GatedActivationArguments a{kind, gate.matrix(), up.matrix(), out.matrix()};
    OpsBench bench;
    bench.bytes = 3 * out.bytes();
    bench.writes = true;
    bench.run = [=, &backend] { backend.gated_activation(a, {}); };
    bench.check = [=, &backend, keep = std::tuple(gate, up, out)] {
      backend.gated_activation(a, {});
      return check_rows(a.out, [&](std::int64_t row, const Matrix& exact) {
        make_reference_ops()->gated_activation({kind, row_of(a.gate, row), row_of(*a.up, row), exact}, {});
      });
    };
    return bench;
  };
  return {"gated_activation", fmt::format("{}, {} x {}", name, rows, columns), dtype, make};
}

OpsBenchCase softmax_case(DType dtype, std::int64_t rows, std::int64_t columns) {
  const auto make = [=](OpsBackend& backend) {
    Tensor x(dtype, rows, columns);
    const Tensor out(dtype, rows, columns);
    x.fill(1);
    const SoftmaxArguments a{x.matrix(), out.matrix()};
    OpsBench bench;
    bench.bytes = x.bytes() + out.bytes();
    bench.writes = true;
    bench.run = [=, &backend] { backend.softmax(a, {}); };
    bench.check = [=, &backend, keep = std::pair(x, out)] {
      backend.softmax(a, {});
      return check_rows(a.out, [&](std::int64_t row, const Matrix& exact) {
        make_reference_ops()->softmax({row_of(a.x, row), exact}, {});
      });
    };
    return bench;
  };
  return {"softmax", fmt::format("{} x {}", rows, columns), dtype, make};
}

OpsBenchCase scale_case(DType dtype, std::int64_t rows, std::int64_t columns) {
  const auto make = [=](OpsBackend& backend) {
    Tensor x(dtype, rows, columns);
    x.fill(1);
    OpsBench bench;
    bench.bytes = 2 * x.bytes();
    bench.writes = true;
    bench.run = [=, &backend] { backend.scale({x.matrix(), -1.0f}, {}); };  // stays as large as it is
    bench.check = [=, &backend]() mutable {
      x.fill(1);
      backend.scale({x.matrix(), -0.3f}, {});
      Tensor before(dtype, rows, columns);
      before.fill(1);
      return check_rows(x.matrix(), [&](std::int64_t row, const Matrix& exact) {
        const Tensor copy = row_in_f64(before.matrix(), row);
        make_reference_ops()->scale({copy.matrix(), -0.3f}, {});
        std::memcpy(exact.data, copy.matrix().data, static_cast<std::size_t>(columns) * sizeof(double));
      });
    };
    return bench;
  };
  return {"scale", fmt::format("{} x {}", rows, columns), dtype, make};
}

OpsBenchCase embedding_case(DType dtype, std::int64_t tokens, std::int64_t vocab_size, std::int64_t columns) {
  const auto make = [=](OpsBackend& backend) {
    Tensor table(dtype, vocab_size, columns);
    table.fill(1);
    const Tensor out(block_format(dtype).elements > 1 ? DType::kF32 : dtype, tokens, columns);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    std::mt19937 random(2);
    for (std::int32_t& id : ids)
      id = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocab_size));
    OpsBench bench;
    bench.bytes = out.bytes() + table.bytes() / static_cast<double>(vocab_size) * static_cast<double>(tokens);
    bench.writes = true;
    bench.run = [=, &backend] { backend.embedding({ids.data(), table.weight(), out.matrix()}, {}); };
    bench.check = [=, &backend] {
      backend.embedding({ids.data(), table.weight(), out.matrix()}, {});
      return check_rows(out.matrix(), [&](std::int64_t row, const Matrix& exact) {
        make_reference_ops()->embedding({ids.data() + row, table.weight(), exact}, {});
      });
    };
    return bench;
  };
  return {"embedding", fmt::format("{} of {} x {}", tokens, vocab_size, columns), dtype, make};
}

OpsBenchCase rope_append_case(DType dtype, std::int64_t tokens, int heads, int kv_heads, int head_dim) {
  const auto make = [=](OpsBackend& backend) {
    const std::int64_t kv_columns = std::int64_t{kv_heads} * head_dim;
    Tensor q(dtype, tokens, std::int64_t{heads} * head_dim), k(dtype, tokens, kv_columns),
        v(dtype, tokens, kv_columns);
    const Tensor k_cache(dtype, tokens, kv_columns), v_cache(dtype, tokens, kv_columns);
    k.fill(2);
    v.fill(3);
    q.fill(1);
    struct Indices {
      std::vector<std::int32_t> positions, sequences;
      std::vector<float> frequencies;
    };
    const auto indices = std::make_shared<Indices>();
    for (std::int32_t t = 0; t < tokens; ++t) indices->positions.push_back(t);
    indices->sequences.assign(static_cast<std::size_t>(tokens), 0);
    indices->frequencies = rope_frequencies({}, head_dim).inverse_frequencies;
    const KvCacheView cache{k_cache.matrix().data,
                            v_cache.matrix().data,
                            dtype,
                            tokens * kv_columns,
                            kv_columns,
                            head_dim,
                            static_cast<int>(tokens),
                            1,
                            nullptr,
                            0};
    const RopeAppendArguments a{q.matrix(),
                                k.matrix(),
                                v.matrix(),
                                heads,
                                kv_heads,
                                head_dim,
                                indices->positions.data(),
                                indices->sequences.data(),
                                indices->frequencies.data(),
                                head_dim / 2,
                                1,
                                RopePairing::kHalves,
                                cache};
    OpsBench bench;
    bench.bytes = 2 * (q.bytes() + k.bytes() + v.bytes());
    bench.writes = true;
    bench.run = [=, &backend, keep = std::tuple(q, k, v, k_cache, v_cache, indices)] {
      backend.rope_append(a, {});
    };
    bench.check = [=, &backend]() mutable {
      q.fill(1);
      Tensor before(dtype, tokens, std::int64_t{heads} * head_dim);
      before.fill(1);
      backend.rope_append(a, {});
      const auto rotated = [&](const Matrix& in, int in_heads) {
        return [&, in_heads](std::int64_t row, const Matrix& exact) {
          const Tensor copy = row_in_f64(in, row);
          make_reference_ops()->rope({copy.matrix(), in_heads, head_dim, a.positions + row,
                                      a.inverse_frequencies, a.num_pairs, a.attention_factor, a.pairing},
                                     {});
          std::memcpy(exact.data, copy.matrix().data, static_cast<std::size_t>(in.columns) * sizeof(double));
        };
      };
      const OpsCheck check_q = check_rows(a.q, rotated(before.matrix(), heads));
      const OpsCheck check_k = check_rows(k_cache.matrix(), rotated(a.k, kv_heads));
      return check_q.passed() ? check_k : check_q;
    };
    return bench;
  };
  return {"rope_append",
          fmt::format("{} tokens, heads {}/{}, head_dim {}", tokens, heads, kv_heads, head_dim), dtype, make};
}

/// Logits of the given standard deviation; the higher, the fewer tokens are likely. A penalty is for a
/// history of 1000 tokens.
OpsBenchCase sample_case(std::string_view name, const SamplingParameters& parameters, std::int64_t batch,
                         std::int64_t vocab_size, double spread = 3) {
  const auto make = [=](OpsBackend& backend) {
    Tensor logits(DType::kF32, batch, vocab_size);
    const std::vector<float> values = Tensor::random_values(static_cast<std::size_t>(batch * vocab_size), 1);
    for (std::size_t i = 0; i < values.size(); ++i) {
      store_element(logits.matrix().data, DType::kF32, static_cast<std::int64_t>(i),
                    spread * static_cast<double>(values[i]));
    }
    struct State {
      std::vector<SamplingParameters> parameters;
      std::vector<std::int64_t> steps;
      std::vector<std::int32_t> tokens, history, history_lens;
    };
    const std::size_t rows = static_cast<std::size_t>(batch);
    const auto state = std::make_shared<State>();
    state->parameters.assign(rows, parameters);
    state->steps.assign(rows, 0);
    state->tokens.assign(rows, 0);
    constexpr std::int32_t kHistory = 1000;
    state->history_lens.assign(rows, kHistory);
    std::mt19937 random(2);
    for (std::size_t i = 0; i < rows * kHistory; ++i) {
      state->history.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab_size)));
    }
    const auto sample = [=, &backend] {
      backend.sample({logits.matrix(), state->parameters.data(), state->steps.data(), state->history.data(),
                      state->history_lens.data(), kHistory, state->tokens.data()},
                     {});
    };
    OpsBench bench;
    bench.bytes = logits.bytes();
    bench.run = sample;
    bench.check = [=] {
      OpsCheck check;  // the same tokens, or an infinite error
      const auto reference = make_reference_ops();
      for (std::int64_t step = 0; step < 5; ++step) {
        state->steps.assign(rows, step);
        sample();
        for (const std::int64_t row : sample_rows(batch)) {
          std::int32_t token = -1;
          reference->sample(
              {row_of(logits.matrix(), row), &parameters, &step, state->history.data() + row * kHistory,
               state->history_lens.data(), kHistory, &token},
              {});
          if (token != state->tokens[static_cast<std::size_t>(row)])
            check.error = std::numeric_limits<double>::infinity();
        }
      }
      state->steps.assign(rows, 0);
      return check;
    };
    return bench;
  };
  return {"sample",
          batch == 1 ? fmt::format("{}, vocabulary {}", name, vocab_size)
                     : fmt::format("{}, batch {}, vocabulary {}", name, batch, vocab_size),
          DType::kF32, make};
}

void add_sample_cases(std::vector<OpsBenchCase>& cases, std::int64_t batch) {
  SamplingParameters parameters;
  cases.push_back(sample_case("greedy", parameters, batch, 128256));
  parameters.temperature = 1;
  cases.push_back(sample_case("temperature", parameters, batch, 128256));
  parameters.top_k = 40;
  cases.push_back(sample_case("top-k 40", parameters, batch, 128256));
  parameters.top_k = 0;
  parameters.top_p = 0.9f;
  cases.push_back(sample_case("top-p 0.9", parameters, batch, 128256));
  if (batch == 1) cases.push_back(sample_case("top-p 0.9, all equal", parameters, 1, 128256, 0));
  parameters.repetition_penalty = 1.1f;
  cases.push_back(sample_case("top-p 0.9, penalty", parameters, batch, 128256));
  parameters.repetition_penalty = 1;
  parameters.top_p = 1;
  parameters.min_p = 0.05f;
  cases.push_back(sample_case("min-p 0.05", parameters, batch, 128256));
}

}  // namespace

std::vector<OpsBenchCase> ops_bench_cases() {
  constexpr DType kWeights[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0,
                                DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
  constexpr DType kActivations[] = {DType::kF32, DType::kF16, DType::kBF16};
  std::vector<OpsBenchCase> cases;
  for (const DType dtype : kWeights) {
    cases.push_back(gemm_case(dtype, 1, 16384, 4096, false));
    cases.push_back(gemm_case(dtype, 1, 16384, 4096, true));
    cases.push_back(gemm_case(dtype, 4, 16384, 4096, false));
    cases.push_back(gemm_case(dtype, 512, 4096, 4096, false));
    cases.push_back(gemm_case(dtype, 512, 4096, 4096, true));
    cases.push_back(embedding_case(dtype, 4096, 32000, 4096));
  }
  for (const DType dtype : weight_dtypes()) {
    if (std::find(std::begin(kWeights), std::end(kWeights), dtype) == std::end(kWeights))
      cases.push_back(gemm_case(dtype, 1, 16384, 4096, false));
  }
  for (const DType dtype : weight_dtypes()) {
    if (block_format(dtype).elements == 1) continue;
    for (const std::int64_t m : {1, 2, 4, 8}) {
      cases.push_back(gemm_case(dtype, m, 16384, 4096, false, DType::kBF16));
    }
  }
  for (const DType dtype : kActivations) {
    cases.push_back(rms_norm_case(dtype, 8192, 4096, false));
    cases.push_back(rms_norm_case(dtype, 8192, 4096, true));
    cases.push_back(gated_case(dtype, GatedActivation::kSwiGlu, "SwiGLU", 4096, 8192));
    cases.push_back(rope_append_case(dtype, 4096, 32, 8, 128));
    cases.push_back(softmax_case(dtype, 8192, 4096));
    cases.push_back(scale_case(dtype, 8192, 4096));
  }
  cases.push_back(gated_case(DType::kBF16, GatedActivation::kGeGlu, "GeGLU", 4096, 8192));
  cases.push_back(gated_case(DType::kBF16, GatedActivation::kGeGluTanh, "GeGLU (tanh)", 4096, 8192));
  add_sample_cases(cases, 1);
  return cases;
}

std::vector<OpsBenchCase> gpu_ops_bench_cases() {
  std::vector<OpsBenchCase> cases;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    cases.push_back(rms_norm_case(dtype, 16384, 8192, false));
    cases.push_back(rms_norm_case(dtype, 16384, 8192, true));
    cases.push_back(gated_case(dtype, GatedActivation::kSwiGlu, "SwiGLU", 16384, 8192));
    cases.push_back(softmax_case(dtype, 16384, 8192));
    cases.push_back(rope_append_case(dtype, 16384, 48, 8, 128));
    cases.push_back(scale_case(dtype, 16384, 8192));
    cases.push_back(embedding_case(dtype, 16384, 128256, 4096));
  }
  cases.push_back(gated_case(DType::kBF16, GatedActivation::kGeGlu, "GeGLU", 16384, 8192));
  cases.push_back(gated_case(DType::kBF16, GatedActivation::kGeGluTanh, "GeGLU (tanh)", 16384, 8192));
  for (const std::int64_t m : {1, 2, 4, 8, 16, 32, 64}) {
    cases.push_back(gemm_case(DType::kBF16, m, 6144, 4096, false));
    cases.push_back(gemm_case(DType::kBF16, m, 4096, 4096, false));
    cases.push_back(gemm_case(DType::kBF16, m, 28672, 4096, false));
    cases.push_back(gemm_case(DType::kBF16, m, 4096, 14336, false));
  }
  for (const DType x : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t m : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048}) {
      cases.push_back(gemm_case(DType::kQ8_0, m, 28672, 4096, false, x));
      cases.push_back(gemm_case(DType::kQ8_0, m, 4096, 14336, false, x));
    }
  }
  for (const DType w : weight_dtypes()) {
    if (block_format(w).elements == 1 || w == DType::kQ8_0) continue;
    for (const std::int64_t m : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048}) {
      cases.push_back(gemm_case(w, m, 28672, 4096, false, DType::kBF16));
      if (w == DType::kQ4_K || w == DType::kQ6_K)
        cases.push_back(gemm_case(w, m, 4096, 14336, false, DType::kBF16));
    }
  }
  for (const std::int64_t m : {128, 256, 512, 2048}) {
    for (const bool batch_invariant : {false, true}) {
      cases.push_back(gemm_case(DType::kBF16, m, 6144, 4096, batch_invariant));
      cases.push_back(gemm_case(DType::kBF16, m, 4096, 4096, batch_invariant));
      cases.push_back(gemm_case(DType::kBF16, m, 28672, 4096, batch_invariant));
      cases.push_back(gemm_case(DType::kBF16, m, 4096, 14336, batch_invariant));
    }
  }
  for (const std::int64_t batch : {1, 16, 64}) add_sample_cases(cases, batch);
  return cases;
}

double measure_copy_bytes_per_s() {
  constexpr std::size_t kTasks = 64;
  constexpr std::size_t kBytes = std::size_t{128} << 20;
  const std::shared_ptr<std::byte> from = allocate_aligned(kBytes, "the copy rate's source");
  const std::shared_ptr<std::byte> to = allocate_aligned(kBytes, "the copy rate's destination");
  const auto copy = [&] {
    parallel_for(kTasks, [&](std::size_t task) {
      const std::size_t offset = task * (kBytes / kTasks);
      std::memcpy(to.get() + offset, from.get() + offset, kBytes / kTasks);
    });
  };
  std::memset(from.get(), 1, kBytes);
  copy();
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    copy();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * static_cast<double>(kBytes) / seconds.count());
  }
  return best;
}

}  // namespace tessera::bench
