// Included once a SIMD target.

#if defined(TESSERA_CPU_OPS_SIGMOID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_OPS_SIGMOID_INL_H_
#undef TESSERA_CPU_OPS_SIGMOID_INL_H_
#else
#define TESSERA_CPU_OPS_SIGMOID_INL_H_
#endif

#include "backends/cpu/ops/vector_types-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// 1 / (1 + exp(-x)) from exp(-|x|), which can't overflow.
HWY_INLINE VecF32 sigmoid(F32 d, VecF32 x) {
  const VecF32 one = hn::Set(d, 1.0f);
  const VecF32 e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#endif
