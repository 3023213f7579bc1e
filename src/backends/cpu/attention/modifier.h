#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/sequence.h"
#include "backends/cpu/attention/tile.h"
#include "modifier/evaluate.h"
#include "modifier/ir.h"
#include "modifier/tiles.h"

// A score modifier on the CPU: what changes with the row alone is computed once for each of them, one number
// after the other; the rest by a vector interpreter (modifier-inl.h) over a few hundred scores at a time, so
// that its loops are long and all that they touch stays in the first cache. So does what changes with the key
// alone, for a block of keys. Nothing is compiled.

namespace tessera::cpu {

/// Scores that the interpreter takes at a time: every array of it has as many numbers.
inline constexpr std::int64_t kModifierChunk = 384;

/// What a step does with the result of its operation before it writes it.
enum class ModifierFinish : std::uint8_t {
  kNone,
  kAbs,         ///< of an int32 difference
  kAbsToFloat,  ///< the same as fp32
};

/// A step of the interpreter over arrays of numbers of 32 bits. bool is 0 or -1.
struct ModifierStep {
  modifier::Op op = modifier::Op::kConstant;
  modifier::Type type = modifier::Type::kInt32;          ///< of the result
  modifier::Type operand_type = modifier::Type::kInt32;  ///< of the first operand
  std::int16_t result = 0;                               ///< array
  std::array<std::int16_t, 4> operands = {};             ///< arrays
  std::int16_t num_operands = 0;
  std::int16_t tensor = 0;  ///< of kLoad
  ModifierFinish finish = ModifierFinish::kNone;
  bool multiplies = false;          ///< fp32: the last operand is the product of the last two
  std::array<bool, 2> by_key = {};  ///< the operand is a key's, and can be read as one number a key
  bool for_visible = false;
  bool for_score = false;
};

/// A program cut up for the interpreter. The heads of a group are rows as queries are: `h` changes with the
/// row.
struct ModifierPlan {
  modifier::Program program;
  std::vector<std::size_t> row_nodes;  ///< computed once a row
  /// Of them, of the uniform nodes and of the keys', those that steps read, and their arrays.
  struct Leaf {
    std::size_t node;
    std::int16_t array;
    bool is_inverse = false;      ///< 1 / the node: products with it take the place of quotients
    bool needs_array = false;     ///< a key's: some step reads a number for each score
    std::int16_t key_array = -1;  ///< a key's: where key_steps have put it
  };
  std::vector<Leaf> row_leaves, key_leaves;
  std::vector<ModifierStep> steps;
  /// What changes with the key alone: steps over arrays of their own, of a block of keys.
  std::vector<ModifierStep> key_steps;
  std::vector<std::size_t> key_nodes;  ///< uniform, computed once for all keys of a head
  std::vector<Leaf> key_inputs;        ///< of them, those that key_steps read, and their key arrays
  std::int16_t key_index = -1;         ///< the key array that is kv_idx; -1: none
  std::int16_t num_key_arrays = 0;
  bool keys_differ_by_head = false;  ///< kv_h is among key_nodes
  std::int16_t score_input = -1;     ///< the array that is the scores themselves
  std::int16_t score = -1;           ///< the results' arrays; -1: none
  std::int16_t visible = -1;
  std::int16_t num_arrays = 0;
};

ModifierPlan plan_modifier(modifier::Program program);

/// What the interpreter runs on: `count` scores. Behind them a vector more can be read in s, and written in
/// the other arrays.
struct ModifierChunk {
  const ModifierPlan* plan = nullptr;  ///< null: the steps are all there is to do
  const std::vector<ModifierStep>* steps = nullptr;
  const ScoreModifier* modifier = nullptr;
  float* const* arrays = nullptr;      ///< [num_arrays]
  const float* const* keys = nullptr;  ///< [array] for keys': one number a key; null: all have arrays
  std::int64_t row_stride = 0;         ///< scores of a key; whole vectors if there are `keys`
  float* s = nullptr;
  std::int64_t count = 0;
  float scale = 1;              ///< of the scores, first of all
  bool masks = false;           ///< hide what visible hides
  const float* bias = nullptr;  ///< [count], null for none: scores that it says -inf of stay -inf
};

/// A modifier as the tasks of one call share it.
struct ModifierCall {
  ModifierCall(const ModifierPlan& plan, const AttentionProblem& problem)
      : plan(plan), modifier(*problem.scores.modifier), tiles(plan.program, modifier) {}

  const ModifierPlan& plan;
  const ScoreModifier& modifier;
  modifier::TileClassifier tiles;
};

/// Which keys some of a tile's rows may see, and whether all rows see all of these. None: no keys.
struct SeenKeys {
  KeyRange keys;
  bool all = true;
};

/// The modifier at work on one task, whose rows come in groups.
class TileModifier {
 public:
  /// row_stride: scores from one key to the next in what modify() is given; no group has more rows.
  TileModifier(const CallContext& call, std::int64_t num_groups, std::int64_t row_stride);

  /// Says which rows a group has, and computes what changes with the row alone.
  void begin_rows(std::int64_t group, const TileTask& task, std::int64_t row_begin, std::int64_t row_end);

  /// Drops what was computed of other keys: `block` is what modify() is asked about from now on.
  void begin_keys(KeyRange block);

  SeenKeys seen_keys(const TileTask& task, std::int64_t row_begin, std::int64_t row_end, KeyRange keys) const;

  /// The modifier on scale * s[(key - keys.begin) * row_stride + row]. masks: not all rows see all of the
  /// keys. bias: what was added to s, of its shape, or null; where it is -inf the key is hidden, which s does
  /// not say: an infinite key's score may be -inf, too.
  void modify(std::int64_t group, KeyRange keys, bool masks, float scale, float* s, const float* bias);

 private:
  float* row_array(std::int64_t group, std::size_t leaf) {
    const std::size_t leaves = call_.modifier->plan.row_leaves.size();
    return row_arrays_.data() + (static_cast<std::size_t>(group) * leaves + leaf) * kArray;
  }
  void compute_key_values(const modifier::Variables& variables);

  /// With what a vector may read behind the last score.
  static constexpr std::size_t kArray = static_cast<std::size_t>(kModifierChunk) + 32;

  const CallContext& call_;
  std::int64_t row_stride_;
  std::int64_t keys_at_once_;
  modifier::Evaluator<float> evaluator_;
  std::vector<modifier::Variables> variables_;  ///< of the groups' first rows
  std::vector<float> row_arrays_;               ///< [group][row leaf][kArray]: its rows, again for each key
  KeyRange block_;
  std::int64_t key_stride_;           ///< numbers of one of key_steps' arrays
  std::vector<float> key_values_;     ///< [key array][key_stride_], a number a key of the block
  std::vector<float*> key_pointers_;  ///< [key array]
  std::int64_t values_kv_head_ = -1;  ///< that they are of; -1: not computed
  std::vector<float> arrays_;         ///< [key leaf, then step][kArray]
  std::vector<float*> pointers_;      ///< [array]: where it is
  std::vector<const float*> keys_;    ///< of ModifierChunk
  bool reads_by_key_;
  float* score_array_ = nullptr;  ///< of the step that computes the scores
};

}  // namespace tessera::cpu
