#pragma once

#include "common/modifier_arguments.h"
#include "common/types.cuh"

#ifndef TESSERA_HOST_EXECUTOR
#define TESSERA_MODIFIER_FUNCTION TESSERA_DEVICE
#endif
#include "modifier/interval.h"

// A score modifier's code: what modifier/kernel_text.h prints of its graph, and what that calls. Only modules
// that are compiled with TESSERA_MODIFIER have it, each with a text of its own (modifier_text.cuh), which
// defines, each part computed as seldom as its rank allows,
//
//   ModifierUniform modifier_uniform(m, place, stored)                  once a head of a sequence
//   ModifierRow modifier_row(m, uniform, i, stored)                     once a row
//   ModifierKey modifier_key(m, uniform, first, offset, stored)         once a key, first + offset
//   modifier_stored_uniform(m, place), modifier_stored_row(m, uniform, i), modifier_stored_key(m, uniform,
//     first, offset)         what takes long of these, which one thread may compute for many
//   kModifierScoreReadsStored, kModifierMaskReadsStored
//                            whether there is such of rows or keys
//   bool modifier_visible(m, uniform, row, key)
//   float modifier_score(m, uniform, row, key, score)
//   float modifier_scaled_score<kTanhIsSmall, kSide>(m, uniform, row, key, product, scale)
//                            the same of product * scale
//   unsigned modifier_tanh_bits<kTanhIsSmall, kSide>(m, uniform, row, key, product, scale)
//                            kTanhIsSmall may be where this has no bit of kBeyondPolynomial for any score
//   float modifier_distance(m, uniform, row, key)
//                            what the scores have the magnitude of; kSide may be its sign, if all have that
//   kModifierHasTanh, kModifierHasDistance
//                            whether that makes a difference
//   ModifierRange modifier_tile(m, place, queries, keys, heads)         {1, 1}: all see all; {0, 0}: none
//   kModifierHasMask         whether it ever says anything else than {1, 1}

namespace tessera::kernels {

/// The variables of a head of a sequence.
struct ModifierPlace {
  int b, h, kv_h, len_q, len_kv, shift, num_heads;
};

template <class Params, class SequenceOf>
TESSERA_DEVICE ModifierPlace modifier_place(const Params& p, const SequenceOf& s, int b, int h) {
  return {b, h, h / (p.num_heads / p.num_kv_heads), s.len_q, s.len_kv, s.shift, p.num_heads};
}

// ---- Numbers as the language has them

TESSERA_DEVICE int wrapped_add(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
}
TESSERA_DEVICE int wrapped_subtract(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) - static_cast<unsigned>(b));
}
TESSERA_DEVICE int wrapped_multiply(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) * static_cast<unsigned>(b));
}
TESSERA_DEVICE int wrapped_abs(int a) { return a < 0 ? wrapped_subtract(0, a) : a; }

constexpr int kLeastInt32 = -2147483647 - 1;

/// Of int32, rounded towards minus infinity, that wraps around; b is not 0.
TESSERA_DEVICE int floored_divide(int a, int b) {
  if (b == -1) return wrapped_subtract(0, a);
  const int quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}
TESSERA_DEVICE int floored_modulo(int a, int b) {
  if (b == -1) return 0;
  const int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
/// The same for |a| <= 2^21: the guess is off by less than one. What is made of b alone is made once for
/// many.
TESSERA_DEVICE int small_divide(int a, int b) {
  const int guess = static_cast<int>(floorf(static_cast<float>(a) * (1.0f / static_cast<float>(b))));
  const int rest = a - guess * b;
  const bool is_high = b > 0 ? rest < 0 : rest > 0;
  const bool is_low = b > 0 ? rest >= b : rest <= b;
  return is_high ? guess - 1 : is_low ? guess + 1 : guess;
}
TESSERA_DEVICE int small_modulo(int a, int b) { return a - small_divide(a, b) * b; }

TESSERA_DEVICE int bit_of(int word, int bit) {
  return bit < 0 || bit > 31 ? 0 : static_cast<int>(static_cast<unsigned>(word) >> bit & 1u);
}
/// Towards 0; what is out of range to the nearest int32, NaN to 0.
TESSERA_DEVICE int saturated_int(float x) {
  if (!(x == x)) return 0;
  if (x >= 2147483648.0f) return 2147483647;
  if (x <= -2147483648.0f) return kLeastInt32;
  return static_cast<int>(x);
}
/// The first of two if one is NaN.
template <class N>
TESSERA_DEVICE N lesser_of(N a, N b) {
  return b < a ? b : a;
}
template <class N>
TESSERA_DEVICE N greater_of(N a, N b) {
  return a < b ? b : a;
}

/// Divides by what stays the same for many numbers with two products, to a unit and a half in the last place:
/// 1 / divisor = first second, neither of which leaves fp32 where the quotients stay.
struct ModifierReciprocal {
  float first, second;
  TESSERA_DEVICE float times(float x) const { return x * first * second; }
};
TESSERA_DEVICE ModifierReciprocal reciprocal_of(float divisor) {
  constexpr float kFar = 18446744073709551616.0f;  // 2^64
  const float magnitude = divisor < 0.0f ? -divisor : divisor;
  const float second = magnitude < 1.0f / kFar ? kFar : magnitude > kFar ? 1.0f / kFar : 1.0f;
  return {1.0f / (divisor * second), second};
}

// ---- Captured tensors: indices are clamped into them

TESSERA_DEVICE int64 index_at(const ModifierTensor& t, int dimension, int index) {
  return static_cast<int64>(minimum(maximum(index, 0), t.sizes[dimension] - 1)) * t.strides[dimension];
}
TESSERA_DEVICE float load_f32(const ModifierTensor& t, int64 at) {
  return static_cast<const float*>(t.data)[at];
}
TESSERA_DEVICE float load_f16(const ModifierTensor& t, int64 at) {
  return to_float(static_cast<const f16*>(t.data)[at]);
}
TESSERA_DEVICE float load_bf16(const ModifierTensor& t, int64 at) {
  return to_float(static_cast<const bf16*>(t.data)[at]);
}
TESSERA_DEVICE int load_i32(const ModifierTensor& t, int64 at) { return static_cast<const int*>(t.data)[at]; }
TESSERA_DEVICE int load_u8(const ModifierTensor& t, int64 at) {
  return static_cast<int>(as_word(static_cast<const unsigned char*>(t.data)[at]));
}
TESSERA_DEVICE bool load_bool(const ModifierTensor& t, int64 at) {
  return as_word(static_cast<const unsigned char*>(t.data)[at]) != 0;
}

// ---- What is known of a tile's numbers

/// Bounds of an int32, in 64 bits so that no sum leaves them; of a condition {0, 0}, {1, 1} or {0, 1}.
using ModifierRange = modifier::Interval<int64>;

TESSERA_DEVICE ModifierRange any_int32() { return {kLeastInt32, 2147483647}; }
TESSERA_DEVICE ModifierRange range_of_number(int64 number) { return {number, number}; }
/// What may have wrapped around may be anything.
TESSERA_DEVICE ModifierRange range_of_int32(ModifierRange r) {
  return r.lo >= kLeastInt32 && r.hi <= 2147483647 ? r : any_int32();
}
// Divisions of 64 bits are long: these are of 32, which all bounds fit. Of divisors below 1 nothing is said,
// so that signs need no division of their own: below 0 the quotient is ~(~a / b).
TESSERA_DEVICE int floored_bound(int64 a, int64 b) {
  const unsigned flip = a < 0 ? ~0u : 0u;
  return static_cast<int>(((static_cast<unsigned>(a) ^ flip) / static_cast<unsigned>(b)) ^ flip);
}
TESSERA_DEVICE ModifierRange range_of_quotient(ModifierRange a, ModifierRange b) {
  if (b.lo <= 0) return any_int32();
  return {floored_bound(a.lo, a.lo < 0 ? b.lo : b.hi), floored_bound(a.hi, a.hi < 0 ? b.hi : b.lo)};
}
/// Exact where b is one number and a stays within one of its periods.
TESSERA_DEVICE ModifierRange range_of_rest(ModifierRange a, ModifierRange b) {
  if (b.lo <= 0) return any_int32();
  const int64 period = floored_bound(a.lo, b.lo);
  if (b.lo == b.hi && period == floored_bound(a.hi, b.lo))
    return {a.lo - period * b.lo, a.hi - period * b.lo};
  return {0, b.hi - 1};
}
TESSERA_DEVICE ModifierRange range_of_bit(ModifierRange word, ModifierRange bit) {
  if (bit.hi < 0 || bit.lo > 31) return {0, 0};
  if (word.lo != word.hi || bit.lo != bit.hi) return {0, 1};
  return range_of_number(bit_of(static_cast<int>(word.lo), static_cast<int>(bit.lo)));
}
TESSERA_DEVICE ModifierRange range_of_choice(ModifierRange condition, ModifierRange a, ModifierRange b) {
  if (condition.lo == condition.hi) return condition.lo != 0 ? a : b;
  return modifier::hull(a, b);
}
TESSERA_DEVICE ModifierRange range_of_not(ModifierRange a) { return {1 - a.hi, 1 - a.lo}; }
/// Whether the width of both leaves no doubt that their numbers are not wrapped around.
TESSERA_DEVICE bool are_bounded(ModifierRange a, ModifierRange b) {
  return a.hi - a.lo < 2147483647 && b.hi - b.lo < 2147483647;
}
/// a - b, by its operands' bounds and by those of the sum that it is.
TESSERA_DEVICE ModifierRange range_of_difference(ModifierRange a, ModifierRange b, ModifierRange sum) {
  const ModifierRange difference = modifier::subtract(a, b);
  if (!are_bounded(a, b)) return difference;
  return {modifier::greatest(difference.lo, sum.lo), modifier::least(difference.hi, sum.hi)};
}
TESSERA_DEVICE ModifierRange range_of_less(ModifierRange difference) {
  return {difference.hi < 0, difference.lo < 0};
}
TESSERA_DEVICE ModifierRange range_of_less_equal(ModifierRange difference) {
  return {difference.hi <= 0, difference.lo <= 0};
}
TESSERA_DEVICE ModifierRange range_of_equal(ModifierRange difference) {
  return {difference.lo == 0 && difference.hi == 0, difference.lo <= 0 && difference.hi >= 0};
}

/// Of int32, u8 or bool elements: of one, or along the last dimension of those of the blocks that they lie
/// in. `element` reads one. unknown: where there is more to look at.
template <int kRank, class Element>
TESSERA_DEVICE ModifierRange range_of_elements(const ModifierTensor& t, const ModifierBounds* blocks,
                                               const ModifierRange (&indices)[kRank], ModifierRange unknown,
                                               Element element) {
  constexpr int kMostBlocks = 16;
  int64 row = 0;
  int64 at = 0;
  TESSERA_UNROLL
  for (int d = 0; d + 1 < kRank; ++d) {
    const int64 last = t.sizes[d] - 1;
    const int64 lo = minimum(maximum(indices[d].lo, int64{0}), last);
    if (lo != minimum(maximum(indices[d].hi, int64{0}), last)) return unknown;
    row = row * t.sizes[d] + lo;
    at += lo * t.strides[d];
  }
  const int64 last = t.sizes[kRank - 1] - 1;
  const int64 lo = minimum(maximum(indices[kRank - 1].lo, int64{0}), last);
  const int64 hi = minimum(maximum(indices[kRank - 1].hi, int64{0}), last);
  if (lo == hi) return range_of_number(element(at + lo * t.strides[kRank - 1]));
  const int first = static_cast<int>(lo / kModifierBlock);
  const int end = static_cast<int>(hi / kModifierBlock) + 1;
  if (blocks == nullptr || end - first > kMostBlocks) return unknown;
  const ModifierBounds* bounds = blocks + row * (last / kModifierBlock + 1);
  ModifierRange range = {bounds[first].lo, bounds[first].hi};
  TESSERA_UNROLL_BY(2)  // the compiler would by 16, several times over
  for (int block = first + 1; block < end; ++block)
    range = modifier::hull(range, ModifierRange{bounds[block].lo, bounds[block].hi});
  return range;
}

}  // namespace tessera::kernels

#include "modifier_text.cuh"

namespace tessera::kernels {

/// The new score of query i and key j; -inf if it is hidden.
TESSERA_DEVICE float apply_modifier(const ModifierArguments& m, const ModifierPlace& place, float score,
                                    int i, int j) {
  const ModifierUniform uniform = modifier_uniform(m, place, modifier_stored_uniform(m, place));
  const ModifierRow row = modifier_row(m, uniform, i, modifier_stored_row(m, uniform, i));
  const ModifierKey key = modifier_key(m, uniform, j, 0, modifier_stored_key(m, uniform, j, 0));
  if (!modifier_visible(m, uniform, row, key)) return -infinity();
  return modifier_score(m, uniform, row, key, score);
}

}  // namespace tessera::kernels
