#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "verify/attention_check.h"
#include "verify/attention_judge.h"
#include "verify/random_case.h"
#include "verify/random_check.h"
#include "verify/verify.h"

namespace tessera {

/// Cases that attention has to pass, as they are made.
class CaseList {
 public:
  std::vector<VerifyCase> take() { return std::move(cases_); }

  /// Adds `c` as it is.
  void add(AttentionCase c, std::string name) {
    c.name = std::move(name);
    cases_.push_back({"attention",
                      c.name,
                      c.quick,
                      [c](const std::string& backend, const VerifyMemory& memory, AttentionJudge& judge,
                          VerifyResult& result) { check_attention(judge.of(c), backend, memory, result); },
                      {c},
                      c});
  }

  /// Adds `c` in f32, f16 and bf16.
  void add_dtypes(AttentionCase c, const std::string& name) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      c.dtype = dtype;
      add(c, fmt::format("{}/{}", name, dtype_name(dtype)));
    }
  }

  /// Adds a case as random ones are run: each number has a bound of its own.
  void add_random(const std::string& text, std::string name) {
    RandomCase c = parse_random_case(text);
    c.attention.name = name;
    cases_.push_back({"attention",
                      std::move(name),
                      false,
                      [c](const std::string& backend, const VerifyMemory& memory, AttentionJudge&,
                          VerifyResult& result) { check_random_case(c, backend, memory, result); },
                      {c.attention}});
  }

 private:
  std::vector<VerifyCase> cases_;
};

/// Head_dims above 256, and what else few kernels take.
void add_large_head_cases(CaseList& list);

/// Few queries with head_dims that kernels for them take in tiles filled up, or of more than 128.
void add_decode_head_cases(CaseList& list);

/// Cases of the size that kernels for long prompts take.
void add_long_prompt_cases(CaseList& list);

/// Cases of score modifiers.
void add_modifier_cases(CaseList& list);

/// Cases of multi-head latent attention.
void add_latent_attention_cases(CaseList& list);

}  // namespace tessera
