#include "backends/gpu/unfused/pipeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "attention/narrow.h"
#include "backends/gpu/attention/problem_params.h"
#include "backends/gpu/unfused/layout.h"
#include "core/rounding.h"

namespace tessera::gpu {
namespace {

using kernels::kGatherThreads;
using kernels::kScoresAtOnce;
using kernels::kScoreSoftmaxThreads;
using kernels::kScoreThreads;

/// One call. Each member function is one step over one part.
class Pipeline {
 public:
  Pipeline(const AttentionProblem& p, std::int64_t max_rows, std::byte* workspace, UnfusedMachine& machine)
      : p_(p), layout_(unfused_layout(p, max_rows)), workspace_(workspace), machine_(machine) {
    params_.attention = problem_params(p);
    params_.q = workspace + layout_.q;
    params_.k = workspace + layout_.k;
    params_.v = workspace + layout_.v;
    params_.o = reinterpret_cast<float*>(workspace + layout_.o);
    params_.scores = reinterpret_cast<float*>(workspace + layout_.scores);
    params_.v_has_holes = reinterpret_cast<int*>(workspace + layout_.holes);
    params_.qk_stride = layout_.qk_stride;
    params_.v_stride = layout_.v_stride;
    params_.key_stride = static_cast<int>(layout_.key_stride);
  }

  void run() {
    for (std::int64_t pair = 0; pair < layout_.num_pairs; pair += pairs_) {
      pairs_ = layout_.pairs_from(pair);
      params_.first_pair = pair;
      for (std::int64_t row = 0; row < layout_.rows; row += layout_.rows_at_once) {
        params_.first_row = row;
        params_.rows = static_cast<int>(std::min(layout_.rows_at_once, layout_.rows - row));
        if (row == 0) gather_kv();
        gather(has_narrow_q(p_) ? "unfused_gather_q_f8e4m3" : typed("unfused_gather_q"), params_.rows);
        multiply_q_k();
        over_scores("unfused_scale", kScoreThreads);
        if (p_.scores.diagonal || p_.scores.boolean_mask) over_scores("unfused_mask", kScoreThreads);
        over_scores(fmt::format("unfused_softmax_{}", dtype_suffix(unfused_dtype(p_))), kScoreSoftmaxThreads);
        multiply_p_v();
        gather(typed("unfused_store"), params_.rows);
      }
    }
  }

 private:
  std::string typed(std::string_view step) const { return fmt::format("{}_{}", step, types_suffix(p_)); }

  void launch(const std::string& entry, unsigned blocks, unsigned threads) {
    machine_.launch(entry, blocks, static_cast<unsigned>(pairs_), threads, params_);
  }

  /// A step that moves rows, a warp each.
  void gather(const std::string& entry, std::int64_t rows) {
    launch(entry, static_cast<unsigned>(divide_up(rows, kGatherThreads / machine_.warp_size())),
           kGatherThreads);
  }

  void gather_kv() {
    machine_.clear(params_.v_has_holes, static_cast<std::size_t>(4 * pairs_));
    gather(typed("unfused_gather_kv"), layout_.key_stride);
  }

  /// A step over rows of scores, a block each.
  void over_scores(const std::string& entry, unsigned max_threads) {
    const auto warp_size = static_cast<unsigned>(machine_.warp_size());
    const unsigned wanted =
        static_cast<unsigned>(divide_up(layout_.key_stride, kScoresAtOnce * warp_size)) * warp_size;
    launch(entry, static_cast<unsigned>(params_.rows), std::min(wanted, max_threads));
  }

  void multiply_q_k() {
    LibraryProduct product = batch_of_products();
    product.x = params_.q;
    product.weight = params_.k;
    product.out = params_.scores;
    product.n = layout_.key_stride;
    product.k = product.x_stride = product.weight_stride = layout_.qk_stride;
    product.out_stride = layout_.key_stride;
    product.x_batch_stride = product.m * layout_.qk_stride;
    product.weight_batch_stride = layout_.key_stride * layout_.qk_stride;
    product.out_batch_stride = product.m * layout_.key_stride;
    machine_.multiply(product);
  }

  void multiply_p_v() {
    LibraryProduct product = batch_of_products();
    // 16-bit weights lie at the starts of rows of fp32 scores.
    const std::int64_t weight_stride =
        layout_.key_stride * static_cast<std::int64_t>(4 / dtype_bytes(unfused_dtype(p_), 1));
    product.x = params_.scores;
    product.weight = params_.v;
    product.weight_is_transposed = true;
    product.out = params_.o;
    product.n = product.weight_stride = product.out_stride = layout_.v_stride;
    product.k = layout_.key_stride;
    product.x_stride = weight_stride;
    product.x_batch_stride = product.m * weight_stride;
    product.weight_batch_stride = layout_.key_stride * layout_.v_stride;
    product.out_batch_stride = product.m * layout_.v_stride;
    machine_.multiply(product);
  }

  LibraryProduct batch_of_products() const {
    LibraryProduct product;
    product.dtype = unfused_dtype(p_);
    product.out_dtype = DType::kF32;
    product.m = params_.rows;
    product.batch = pairs_;
    product.workspace = workspace_ + layout_.product;
    return product;
  }

  const AttentionProblem& p_;
  UnfusedLayout layout_;
  std::byte* workspace_;
  UnfusedMachine& machine_;
  kernels::UnfusedParams params_ = {};
  std::int64_t pairs_ = 0;  ///< of the present part
};

}  // namespace

void run_unfused(const AttentionProblem& problem, std::int64_t max_rows, std::byte* workspace,
                 UnfusedMachine& machine) {
  Pipeline(problem, max_rows, workspace, machine).run();
}

}  // namespace tessera::gpu
