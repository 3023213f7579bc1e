#include "ops/staged_ops.h"

#include <algorithm>
#include <cstddef>

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

void StagedOps::add(const Matrix& m) {
  if (m.rows == 0) return;
  add(m.data, dtype_bytes(m.dtype, static_cast<std::size_t>((m.rows - 1) * m.row_stride + m.columns)));
}

void StagedOps::add(const Weight& w) {
  add(w.data, static_cast<std::size_t>(w.rows) * dtype_bytes(w.dtype, static_cast<std::size_t>(w.columns)));
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

template <class T>
void StagedOps::map(T*& pointer) const {
  if (pointer == nullptr) return;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  auto found = ranges_.upper_bound(address);
  if (found == ranges_.begin()) return;
  --found;
  if (address < found->second.end)
    pointer = reinterpret_cast<T*>(found->second.device + (address - found->first));
}

void StagedOps::finish() {
  if (keeps_copies_) return;
  for (auto& [begin, range] : ranges_) {
    device_->download(reinterpret_cast<void*>(begin), range.device, range.end - begin, device_->stream());
  }
  ranges_.clear();
}

void StagedOps::embedding(const EmbeddingArguments& given, Stream) {
  const std::lock_guard lock(mutex_);
  EmbeddingArguments a = given;
  validate(a);
  add(a.tokens, static_cast<std::size_t>(a.out.rows) * 4);
  add(a.table);
  add(a.out);
  upload_ranges();
  map(a.tokens);
  map(a.table);
  map(a.out);
  device_->embedding(a, device_->stream());
  finish();
}

void StagedOps::rms_norm(const RmsNormArguments& given, Stream) {
  const std::lock_guard lock(mutex_);
  RmsNormArguments a = given;
  validate(a);
  for (Matrix m : {a.x, a.out}) {
    if (a.heads > 1) m.columns += (a.heads - 1) * a.head_stride;
    add(m);
  }
  if (a.residual) add(*a.residual);
  add(a.weight);
  upload_ranges();
  map(a.x);
  map(a.out);
  if (a.residual) map(*a.residual);
  map(a.weight);
  device_->rms_norm(a, device_->stream());
  finish();
}

void StagedOps::gemm(const GemmArguments& given, Stream) {
  const std::lock_guard lock(mutex_);
  GemmArguments a = given;
  validate(a);
  add(a.x);
  add(a.weight);
  if (a.bias) add(*a.bias);
  add(a.out);
  upload_ranges();
  map(a.x);
  map(a.weight);
  if (a.bias) map(*a.bias);
  map(a.out);
  device_->gemm(a, device_->stream());
  finish();
}

bool StagedOps::gated_gemm(const GemmArguments& given, GatedActivation activation, Stream) {
  const std::lock_guard lock(mutex_);
  GemmArguments a = given;
  add(a.x);
  add(a.weight);
  if (a.bias) add(*a.bias);
  add(a.out);
  upload_ranges();
  map(a.x);
  map(a.weight);
  if (a.bias) map(*a.bias);
  map(a.out);
  const bool done = device_->gated_gemm(a, activation, device_->stream());
  finish();
  return done;
}

void StagedOps::rope(const RopeArguments& given, Stream) {
  const std::lock_guard lock(mutex_);
  RopeArguments a = given;
  validate(a);
  add(a.x);
  add(a.positions, static_cast<std::size_t>(a.x.rows) * 4);
  add(a.inverse_frequencies, static_cast<std::size_t>(a.num_pairs) * 4);
  upload_ranges();
  map(a.x);
  map(a.positions);
  map(a.inverse_frequencies);
  device_->rope(a, device_->stream());
  finish();
}

void StagedOps::rope_append(const RopeAppendArguments& given, Stream) {
  const std::lock_guard lock(mutex_);
  RopeAppendArguments a = given;
  validate(a);
  validate_contents(a);
  KvCacheView& c = a.cache;
  for (const Matrix& m : {a.q, a.k, a.v}) add(m);
  const std::size_t tokens = static_cast<std::size_t>(a.q.rows);
  std::int64_t sequences = 0;
  for (std::size_t t = 0; t < tokens; ++t) sequences = std::max<std::int64_t>(sequences, a.sequences[t] + 1);
  add(a.positions, tokens * 4);
  add(a.sequences, tokens * 4);
  add(a.inverse_frequencies, static_cast<std::size_t>(a.num_pairs) * 4);
  const std::int64_t cache_elements = (c.num_pages - 1) * c.page_stride + (c.page_size - 1) * c.token_stride +
                                      (a.num_kv_heads - 1) * c.head_stride + a.head_dim;
  add(c.k, dtype_bytes(c.dtype, static_cast<std::size_t>(cache_elements)));
  add(c.v, dtype_bytes(c.dtype, static_cast<std::size_t>(cache_elements)));
  add(c.block_table, static_cast<std::size_t>(sequences * c.block_table_stride) * 4);
  upload_ranges();
  for (Matrix* m : {&a.q, &a.k, &a.v}) map(*m);
  map(a.positions);
  map(a.sequences);
  map(a.inverse_frequencies);
  map(c.k);
  map(c.v);
  map(c.block_table);
  device_->rope_append(a, device_->stream());
  finish();
}

void StagedOps::gated_activation(const GatedActivationArguments& given, Stream) {
  const std::lock_guard lock(mutex_);
  GatedActivationArguments a = given;
  validate(a);
  for (const Matrix& m : {a.gate, a.up, a.out}) add(m);
  upload_ranges();
  for (Matrix* m : {&a.gate, &a.up, &a.out}) map(*m);
  device_->gated_activation(a, device_->stream());
  finish();
}

void StagedOps::softmax(const SoftmaxArguments& given, Stream) {
  const std::lock_guard lock(mutex_);
  SoftmaxArguments a = given;
  validate(a);
  add(a.x);
  add(a.out);
  upload_ranges();
  map(a.x);
  map(a.out);
  device_->softmax(a, device_->stream());
  finish();
}

void StagedOps::scale(const ScaleArguments& given, Stream) {
  const std::lock_guard lock(mutex_);
  ScaleArguments a = given;
  validate(a);
  add(a.x);
  upload_ranges();
  map(a.x);
  device_->scale(a, device_->stream());
  finish();
}

void StagedOps::causal_mask(const CausalMaskArguments& given, Stream) {
  const std::lock_guard lock(mutex_);
  CausalMaskArguments a = given;
  validate(a);
  add(a.x);
  upload_ranges();
  map(a.x);
  device_->causal_mask(a, device_->stream());
  finish();
}

void StagedOps::sample(const SampleArguments& given, Stream) {
  const std::lock_guard lock(mutex_);
  SampleArguments a = given;
  validate(a);
  validate_contents(a);
  const std::size_t batch = static_cast<std::size_t>(a.logits.rows);
  add(a.logits);
  add(a.parameters, batch * sizeof(SamplingParameters));
  add(a.steps, batch * sizeof(std::int64_t));
  if (a.history != nullptr) add(a.history, batch * static_cast<std::size_t>(a.history_stride) * 4);
  add(a.history_lens, batch * 4);
  add(a.tokens, batch * 4);
  upload_ranges();
  map(a.logits);
  map(a.parameters);
  map(a.steps);
  map(a.history);
  map(a.history_lens);
  map(a.tokens);
  device_->sample(a, device_->stream());
  finish();
}

}  // namespace tessera
