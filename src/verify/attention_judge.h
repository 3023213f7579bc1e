#pragma once

#include <optional>
#include <string>

#include "verify/attention_check.h"

namespace tessera {

/// A case with its numbers and what backends must make of them, worked out when first asked for.
class JudgedCase {
 public:
  explicit JudgedCase(const AttentionCase& c) : data_(make_attention_data(c)) {}

  const AttentionData& data() const { return data_; }
  /// expect_attention, which is the same for all backends but the reference.
  const AttentionExpectation& expectation(const std::string& backend);

 private:
  AttentionData data_;
  std::optional<AttentionExpectation> of_reference_, of_others_;
};

/// Remembers the last case: judging takes longer than most of what is judged, and several backends run a case
/// one after the other. For one thread.
class AttentionJudge {
 public:
  /// Valid until the next call.
  JudgedCase& of(const AttentionCase& c);

 private:
  std::optional<JudgedCase> last_;
};

}  // namespace tessera
