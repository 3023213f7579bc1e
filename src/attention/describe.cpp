#include <fmt/core.h>

#include "attention/narrow.h"
#include "core/text.h"
#include "tessera/attention.h"

namespace tessera {
namespace {

std::string describe_diagonal(const DiagonalMask& d) {
  std::string text = d.window_right == 0 && !d.window_left ? "causal" : "";
  if (text.empty()) {
    const auto side = [](const std::optional<std::int64_t>& w) {
      return w ? fmt::format("{}", *w) : std::string("all");
    };
    text = fmt::format("window {} left, {} right", side(d.window_left), side(d.window_right));
  }
  if (d.alignment == DiagonalAlignment::kTopLeft) text += " (top-left)";
  return text;
}

std::string describe_mask(const ScoreMask& mask, const char* kind) {
  return fmt::format("{} mask ({}{}{}{})", kind, dtype_name(mask.dtype),
                     mask.batch_stride == 0 ? ", all batches" : "",
                     mask.head_stride == 0 ? ", all heads" : "", mask.q_stride == 0 ? ", all queries" : "");
}

std::string describe_modifier(const ScoreModifier& modifier) {
  std::string text;
  if (!modifier.score.empty()) text += fmt::format(", score '{}'", printable(modifier.score));
  if (!modifier.visible.empty()) text += fmt::format(", visible '{}'", printable(modifier.visible));
  return text;
}

/// outer: what batch_stride is between.
template <class Scales>
std::string describe_strides(const Scales& scales, const char* outer) {
  if (scales.batch_stride != 0)
    return fmt::format(" (a scale a {}{})", outer, scales.head_stride != 0 ? " and head" : "");
  return scales.head_stride != 0 ? " (a scale a head)" : " (one scale)";
}

std::string describe_scales(const KvScales& scales, bool is_paged) {
  if (scales.k == nullptr && scales.v == nullptr) return "";
  return describe_strides(scales, is_paged ? "page" : "sequence");
}

std::string describe_scales(const QScales& scales) {
  return scales.q == nullptr ? "" : describe_strides(scales, "sequence");
}

std::string engineering(double value, const char* unit) {
  const char* prefixes[] = {"", "k", "M", "G", "T", "P"};
  int i = 0;
  while (value >= 1000 && i < 5) {
    value /= 1000;
    ++i;
  }
  return fmt::format("{:.4g} {}{}", value, prefixes[i], unit);
}

}  // namespace

std::string to_string(const AttentionProblem& p) {
  std::string text =
      fmt::format("{}, batch {}, seq_len {}/{}, heads {}/{}, head_dim {}", dtype_name(wide_dtype(p)), p.batch,
                  p.seq_len_q, p.seq_len_kv, p.num_heads, p.num_kv_heads, p.head_dim_qk);
  if (p.head_dim_v != p.head_dim_qk) text += fmt::format("/{}", p.head_dim_v);
  if (has_narrow_q(p)) text += fmt::format(", q {}", dtype_name(p.q.dtype));
  if (p.q_scales) text += describe_scales(*p.q_scales);
  if (has_narrow_kv(p)) text += fmt::format(", kv {}", dtype_name(p.k.dtype));
  if (p.kv_scales) text += describe_scales(*p.kv_scales, p.paged_kv.has_value());
  const ScoreTerms& s = p.scores;
  if (s.diagonal) text += ", " + describe_diagonal(*s.diagonal);
  if (s.softcap) text += fmt::format(", softcap {}", *s.softcap);
  if (s.alibi) text += ", alibi";
  if (s.additive_mask) text += ", " + describe_mask(*s.additive_mask, "additive");
  if (s.boolean_mask) text += ", " + describe_mask(*s.boolean_mask, "boolean");
  if (s.sinks) text += ", sinks";
  if (s.modifier) text += describe_modifier(*s.modifier);
  if (p.ragged_q) text += fmt::format(", ragged q ({} tokens)", p.ragged_q->total_tokens);
  if (p.ragged_kv) text += fmt::format(", ragged kv ({} tokens)", p.ragged_kv->total_tokens);
  if (p.paged_kv) text += fmt::format(", paged kv ({} a page)", p.paged_kv->page_size);
  if (p.seq_lens_kv != nullptr) text += ", padded kv";
  if (p.lse) text += ", lse";
  if (p.batch_invariant) text += ", batch-invariant";
  return text;
}

std::string AttentionExplanation::to_string() const {
  std::string text = fmt::format("problem   {}\n", problem);
  text += fmt::format("chosen    {}: {}\n", plan.backend, plan.kernel);
  if (!plan.fallback_reason.empty()) text += fmt::format("fall-back {}\n", plan.fallback_reason);
  text += fmt::format("tiles     {} query rows x {} keys; {} query tiles, {} key tiles, {} split{}\n",
                      plan.config.block_m, plan.config.block_n, plan.num_q_tiles, plan.num_kv_tiles,
                      plan.config.num_splits, plan.config.num_splits == 1 ? "" : "s");
  if (plan.config.num_parts > 0) text += fmt::format("parts     {} of all heads\n", plan.config.num_parts);
  if (plan.config.num_warps > 0) {
    text += fmt::format("block     {} warps, {} stages\n", plan.config.num_warps, plan.config.num_stages);
  }
  text += fmt::format("memory    {} B on-chip scratch a tile, {} B workspace\n", plan.shared_bytes,
                      plan.workspace_bytes);
  for (const std::string& kernel : kernels) text += fmt::format("kernel    {}\n", kernel);
  for (const std::string& line : modifier) text += fmt::format("modifier  {}\n", line);
  for (const std::string& note : plan.notes) text += fmt::format("note      {}\n", note);
  text += fmt::format("work      {}, at least {}\n", engineering(flops, "FLOP"), engineering(bytes, "B"));
  text += fmt::format("ceilings  {}, {} (measured)\n", engineering(ceilings.flops_per_s, "FLOP/s"),
                      engineering(ceilings.bytes_per_s, "B/s"));
  text += fmt::format("predicted {:.4g} ms at best, bound by {}\n", predicted_ms,
                      compute_bound ? "arithmetic" : "memory");
  for (const RejectedBackend& r : rejected) text += fmt::format("not       {}: {}\n", r.backend, r.reason);
  return text;
}

}  // namespace tessera
