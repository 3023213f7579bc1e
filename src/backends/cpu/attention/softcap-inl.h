// Scale and softcap of scores; included once for each target.
#if defined(TESSERA_CPU_ATTENTION_SOFTCAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ATTENTION_SOFTCAP_INL_H_
#undef TESSERA_CPU_ATTENTION_SOFTCAP_INL_H_
#else
#define TESSERA_CPU_ATTENTION_SOFTCAP_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <optional>

#include "backends/cpu/attention/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// scale s, or cap tanh(scale s / cap). One product with scale / cap takes the place of a product and a
/// division, with as many roundings; not where that quotient is no normal number.
template <class D>
class ScoreScaling {
 public:
  using V = hn::Vec<D>;

  ScoreScaling(D d, float scale, std::optional<float> softcap)
      : d_(d),
        caps_(softcap.has_value()),
        divides_(caps_ && !std::isnormal(scale / *softcap)),
        factor_(hn::Set(d, caps_ && !divides_ ? scale / *softcap : scale)),
        cap_(hn::Set(d, softcap.value_or(1.0f))) {}

  HWY_INLINE V operator()(V s) const {
    V x = hn::Mul(s, factor_);
    if (!caps_) return x;
    if (divides_) x = hn::Div(x, cap_);
    return hn::Mul(cap_, Tanh(d_, x));
  }

 private:
  D d_;
  bool caps_, divides_;
  V factor_, cap_;
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
