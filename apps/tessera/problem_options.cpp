#include "problem_options.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "attention/tensor_extents.h"
#include "core/aligned_memory.h"
#include "core/element.h"
#include "core/parallel.h"
#include "output.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr int kMaxHeads = 1 << 20;
constexpr std::int64_t kDefaultSeqLen = 2048;

AttentionLayout parse_layout(const std::string& name) {
  if (name == "batch-heads-seq") return AttentionLayout::kBatchHeadsSeq;
  if (name == "packed") return AttentionLayout::kBatchSeqPacked;
  return AttentionLayout::kBatchSeqHeads;
}

/// Sequence b of a ragged batch: the first has all tokens, the last half of them.
std::int64_t ragged_length(std::int64_t longest, std::int64_t b, std::int64_t batch) {
  return std::max<std::int64_t>(std::min<std::int64_t>(longest, 1), longest - longest * b / (2 * batch));
}

/// Of `batch` sequences of length_of(b) tokens.
template <class LengthOf>
std::vector<std::int32_t> cumulative_lengths(std::int64_t batch, LengthOf length_of) {
  std::vector<std::int32_t> cu_seqlens = {0};
  std::int64_t total = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    total += length_of(b);
    if (total > std::numeric_limits<std::int32_t>::max()) {
      throw UsageError("a ragged batch takes at most 2^31 - 1 tokens; use a smaller --batch or --seq-len");
    }
    cu_seqlens.push_back(static_cast<std::int32_t>(total));
  }
  return cu_seqlens;
}

/// The output of splitmix64 for a counter: independent of the order in which elements are filled.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Nearly normal: the sum of four uniform numbers, scaled to variance 1.
float random_normal(std::uint64_t seed, std::uint64_t counter) {
  const std::uint64_t bits = random_bits(seed, counter);
  const auto sum = static_cast<float>((bits & 0xffffu) + ((bits >> 16) & 0xffffu) + ((bits >> 32) & 0xffffu) +
                                      (bits >> 48));
  return (sum / 65536.0f - 2.0f) * 1.7320508f;
}

void fill_normal(void* data, DType dtype, std::size_t elements, std::uint64_t seed) {
  constexpr std::size_t kChunk = std::size_t{1} << 18;
  parallel_for((elements + kChunk - 1) / kChunk, [&](std::size_t chunk) {
    const std::size_t end = std::min(elements, (chunk + 1) * kChunk);
    dispatch_stored(dtype, [&]<class T>() {
      T* values = static_cast<T*>(data);
      for (std::size_t i = chunk * kChunk; i < end; ++i) values[i] = static_cast<T>(random_normal(seed, i));
    });
  });
}

}  // namespace

void add_problem_options(Command& command, ProblemOptions& options) {
  command.begin_group("Problem");
  command.add_text("--dtype", options.dtype, "Of q, k, v and o: f32, f16 or bf16", "TYPE", check_dtype_name);
  command.add_text("--q-dtype", options.q_dtype,
                   "Of q: f8e4m3 beside such a --kv-dtype, or --dtype if left out", "TYPE", check_dtype_name);
  command.add_text("--kv-dtype", options.kv_dtype, "Of k and v: f8e4m3, or --dtype if left out", "TYPE",
                   check_dtype_name);
  command.add_integer("--batch", options.batch, 1, 1 << 20, "Sequences");
  command.add_integer("--seq-len-q", options.seq_len_q, 1, kMaxTokens, "Queries a sequence; default: 2048");
  command.add_integer("--seq-len-kv", options.seq_len_kv, 0, kMaxTokens,
                      "Keys a sequence; default: as queries");
  command.add_integer("--num-heads", options.num_heads, 1, kMaxHeads, "Query heads");
  command.add_integer("--num-kv-heads", options.num_kv_heads, 0, kMaxHeads,
                      "Key and value heads; 0: as query heads");
  command.add_integer("--head-dim", options.head_dim, 1, kMaxHeadDim, "Of queries and keys");
  command.add_integer("--head-dim-v", options.head_dim_v, 0, kMaxHeadDim, "Of values; 0: --head-dim");
  command.add_flag("--values-in-keys", options.values_in_keys,
                   "Values are the first --head-dim-v elements of keys, as in multi-head latent attention");
  command.add_choice("--layout", options.layout, {"batch-seq-heads", "batch-heads-seq", "packed"},
                     "Order of dimensions");
  command.add_flag("--ragged", options.ragged, "Sequences of different lengths, the longest as given");
  command.add_integer("--decodes", options.decodes, 0, 1 << 20,
                      "Sequences of the batch, its last, that have one query each; the others have all");
  command.add_integer("--page-size", options.page_size, 0, 1 << 30, "Tokens in a page of keys; 0: not paged");
  command.add_flag("--lse", options.lse, "Also write the log-sum-exp");

  command.begin_group("Scores");
  command.add_flag("--causal", options.causal, "A query sees the keys up to its own position");
  command.add_flag("--top-left", options.top_left, "Align the diagonal top-left, not bottom-right");
  command.add_integer("--window-left", options.window_left, 0, kMaxTokens,
                      "Keys visible before the diagonal");
  command.add_integer("--window-right", options.window_right, 0, kMaxTokens,
                      "Keys visible after the diagonal");
  command.add_real("--softmax-scale", options.softmax_scale, -1e30f, 1e30f, "Default: 1 / sqrt(head_dim)");
  command.add_real("--softcap", options.softcap, 1e-30f, 1e30f,
                   "Scores become softcap * tanh(score / softcap)");
  command.add_flag("--alibi", options.alibi, "Linear biases by distance");
  command.add_flag("--sinks", options.sinks, "One more logit a head in the denominator");
  command.add_choice("--mask", options.mask, {"none", "additive", "boolean"},
                     "A mask, the same for all heads");
  add_modifier_options(command, options.modifier);
}

void add_kernel_options(Command& command, ProblemOptions& options) {
  command.begin_group("Kernel");
  command.add_flag("--batch-invariant", options.batch_invariant,
                   "A row's bits depend on nothing but that row");
  command.add_integer("--block-m", options.config.block_m, 0, 1 << 20, "Query rows a tile; 0: chosen");
  command.add_integer("--block-n", options.config.block_n, 0, 1 << 20, "Keys a tile; 0: chosen");
  command.add_integer("--num-warps", options.config.num_warps, 0, 32, "Warps a block of a GPU; 0: chosen");
  command.add_integer("--num-stages", options.config.num_stages, 0, 8,
                      "Tiles of keys in flight on a GPU; 0: chosen");
  command.add_integer("--num-splits", options.config.num_splits, 0, 1 << 20,
                      "Parts a kv head's keys are split into; 0: chosen");
}

ProblemData::ProblemData(const ProblemOptions& options) {
  AttentionProblem& p = problem_;
  p.batch = options.batch;
  p.seq_len_q = options.seq_len_q.value_or(kDefaultSeqLen);
  p.seq_len_kv = options.seq_len_kv.value_or(p.seq_len_q);
  p.num_heads = options.num_heads;
  p.num_kv_heads = options.num_kv_heads == 0 ? options.num_heads : options.num_kv_heads;
  p.head_dim_qk = options.head_dim;
  p.head_dim_v = options.head_dim_v == 0 ? options.head_dim : options.head_dim_v;
  p.batch_invariant = options.batch_invariant;
  if (options.values_in_keys && p.head_dim_v >= p.head_dim_qk) {
    throw UsageError(fmt::format("--values-in-keys takes a --head-dim-v below --head-dim, {}; got {}",
                                 p.head_dim_qk, p.head_dim_v));
  }
  if (options.causal && options.window_right.value_or(0) != 0) {
    throw UsageError("--causal means --window-right 0; give only one of them");
  }
  try {
    describe_sequences(options);
    describe_tensors(options);
    describe_scores(options);
    validate(problem_);
  } catch (const Error& error) {
    for (const Reservation& r : reservations_) ::munmap(r.address, r.size_bytes);
    if (error.code() == ErrorCode::kInvalidArgument) throw UsageError(error.message());
    throw;
  }
}

ProblemData::~ProblemData() {
  for (const Reservation& r : reservations_) ::munmap(r.address, r.size_bytes);
}

void* ProblemData::reserve(std::size_t size_bytes) {
  size_bytes = std::max<std::size_t>(size_bytes, 1);
  void* address =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory, fmt::format("a tensor of {} does not fit into the address space",
                                                     bytes_text(static_cast<double>(size_bytes))));
  }
  reservations_.push_back({address, size_bytes});
  size_bytes_ += size_bytes;
  return address;
}

void ProblemData::describe_sequences(const ProblemOptions& options) {
  AttentionProblem& p = problem_;
  if (options.decodes > p.batch)
    throw UsageError(fmt::format("--decodes is {}; expected at most --batch, {}", options.decodes, p.batch));
  const auto length_of = [&](std::int64_t longest) {
    return [&, longest](std::int64_t b) {
      return options.ragged ? ragged_length(longest, b, p.batch) : longest;
    };
  };
  if (options.ragged || options.decodes > 0) {
    const auto queries_of = length_of(p.seq_len_q);
    cu_seqlens_q_ = cumulative_lengths(p.batch, [&](std::int64_t b) {
      return b < p.batch - options.decodes ? queries_of(b) : std::int64_t{1};
    });
    p.ragged_q = RaggedTokens{cu_seqlens_q_.data(), cu_seqlens_q_.back()};
  }
  if (options.page_size > 0) {
    const std::int64_t pages = (p.seq_len_kv + options.page_size - 1) / options.page_size;
    const std::size_t entries = checked_product({p.batch, pages}, "the block table");
    if (entries > std::size_t{1} << 28) {
      throw UsageError(fmt::format("{} pages are too many; use a larger --page-size", entries));
    }
    const auto keys_of = length_of(p.seq_len_kv);
    for (std::int64_t b = 0; b < p.batch; ++b) seq_lens_kv_.push_back(static_cast<std::int32_t>(keys_of(b)));
    // An order in which neighbours in a sequence are not neighbours in memory: steps of an odd number that
    // shares no factor with the number of pages visit each page once.
    std::size_t step = entries / 2 | 1;
    while (std::gcd(step, std::max<std::size_t>(entries, 1)) != 1) step += 2;
    for (std::size_t i = 0; i < entries; ++i) {
      block_table_.push_back(static_cast<std::int32_t>(i * step % entries));
    }
    p.paged_kv =
        PagedKv{block_table_.data(),     seq_lens_kv_.data(), pages, static_cast<std::int64_t>(entries),
                static_cast<int>(pages), options.page_size};
  } else if (options.ragged) {
    cu_seqlens_kv_ = cumulative_lengths(p.batch, length_of(p.seq_len_kv));
    p.ragged_kv = RaggedTokens{cu_seqlens_kv_.data(), cu_seqlens_kv_.back()};
  }
}

void ProblemData::describe_tensors(const ProblemOptions& options) {
  AttentionProblem& p = problem_;
  const DType dtype = parse_dtype(options.dtype);
  dispatch_float(dtype, []<class T>() {});  // throws for a dtype without arithmetic
  const DType q_dtype = options.q_dtype.empty() ? dtype : parse_dtype(options.q_dtype);
  dispatch_stored(q_dtype, []<class T>() {});
  const DType kv_dtype = options.kv_dtype.empty() ? dtype : parse_dtype(options.kv_dtype);
  dispatch_stored(kv_dtype, []<class T>() {});
  const AttentionLayout layout = parse_layout(options.layout);
  const TensorExtents queries = query_extents(p);
  const TensorExtents keys = key_extents(p);
  const auto count_elements = [](const TensorExtents& t, int head_dim, const char* what) {
    return checked_product({t.outer, t.tokens, t.heads, head_dim}, what);
  };
  const auto bytes = [](std::size_t elements, DType type, const char* what) {
    return checked_product(
        {static_cast<std::int64_t>(elements), static_cast<std::int64_t>(dtype_bytes(type, 1))}, what);
  };
  q_elements_ = count_elements(queries, p.head_dim_qk, "q");
  k_elements_ = count_elements(keys, p.head_dim_qk, "k");
  output_elements_ = count_elements(queries, p.head_dim_v, "o");
  q_ = reserve(bytes(q_elements_, q_dtype, "q"));
  k_ = reserve(bytes(k_elements_, kv_dtype, "k"));
  o_ = reserve(bytes(output_elements_, dtype, "o"));
  p.q = attention_input(layout, q_, q_dtype, queries.tokens, p.num_heads, p.head_dim_qk);
  p.k = attention_input(layout, k_, kv_dtype, keys.tokens, p.num_kv_heads, p.head_dim_qk);
  p.o = attention_output(layout, o_, dtype, queries.tokens, p.num_heads, p.head_dim_v);
  if (options.values_in_keys) {
    p.v = p.k;
  } else {
    v_elements_ = count_elements(keys, p.head_dim_v, "v");
    v_ = reserve(bytes(v_elements_, kv_dtype, "v"));
    p.v = attention_input(layout, v_, kv_dtype, keys.tokens, p.num_kv_heads, p.head_dim_v);
  }
  if (options.lse) {
    void* lse = reserve(count_elements(queries, 4, "lse"));
    p.lse = lse_output(static_cast<float*>(lse), p.num_heads, queries.tokens);
  }
}

void ProblemData::describe_scores(const ProblemOptions& options) {
  AttentionProblem& p = problem_;
  ScoreTerms& scores = p.scores;
  scores.softmax_scale = options.softmax_scale;
  scores.softcap = options.softcap;
  if (options.causal || options.window_left || options.window_right) {
    DiagonalMask diagonal;
    diagonal.window_left = options.window_left;
    diagonal.window_right = options.window_right;
    if (options.causal) diagonal.window_right = 0;
    if (options.top_left) diagonal.alignment = DiagonalAlignment::kTopLeft;
    scores.diagonal = diagonal;
  } else if (options.top_left) {
    throw UsageError("--top-left aligns a diagonal; give --causal or a window with it");
  }
  if (options.alibi) {
    for (int h = 0; h < p.num_heads; ++h) {
      alibi_slopes_.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(p.num_heads)));
    }
    scores.alibi = AlibiBias{alibi_slopes_.data(), 0};
  }
  if (options.sinks) {
    sinks_.assign(static_cast<std::size_t>(p.num_heads), 1.0f);
    scores.sinks = AttentionSinks{sinks_.data()};
  }
  if (options.modifier.is_given()) {
    scores.modifier = make_modifier(options.modifier, captured_);
  } else if (!options.modifier.tensors.empty() || !options.modifier.scalars.empty()) {
    throw UsageError(
        "--modifier-tensor and --modifier-scalar are what a text names; give --modifier-score or "
        "--modifier-visible with them");
  }
  if (options.mask != "none") {
    const bool additive = options.mask == "additive";
    ScoreMask mask;
    mask.dtype = additive ? DType::kF32 : DType::kU8;
    mask_elements_ = checked_product({p.seq_len_q, p.seq_len_kv}, "the mask");
    mask_ = reserve(checked_product({p.seq_len_q, p.seq_len_kv, additive ? 4 : 1}, "the mask"));
    mask.data = mask_;
    mask.q_stride = p.seq_len_kv;
    (additive ? scores.additive_mask : scores.boolean_mask) = mask;
  }
}

void ProblemData::fill(std::uint64_t seed) {
  const std::uint64_t available = available_memory_bytes();
  if (size_bytes_ > available) {
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("the tensors take {} and {} of memory are available; make the problem smaller",
                            bytes_text(static_cast<double>(size_bytes_)),
                            bytes_text(static_cast<double>(available))));
  }
  fill_normal(q_, problem_.q.dtype, q_elements_, seed + 1);
  fill_normal(k_, problem_.k.dtype, k_elements_, seed + 2);
  fill_normal(v_, problem_.v.dtype, v_elements_, seed + 3);  // none where values are in keys
  if (problem_.scores.additive_mask) {
    fill_normal(mask_, DType::kF32, mask_elements_, seed + 4);
  } else if (problem_.scores.boolean_mask) {
    auto* visible = static_cast<std::uint8_t*>(mask_);
    for (std::size_t i = 0; i < mask_elements_; ++i) visible[i] = random_bits(seed + 4, i) % 10 != 0 ? 1 : 0;
  }
}

void ProblemData::poison_output() { std::memset(o_, 0xff, dtype_bytes(problem_.o.dtype, output_elements_)); }

std::span<const std::byte> ProblemData::output() const {
  return {static_cast<const std::byte*>(o_), dtype_bytes(problem_.o.dtype, output_elements_)};
}

}  // namespace tessera::cli
