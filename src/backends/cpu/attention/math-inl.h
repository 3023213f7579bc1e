// exp and tanh of whole vectors; included once for each target.
#if defined(TESSERA_CPU_ATTENTION_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ATTENTION_MATH_INL_H_
#undef TESSERA_CPU_ATTENTION_MATH_INL_H_
#else
#define TESSERA_CPU_ATTENTION_MATH_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// exp(x) for x <= 80; 0 below -87, where the result would soon be subnormal; NaN for NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2 and ln 2 in two parts, so that r carries an error of 2^-25 at most;
/// exp(r) = 1 + r + r^2 P(r), P of degree 4 fitted for the least relative error, 0.05 * 2^-24. The roundings
/// of the last two steps dominate: at most 2 units in the last place.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::MulAdd(r, hn::Set(d, 0.00138145401768f), hn::Set(d, 0.00836874510894f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0416683907835f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.16666520399f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.499999934321f));
  p = hn::MulAdd(p, hn::Mul(r, r), r);
  p = hn::Add(p, hn::Set(d, 1.0f));
  const V power =
      hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, 0x3f800000)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(p, power));
}

/// tanh(x).  |x| < 0.625: x + x^3 P(x^2), P of degree 4 with a relative error of 0.08 * 2^-24; otherwise
/// 1 - 2 / (exp(2 |x|) + 1) with x's sign.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V square = hn::Mul(x, x);
  V p = hn::MulAdd(square, hn::Set(d, -0.00570498699346f), hn::Set(d, 0.0206390872447f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.0537397150858f));
  p = hn::MulAdd(p, square, hn::Set(d, 0.133314421982f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.33333281942f));
  const V small = hn::MulAdd(hn::Mul(p, square), x, x);
  // Not "less than 0.625 ? small : large": NaN has to stay NaN, and Min below drops it.
  const auto is_large = hn::Ge(hn::Abs(x), hn::Set(d, 0.625f));
  if (hn::AllFalse(d, is_large)) return small;  // the usual case: a score is a small part of its cap
  const V magnitude = hn::Min(hn::Abs(x), hn::Set(d, 20.0f));
  const V one = hn::Set(d, 1.0f);
  const V e = Exp(d, hn::Add(magnitude, magnitude));
  const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::IfThenElse(is_large, hn::CopySign(large, x), small);
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
