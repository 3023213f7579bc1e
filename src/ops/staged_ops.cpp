#include "ops/staged_ops.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "ops/validate.h"

namespace tessera {

void StagedOps::keep_copies(bool keep) {
  keeps_copies_ = keep;
  ranges_.clear();
}

void StagedOps::add(const void* data, std::size_t size_bytes) {
  if (data == nullptr || size_bytes == 0) return;
  auto begin = reinterpret_cast<std::uintptr_t>(data);
  auto end = begin + size_bytes;
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    if (it->first <= begin && end <= it->second.end) return;
    if (it->first < end && begin < it->second.end) {
      begin = std::min(begin, it->first);
      end = std::max(end, it->second.end);
      it = ranges_.erase(it);
    } else {
      ++it;
    }
  }
  ranges_[begin].end = end;
}

void StagedOps::upload_ranges() {
  for (auto& [begin, range] : ranges_) {
    if (range.device != nullptr) continue;
    const std::size_t offset = begin % 256;
    range.memory = device_->allocate(range.end - begin + offset, "a staged argument");
    range.device = range.memory.data.get() + offset;
    device_->upload(range.device, reinterpret_cast<const void*>(begin), range.end - begin, device_->stream());
  }
}

void StagedOps::download_ranges() {
  for (auto& [begin, range] : ranges_) {
    device_->download(reinterpret_cast<void*>(begin), range.device, range.end - begin, device_->stream());
  }
}

/// Adds what it is called with to the ranges.
class StagedOps::Adder {
 public:
  explicit Adder(StagedOps& ops) : ops_(ops) {}

  void operator()(const void* data, std::size_t size_bytes) { ops_.add(data, size_bytes); }
  /// more_columns: that the kernel uses after the matrix's own.
  void operator()(const Matrix& m, std::int64_t more_columns = 0) {
    if (m.rows == 0) return;
    const std::int64_t elements = (m.rows - 1) * m.row_stride + m.columns + more_columns;
    ops_.add(m.data, dtype_bytes(m.dtype, static_cast<std::size_t>(elements)));
  }
  void operator()(const Weight& w) {
    const std::size_t row_bytes = dtype_bytes(w.dtype, static_cast<std::size_t>(w.columns));
    ops_.add(w.data, static_cast<std::size_t>(w.rows) * row_bytes);
  }
  template <class T>
  void operator()(const std::optional<T>& optional) {
    if (optional) (*this)(*optional);
  }

 private:
  StagedOps& ops_;
};

/// Replaces pointers into the ranges by those into their copies.
class StagedOps::Mapper {
 public:
  explicit Mapper(const StagedOps& ops) : ops_(ops) {}

  template <class T>
  void operator()(T*& pointer, std::size_t = 0) {
    if (pointer == nullptr) return;
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    auto found = ops_.ranges_.upper_bound(address);
    if (found == ops_.ranges_.begin()) return;
    --found;
    if (address < found->second.end)
      pointer = reinterpret_cast<T*>(found->second.device + (address - found->first));
  }
  void operator()(Matrix& m, std::int64_t = 0) { (*this)(m.data); }
  void operator()(Weight& w) { (*this)(w.data); }
  template <class T>
  void operator()(std::optional<T>& optional) {
    if (optional) (*this)(*optional);
  }

 private:
  const StagedOps& ops_;
};

/// Forgets the ranges at the end of a call, unless they are to be kept.
class StagedOps::Forgetter {
 public:
  explicit Forgetter(StagedOps& ops) : ops_(ops) {}
  ~Forgetter() {
    if (!ops_.keeps_copies_) ops_.ranges_.clear();
  }
  Forgetter(const Forgetter&) = delete;
  Forgetter& operator=(const Forgetter&) = delete;

 private:
  StagedOps& ops_;
};

template <class Arguments, class EachRange, class Run>
void StagedOps::stage(Arguments arguments, EachRange each_range, Run run) {
  const std::lock_guard lock(mutex_);
  // Also when a call fails: later memory at the same addresses is not this.
  const Forgetter forgetter(*this);
  each_range(arguments, Adder(*this));
  upload_ranges();
  each_range(arguments, Mapper(*this));
  run(arguments, device_->stream());
  if (!keeps_copies_) download_ranges();
}

namespace {

/// What a product refers to, gated or not.
constexpr auto kEachRangeOfGemm = [](GemmArguments& a, auto each) {
  each(a.x);
  each(a.weight);
  each(a.bias);
  each(a.out);
};

/// That the block table must have: as many as the tokens' sequences.
std::size_t num_sequences(const RopeAppendArguments& a) {
  std::int64_t sequences = 0;
  for (std::int64_t t = 0; t < a.q.rows; ++t)
    sequences = std::max<std::int64_t>(sequences, a.sequences[t] + 1);
  return static_cast<std::size_t>(sequences);
}

/// What rope_append refers to; its block table has rows for `sequences`.
constexpr auto kEachRangeOfRopeAppend = [](RopeAppendArguments& a, std::size_t sequences, auto each) {
  KvCacheView& c = a.cache;
  const std::size_t tokens = static_cast<std::size_t>(a.q.rows);
  const std::int64_t cache_elements = (c.num_pages - 1) * c.page_stride + (c.page_size - 1) * c.token_stride +
                                      (a.num_kv_heads - 1) * c.head_stride + a.head_dim;
  const std::size_t cache_bytes = dtype_bytes(c.dtype, static_cast<std::size_t>(cache_elements));
  each(a.q);
  each(a.k);
  each(a.v);
  each(a.positions, tokens * 4);
  each(a.sequences, tokens * 4);
  each(a.inverse_frequencies, static_cast<std::size_t>(a.num_pairs) * 4);
  each(c.k, cache_bytes);
  each(c.v, cache_bytes);
  each(c.block_table, sequences * static_cast<std::size_t>(c.block_table_stride) * 4);
};

}  // namespace

void StagedOps::embedding(const EmbeddingArguments& given, Stream) {
  validate(given);
  stage(
      given,
      [](EmbeddingArguments& a, auto each) {
        each(a.tokens, static_cast<std::size_t>(a.out.rows) * 4);
        each(a.table);
        each(a.out);
      },
      [&](const EmbeddingArguments& a, Stream stream) { device_->embedding(a, stream); });
}

void StagedOps::rms_norm(const RmsNormArguments& given, Stream) {
  validate(given);
  stage(
      given,
      [](RmsNormArguments& a, auto each) {
        const std::int64_t other_heads = a.heads > 1 ? (a.heads - 1) * a.head_stride : 0;
        each(a.x, other_heads);
        each(a.out, other_heads);
        each(a.residual);
        each(a.weight);
      },
      [&](const RmsNormArguments& a, Stream stream) { device_->rms_norm(a, stream); });
}

void StagedOps::layer_norm(const LayerNormArguments& given, Stream) {
  validate(given);
  stage(
      given,
      [](LayerNormArguments& a, auto each) {
        const std::int64_t other_heads = a.heads > 1 ? (a.heads - 1) * a.head_stride : 0;
        each(a.x, other_heads);
        each(a.out, other_heads);
        each(a.residual);
        each(a.weight);
        each(a.bias);
      },
      [&](const LayerNormArguments& a, Stream stream) { device_->layer_norm(a, stream); });
}

void StagedOps::gemm(const GemmArguments& given, Stream) {
  validate(given);
  stage(given, kEachRangeOfGemm, [&](const GemmArguments& a, Stream stream) { device_->gemm(a, stream); });
}

void StagedOps::gated_gemm(const GemmArguments& given, GatedActivation activation, Stream) {
  stage(given, kEachRangeOfGemm,
        [&](const GemmArguments& a, Stream stream) { device_->gated_gemm(a, activation, stream); });
}

void StagedOps::normed_gemm(const NormedGemmArguments& given, Stream) {
  validate(given);
  if (given.rope) validate_contents(*given.rope);
  const std::size_t sequences = given.rope ? num_sequences(*given.rope) : 0;
  stage(
      given,
      [sequences](NormedGemmArguments& a, auto each) {
        kEachRangeOfGemm(a.gemm, each);
        if (a.lower) {
          each(a.lower->weight);
          each(a.lower->bias);
        }
        each(a.norm_weight);
        if (a.rope) kEachRangeOfRopeAppend(*a.rope, sequences, each);
      },
      [&](const NormedGemmArguments& a, Stream stream) { device_->normed_gemm(a, stream); });
}

void StagedOps::rope(const RopeArguments& given, Stream) {
  validate(given);
  stage(
      given,
      [](RopeArguments& a, auto each) {
        each(a.x);
        each(a.positions, static_cast<std::size_t>(a.x.rows) * 4);
        each(a.inverse_frequencies, static_cast<std::size_t>(a.num_pairs) * 4);
      },
      [&](const RopeArguments& a, Stream stream) { device_->rope(a, stream); });
}

void StagedOps::rope_append(const RopeAppendArguments& given, Stream) {
  validate(given);
  validate_contents(given);
  const std::size_t sequences = num_sequences(given);
  stage(
      given, [sequences](RopeAppendArguments& a, auto each) { kEachRangeOfRopeAppend(a, sequences, each); },
      [&](const RopeAppendArguments& a, Stream stream) { device_->rope_append(a, stream); });
}

void StagedOps::gated_activation(const GatedActivationArguments& given, Stream) {
  validate(given);
  stage(
      given,
      [](GatedActivationArguments& a, auto each) {
        each(a.gate);
        each(a.up);
        each(a.out);
      },
      [&](const GatedActivationArguments& a, Stream stream) { device_->gated_activation(a, stream); });
}

namespace {

/// What a routing of so many slots refers to.
constexpr auto kEachRangeOfRouting = [](ExpertRouting& r, std::int64_t slots, auto each) {
  const std::size_t bytes = static_cast<std::size_t>(slots) * 4;
  each(r.experts, bytes);
  each(r.weights, bytes);
  each(r.order, bytes);
  each(r.offsets, (static_cast<std::size_t>(r.num_experts) + 1) * 4);
};

}  // namespace

void StagedOps::route_experts(const RouteExpertsArguments& given, Stream) {
  validate(given);
  stage(
      given,
      [](RouteExpertsArguments& a, auto each) {
        each(a.logits);
        each(a.score_bias, static_cast<std::size_t>(a.routing.num_experts) * sizeof(float));
        each(a.expert_scales, static_cast<std::size_t>(a.routing.num_experts) * sizeof(float));
        kEachRangeOfRouting(a.routing, a.logits.rows * a.routing.num_slots, each);
      },
      [&](const RouteExpertsArguments& a, Stream stream) { device_->route_experts(a, stream); });
}

void StagedOps::expert_gemm(const ExpertGemmArguments& given, Stream) {
  validate(given);
  validate_contents(given);
  stage(
      given,
      [](ExpertGemmArguments& a, auto each) {
        each(a.x);
        each(a.weight);
        each(a.bias);
        each(a.out);
        kEachRangeOfRouting(a.routing, num_slots_in_all(a), each);
      },
      [&](const ExpertGemmArguments& a, Stream stream) { device_->expert_gemm(a, stream); });
}

void StagedOps::combine_experts(const CombineExpertsArguments& given, Stream) {
  validate(given);
  stage(
      given,
      [](CombineExpertsArguments& a, auto each) {
        each(a.x);
        each(a.weights, static_cast<std::size_t>(a.x.rows) * 4);
        each(a.out);
      },
      [&](const CombineExpertsArguments& a, Stream stream) { device_->combine_experts(a, stream); });
}

namespace {

/// What `sequences` refers to, and `state`, of `floats` numbers a slot.
template <class Each>
void each_of_sequences(SequenceRows& sequences, float*& state, std::int64_t floats, Each& each) {
  const auto batch = static_cast<std::size_t>(sequences.batch);
  each(sequences.cu_seqlens, (batch + 1) * 4);
  each(sequences.seq_lens, batch * 4);
  each(sequences.slots, batch * 4);
  each(state, static_cast<std::size_t>(sequences.num_slots * floats) * 4);
}

}  // namespace

void StagedOps::causal_conv(const CausalConvArguments& given, Stream) {
  validate(given);
  validate_contents(given);
  stage(
      given,
      [](CausalConvArguments& a, auto each) {
        each(a.x);
        each(a.x_gate);
        each(a.out_gate);
        each(a.weight);
        each(a.bias);
        each(a.out);
        each_of_sequences(a.sequences, a.state, (a.weight.rows - 1) * a.x.columns, each);
      },
      [&](const CausalConvArguments& a, Stream stream) { device_->causal_conv(a, stream); });
}

void StagedOps::gated_delta(const GatedDeltaArguments& given, Stream) {
  validate(given);
  validate_contents(given);
  stage(
      given,
      [](GatedDeltaArguments& a, auto each) {
        for (Matrix* m : {&a.q, &a.k, &a.v, &a.a, &a.b, &a.out}) each(*m);
        each(a.a_log);
        each(a.dt_bias);
        each_of_sequences(a.sequences, a.state, a.v.columns * a.key_dim, each);
      },
      [&](const GatedDeltaArguments& a, Stream stream) { device_->gated_delta(a, stream); });
}

void StagedOps::softmax(const SoftmaxArguments& given, Stream) {
  validate(given);
  stage(
      given,
      [](SoftmaxArguments& a, auto each) {
        each(a.x);
        each(a.out);
      },
      [&](const SoftmaxArguments& a, Stream stream) { device_->softmax(a, stream); });
}

void StagedOps::scale(const ScaleArguments& given, Stream) {
  validate(given);
  stage(
      given, [](ScaleArguments& a, auto each) { each(a.x); },
      [&](const ScaleArguments& a, Stream stream) { device_->scale(a, stream); });
}

void StagedOps::softcap(const SoftcapArguments& given, Stream) {
  validate(given);
  stage(
      given, [](SoftcapArguments& a, auto each) { each(a.x); },
      [&](const SoftcapArguments& a, Stream stream) { device_->softcap(a, stream); });
}

void StagedOps::causal_mask(const CausalMaskArguments& given, Stream) {
  validate(given);
  stage(
      given, [](CausalMaskArguments& a, auto each) { each(a.x); },
      [&](const CausalMaskArguments& a, Stream stream) { device_->causal_mask(a, stream); });
}

void StagedOps::adjust_logits(const AdjustLogitsArguments& given, Stream) {
  validate(given);
  validate_contents(given);
  const std::size_t batch = static_cast<std::size_t>(given.logits.rows);
  const std::size_t biases =
      given.bias_offsets == nullptr ? 0 : static_cast<std::size_t>(given.bias_offsets[batch]);
  std::int32_t masks = 0;
  if (given.mask_rows != nullptr) {
    for (std::size_t s = 0; s < batch; ++s) masks = std::max(masks, given.mask_rows[s] + 1);
  }
  stage(
      given,
      [=](AdjustLogitsArguments& a, auto each) {
        each(a.logits);
        each(a.out);
        each(a.masks, static_cast<std::size_t>(masks * a.mask_stride) * 4);
        each(a.mask_rows, batch * 4);
        each(a.biases, biases * sizeof(LogitBias));
        each(a.bias_offsets, (batch + 1) * 4);
      },
      [&](const AdjustLogitsArguments& a, Stream stream) { device_->adjust_logits(a, stream); });
}

void StagedOps::logprobs(const LogprobsArguments& given, Stream) {
  validate(given);
  stage(
      given,
      [](LogprobsArguments& a, auto each) {
        const std::size_t batch = static_cast<std::size_t>(a.logits.rows);
        const std::size_t top = batch * static_cast<std::size_t>(a.num_top);
        each(a.logits);
        each(a.tokens, batch * 4);
        each(a.logprobs, batch * 4);
        each(a.top_tokens, top * 4);
        each(a.top_logprobs, top * 4);
      },
      [&](const LogprobsArguments& a, Stream stream) { device_->logprobs(a, stream); });
}

void StagedOps::sample(const SampleArguments& given, Stream) {
  validate(given);
  validate_contents(given);
  stage(
      given,
      [](SampleArguments& a, auto each) {
        const std::size_t batch = static_cast<std::size_t>(a.logits.rows);
        each(a.logits);
        each(a.parameters, batch * sizeof(SamplingParameters));
        each(a.steps, batch * sizeof(std::int64_t));
        each(a.history, batch * static_cast<std::size_t>(a.history_stride) * 4);
        each(a.history_lens, batch * 4);
        each(a.tokens, batch * 4);
      },
      [&](const SampleArguments& a, Stream stream) { device_->sample(a, stream); });
}

}  // namespace tessera
