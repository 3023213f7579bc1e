#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verify/attention_data.h"
#include "verify/naive_attention.h"

namespace tessera {

/// Some of a problem's rows as another problem, which has to give the same bits if it is batch-invariant.
struct InvarianceVariant {
  std::string what;
  AttentionData data;
  std::vector<std::int64_t> rows;  ///< of the original problem: where each row of `data` comes from
};

/// Problems in which the same rows stand otherwise: other storage, strides and order, each sequence, each
/// head and pieces of a prompt alone. Which of them depends on the case's seed.
std::vector<InvarianceVariant> invariance_variants(const AttentionData& data);

/// Where a variant's bits first differ from those of the original; empty if nowhere.
std::string describe_first_difference(const AttentionData& original, const AttentionRows& rows,
                                      const InvarianceVariant& variant, const AttentionRows& variant_rows);

}  // namespace tessera
