// Any text as a score modifier, behind a first byte 'v' as a mask: an Error, or a program that computes at
// every query and key, whose tiles are as the classifier says.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "modifier/evaluate.h"
#include "modifier/parse.h"
#include "modifier/ranges.h"
#include "modifier/tiles.h"
#include "tessera/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::modifier;
  if (size == 0) return 0;
  static const std::vector<std::int32_t> integers = {3, -1, 2147483647, 0, -2147483647, 7, 7, 1};
  static const std::vector<float> reals = {0.5f, -2.0f, 1e30f, 0.0f};
  static const std::vector<std::uint8_t> bools = {1, 0, 1, 1, 0, 0};
  tessera::ScoreModifier m;
  (data[0] == 'v' ? m.visible : m.score).assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  m.tensors = {{"doc", integers.data(), tessera::DType::kI32, {8}, {1}},
               {"tree", integers.data(), tessera::DType::kI32, {2, 4}, {4, 1}},
               {"slope", reals.data(), tessera::DType::kF32, {4}, {1}},
               {"keep", bools.data(), tessera::DType::kBool, {6}, {1}}};
  m.scalars = {{"w", 3}, {"cap", 2.5}};
  constexpr std::int32_t kQueries = 9, kKeys = 11;
  try {
    const Parsed parsed = parse(m);
    check_ranges(m, parsed,
                 {.batch = 2, .seq_len_q = kQueries, .seq_len_kv = kKeys, .num_heads = 4, .num_kv_heads = 2});
    Evaluator<float> evaluator(parsed.program, m);
    Variables variables = {};
    variables[static_cast<std::size_t>(Variable::kBatch)] = 1;
    variables[static_cast<std::size_t>(Variable::kHead)] = 3;
    variables[static_cast<std::size_t>(Variable::kKvHead)] = 1;
    variables[static_cast<std::size_t>(Variable::kLenQ)] = kQueries;
    variables[static_cast<std::size_t>(Variable::kLenKv)] = kKeys;
    variables[static_cast<std::size_t>(Variable::kShift)] = kKeys - kQueries;
    variables[static_cast<std::size_t>(Variable::kNumHeads)] = 4;
    const TileClassifier classifier(parsed.program, m);
    for (std::int32_t q0 = 0; q0 < kQueries; q0 += 3) {
      for (std::int32_t k0 = 0; k0 < kKeys; k0 += 4) {
        const std::int32_t q1 = q0 + 2, k1 = k0 + 3 < kKeys ? k0 + 3 : kKeys - 1;
        const TileClass claimed = classifier.classify(tile_bounds(variables, {q0, q1}, {k0, k1}, {3, 3}));
        for (std::int32_t q = q0; q <= q1; ++q) {
          variables[static_cast<std::size_t>(Variable::kQuery)] = q;
          evaluator.begin_query(variables);
          for (std::int32_t k = k0; k <= k1; ++k) {
            const bool visible = evaluator.is_visible(k);
            if (claimed == (visible ? TileClass::kEmpty : TileClass::kFull)) std::abort();
            evaluator.score(0.75f);
          }
        }
      }
    }
  } catch (const tessera::Error&) {
  }
  return 0;
}
