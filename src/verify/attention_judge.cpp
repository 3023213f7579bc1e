#include "verify/attention_judge.h"

namespace tessera {

const AttentionExpectation& JudgedCase::expectation(const std::string& backend) {
  std::optional<AttentionExpectation>& expectation = backend == "reference" ? of_reference_ : of_others_;
  if (!expectation) expectation = expect_attention(data_, backend);
  return *expectation;
}

JudgedCase& AttentionJudge::of(const AttentionCase& c) {
  if (!last_ || last_->data().description != c) last_.emplace(c);
  return *last_;
}

}  // namespace tessera
