#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verify/attention_check.h"

namespace tessera {

/// A case with its numbers and what backends must make of them, worked out when first asked for.
class JudgedCase {
 public:
  explicit JudgedCase(const AttentionCase& c) : data_(make_attention_data(c)) {}

  const AttentionData& data() const { return data_; }
  /// expect_attention, which is the same for all backends but the reference.
  const AttentionExpectation& expectation(const std::string& backend, bool narrow_weights = false);

 private:
  AttentionData data_;
  std::optional<AttentionExpectation> of_reference_, of_others_, of_narrow_weights_;
};

/// Remembers the last case: judging takes longer than most of what is judged, and several backends run a case
/// one after the other. For one thread.
class AttentionJudge {
 public:
  /// Valid until the next call.
  JudgedCase& of(const AttentionCase& c);

  /// Works out side by side, on all threads, what `backend` must make of these cases, and forgets those of
  /// the call before. One case keeps few threads busy: it has few heads, and its numbers are drawn one by
  /// one.
  void work_ahead(std::span<const AttentionCase> cases, const std::string& backend);

 private:
  std::vector<std::unique_ptr<JudgedCase>> ahead_;  // null: an error that of() meets again
  std::optional<JudgedCase> last_;
};

}  // namespace tessera
