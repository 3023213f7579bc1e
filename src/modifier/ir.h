#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/dtype.h"

// What the text of a score modifier means: a typed graph without loops or branches, which interpreters walk
// and printers write out as a kernel's source. Nothing that a user wrote is in it, names least of all.

namespace tessera::modifier {

enum class Type : std::uint8_t { kBool, kInt32, kFloat32 };

/// What a node's value changes with within one head of one sequence. The join of two is the larger, but for
/// kQuery and kKey, whose join is kPair.
enum class Rank : std::uint8_t { kUniform, kQuery, kKey, kPair, kScore };

/// What a node computes from its operands a, b, c. Arithmetic of int32 wraps around. Comparisons of fp32 are
/// IEEE's: all but kNotEqual are false for a NaN.
enum class Op : std::uint8_t {
  kConstant,  ///< `integer` (int32), or `real` (fp32)
  kScalar,    ///< scalar `index` of the call, as the node's type
  kVariable,  ///< Variable `index`, int32
  kScore,     ///< fp32: the scaled product of query and key after softcap, ALiBi and additive mask
  /// Tensor `index` at its operands, one int32 a dimension, each clamped to [0, size - 1]. bool tensors give
  /// bool (a byte other than 0), u8 and i32 int32, f32, f16 and bf16 fp32.
  kLoad,
  kAdd,  ///< int32, fp32
  kSubtract,
  kMultiply,
  kDivide,  ///< int32: rounds towards minus infinity, b is not 0; fp32: to 2 units in the last place
  kModulo,  ///< int32: a - b * floor(a / b), which has b's sign; b is not 0
  kNegate,
  kAbs,
  kMin,  ///< b < a ? b : a, so that a NaN in a stays
  kMax,  ///< a < b ? b : a
  kExp,  ///< fp32 from here
  kExp2,
  kLog,
  kLog2,
  kTanh,
  kSqrt,
  kFloor,
  kToFloat,  ///< int32 to the nearest fp32
  /// fp32 towards 0, what is out of range to the nearest int32, NaN to 0; bool to 0 or 1
  kToInt,
  kBit,   ///< int32: bit b of a; 0 if b is not one of 0 … 31
  kLess,  ///< bool of int32 or fp32
  kLessEqual,
  kEqual,  ///< of bool too
  kNotEqual,
  kAnd,  ///< bool
  kOr,
  kNot,
  kSelect,  ///< a ? b : c
};

/// int32, all of the sequence and head that the score is of.
enum class Variable : std::uint8_t {
  kBatch,     ///< b
  kHead,      ///< h
  kKvHead,    ///< kv_h
  kQuery,     ///< q_idx: from 0 within its own sequence
  kKey,       ///< kv_idx: likewise
  kLenQ,      ///< len_q: of its own sequence, 1 or more
  kLenKv,     ///< len_kv: likewise
  kShift,     ///< shift: len_kv - len_q; 0 if the diagonal mask is top-left
  kNumHeads,  ///< num_heads
};
inline constexpr int kNumVariables = 9;

inline constexpr int kMaxNodes = 256;
inline constexpr int kMaxTensors = 8;
inline constexpr int kMaxScalars = 16;
inline constexpr int kMaxTensorRank = 4;

struct Node {
  Op op = Op::kConstant;
  Type type = Type::kInt32;
  Rank rank = Rank::kUniform;
  std::uint8_t num_operands = 0;
  std::array<std::int16_t, 4> operands = {};  ///< nodes before this one
  int index = 0;                              ///< of kScalar, kVariable and kLoad
  std::int32_t integer = 0;                   ///< of kConstant
  float real = 0;                             ///< likewise

  bool operator==(const Node&) const = default;
};

/// A captured tensor as far as code depends on it: sizes, strides and address are arguments.
struct TensorType {
  DType dtype = DType::kF32;
  int rank = 0;
  bool operator==(const TensorType&) const = default;
};

struct Program {
  static constexpr int kNone = -1;

  std::vector<Node> nodes;  ///< operands first; no two are equal, and all are needed
  int score = kNone;        ///< the root of the new score, fp32; kNone: it stays as it is
  int visible = kNone;      ///< the root of the mask, bool, below rank kScore; kNone: all keys are visible
  std::vector<TensorType> tensors;
  int num_scalars = 0;

  bool operator==(const Program&) const = default;
};

constexpr Rank join(Rank a, Rank b) {
  if ((a == Rank::kQuery && b == Rank::kKey) || (a == Rank::kKey && b == Rank::kQuery)) return Rank::kPair;
  return a < b ? b : a;
}

constexpr Rank rank_of(Variable variable) {
  if (variable == Variable::kQuery) return Rank::kQuery;
  return variable == Variable::kKey ? Rank::kKey : Rank::kUniform;
}

/// The type that a tensor's elements have in expressions. Requires one of the dtypes that kLoad names.
constexpr Type element_type(DType dtype) {
  if (dtype == DType::kBool) return Type::kBool;
  return dtype == DType::kI32 || dtype == DType::kU8 ? Type::kInt32 : Type::kFloat32;
}

/// "add", "kv_idx", …: names as they stand in printed programs.
const char* name_of(Op op);
const char* name_of(Variable variable);
const char* name_of(Type type);
const char* name_of(Rank rank);

/// The program, a node a line, and then its roots: the same for texts that differ in names, blanks, lets and
/// the values of scalars alone, and for no others. What caches of compiled kernels take as the key.
std::string canonical_text(const Program& program);

}  // namespace tessera::modifier
