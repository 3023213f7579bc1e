#include "attention/tuning.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attention/narrow.h"
#include "core/json_parse.h"
#include "core/rounding.h"
#include "tessera/error.h"

namespace tessera {
namespace {

constexpr int kVersion = 2;  // 1: num_splits was what num_parts is
constexpr std::size_t kMostBytes = std::size_t{1} << 22;
constexpr std::size_t kMostEntries = 10'000;
constexpr std::size_t kMostTextBytes = 400;
constexpr int kMostConfigValue = 1 << 20;

/// The power of two that is nearest by ratio; 0 for 0.
std::int64_t nearest_power(std::int64_t value) {
  constexpr double kRootOfTwo = 1.4142135623730951;
  if (value <= 0) return 0;
  const auto below = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(value)));
  const double ratio = static_cast<double>(value) / static_cast<double>(below);
  return ratio < kRootOfTwo ? below : 2 * below;
}

std::string class_of_diagonal(const DiagonalMask& d, std::int64_t seq_len_q) {
  std::string text;
  // No key comes after the last query's.
  const bool is_last_query = seq_len_q <= 1 && d.alignment == DiagonalAlignment::kBottomRight;
  if (d.window_right && !is_last_query)
    text = *d.window_right == 0 ? " causal" : fmt::format(" right{}", nearest_power(*d.window_right));
  if (d.window_left) text += fmt::format(" window{}", nearest_power(*d.window_left));
  if (d.alignment == DiagonalAlignment::kTopLeft) text += " top-left";
  return text;
}

std::string class_of_terms(const ScoreTerms& s) {
  std::string text;
  if (s.softmax_scale && *s.softmax_scale <= 0) text += " scale";
  if (s.softcap) text += " softcap";
  if (s.alibi) text += " alibi";
  if (s.additive_mask) text += fmt::format(" additive-{}", dtype_name(s.additive_mask->dtype));
  if (s.boolean_mask) text += " boolean";
  if (s.sinks) text += " sinks";
  if (s.modifier) {
    text += " modifier";
    if (!s.modifier->score.empty()) text += "-score";
    if (!s.modifier->visible.empty()) text += "-visible";
  }
  return text;
}

std::string class_of_storage(const AttentionProblem& p) {
  constexpr int kLargePage = 64;  // as long as any kernel's tile of keys, or longer
  if (p.paged_kv) {
    const int size = p.paged_kv->page_size;
    if (size > 0 && size % kLargePage == 0) return fmt::format("paged{}+", kLargePage);
    return std::has_single_bit(static_cast<unsigned>(size)) ? fmt::format("paged{}", size) : "paged-odd";
  }
  return p.ragged_q || p.ragged_kv ? "ragged" : p.seq_lens_kv != nullptr ? "padded" : "dense";
}

[[noreturn]] void refuse(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", source, what));
}

/// Reads members of one object, which must have them in the form that is asked for.
class Reader {
 public:
  Reader(const nlohmann::json& object, const std::string& source) : object_(object), source_(source) {
    if (!object.is_object()) refuse(source, "expected an object");
  }

  const nlohmann::json* find(const char* name) const {
    const auto member = object_.find(name);
    return member == object_.end() ? nullptr : &*member;
  }

  std::string text(const char* name) const {
    const nlohmann::json* member = find(name);
    if (member == nullptr || !member->is_string()) refuse(source_, fmt::format("'{}' is no string", name));
    auto value = member->get<std::string>();
    const auto is_printable = [](char c) { return c >= ' ' && c <= '~'; };
    if (value.size() > kMostTextBytes || !std::ranges::all_of(value, is_printable))
      refuse(source_, fmt::format("'{}' is no short line of text", name));
    return value;
  }

  std::int64_t integer(const char* name, std::int64_t most, std::int64_t if_missing = -1) const {
    const nlohmann::json* member = find(name);
    if (member == nullptr && if_missing >= 0) return if_missing;
    if (member == nullptr || !member->is_number_unsigned() ||
        member->get<std::uint64_t>() > static_cast<std::uint64_t>(most))
      refuse(source_, fmt::format("'{}' is no integer from 0 to {}", name, most));
    return member->get<std::int64_t>();
  }

  double microseconds(const char* name) const {
    const nlohmann::json* member = find(name);
    if (member == nullptr || !member->is_number() || !(member->get<double>() >= 0))
      refuse(source_, fmt::format("'{}' is no time", name));
    return member->get<double>();
  }

 private:
  const nlohmann::json& object_;
  const std::string& source_;
};

struct ConfigField {
  const char* name;
  int AttentionConfig::*value;
};
constexpr ConfigField kConfigFields[] = {
    {"block_m", &AttentionConfig::block_m},       {"block_n", &AttentionConfig::block_n},
    {"num_warps", &AttentionConfig::num_warps},   {"num_stages", &AttentionConfig::num_stages},
    {"num_splits", &AttentionConfig::num_splits}, {"num_parts", &AttentionConfig::num_parts}};

/// What is 0 is left out.
nlohmann::ordered_json config_to_json(const AttentionConfig& config) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const ConfigField& field : kConfigFields) {
    if (config.*field.value != 0) object[field.name] = config.*field.value;
  }
  return object;
}

TunedEntry parse_entry(const Reader& reader, const std::string& source) {
  TunedEntry entry;
  entry.best.kernel = reader.text("kernel");
  if (const nlohmann::json* config = reader.find("config")) {
    const Reader values(*config, source);
    for (const ConfigField& field : kConfigFields)
      entry.best.config.*field.value = static_cast<int>(values.integer(field.name, kMostConfigValue, 0));
  }
  entry.kv_heads = reader.integer("kv_heads", std::int64_t{1} << 40);
  entry.best_us = reader.microseconds("us");
  entry.default_kernel = reader.text("default_kernel");
  entry.default_us = reader.microseconds("default_us");
  entry.num_candidates = static_cast<int>(reader.integer("candidates", kMostConfigValue));
  entry.date = reader.text("date");
  return entry;
}

/// Times are remembered to a nanosecond.
double rounded(double us) { return std::round(us * 1e3) / 1e3; }

struct Found {
  const TunedEntry* entry = nullptr;
  std::string source;  // "tuned on this machine on 2026-11-23"
};

Found find_entry(const AttentionTunings& tunings, const AttentionProblem& p) {
  const auto has_entries = [](const TuningTable* table) {
    return table != nullptr && !table->entries.empty();
  };
  if (!has_entries(tunings.own) && !has_entries(tunings.shipped)) return {};
  const std::string shapes = shape_class(p);
  for (const TuningTable* table : {tunings.own, tunings.shipped}) {
    if (table == nullptr) continue;
    const auto found = table->entries.find(shapes);
    if (found == table->entries.end()) continue;
    const TunedEntry& entry = found->second;
    return {&entry, table == tunings.own
                        ? fmt::format("tuned on this machine on {}", entry.date)
                        : fmt::format("shipped result for {} of {}", table->device, entry.date)};
  }
  return {};
}

std::string time_text(double us) {
  return us < 1000 ? fmt::format("{:.4g} us", us) : fmt::format("{:.4g} ms", us / 1000);
}

std::string result_of(const TunedEntry& entry) {
  if (entry.best.kernel.empty()) {
    return fmt::format("{}, {}, as chosen without, is the quickest of {}", entry.default_kernel,
                       time_text(entry.default_us), entry.num_candidates);
  }
  return fmt::format("{}, {} instead of {}, {}", to_string(entry.best), time_text(entry.best_us),
                     entry.default_kernel, time_text(entry.default_us));
}

}  // namespace

std::string to_string(const AttentionCandidate& candidate) {
  const AttentionConfig& c = candidate.config;
  std::string text = candidate.kernel;
  if (c.block_m > 0) text += fmt::format(", {} rows a tile", c.block_m);
  if (c.block_n > 0) text += fmt::format(", {} keys a tile", c.block_n);
  if (c.num_warps > 0) text += fmt::format(", {} warps", c.num_warps);
  if (c.num_stages > 0) text += fmt::format(", {} stages", c.num_stages);
  if (c.num_splits > 0) text += fmt::format(", {} split{}", c.num_splits, c.num_splits == 1 ? "" : "s");
  if (c.num_parts > 0) text += fmt::format(", {} part{}", c.num_parts, c.num_parts == 1 ? "" : "s");
  return text;
}

std::string shape_class(const AttentionProblem& p) {
  std::string text(dtype_name(wide_dtype(p)));
  if (has_narrow_q(p)) text += fmt::format(" q-{}", dtype_name(p.q.dtype));
  if (has_narrow_kv(p)) text += fmt::format(" kv-{}", dtype_name(p.k.dtype));
  const int head_dim_qk = round_up(p.head_dim_qk, 16), head_dim_v = round_up(p.head_dim_v, 16);
  text += fmt::format(" d{}", head_dim_qk);
  if (head_dim_v != head_dim_qk) text += fmt::format("/{}", head_dim_v);
  text += fmt::format(" group{}", p.num_heads / std::max(p.num_kv_heads, 1));
  if (p.scores.diagonal) text += class_of_diagonal(*p.scores.diagonal, p.seq_len_q);
  text += class_of_terms(p.scores);
  text += fmt::format(" {} q{} kv{} kvheads{}", class_of_storage(p), nearest_power(p.seq_len_q),
                      nearest_power(p.seq_len_kv), nearest_power(p.batch * p.num_kv_heads));
  return text;
}

std::string not_used(std::string_view reason) { return fmt::format("; not used: {}", reason); }

TunedCandidate find_tuned(const AttentionProblem& p, const AttentionConfig& forced,
                          const AttentionTunings& tunings) {
  const Found found = find_entry(tunings, p);
  if (found.entry == nullptr) return {};
  const TunedEntry& entry = *found.entry;
  const std::string why = fmt::format("{}: {}", found.source, result_of(entry));
  if (p.batch_invariant)
    return {std::nullopt, why + not_used("batch_invariant's choice follows from no measurement")};
  if (forced != AttentionConfig{}) return {std::nullopt, why + not_used("values are forced")};
  if (entry.best.kernel.empty()) return {std::nullopt, why};
  AttentionCandidate best = entry.best;
  if (p.batch * p.num_kv_heads != entry.kv_heads) best.config.num_splits = best.config.num_parts = 0;
  return {std::move(best), why};
}

std::string tuning_to_json(const TuningTable& table) {
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const auto& [shapes, entry] : table.entries) {
    entries.push_back({{"class", shapes},
                       {"kernel", entry.best.kernel},
                       {"config", config_to_json(entry.best.config)},
                       {"kv_heads", entry.kv_heads},
                       {"us", rounded(entry.best_us)},
                       {"default_kernel", entry.default_kernel},
                       {"default_us", rounded(entry.default_us)},
                       {"candidates", entry.num_candidates},
                       {"date", entry.date}});
  }
  nlohmann::ordered_json document = {{"tessera_tuning", kVersion}, {"device", table.device}};
  // An entry a line: that is how changes of a shipped table are read.
  std::string text = document.dump();
  text.pop_back();
  text += ",\"entries\":[";
  for (std::size_t i = 0; i < entries.size(); ++i) text += (i == 0 ? "\n" : ",\n") + entries[i].dump();
  return text + "\n]}\n";
}

TuningTable parse_tuning(std::string_view text, const std::string& source) {
  if (text.size() > kMostBytes)
    refuse(source, fmt::format("it has {} bytes, more than any table of tuned shapes", text.size()));
  const nlohmann::json document =
      parse_json_bounded(text, source, {.max_depth = 8, .max_values = 20 * kMostEntries});
  const Reader reader(document, source);
  if (reader.integer("tessera_tuning", kMostConfigValue) != kVersion)
    refuse(source, fmt::format("it is no table of tuned shapes of version {}", kVersion));
  TuningTable table;
  table.device = reader.text("device");
  const nlohmann::json* entries = reader.find("entries");
  if (entries == nullptr || !entries->is_array()) refuse(source, "'entries' is no array");
  if (entries->size() > kMostEntries) refuse(source, fmt::format("it has {} entries", entries->size()));
  for (const nlohmann::json& member : *entries) {
    const Reader entry(member, source);
    table.entries.insert_or_assign(entry.text("class"), parse_entry(entry, source));
  }
  return table;
}

double median_of(std::vector<double> samples) {
  std::ranges::sort(samples);
  const std::size_t n = samples.size();
  return n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
}

std::size_t fastest_in_rounds(std::span<const std::vector<double>> samples) {
  constexpr double kGain = 0.97;
  std::size_t best = 0;
  double best_median = kGain * median_of(samples[0]);
  for (std::size_t i = 1; i < samples.size(); ++i) {
    const double median = median_of(samples[i]);
    if (median > best_median) continue;
    const std::size_t rounds = std::min(samples[i].size(), samples[0].size());
    std::size_t won = 0;
    for (std::size_t round = 0; round < rounds; ++round) won += samples[i][round] < samples[0][round] ? 1 : 0;
    if (4 * won < 3 * rounds) continue;
    best = i;
    best_median = median;
  }
  return best;
}

}  // namespace tessera
