// Draws random problems: every feature with every other.

#include "verify/random_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "core/rounding.h"

namespace tessera {
namespace {

class Drawing {
 public:
  Drawing(std::uint64_t seed, std::uint64_t index, const RandomLimits& limits)
      : limits_(limits), random_(make_seed(seed, index)) {}

  RandomCase draw() {
    c_.seed = static_cast<unsigned>(random_() >> 33);
    draw_types();
    draw_lengths();
    draw_storage();
    draw_terms();
    draw_numbers();
    fit();
    draw_sequence_lengths();
    result_.host_tensors = chance(0.15);
    result_.replayed = chance(0.3);
    result_.repeated = chance(0.3);
    draw_values_in_keys();
    draw_narrow_keys();
    if (!c_.batch_invariant && chance(0.15)) result_.num_splits = one_of({1, 2, 3, 7});
    result_.attention = c_;
    return result_;
  }

 private:
  static std::uint64_t make_seed(std::uint64_t seed, std::uint64_t index) {
    std::seed_seq sequence{seed, seed >> 32, index, index >> 32};
    std::uint32_t words[2];
    sequence.generate(words, words + 2);
    return std::uint64_t{words[0]} << 32 | words[1];
  }

  bool chance(double probability) { return std::uniform_real_distribution<>()(random_) < probability; }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  /// Small numbers as often as large ones.
  std::int64_t of_any_size(std::int64_t low, std::int64_t high) {
    const double size = std::uniform_real_distribution<>(std::log(low + 1.0), std::log(high + 2.0))(random_);
    return std::clamp(static_cast<std::int64_t>(std::exp(size)) - 1, low, high);
  }
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

  int draw_head_dim() {
    if (chance(0.45)) return one_of({16, 32, 64, 64, 80, 96, 128, 128, 192, 256});
    return static_cast<int>(chance(0.7) ? of_any_size(1, 256) : between(1, kMaxHeadDim));
  }

  void draw_types() {
    c_.dtype = one_of({DType::kF32, DType::kF16, DType::kBF16});
    if (limits_.takes_f64 && chance(0.3)) c_.dtype = DType::kF64;
    c_.head_dim_qk = draw_head_dim();
    c_.head_dim_v = chance(0.6) ? c_.head_dim_qk : draw_head_dim();
    c_.num_kv_heads = one_of({1, 1, 2, 3, 4});
    c_.num_heads = c_.num_kv_heads * one_of({1, 1, 2, 3, 4, 5, 7, 8, 16, 35});
  }

  void draw_lengths() {
    c_.batch = of_any_size(1, 6);
    const double form = std::uniform_real_distribution<>()(random_);
    if (form < 0.3) {  // decode
      c_.seq_len_q = one_of({1, 1, 1, 2, 3, 5, 16});
      c_.seq_len_kv = of_any_size(0, 30000);
    } else if (form < 0.35) {  // next to nothing
      c_.seq_len_q = between(0, 5);
      c_.seq_len_kv = between(0, 5);
      if (chance(0.1)) c_.batch = 0;
    } else {
      c_.seq_len_q = of_any_size(1, 700);
      c_.seq_len_kv = chance(0.4) ? c_.seq_len_q : of_any_size(0, 1500);
    }
  }

  void draw_storage() {
    c_.strides = one_of(
        {StrideStyle::kBatchSeqHeads, StrideStyle::kBatchHeadsSeq, StrideStyle::kPacked, StrideStyle::kOdd});
    c_.kv_storage = one_of({KvStorage::kDense, KvStorage::kPadded, KvStorage::kRagged, KvStorage::kPaged});
    c_.page_size = one_of({1, 2, 3, 5, 7, 16, 16, 17, 32, 48, 64, 128, 256});
    c_.shared_kv = c_.kv_storage == KvStorage::kDense && chance(0.1);
    c_.with_lse = chance(0.8);
    c_.batch_invariant = chance(0.35);
  }

  MaskRecipe draw_mask(DType dtype) {
    return {dtype,
            chance(0.5),
            chance(0.5),
            chance(0.6),
            one_of({0.05, 0.3, 0.3, 0.9, 0.97, 1.0}),
            one_of<std::int64_t>({1, 1, 1, 2, 3})};
  }

  std::optional<std::int64_t> draw_window() {
    if (chance(0.4)) return std::nullopt;
    if (chance(0.05)) return std::int64_t{1} << 62;
    return of_any_size(0, 200);
  }

  void draw_terms() {
    if (chance(0.2)) c_.softcap = one_of({0.5f, 2.5f, 30.0f, 50.0f});
    c_.alibi = chance(0.2);
    c_.alibi_per_batch = c_.alibi && chance(0.5);
    c_.sinks = chance(0.2);
    if (chance(0.2)) c_.additive_mask = draw_mask(one_of({DType::kF32, DType::kF16, DType::kBF16}));
    // A row that sees nothing else weighs its keys alike, but parts of them as wholes where they are split:
    // here hardly a row of more than a few keys does.
    if (c_.additive_mask && c_.additive_mask->hidden_share < 0.5 && chance(0.4)) {
      c_.additive_mask->hides_by_lowest = true;
      c_.with_lse = false;  // of a row that sees nothing else it is a number near fp32's end
    }
    if (chance(0.25)) c_.boolean_mask = draw_mask(one_of({DType::kBool, DType::kU8}));
    const DiagonalAlignment corner =
        chance(0.7) ? DiagonalAlignment::kBottomRight : DiagonalAlignment::kTopLeft;
    if (chance(0.4)) {
      c_.diagonal = DiagonalMask::causal(corner);
      if (chance(0.3)) c_.diagonal->window_left = of_any_size(0, 200);
    } else if (chance(0.3)) {
      c_.diagonal = DiagonalMask{draw_window(), draw_window(), corner};
    }
    if (chance(0.3)) c_.softmax_scale = one_of({0.0f, 1.0f, -0.3f, 1e-6f, 0.05f, 0.3f});
    if (!limits_.takes_modifiers) return;
    // From numbers of their own: all else is drawn alike with and without them.
    std::mt19937_64 next = random_;
    const std::uint64_t bits = std::mt19937_64(next())();
    if (bits % 4 != 0) return;
    const std::uint64_t which = bits / 4;
    if (!c_.batch_invariant) {
      c_.modifier = static_cast<ModifierExample>(1 + which % (kNumModifierExamples - 1));
    } else if (c_.diagonal && c_.diagonal->alignment == DiagonalAlignment::kBottomRight) {
      // Rows and heads taken out, as for checks of invariant bits, have other indices, but these distances.
      constexpr std::array kOfDistances = {ModifierExample::kCausal, ModifierExample::kWindow,
                                           ModifierExample::kSoftcap};
      c_.modifier = kOfDistances[which % kOfDistances.size()];
    }
  }

  void draw_numbers() {
    const double form = std::uniform_real_distribution<>()(random_);
    if (form < 0.15) {
      c_.content = Content::kNanInHiddenKeys;
    } else if (form < 0.4) {
      c_.content = one_of({Content::kEqualLogits, Content::kConstantValue, Content::kNanInLastKeys,
                           Content::kNanInKeys, Content::kNanInValues, Content::kInfiniteKeys,
                           Content::kLargestValues, Content::kHeavyZeros});
    }
    // What no query of one sequence sees another's may see.
    if (c_.content == Content::kNanInHiddenKeys) c_.shared_kv = false;
    const bool is_f16 = c_.dtype == DType::kF16;
    const int most = is_f16 ? 10 : 60;  // powers of two
    if (chance(0.25)) c_.logit_spread = one_of({0.01, 8.0, 50.0, 300.0});
    if (chance(0.1)) c_.k_spread = one_of({0.01, 8.0, 50.0});
    if (chance(0.2)) c_.v_spread = std::ldexp(1.0, static_cast<int>(between(-most, most)));
    if (chance(0.1)) {
      c_.exponent_spread = static_cast<int>(between(1, is_f16 ? 3 : 40));
      // Scores of any size, not only such as leave one key.
      if (chance(0.8))
        c_.softmax_scale =
            static_cast<float>(std::ldexp(1.0, -static_cast<int>(between(0, 2 * c_.exponent_spread))));
    } else if (chance(0.05) && !is_f16) {
      const auto shift = static_cast<int>(between(-30, 30));
      c_.logit_spread = std::ldexp(c_.logit_spread, shift);
      c_.softmax_scale = static_cast<float>(std::ldexp(0.1, -shift));
    }
  }

  /// Makes the problem as small as the limits say, by what there is most of.
  void fit() {
    const double most = limits_.multiply_adds * (chance(0.05) ? 10 : 1);
    const auto work = [&] {
      return static_cast<double>(c_.batch) * static_cast<double>(c_.seq_len_q) * c_.num_heads *
             static_cast<double>(c_.seq_len_kv) * (c_.head_dim_qk + c_.head_dim_v);
    };
    while (work() > most) {
      switch (between(0, 3)) {
        case 0:
          c_.batch = divide_up(c_.batch, 2);
          break;
        case 1:
          c_.seq_len_q = divide_up(c_.seq_len_q, 2);
          break;
        case 2:
          if (c_.num_kv_heads > 1) {
            c_.num_heads = c_.num_heads / c_.num_kv_heads;
            c_.num_kv_heads = 1;
          } else if (c_.num_heads > 1 && chance(0.5)) {
            c_.num_heads = divide_up(c_.num_heads, 2);
          }
          break;
        default:
          c_.seq_len_kv = divide_up(c_.seq_len_kv, 2);
      }
    }
  }

  /// Latent attention, and other head_dims of whose keys the values are a part.
  void draw_values_in_keys() {
    c_.values_in_keys = chance(0.06);
    if (!c_.values_in_keys) return;
    if (chance(0.5) && c_.num_kv_heads == 1) {
      c_.head_dim_qk = 576;
      c_.head_dim_v = 512;
      c_.seq_len_q = std::min<std::int64_t>(c_.seq_len_q, 16);
      c_.seq_len_kv = std::min<std::int64_t>(c_.seq_len_kv, 1000);
      for (std::int64_t& len : c_.lens_q) len = std::min(len, c_.seq_len_q);
      for (std::int64_t& len : c_.lens_kv) len = std::min(len, c_.seq_len_kv);
    }
    c_.head_dim_v = std::min(c_.head_dim_v, c_.head_dim_qk);
  }

  void draw_sequence_lengths() {
    const auto draw = [&](std::int64_t longest) {
      std::vector<std::int64_t> lens;
      for (std::int64_t b = 0; b < c_.batch; ++b)
        lens.push_back(chance(0.15) ? 0 : chance(0.2) ? longest : between(0, longest));
      return lens;
    };
    if (chance(0.4)) c_.lens_q = draw(c_.seq_len_q);
    if (c_.kv_storage != KvStorage::kDense) c_.lens_kv = draw(c_.seq_len_kv);
  }

  void draw_narrow_keys() {
    if (!chance(0.2)) return;
    c_.kv_dtype = DType::kF8E4M3;
    c_.kv_scaling = one_of({KvScaling::kNone, KvScaling::kTensor, KvScaling::kHead, KvScaling::kPageHead});
    // The same numbers can't be stored in other pages then.
    if (c_.batch_invariant && c_.kv_scaling == KvScaling::kPageHead) c_.kv_scaling = KvScaling::kHead;
    c_.narrow_q = chance(0.5);
    if (c_.narrow_q)
      c_.q_scaling = one_of({KvScaling::kNone, KvScaling::kTensor, KvScaling::kHead, KvScaling::kPageHead});
  }

  RandomLimits limits_;
  std::mt19937_64 random_;
  AttentionCase c_;
  RandomCase result_;
};

}  // namespace

RandomCase draw_random_case(std::uint64_t seed, std::uint64_t index, const RandomLimits& limits) {
  return Drawing(seed, index, limits).draw();
}

}  // namespace tessera
