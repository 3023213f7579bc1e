#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "command.h"
#include "modifier_options.h"
#include "tessera/attention.h"

namespace tessera::cli {

/// An attention problem as the command line describes it.
struct ProblemOptions {
  std::string dtype = "f32";
  std::string q_dtype;   ///< empty: dtype
  std::string kv_dtype;  ///< empty: dtype
  std::string layout = "batch-seq-heads";
  std::int64_t batch = 1;
  std::optional<std::int64_t> seq_len_q;   ///< none: 2048
  std::optional<std::int64_t> seq_len_kv;  ///< none: seq_len_q
  int num_heads = 16;
  int num_kv_heads = 0;  ///< 0: num_heads
  int head_dim = 128;
  int head_dim_v = 0;           ///< 0: head_dim
  bool values_in_keys = false;  ///< v is the first head_dim_v elements of k's rows

  bool causal = false;
  bool top_left = false;
  std::optional<std::int64_t> window_left;
  std::optional<std::int64_t> window_right;
  std::optional<float> softmax_scale;
  std::optional<float> softcap;
  bool alibi = false;
  bool sinks = false;
  std::string mask = "none";
  ModifierOptions modifier;

  bool ragged = false;
  std::int64_t decodes = 0;  ///< of the sequences, the last, that have one query each
  int page_size = 0;         ///< 0: not paged
  bool lse = false;
  bool batch_invariant = false;
  AttentionConfig config;
};

/// Adds the options that `bench attention`, `explain attention` and `tune attention` share.
void add_problem_options(Command& command, ProblemOptions& options);
/// And those by which a call chooses its kernel, which tuning does by itself.
void add_kernel_options(Command& command, ProblemOptions& options);

/// The tensors and arrays of a problem. Memory is reserved and taken only where it is written to, so that a
/// problem that is never filled or run costs nothing, whatever its size.
class ProblemData {
 public:
  /// Throws UsageError if the options contradict each other, Error{kOutOfMemory} if the sizes overflow.
  explicit ProblemData(const ProblemOptions& options);
  ~ProblemData();
  ProblemData(const ProblemData&) = delete;
  ProblemData& operator=(const ProblemData&) = delete;

  const AttentionProblem& problem() const { return problem_; }
  /// Of all tensors and masks.
  std::size_t size_bytes() const { return size_bytes_; }

  /// Fills q, k, v and an additive mask with random numbers of mean 0 and variance 1 and hides a tenth of the
  /// keys behind a boolean mask. Throws Error{kOutOfMemory} if the machine hasn't the memory.
  void fill(std::uint64_t seed);
  /// Sets every byte of o to 0xff, which is NaN, so that a row that a kernel forgets shows.
  void poison_output();
  /// The bytes of o.
  std::span<const std::byte> output() const;

 private:
  void* reserve(std::size_t size_bytes);
  void describe_sequences(const ProblemOptions& options);
  void describe_tensors(const ProblemOptions& options);
  void describe_scores(const ProblemOptions& options);

  struct Reservation {
    void* address;
    std::size_t size_bytes;
  };

  AttentionProblem problem_;
  std::vector<Reservation> reservations_;
  std::size_t size_bytes_ = 0;
  void* q_ = nullptr;
  void* k_ = nullptr;
  void* v_ = nullptr;  // null: values are in k_
  void* o_ = nullptr;
  void* mask_ = nullptr;
  std::size_t q_elements_ = 0, k_elements_ = 0, v_elements_ = 0, mask_elements_ = 0, output_elements_ = 0;
  std::vector<std::int32_t> cu_seqlens_q_, cu_seqlens_kv_, seq_lens_kv_, block_table_;
  std::vector<float> alibi_slopes_, sinks_;
  std::vector<std::vector<std::byte>> captured_;  ///< the tensors of a modifier
};

}  // namespace tessera::cli
