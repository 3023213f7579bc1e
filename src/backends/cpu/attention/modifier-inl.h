// The vector interpreter of score modifiers: a loop over an array for each step of a program, on arrays that
// stay in the first cache; included once for each target.
#if defined(TESSERA_CPU_ATTENTION_MODIFIER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ATTENTION_MODIFIER_INL_H_
#undef TESSERA_CPU_ATTENTION_MODIFIER_INL_H_
#else
#define TESSERA_CPU_ATTENTION_MODIFIER_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/attention/math-inl.h"
#include "backends/cpu/attention/modifier.h"
#include "backends/cpu/attention/rows-inl.h"
#include "core/element.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// One step's arrays.
class StepArrays {
 public:
  StepArrays(const ModifierChunk& chunk, const ModifierStep& step)
      : count_(chunk.count), row_stride_(chunk.row_stride), result_(chunk.arrays[step.result]) {
    for (std::size_t k = 0; k < operands_.size(); ++k) operands_[k] = chunk.arrays[step.operands[k]];
    if (chunk.keys == nullptr) return;
    // One operand at most: an operation on two keys' numbers is itself a key's.
    for (std::size_t k = 0; k < 2; ++k) {
      if (!step.by_key[k]) continue;
      by_key_ = static_cast<int>(k);
      keys_ = chunk.keys[step.operands[k]];
    }
  }

  std::int64_t count() const { return count_; }
  template <class T>
  const T* operand(std::size_t k) const {
    return reinterpret_cast<const T*>(operands_[k]);
  }
  template <class T>
  T* result() const {
    return reinterpret_cast<T*>(result_);
  }

  /// result = f(a) of vectors of In.
  template <class In, class Out, class F>
  HWY_INLINE void Unary(const F& f) const {
    const hn::ScalableTag<In> in;
    const hn::ScalableTag<Out> out;
    const In* a = operand<In>(0);
    Out* r = result<Out>();
    for (std::int64_t i = 0; i < count_; i += kLanes) hn::StoreU(f(hn::LoadU(in, a + i)), out, r + i);
  }

  template <class In, class Out, class F>
  HWY_INLINE void Binary(const F& f) const {
    const hn::ScalableTag<In> in;
    const hn::ScalableTag<Out> out;
    const In* a = operand<In>(0);
    const In* b = operand<In>(1);
    Out* r = result<Out>();
    if (by_key_ < 0) {
      for (std::int64_t i = 0; i < count_; i += kLanes)
        hn::StoreU(f(hn::LoadU(in, a + i), hn::LoadU(in, b + i)), out, r + i);
      return;
    }
    const In* keys = reinterpret_cast<const In*>(keys_);
    for (std::int64_t begin = 0; begin < count_; begin += row_stride_, ++keys) {
      const auto key = hn::Set(in, *keys);
      for (std::int64_t i = begin; i < begin + row_stride_; i += kLanes)
        hn::StoreU(by_key_ == 0 ? f(key, hn::LoadU(in, b + i)) : f(hn::LoadU(in, a + i), key), out, r + i);
    }
  }

  /// The same one number after the other.
  template <class F>
  HWY_INLINE void Scalar(const F& f) const {
    const float* a = operand<float>(0);
    float* r = result<float>();
    for (std::int64_t i = 0; i < count_; ++i) r[i] = f(a[i]);
  }

 private:
  std::int64_t count_;
  std::int64_t row_stride_;
  std::array<const float*, 4> operands_;
  int by_key_ = -1;              ///< the operand that is one number a key
  const float* keys_ = nullptr;  ///< these
  float* result_;
};

using Ints = hn::ScalableTag<std::int32_t>;

/// exp of any number: the square of its half's beyond where Exp ends.
HWY_INLINE hn::Vec<Floats> ExpOfAny(hn::Vec<Floats> x) {
  const Floats d;
  const auto is_large = hn::Gt(x, hn::Set(d, 80.0f));
  const auto half = hn::Min(hn::Mul(x, hn::Set(d, 0.5f)), hn::Set(d, 80.0f));
  const auto y = Exp(d, hn::IfThenElse(is_large, half, x));
  return hn::IfThenElse(is_large, hn::Mul(y, y), y);
}

/// Towards 0; what is out of range to the nearest int32, NaN to 0.
HWY_INLINE hn::Vec<Ints> Truncate(hn::Vec<Floats> x) {
  const Floats d;
  const Ints di;
  const auto is_number = hn::Eq(x, x);
  const auto too_large = hn::Ge(x, hn::Set(d, 2147483648.0f));
  const auto too_small = hn::Lt(x, hn::Set(d, -2147483648.0f));
  const auto in_range = hn::IfThenElseZero(hn::AndNot(hn::Or(too_large, too_small), is_number), x);
  auto result = hn::ConvertTo(di, in_range);
  result = hn::IfThenElse(hn::RebindMask(di, too_large),
                          hn::Set(di, std::numeric_limits<std::int32_t>::max()), result);
  return hn::IfThenElse(hn::RebindMask(di, too_small), hn::Set(di, std::numeric_limits<std::int32_t>::min()),
                        result);
}

/// Floors of a / b by way of fp64, which holds the quotient of two int32 well enough that its floor is right.
template <class Finish>
HWY_INLINE void DivideFloor(const StepArrays& arrays, const Finish& finish) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<std::int32_t, decltype(d)> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int32_t* a = arrays.operand<std::int32_t>(0);
  const std::int32_t* b = arrays.operand<std::int32_t>(1);
  std::int32_t* r = arrays.result<std::int32_t>();
  for (std::int64_t i = 0; i < arrays.count(); i += lanes) {
    const auto x = hn::LoadU(di, a + i), y = hn::LoadU(di, b + i);
    const auto quotient = hn::DemoteTo(di, hn::Floor(hn::Div(hn::PromoteTo(d, x), hn::PromoteTo(d, y))));
    // The one quotient that is no int32 wraps around.
    const auto wrapped = hn::IfThenElse(hn::Eq(y, hn::Set(di, -1)), hn::Sub(hn::Zero(di), x), quotient);
    hn::StoreU(finish(x, y, wrapped), di, r + i);
  }
}

template <class T>
HWY_INLINE hn::Vec<Ints> AsVector(hn::Mask<hn::ScalableTag<T>> mask) {
  return hn::BitCast(Ints(), hn::VecFromMask(hn::ScalableTag<T>(), mask));
}

/// Comparisons, arithmetic and the choice of the smaller or larger, of int32 and fp32 alike.
template <class T>
HWY_INLINE bool RunCommon(const ModifierStep& step, const StepArrays& arrays) {
  using modifier::Op;
  const hn::ScalableTag<T> d;
  const auto compare = [&](const auto& f) {
    arrays.Binary<T, std::int32_t>([&](auto a, auto b) HWY_ATTR { return AsVector<T>(f(a, b)); });
  };
  switch (step.op) {
    case Op::kAdd:
      arrays.Binary<T, T>([](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
      return true;
    case Op::kSubtract:
      arrays.Binary<T, T>([](auto a, auto b) HWY_ATTR { return hn::Sub(a, b); });
      return true;
    case Op::kMultiply:
      arrays.Binary<T, T>([](auto a, auto b) HWY_ATTR { return hn::Mul(a, b); });
      return true;
    case Op::kNegate:
      arrays.Unary<T, T>([](auto a) HWY_ATTR { return hn::Neg(a); });
      return true;
    case Op::kAbs:
      arrays.Unary<T, T>([](auto a) HWY_ATTR { return hn::Abs(a); });
      return true;
    case Op::kMin:
      arrays.Binary<T, T>([](auto a, auto b) HWY_ATTR { return hn::IfThenElse(hn::Lt(b, a), b, a); });
      return true;
    case Op::kMax:
      arrays.Binary<T, T>([](auto a, auto b) HWY_ATTR { return hn::IfThenElse(hn::Lt(a, b), b, a); });
      return true;
    case Op::kLess:
      compare([](auto a, auto b) HWY_ATTR { return hn::Lt(a, b); });
      return true;
    case Op::kLessEqual:
      compare([](auto a, auto b) HWY_ATTR {
        if constexpr (std::is_same_v<T, float>)
          return hn::Le(a, b);
        else
          return hn::Not(hn::Lt(b, a));  // int32 has no other
      });
      return true;
    case Op::kEqual:
      compare([](auto a, auto b) HWY_ATTR { return hn::Eq(a, b); });
      return true;
    case Op::kNotEqual:
      compare([](auto a, auto b) HWY_ATTR { return hn::Not(hn::Eq(a, b)); });
      return true;
    default:
      static_cast<void>(d);
      return false;
  }
}

HWY_INLINE void RunFloat(const ModifierStep& step, const StepArrays& arrays) {
  using modifier::Op;
  const Floats d;
  switch (step.op) {
    case Op::kDivide:
      arrays.Binary<float, float>([](auto a, auto b) HWY_ATTR { return hn::Div(a, b); });
      return;
    case Op::kExp:
      arrays.Unary<float, float>([](auto a) HWY_ATTR { return ExpOfAny(a); });
      return;
    case Op::kTanh:
      arrays.Unary<float, float>([&](auto a) HWY_ATTR { return Tanh(d, a); });
      return;
    case Op::kSqrt:
      arrays.Unary<float, float>([](auto a) HWY_ATTR { return hn::Sqrt(a); });
      return;
    case Op::kFloor:
      arrays.Unary<float, float>([](auto a) HWY_ATTR { return hn::Floor(a); });
      return;
    case Op::kExp2:
      arrays.Scalar([](float a) { return std::exp2(a); });
      return;
    case Op::kLog:
      arrays.Scalar([](float a) { return std::log(a); });
      return;
    case Op::kLog2:
      arrays.Scalar([](float a) { return std::log2(a); });
      return;
    default:  // kToFloat
      arrays.Unary<std::int32_t, float>([&](auto a) HWY_ATTR { return hn::ConvertTo(d, a); });
  }
}

HWY_INLINE void RunInt(const ModifierStep& step, const StepArrays& arrays) {
  using modifier::Op;
  const Ints d;
  switch (step.op) {
    case Op::kDivide:
      DivideFloor(arrays, [](auto, auto, auto quotient) HWY_ATTR { return quotient; });
      return;
    case Op::kModulo:
      DivideFloor(arrays,
                  [](auto a, auto b, auto quotient) HWY_ATTR { return hn::Sub(a, hn::Mul(b, quotient)); });
      return;
    case Op::kBit: {
      const hn::RebindToUnsigned<Ints> du;
      arrays.Binary<std::int32_t, std::int32_t>([&](auto word, auto bit) HWY_ATTR {
        const auto is_one = hn::Eq(hn::AndNot(hn::Set(d, 31), bit), hn::Zero(d));
        const auto place = hn::BitCast(du, hn::And(bit, hn::Set(d, 31)));
        const auto shifted = hn::BitCast(d, hn::Shr(hn::BitCast(du, word), place));
        return hn::IfThenElseZero(is_one, hn::And(shifted, hn::Set(d, 1)));
      });
      return;
    }
    default:  // kToInt
      if (step.operand_type == modifier::Type::kBool) {
        arrays.Unary<std::int32_t, std::int32_t>([&](auto a) HWY_ATTR { return hn::And(a, hn::Set(d, 1)); });
      } else {
        arrays.Unary<float, std::int32_t>([](auto a) HWY_ATTR { return Truncate(a); });
      }
  }
}

HWY_INLINE void RunBool(const ModifierStep& step, const StepArrays& arrays) {
  using modifier::Op;
  if (step.op == Op::kAnd) {
    arrays.Binary<std::int32_t, std::int32_t>([](auto a, auto b) HWY_ATTR { return hn::And(a, b); });
  } else if (step.op == Op::kOr) {
    arrays.Binary<std::int32_t, std::int32_t>([](auto a, auto b) HWY_ATTR { return hn::Or(a, b); });
  } else {
    arrays.Unary<std::int32_t, std::int32_t>([](auto a) HWY_ATTR { return hn::Not(a); });
  }
}

HWY_INLINE void RunSelect(const StepArrays& arrays) {
  const Ints d;
  const std::int32_t* condition = arrays.operand<std::int32_t>(0);
  const std::int32_t* a = arrays.operand<std::int32_t>(1);
  const std::int32_t* b = arrays.operand<std::int32_t>(2);
  std::int32_t* r = arrays.result<std::int32_t>();
  for (std::int64_t i = 0; i < arrays.count(); i += kLanes) {
    const auto mask = hn::LoadU(d, condition + i);
    hn::StoreU(hn::Or(hn::And(mask, hn::LoadU(d, a + i)), hn::AndNot(mask, hn::LoadU(d, b + i))), d, r + i);
  }
}

/// Elements of a tensor at indices of their own, one after the other.
HWY_INLINE void RunLoad(const ModifierStep& step, const CapturedTensor& tensor, const StepArrays& arrays) {
  const auto read = [&](const auto& element) {
    if (step.num_operands == 1) {
      const std::int32_t* index = arrays.operand<std::int32_t>(0);
      const auto last = static_cast<std::int32_t>(tensor.sizes[0] - 1);
      const std::int64_t stride = tensor.strides[0];
      for (std::int64_t i = 0; i < arrays.count(); ++i)
        element(i, std::min(std::max(index[i], 0), last) * stride);
      return;
    }
    for (std::int64_t i = 0; i < arrays.count(); ++i) {
      std::array<std::int32_t, modifier::kMaxTensorRank> indices = {};
      for (std::size_t k = 0; k < static_cast<std::size_t>(step.num_operands); ++k)
        indices[k] = arrays.operand<std::int32_t>(k)[i];
      element(i, modifier::clamped_offset(tensor, indices.data()));
    }
  };
  std::int32_t* integers = arrays.result<std::int32_t>();
  float* reals = arrays.result<float>();
  const auto* bytes = static_cast<const std::uint8_t*>(tensor.data);
  switch (tensor.dtype) {
    case DType::kI32:
      read([&](std::int64_t i, std::int64_t at) {
        integers[i] = static_cast<const std::int32_t*>(tensor.data)[at];
      });
      return;
    case DType::kU8:
      read([&](std::int64_t i, std::int64_t at) { integers[i] = bytes[at]; });
      return;
    case DType::kBool:
      read([&](std::int64_t i, std::int64_t at) { integers[i] = bytes[at] != 0 ? -1 : 0; });
      return;
    case DType::kF16:
      read([&](std::int64_t i, std::int64_t at) {
        reals[i] = static_cast<float>(static_cast<const Half*>(tensor.data)[at]);
      });
      return;
    case DType::kBF16:
      read([&](std::int64_t i, std::int64_t at) {
        reals[i] = static_cast<float>(static_cast<const BFloat16*>(tensor.data)[at]);
      });
      return;
    default:
      read([&](std::int64_t i, std::int64_t at) { reals[i] = static_cast<const float*>(tensor.data)[at]; });
  }
}

/// a - b of int32, and what follows it.
HWY_INLINE void RunDifference(const ModifierStep& step, const StepArrays& arrays) {
  if (step.finish == ModifierFinish::kAbs) {
    arrays.Binary<std::int32_t, std::int32_t>([](auto a, auto b) HWY_ATTR { return hn::Abs(hn::Sub(a, b)); });
  } else {
    const Floats d;
    arrays.Binary<std::int32_t, float>([&](auto a, auto b)
                                           HWY_ATTR { return hn::ConvertTo(d, hn::Abs(hn::Sub(a, b))); });
  }
}

/// a + b * c or a - b * c.
HWY_INLINE void RunMultiplyAdd(const ModifierStep& step, const StepArrays& arrays) {
  const Floats d;
  const float* a = arrays.operand<float>(0);
  const float* b = arrays.operand<float>(1);
  const float* c = arrays.operand<float>(2);
  float* r = arrays.result<float>();
  const bool adds = step.op == modifier::Op::kAdd;
  for (std::int64_t i = 0; i < arrays.count(); i += kLanes) {
    const auto x = hn::LoadU(d, a + i), y = hn::LoadU(d, b + i), z = hn::LoadU(d, c + i);
    hn::StoreU(adds ? hn::MulAdd(y, z, x) : hn::NegMulAdd(y, z, x), d, r + i);
  }
}

HWY_INLINE void RunStep(const ModifierChunk& chunk, const ModifierStep& step) {
  using modifier::Op;
  using modifier::Type;
  const StepArrays arrays(chunk, step);
  if (step.op == Op::kLoad) {
    RunLoad(step, chunk.modifier->tensors[static_cast<std::size_t>(step.tensor)], arrays);
    return;
  }
  if (step.op == Op::kSelect) {
    RunSelect(arrays);
    return;
  }
  if (step.finish != ModifierFinish::kNone) {
    RunDifference(step, arrays);
    return;
  }
  if (step.multiplies) {
    RunMultiplyAdd(step, arrays);
    return;
  }
  // bool compares as int32.
  const bool of_float = step.operand_type == Type::kFloat32;
  if (of_float ? RunCommon<float>(step, arrays) : RunCommon<std::int32_t>(step, arrays)) return;
  if (step.type == Type::kFloat32) {
    RunFloat(step, arrays);
  } else if (step.type == Type::kInt32) {
    RunInt(step, arrays);
  } else {
    RunBool(step, arrays);
  }
}

/// New scores of a chunk, and -inf in place of hidden ones.
HWY_NOINLINE void RunModifier(const ModifierChunk& chunk) {
  if (chunk.scale != 1) {
    const Floats d;
    std::int64_t i = 0;
    for (; i + kLanes <= chunk.count; i += kLanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, chunk.s + i), hn::Set(d, chunk.scale)), d, chunk.s + i);
    for (; i < chunk.count; ++i) chunk.s[i] *= chunk.scale;
  }
  for (const ModifierStep& step : *chunk.steps) {
    if (step.for_score || (chunk.masks && step.for_visible)) RunStep(chunk, step);
  }
  if (chunk.plan == nullptr) return;
  const ModifierPlan& plan = *chunk.plan;
  const float* score = plan.score >= 0 ? chunk.arrays[plan.score] : chunk.s;
  if (score == chunk.s && !chunk.masks) return;
  const auto* visible = plan.visible >= 0 && chunk.masks
                            ? reinterpret_cast<const std::int32_t*>(chunk.arrays[plan.visible])
                            : nullptr;
  const Floats d;
  const Ints di;
  const float hidden = -std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  for (; i + kLanes <= chunk.count; i += kLanes) {
    auto x = hn::LoadU(d, score + i);
    if (chunk.bias != nullptr)
      x = hn::IfThenElse(hn::Eq(hn::LoadU(d, chunk.bias + i), hn::Set(d, hidden)), hn::Set(d, hidden), x);
    if (visible != nullptr) {
      const auto is_visible = hn::Ne(hn::LoadU(di, visible + i), hn::Zero(di));
      x = hn::IfThenElse(hn::RebindMask(d, is_visible), x, hn::Set(d, hidden));
    }
    hn::StoreU(x, d, chunk.s + i);
  }
  for (; i < chunk.count; ++i) {
    chunk.s[i] = chunk.bias != nullptr && chunk.bias[i] == hidden ? hidden : score[i];
    if (visible != nullptr && visible[i] == 0) chunk.s[i] = hidden;
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
