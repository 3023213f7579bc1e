#pragma once

// Sets of integers between two bounds and what operations make of them: no matter what numbers go in, the
// result of an operation on them lies in its interval. Plain functions that a GPU's compiler takes too.

#ifndef TESSERA_MODIFIER_FUNCTION
#define TESSERA_MODIFIER_FUNCTION constexpr
#endif

namespace tessera::modifier {

/// All whole numbers from lo to hi, one at least.
template <class Int>
struct Interval {
  Int lo, hi;
};

template <class Int>
TESSERA_MODIFIER_FUNCTION Int least(Int a, Int b) {
  return b < a ? b : a;
}

template <class Int>
TESSERA_MODIFIER_FUNCTION Int greatest(Int a, Int b) {
  return a < b ? b : a;
}

/// a / b towards minus infinity; b is not 0.
template <class Int>
TESSERA_MODIFIER_FUNCTION Int floor_divide(Int a, Int b) {
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// None of these overflows where the results of all operands fit an Int.

template <class Int>
TESSERA_MODIFIER_FUNCTION Interval<Int> add(Interval<Int> a, Interval<Int> b) {
  return {a.lo + b.lo, a.hi + b.hi};
}

template <class Int>
TESSERA_MODIFIER_FUNCTION Interval<Int> subtract(Interval<Int> a, Interval<Int> b) {
  return {a.lo - b.hi, a.hi - b.lo};
}

template <class Int>
TESSERA_MODIFIER_FUNCTION Interval<Int> negate(Interval<Int> a) {
  return {-a.hi, -a.lo};
}

template <class Int>
TESSERA_MODIFIER_FUNCTION Interval<Int> multiply(Interval<Int> a, Interval<Int> b) {
  const Int p = a.lo * b.lo, q = a.lo * b.hi, r = a.hi * b.lo, s = a.hi * b.hi;
  return {least(least(p, q), least(r, s)), greatest(greatest(p, q), greatest(r, s))};
}

/// 0 is not in b.
template <class Int>
TESSERA_MODIFIER_FUNCTION Interval<Int> divide(Interval<Int> a, Interval<Int> b) {
  const Int p = floor_divide(a.lo, b.lo), q = floor_divide(a.lo, b.hi);
  const Int r = floor_divide(a.hi, b.lo), s = floor_divide(a.hi, b.hi);
  return {least(least(p, q), least(r, s)), greatest(greatest(p, q), greatest(r, s))};
}

/// 0 is not in b. Exact where b is one number and a stays within one of its periods.
template <class Int>
TESSERA_MODIFIER_FUNCTION Interval<Int> modulo(Interval<Int> a, Interval<Int> b) {
  if (b.lo == b.hi) {
    const Int period = floor_divide(a.lo, b.lo);
    if (period == floor_divide(a.hi, b.lo)) return {a.lo - period * b.lo, a.hi - period * b.lo};
  }
  if (b.lo > 0) return {0, b.hi - 1};
  return {b.lo + 1, 0};
}

template <class Int>
TESSERA_MODIFIER_FUNCTION Interval<Int> absolute(Interval<Int> a) {
  if (a.lo >= 0) return a;
  if (a.hi <= 0) return {-a.hi, -a.lo};
  return {0, greatest(-a.lo, a.hi)};
}

template <class Int>
TESSERA_MODIFIER_FUNCTION Interval<Int> smaller(Interval<Int> a, Interval<Int> b) {
  return {least(a.lo, b.lo), least(a.hi, b.hi)};
}

template <class Int>
TESSERA_MODIFIER_FUNCTION Interval<Int> larger(Interval<Int> a, Interval<Int> b) {
  return {greatest(a.lo, b.lo), greatest(a.hi, b.hi)};
}

/// All of both, and what lies between them.
template <class Int>
TESSERA_MODIFIER_FUNCTION Interval<Int> hull(Interval<Int> a, Interval<Int> b) {
  return {least(a.lo, b.lo), greatest(a.hi, b.hi)};
}

}  // namespace tessera::modifier
