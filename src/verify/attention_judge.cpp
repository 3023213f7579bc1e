#include "verify/attention_judge.h"

#include "core/parallel.h"
#include "tessera/error.h"

namespace tessera {

const AttentionExpectation& JudgedCase::expectation(const std::string& backend, bool narrow_weights) {
  std::optional<AttentionExpectation>& expectation = backend == "reference" ? of_reference_
                                                     : narrow_weights       ? of_narrow_weights_
                                                                            : of_others_;
  if (!expectation) expectation = expect_attention(data_, backend, narrow_weights);
  return *expectation;
}

JudgedCase& AttentionJudge::of(const AttentionCase& c) {
  for (const std::unique_ptr<JudgedCase>& judged : ahead_) {
    if (judged && judged->data().description == c) return *judged;
  }
  if (!last_ || last_->data().description != c) last_.emplace(c);
  return *last_;
}

void AttentionJudge::work_ahead(std::span<const AttentionCase> cases, const std::string& backend) {
  ahead_.clear();
  ahead_.resize(cases.size());
  parallel_for(cases.size(), [&](std::size_t i) {
    try {
      auto judged = std::make_unique<JudgedCase>(cases[i]);
      judged->expectation(backend);
      ahead_[i] = std::move(judged);
    } catch (const Error&) {
    }
  });
}

}  // namespace tessera
