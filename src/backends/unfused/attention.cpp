#include "backends/unfused/attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "attention/exact_row.h"
#include "attention/modifier.h"
#include "attention/narrow.h"
#include "attention/token_rows.h"
#include "backends/factories.h"
#include "backends/unfused/kernels.h"
#include "core/aligned_memory.h"
#include "core/element.h"
#include "core/parallel.h"
#include "tessera/error.h"

namespace tessera::unfused {
namespace {

constexpr int kBlockM =
    128;  // queries a task: enough for the matrix products' own tiles, few enough to share out
constexpr std::size_t kAlignment = 64;

std::int64_t query_tokens(const AttentionProblem& p) {
  return p.ragged_q ? p.ragged_q->total_tokens : p.batch * p.seq_len_q;
}

/// Throws Error{kOutOfMemory} where broadcast keys are more than 64 bits can count.
std::int64_t key_tokens(const AttentionProblem& p) {
  if (p.ragged_kv) return p.ragged_kv->total_tokens;
  return static_cast<std::int64_t>(
      checked_product({p.batch, p.seq_len_kv, p.head_dim_qk}, "the fp32 copy of k of the unfused backend") /
      static_cast<std::size_t>(p.head_dim_qk));
}

/// Where the parts of the workspace start, in bytes.
struct WorkspaceLayout {
  std::size_t scores = 0;       ///< (num_heads, query tokens, seq_len_kv) fp32
  std::size_t q = 0;            ///< (num_heads, query tokens, head_dim_qk) fp32
  std::size_t k = 0;            ///< (num_kv_heads, key tokens, head_dim_qk) fp32
  std::size_t v = 0;            ///< (num_kv_heads, key tokens, head_dim_v) fp32
  std::size_t o = 0;            ///< (num_heads, query tokens, head_dim_v) fp32
  std::size_t v_is_finite = 0;  ///< (num_kv_heads, key tokens) bytes
  std::size_t scores_bytes = 0;
  std::size_t total_bytes = 0;

  explicit WorkspaceLayout(const AttentionProblem& p) {
    const std::int64_t nq = query_tokens(p), nk = key_tokens(p), f32 = sizeof(float);
    scores = add({p.num_heads, nq, p.seq_len_kv, f32});
    scores_bytes = total_bytes;
    q = add({p.num_heads, nq, p.head_dim_qk, f32});
    k = add({p.num_kv_heads, nk, p.head_dim_qk, f32});
    v = add({p.num_kv_heads, nk, p.head_dim_v, f32});
    o = add({p.num_heads, nq, p.head_dim_v, f32});
    v_is_finite = add({p.num_kv_heads, nk});
  }

 private:
  std::size_t add(std::initializer_list<std::int64_t> shape) {
    const std::size_t begin = total_bytes;
    const std::size_t size = checked_product(shape, "the score matrix of the unfused backend");
    if (__builtin_add_overflow(begin, size, &total_bytes) ||
        __builtin_add_overflow(total_bytes, kAlignment - 1, &total_bytes)) {
      throw Error(ErrorCode::kOutOfMemory,
                  "the workspace of the unfused backend would need more bytes than this machine can address");
    }
    total_bytes = total_bytes / kAlignment * kAlignment;
    return begin;
  }
};

/// The sequences of a batch cut into blocks of rows, numbered one after another.
class RowBlocks {
 public:
  struct Block {
    std::int64_t b = 0;
    std::int64_t begin = 0;  ///< first row within sequence b
    std::int64_t end = 0;
  };

  /// lengths: rows of each sequence.
  explicit RowBlocks(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {
    for (const std::int64_t length : lengths_)
      first_.push_back(first_.back() + (length + kBlockM - 1) / kBlockM);
  }

  std::int64_t size() const { return first_.back(); }

  Block operator[](std::int64_t index) const {
    const std::int64_t b = std::upper_bound(first_.begin(), first_.end(), index) - first_.begin() - 1;
    const std::int64_t begin = (index - first_[static_cast<std::size_t>(b)]) * kBlockM;
    return {b, begin, std::min(begin + kBlockM, lengths_[static_cast<std::size_t>(b)])};
  }

 private:
  std::vector<std::int64_t> lengths_;
  std::vector<std::int64_t> first_{
      0};  ///< number of each sequence's first block; at the end the number of all
};

/// One call: the problem and its matrices in the workspace. Each member function is one step over the whole
/// batch and starts when the one before has finished, as separate kernels do.
class Pipeline {
 public:
  Pipeline(const AttentionProblem& p, std::span<std::byte> workspace)
      : p_(p),
        layout_(p),
        workspace_(workspace.data()),
        program_(modifier_program(p)),
        q_blocks_(lengths([](const SequenceExtent& s) { return s.len_q; })),
        kv_blocks_(lengths([](const SequenceExtent& s) { return s.len_kv; })) {}

  void run() const {
    const ScoreTerms& terms = p_.scores;
    gather_q();
    gather_kv();
    for_each_tile([&](const Tile& t) { multiply_q_k(q(t), k(t), p_.head_dim_qk, t.scores); });
    const float factor = terms.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(p_.head_dim_qk)));
    for_each_tile([&](const Tile& t) { scale(t.scores, factor); });
    if (terms.softcap) {
      for_each_tile([&](const Tile& t) { apply_softcap(t.scores, *terms.softcap); });
    }
    if (terms.alibi) {
      for_each_tile([&](const Tile& t) {
        add_alibi(t.scores, terms.alibi->slopes[t.rows.b * terms.alibi->batch_stride + t.h],
                  t.diagonal.shift);
      });
    }
    if (terms.additive_mask) {
      for_each_tile([&](const Tile& t) { add_mask(t.scores, mask_tile(*terms.additive_mask, t)); });
    }
    if (terms.modifier) {
      for_each_tile([&](const Tile& t) { modify(t); });
    }
    if (terms.boolean_mask) {
      for_each_tile([&](const Tile& t) { hide_masked(t.scores, mask_tile(*terms.boolean_mask, t)); });
    }
    if (terms.diagonal) {
      for_each_tile([&](const Tile& t) { hide_off_diagonal(t.scores, t.diagonal); });
    }
    for_each_tile([&](const Tile& t) { spoil_rows_that_see_non_finite_values(t); });
    softmax();
    for_each_tile([&](const Tile& t) {
      const bool finite = v_is_finite(t);
      (finite ? multiply_p_v : multiply_p_v_of_visible)(t.scores, v(t), p_.head_dim_v, o(t));
    });
    store_o();
  }

 private:
  /// A block of queries of one head.
  struct Tile {
    TokenRows rows;
    int h = 0;
    Diagonal diagonal;
    std::int64_t q_token = 0;   ///< row of the first query in the workspace's matrices of a head
    std::int64_t kv_token = 0;  ///< row of the sequence's first key in them
    ScoreTile scores;
  };

  template <class Length>
  std::vector<std::int64_t> lengths(Length&& length) const {
    std::vector<std::int64_t> result(static_cast<std::size_t>(p_.batch));
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      result[static_cast<std::size_t>(b)] = length(sequence_extent(p_, b));
    }
    return result;
  }

  float* floats(std::size_t offset) const { return reinterpret_cast<float*>(workspace_ + offset); }
  int kv_head(int h) const { return h / (p_.num_heads / p_.num_kv_heads); }

  std::int64_t q_token(const TokenRows& rows) const {
    return p_.ragged_q ? rows.extent.q_begin : rows.b * p_.seq_len_q;
  }
  std::int64_t kv_token(const TokenRows& rows) const {
    return p_.ragged_kv ? rows.extent.kv_begin : rows.b * p_.seq_len_kv;
  }
  /// First element of a head's row `token` in a (heads, tokens, elements) matrix of the workspace.
  std::int64_t q_row(int h, std::int64_t token) const { return h * query_tokens(p_) + token; }
  std::int64_t kv_row(int kv_head, std::int64_t token) const { return kv_head * key_tokens(p_) + token; }

  const float* q(const Tile& t) const { return floats(layout_.q) + q_row(t.h, t.q_token) * p_.head_dim_qk; }
  const float* k(const Tile& t) const {
    return floats(layout_.k) + kv_row(kv_head(t.h), t.kv_token) * p_.head_dim_qk;
  }
  const float* v(const Tile& t) const {
    return floats(layout_.v) + kv_row(kv_head(t.h), t.kv_token) * p_.head_dim_v;
  }
  float* o(const Tile& t) const { return floats(layout_.o) + q_row(t.h, t.q_token) * p_.head_dim_v; }

  bool v_is_finite(const Tile& t) const {
    const std::byte* flags = workspace_ + layout_.v_is_finite + kv_row(kv_head(t.h), t.kv_token);
    return std::find(flags, flags + t.scores.cols, std::byte{0}) == flags + t.scores.cols;
  }

  /// Weights that round to 0 would hide an infinity or NaN of v: NaN in the scores of the rows that see it
  /// has store_o compute them anew.
  void spoil_rows_that_see_non_finite_values(const Tile& t) const {
    const std::byte* finite = workspace_ + layout_.v_is_finite + kv_row(kv_head(t.h), t.kv_token);
    for (std::int64_t j = 0; j < t.scores.cols; ++j) {
      if (finite[j] != std::byte{0}) continue;
      for (std::int64_t i = 0; i < t.scores.rows; ++i) {
        float& score = t.scores.data[i * t.scores.stride + j];
        if (score != -kInfinity) score = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

  /// False for a row that left fp32's range on its way, or may have: o holds an infinity or NaN, or all
  /// weights are 0, as where no key is visible and where all scores overflowed.
  bool stays_in_range(const Tile& t, std::int64_t i) const {
    const float* row = o(t) + i * p_.head_dim_v;
    for (int d = 0; d < p_.head_dim_v; ++d) {
      if (!std::isfinite(row[d])) return false;
    }
    const float* weights = t.scores.data + i * t.scores.stride;
    return std::any_of(weights, weights + t.scores.cols, [](float w) { return w != 0; });
  }

  template <class F>
  void for_each_tile(F&& f) const {
    parallel_for(static_cast<std::size_t>(q_blocks_.size() * p_.num_heads), [&](std::size_t task) {
      const std::int64_t index = static_cast<std::int64_t>(task);
      const RowBlocks::Block block = q_blocks_[index / p_.num_heads];
      const TokenRows rows(p_, block.b);
      Tile tile{rows,
                static_cast<int>(index % p_.num_heads),
                resolve_diagonal(p_.scores, rows.extent.len_q, rows.extent.len_kv),
                q_token(rows) + block.begin,
                kv_token(rows),
                {}};
      tile.scores = {floats(layout_.scores) + q_row(tile.h, tile.q_token) * p_.seq_len_kv,
                     block.end - block.begin, rows.extent.len_kv, p_.seq_len_kv, block.begin};
      f(tile);
    });
  }

  void gather_q() const {
    const std::size_t element = dtype_bytes(p_.q.dtype, 1);
    for_each_tile([&](const Tile& t) {
      for (std::int64_t i = 0; i < t.scores.rows; ++i) {
        const std::int64_t offset = t.rows.query(p_.q, t.scores.first_query + i, t.h);
        convert_row_to_f32(
            static_cast<const std::byte*>(p_.q.data) + static_cast<std::size_t>(offset) * element, p_.q.dtype,
            p_.head_dim_qk, floats(layout_.q) + q_row(t.h, t.q_token + i) * p_.head_dim_qk,
            t.rows.q_scale(kv_head(t.h)));
      }
    });
  }

  void gather_kv() const {
    const std::size_t element = dtype_bytes(p_.k.dtype, 1);
    const auto address = [&](const AttentionInput& tensor, std::int64_t offset) {
      return static_cast<const std::byte*>(tensor.data) + static_cast<std::size_t>(offset) * element;
    };
    parallel_for(static_cast<std::size_t>(kv_blocks_.size() * p_.num_kv_heads), [&](std::size_t task) {
      const std::int64_t index = static_cast<std::int64_t>(task);
      const RowBlocks::Block block = kv_blocks_[index / p_.num_kv_heads];
      const int h = static_cast<int>(index % p_.num_kv_heads);
      const TokenRows rows(p_, block.b);
      for (std::int64_t j = block.begin; j < block.end; ++j) {
        const std::int64_t row = kv_row(h, kv_token(rows) + j);
        convert_row_to_f32(address(p_.k, rows.key(p_.k, j, h)), p_.k.dtype, p_.head_dim_qk,
                           floats(layout_.k) + row * p_.head_dim_qk, rows.k_scale(j, h));
        const bool finite = convert_row_to_f32(address(p_.v, rows.key(p_.v, j, h)), p_.v.dtype, p_.head_dim_v,
                                               floats(layout_.v) + row * p_.head_dim_v, rows.v_scale(j, h));
        workspace_[layout_.v_is_finite + static_cast<std::size_t>(row)] = static_cast<std::byte>(finite);
      }
    });
  }

  MaskTile mask_tile(const ScoreMask& mask, const Tile& t) const {
    const std::int64_t offset =
        t.rows.b * mask.batch_stride + t.h * mask.head_stride + t.scores.first_query * mask.q_stride;
    return {static_cast<const std::byte*>(mask.data) +
                static_cast<std::size_t>(offset) * dtype_bytes(mask.dtype, 1),
            mask.dtype, mask.q_stride, mask.kv_stride};
  }

  /// The modifier's score and mask. What the additive mask hides stays hidden.
  void modify(const Tile& t) const {
    modifier::Evaluator<float> evaluator(*program_, *p_.scores.modifier);
    for (std::int64_t i = 0; i < t.scores.rows; ++i) {
      const std::int64_t query = t.scores.first_query + i;
      evaluator.begin_query(modifier_variables(p_, t.rows.b, t.rows.extent, query, t.h));
      for (std::int64_t j = 0; j < t.scores.cols; ++j) {
        float& score = t.scores.data[i * t.scores.stride + j];
        const bool is_visible = evaluator.is_visible(static_cast<std::int32_t>(j));
        if (is_visible && !(score == -kInfinity && mask_hides(t, i, j))) {
          score = evaluator.score(score);
        } else {
          score = -kInfinity;
        }
      }
    }
  }

  bool mask_hides(const Tile& t, std::int64_t i, std::int64_t j) const {
    if (!p_.scores.additive_mask) return false;
    const MaskTile mask = mask_tile(*p_.scores.additive_mask, t);
    return load_element(mask.data, mask.dtype, i * mask.q_stride + j * mask.kv_stride) ==
           -std::numeric_limits<double>::infinity();
  }

  void softmax() const {
    for_each_tile([&](const Tile& t) {
      std::optional<float> sink;
      if (p_.scores.sinks) sink = p_.scores.sinks->logits[t.h];
      float* lse = p_.lse ? p_.lse->data + t.rows.query(*p_.lse, t.scores.first_query, t.h) : nullptr;
      softmax_rows(t.scores, sink, lse, p_.lse ? p_.lse->seq_stride : 0);
    });
  }

  void store_o() const {
    const std::size_t element = dtype_bytes(p_.o.dtype, 1);
    for_each_tile([&](const Tile& t) {
      for (std::int64_t i = 0; i < t.scores.rows; ++i) {
        if (!stays_in_range(t, i)) {
          attend_row_exactly(p_, *program_, t.rows, t.scores.first_query + i, t.h);
          continue;
        }
        const std::int64_t offset = t.rows.query(p_.o, t.scores.first_query + i, t.h);
        convert_row_from_f32(o(t) + i * p_.head_dim_v, p_.head_dim_v, p_.o.dtype,
                             static_cast<std::byte*>(p_.o.data) + static_cast<std::size_t>(offset) * element);
      }
    });
  }

  const AttentionProblem& p_;
  WorkspaceLayout layout_;
  std::byte* workspace_;
  std::shared_ptr<const modifier::Program> program_;
  RowBlocks q_blocks_;
  RowBlocks kv_blocks_;
};

void require_config(const char* field, std::int64_t value, std::int64_t only) {
  if (value != 0 && value != only) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("config.{} is {}; the unfused backend has only {} for this "
                            "problem (or 0, automatic)",
                            field, value, only));
  }
}

}  // namespace

std::string Attention::unsupported_reason(const AttentionProblem& problem) const {
  if (problem.device.kind != DeviceKind::kCpu) {
    return fmt::format("it reads CPU memory only and the problem is on {}", device_name(problem.device));
  }
  if (wide_dtype(problem) == DType::kF64)
    return "it computes in fp32 and the problem is f64; 'reference' takes f64";
  if (problem.scores.additive_mask && problem.scores.additive_mask->dtype == DType::kF64) {
    return "it computes in fp32 and the additive mask is f64; 'reference' takes f64";
  }
  if (problem.batch_invariant) {
    return "it can't promise batch-invariant bits: the matrix products choose their blocking, and with it "
           "the "
           "rounding, by the number of queries and keys";
  }
  return {};
}

AttentionPlan Attention::plan(const AttentionProblem& p, const AttentionConfig& config) const {
  const WorkspaceLayout layout(p);
  const int block_n = static_cast<int>(std::min<std::int64_t>(p.seq_len_kv, std::numeric_limits<int>::max()));
  require_config("block_m", config.block_m, kBlockM);
  require_config("block_n", config.block_n, block_n);
  require_config("num_splits", config.num_splits, 1);
  AttentionPlan plan;
  plan.backend = name();
  plan.kernel = "pipeline/fp32";
  plan.config = {kBlockM, block_n, 1, 1, 1};
  const std::int64_t blocks = p.ragged_q ? (p.ragged_q->total_tokens + kBlockM - 1) / kBlockM
                                         : p.batch * ((p.seq_len_q + kBlockM - 1) / kBlockM);
  plan.num_q_tiles = blocks * p.num_heads;
  plan.num_kv_tiles = p.seq_len_kv > 0 ? 1 : 0;
  plan.workspace_bytes = layout.total_bytes;
  plan.notes.push_back(
      fmt::format("materialises {:.1f} MB of scores", static_cast<double>(layout.scores_bytes) / 1e6));
  plan.call = std::make_shared<AttentionCall>(
      p, plan.workspace_bytes, [](const AttentionProblem& problem, std::span<std::byte> workspace, Stream) {
        if (query_tokens(problem) > 0) Pipeline(problem, workspace).run();
      });
  return plan;
}

std::shared_ptr<std::byte> Attention::allocate_workspace(const Device&, std::size_t size_bytes,
                                                         Stream) const {
  return allocate_aligned(size_bytes, "the unfused backend, which materialises the scores,");
}

std::string Attention::unsupported_reason(const MergeStatesProblem&) const {
  return "merging partial results is no step of the unfused pipeline";
}

void Attention::merge_states(const MergeStatesProblem& problem, Stream) const {
  throw Error(ErrorCode::kUnsupported, unsupported_reason(problem));
}

Ceilings Attention::ceilings(DType dtype) const { return find_attention_backend("cpu").ceilings(dtype); }

}  // namespace tessera::unfused

namespace tessera {

std::unique_ptr<AttentionBackend> make_unfused_attention() { return std::make_unique<unfused::Attention>(); }

}  // namespace tessera
