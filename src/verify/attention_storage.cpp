// Puts the numbers of a case where its layout and storage say, with everything around them poisoned.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "core/element.h"
#include "core/rounding.h"
#include "verify/attention_data.h"

namespace tessera {
namespace {

constexpr std::size_t kFenceBytes = 256;
constexpr std::int64_t kSparePages = 3;

struct Strides {
  std::int64_t outer = 0, token = 0, head = 0;
  std::int64_t elements = 0;  ///< from the first to just past the last
};

/// outer: sequences, pages, or 1 for ragged tokens.
Strides make_strides(StrideStyle style, std::int64_t outer, std::int64_t tokens, std::int64_t heads,
                     std::int64_t head_dim) {
  Strides s;
  switch (style) {
    case StrideStyle::kBatchSeqHeads:
      s = {tokens * heads * head_dim, heads * head_dim, head_dim, 0};
      break;
    case StrideStyle::kBatchHeadsSeq:
      s = {heads * tokens * head_dim, head_dim, tokens * head_dim, 0};
      break;
    case StrideStyle::kPacked: {
      const std::int64_t row = heads * head_dim + 2 * head_dim;
      s = {tokens * row, row, head_dim, 0};
      break;
    }
    case StrideStyle::kOdd: {
      const std::int64_t head = head_dim + 3, token = heads * head + 5;
      s = {tokens * token + 7, token, head, 0};
      break;
    }
  }
  if (outer > 0 && tokens > 0) {
    s.elements = (outer - 1) * s.outer + (tokens - 1) * s.token + (heads - 1) * s.head + head_dim;
  }
  return s;
}

class Builder {
 public:
  explicit Builder(const AttentionData& data) : data_(data), c_(data.description) {}

  AttentionStorage build() {
    describe();
    place_sequences();
    store_inputs();
    store_terms();
    prepare_outputs();
    return std::move(storage_);
  }

 private:
  void describe() {
    AttentionProblem& p = storage_.problem;
    p.batch = c_.batch;
    p.seq_len_q = c_.seq_len_q;
    p.seq_len_kv = c_.seq_len_kv;
    p.num_heads = c_.num_heads;
    p.num_kv_heads = c_.num_kv_heads;
    p.head_dim_qk = c_.head_dim_qk;
    p.head_dim_v = c_.head_dim_v;
    p.batch_invariant = c_.batch_invariant;
  }

  /// A blob of 0xff bytes; elements start at a multiple of 64 bytes, or off by one element if odd.
  Blob& add_blob(std::size_t size_bytes, std::size_t element_bytes, bool odd) {
    Blob blob;
    blob.offset = kFenceBytes + (odd ? element_bytes : 0);
    blob.bytes.assign(blob.offset + size_bytes + kFenceBytes, std::byte{0xff});
    storage_.blobs.push_back(std::move(blob));
    return storage_.blobs.back();
  }

  template <class T>
  const T* add_array(const std::vector<T>& values) {
    Blob& blob = add_blob(values.size() * sizeof(T), sizeof(T), false);
    if (!values.empty()) std::memcpy(blob.data(), values.data(), values.size() * sizeof(T));
    return reinterpret_cast<const T*>(blob.data());
  }

  /// Where each sequence's tokens are: fills in ragged, paged and padded descriptions.
  void place_sequences() {
    AttentionProblem& p = storage_.problem;
    if (!c_.lens_q.empty()) {
      std::vector<std::int32_t> cu{0};
      for (const std::int64_t len : c_.lens_q) cu.push_back(cu.back() + static_cast<std::int32_t>(len));
      q_begin_.assign(cu.begin(), cu.end());
      p.ragged_q = RaggedTokens{add_array(cu), cu.back()};
    }
    const std::vector<std::int32_t> lens(c_.lens_kv.begin(), c_.lens_kv.end());
    switch (c_.kv_storage) {
      case KvStorage::kDense:
        break;
      case KvStorage::kPadded:
        p.seq_lens_kv = add_array(lens);
        break;
      case KvStorage::kRagged: {
        std::vector<std::int32_t> cu{0};
        for (const std::int32_t len : lens) cu.push_back(cu.back() + len);
        kv_begin_.assign(cu.begin(), cu.end());
        p.ragged_kv = RaggedTokens{add_array(cu), cu.back()};
        break;
      }
      case KvStorage::kPaged:
        place_pages(lens);
        break;
    }
  }

  void place_pages(const std::vector<std::int32_t>& lens) {
    const std::int64_t page_size = c_.page_size;
    const auto pages_of = [&](std::int64_t len) { return (len + page_size - 1) / page_size; };
    std::int64_t used = 0;
    for (const std::int32_t len : lens) used += pages_of(len);
    std::vector<std::int32_t> order(static_cast<std::size_t>(used + kSparePages));
    for (std::size_t n = 0; n < order.size(); ++n) order[n] = static_cast<std::int32_t>(n);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(3));

    const std::int64_t max_pages = pages_of(c_.seq_len_kv), row = max_pages + 2;
    pages_.assign(static_cast<std::size_t>(row * c_.batch), 0);
    for (std::size_t n = 0; n < pages_.size(); ++n)
      pages_[n] = n % 2 == 0 ? 0x7fffffff : -12345;  // never to be read
    std::size_t next = 0;
    for (std::size_t b = 0; b < lens.size(); ++b) {
      for (std::int64_t n = 0; n < pages_of(lens[b]); ++n) {
        pages_[b * static_cast<std::size_t>(row) + static_cast<std::size_t>(n)] = order[next++];
      }
    }
    PagedKv paged;
    paged.block_table = add_array(pages_);
    paged.seq_lens_kv = add_array(lens);
    paged.block_table_stride = row;
    paged.num_pages = used + kSparePages;
    paged.max_pages_per_seq = static_cast<int>(max_pages);
    paged.page_size = c_.page_size;
    storage_.problem.paged_kv = paged;
  }

  std::int64_t q_token(std::int64_t b, std::int64_t i, const Strides& s) const {
    return c_.lens_q.empty() ? b * s.outer + i * s.token
                             : (q_begin_[static_cast<std::size_t>(b)] + i) * s.token;
  }

  std::int64_t kv_token(std::int64_t b, std::int64_t j, const Strides& s) const {
    if (c_.kv_storage == KvStorage::kRagged) return (kv_begin_[static_cast<std::size_t>(b)] + j) * s.token;
    if (c_.kv_storage == KvStorage::kPaged) {
      const std::int64_t row = storage_.problem.paged_kv->block_table_stride;
      const std::int32_t page = pages_[static_cast<std::size_t>(b * row + j / c_.page_size)];
      return page * s.outer + j % c_.page_size * s.token;
    }
    return c_.shared_kv ? j * s.token : b * s.outer + j * s.token;
  }

  Strides q_strides(std::int64_t head_dim) const {
    if (c_.lens_q.empty()) return make_strides(c_.strides, c_.batch, c_.seq_len_q, c_.num_heads, head_dim);
    return make_strides(c_.strides, 1, storage_.problem.ragged_q->total_tokens, c_.num_heads, head_dim);
  }

  Strides kv_strides(std::int64_t head_dim) const {
    const AttentionProblem& p = storage_.problem;
    std::int64_t outer = c_.shared_kv ? std::min<std::int64_t>(1, c_.batch) : c_.batch,
                 tokens = c_.seq_len_kv;
    if (p.ragged_kv) outer = 1, tokens = p.ragged_kv->total_tokens;
    if (p.paged_kv) outer = p.paged_kv->num_pages, tokens = c_.page_size;
    return make_strides(c_.strides, outer, tokens, c_.num_kv_heads, head_dim);
  }

  /// Stores rows of `head_dim` numbers in the order token, head; token_offset(b, t) is a token's first
  /// element, scale(b, t, h) what a row's stored numbers are multiplied by.
  template <class TokenOffset, class Scale>
  AttentionInput store(const std::vector<double> SequenceData::*numbers, std::int64_t SequenceData::*length,
                       DType dtype, int heads, int head_dim, const Strides& s, std::int64_t outer_stride,
                       TokenOffset&& token_offset, Scale&& scale) {
    const std::size_t element = dtype_bytes(dtype, 1);
    Blob& blob =
        add_blob(static_cast<std::size_t>(s.elements) * element, element, c_.strides == StrideStyle::kOdd);
    dispatch_stored(dtype, [&]<class T>() {
      T* base = reinterpret_cast<T*>(blob.data());
      for (std::int64_t b = 0; b < c_.batch; ++b) {
        const SequenceData& sequence = data_.sequences[static_cast<std::size_t>(b)];
        const double* from = (sequence.*numbers).data();
        for (std::int64_t t = 0; t < sequence.*length; ++t) {
          for (int h = 0; h < heads; ++h) {
            T* row = base + token_offset(b, t) + h * s.head;
            const double factor = scale(b, t, h);
            for (int d = 0; d < head_dim; ++d) row[d] = round_to<T>(*from++ / factor);
          }
        }
      }
    });
    return {blob.data(), dtype, outer_stride, s.token, s.head};
  }

  /// Scales where KvScales looks for them, in a gap of NaN.
  const float* store_scales(const std::vector<float>& scales) {
    const AttentionProblem& p = storage_.problem;
    const KvScales& strides = *p.kv_scales;
    const std::int64_t outer = strides.batch_stride == 0 ? 1 : p.paged_kv ? p.paged_kv->num_pages : c_.batch;
    const std::int64_t heads = strides.head_stride == 0 ? 1 : c_.num_kv_heads;
    Blob& blob =
        add_blob(static_cast<std::size_t>(outer * std::max(strides.batch_stride, heads)) * 4, 4, false);
    float* to = reinterpret_cast<float*>(blob.data());
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      for (std::int64_t j = 0; j < data_.sequences[static_cast<std::size_t>(b)].len_kv; ++j) {
        std::int64_t row = p.ragged_kv ? 0 : b;
        if (p.paged_kv) {
          row = pages_[static_cast<std::size_t>(b * p.paged_kv->block_table_stride + j / c_.page_size)];
        }
        for (int h = 0; h < c_.num_kv_heads; ++h) {
          to[row * strides.batch_stride + h * strides.head_stride] = scales[data_.kv_scale_index(b, j, h)];
        }
      }
    }
    return to;
  }

  void store_kv_scales() {
    if (c_.kv_scaling == KvScaling::kNone) return;
    KvScales& scales = storage_.problem.kv_scales.emplace();
    const bool per_page =
        c_.kv_scaling == KvScaling::kPageHead && !c_.shared_kv && c_.kv_storage != KvStorage::kRagged;
    scales.head_stride = c_.kv_scaling == KvScaling::kTensor ? 0 : 1;
    scales.batch_stride = per_page ? c_.num_kv_heads + 2 : 0;
    scales.k = store_scales(data_.k_scales);
    scales.v = store_scales(data_.v_scales);
  }

  /// As store_scales, where QScales looks for them.
  void store_q_scales() {
    if (data_.q_scales.empty()) return;
    QScales& scales = storage_.problem.q_scales.emplace();
    scales.head_stride = c_.q_scaling == KvScaling::kTensor ? 0 : 2;
    scales.batch_stride = c_.q_scaling == KvScaling::kPageHead ? 2 * c_.num_kv_heads + 1 : 0;
    const std::int64_t elements = std::max<std::int64_t>(c_.batch, 1) * (2 * c_.num_kv_heads + 1);
    Blob& blob = add_blob(static_cast<std::size_t>(elements) * 4, 4, false);
    float* to = reinterpret_cast<float*>(blob.data());
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      for (int h = 0; h < c_.num_kv_heads; ++h)
        to[b * scales.batch_stride + h * scales.head_stride] = static_cast<float>(data_.q_scale(b, h));
    }
    scales.q = to;
  }

  void store_inputs() {
    AttentionProblem& p = storage_.problem;
    const Strides q = q_strides(c_.head_dim_qk), k = kv_strides(c_.head_dim_qk),
                  v = kv_strides(c_.head_dim_v);
    const DType kv_dtype = c_.kv_dtype.value_or(c_.dtype);
    p.q = store(
        &SequenceData::q, &SequenceData::len_q, c_.narrow_q ? kv_dtype : c_.dtype, c_.num_heads,
        c_.head_dim_qk, q, q.outer, [&](std::int64_t b, std::int64_t i) { return q_token(b, i, q); },
        [&](std::int64_t b, std::int64_t, int h) {
          return data_.q_scale(b, h / (c_.num_heads / c_.num_kv_heads));
        });
    store_q_scales();
    p.k = store(
        &SequenceData::k, &SequenceData::len_kv, kv_dtype, c_.num_kv_heads, c_.head_dim_qk, k,
        c_.shared_kv ? 0 : k.outer, [&](std::int64_t b, std::int64_t j) { return kv_token(b, j, k); },
        [&](std::int64_t b, std::int64_t j, int h) { return data_.k_scale(b, j, h); });
    if (c_.values_in_keys) {
      p.v = p.k;
      store_kv_scales();
      return;
    }
    p.v = store(
        &SequenceData::v, &SequenceData::len_kv, kv_dtype, c_.num_kv_heads, c_.head_dim_v, v,
        c_.shared_kv ? 0 : v.outer, [&](std::int64_t b, std::int64_t j) { return kv_token(b, j, v); },
        [&](std::int64_t b, std::int64_t j, int h) { return data_.v_scale(b, j, h); });
    store_kv_scales();
  }

  ScoreMask store_mask(const MaskValues& mask, const MaskRecipe& recipe) {
    const std::size_t element = dtype_bytes(recipe.dtype, 1);
    // A gap after each row; what no query or key of a sequence reaches stays poisoned.
    const std::int64_t row =
        recipe.is_aligned ? round_up(mask.keys * recipe.kv_stride + 1, 16) : mask.keys * recipe.kv_stride + 3;
    const std::int64_t plane = mask.queries * row + (recipe.is_aligned ? 16 : 1);
    Blob& blob = add_blob(static_cast<std::size_t>(mask.batches * mask.heads * plane) * element, element,
                          !recipe.is_aligned);
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      const SequenceData& s = data_.sequences[static_cast<std::size_t>(b)];
      for (std::int64_t h = 0; h < mask.heads; ++h) {
        for (std::int64_t i = 0; i < std::min(mask.queries, s.len_q); ++i) {
          for (std::int64_t j = 0; j < s.len_kv; ++j) {
            const std::int64_t index =
                (b % mask.batches * mask.heads + h) * plane + i * row + j * recipe.kv_stride;
            const double value = mask.at(b, h, i, j);
            if (element == 1) {
              blob.data()[index] = value == 0 ? std::byte{0} : std::byte{1};
            } else {
              store_element(blob.data(), recipe.dtype, index, value);
            }
          }
        }
      }
    }
    return {blob.data(),
            recipe.dtype,
            recipe.per_batch ? mask.heads * plane : 0,
            recipe.per_head ? plane : 0,
            recipe.per_query ? row : 0,
            recipe.kv_stride};
  }

  /// The texts, and the tensors that they name.
  void store_modifier(ScoreModifier& modifier) {
    modifier = modifier_example_text(c_.modifier);
    const auto names = [&](const char* name) {
      return (modifier.score + modifier.visible).find(std::string(name) + "[") != std::string::npos;
    };
    const auto capture = [&](const char* name, DType dtype, std::int64_t rows, std::int64_t columns,
                             const auto& number) {
      if (!names(name)) return;
      using Number = decltype(number(std::int64_t{0}, std::int64_t{0}));
      std::vector<Number> numbers;
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t column = 0; column < columns; ++column) numbers.push_back(number(row, column));
      }
      CapturedTensor& tensor = modifier.tensors.emplace_back();
      tensor.name = name;
      tensor.data = add_array(numbers);
      tensor.dtype = dtype;
      if (rows > 1 || std::string_view(name) == "tree" || std::string_view(name) == "bias") {
        tensor.sizes = {rows, columns};
        tensor.strides = {columns, 1};
      } else {
        tensor.sizes = {columns};
        tensor.strides = {1};
      }
    };
    const std::int64_t batch = std::max<std::int64_t>(c_.batch, 1),
                       queries = std::max<std::int64_t>(c_.seq_len_q, 1);
    const std::int64_t tokens = std::max(queries, c_.seq_len_kv);
    capture("doc", DType::kI32, 1, tokens, [](std::int64_t, std::int64_t j) { return document_of(j); });
    capture("prefix", DType::kI32, 1, batch, [](std::int64_t, std::int64_t b) { return prefix_of(b); });
    capture("tree", DType::kI32, batch, queries,
            [](std::int64_t b, std::int64_t i) { return tree_word(b, i); });
    capture("slope", DType::kF32, 1, c_.num_heads,
            [](std::int64_t, std::int64_t h) { return slope_of(static_cast<int>(h)); });
    capture("bias", DType::kF32, c_.num_heads, 32,
            [](std::int64_t h, std::int64_t n) { return bias_of(static_cast<int>(h), n); });
  }

  void store_terms() {
    ScoreTerms& terms = storage_.problem.scores;
    terms.softmax_scale = c_.softmax_scale;
    terms.softcap = c_.softcap;
    terms.diagonal = c_.diagonal;
    if (c_.alibi) {
      terms.alibi = AlibiBias{add_array(data_.alibi_slopes), c_.alibi_per_batch ? c_.num_heads : 0};
    }
    if (c_.sinks) terms.sinks = AttentionSinks{add_array(data_.sinks)};
    if (c_.additive_mask) terms.additive_mask = store_mask(data_.additive_mask, *c_.additive_mask);
    if (c_.boolean_mask) terms.boolean_mask = store_mask(data_.boolean_mask, *c_.boolean_mask);
    if (c_.modifier != ModifierExample::kNone) store_modifier(terms.modifier.emplace());
  }

  void prepare_outputs() {
    AttentionProblem& p = storage_.problem;
    const Strides s = q_strides(c_.head_dim_v);
    const bool odd = c_.strides == StrideStyle::kOdd;
    const std::size_t element = dtype_bytes(c_.dtype, 1);
    storage_.o_blob = storage_.blobs.size();
    Blob& o = add_blob(static_cast<std::size_t>(s.elements) * element, element, odd);
    p.o = {o.data(), c_.dtype, s.outer, s.token, s.head};
    o.is_output = true;
    o.written.resize(o.bytes.size());

    // Odd: queries outermost, with gaps, where usually they are innermost.
    const std::int64_t tokens = p.ragged_q ? p.ragged_q->total_tokens : c_.seq_len_q;
    const std::int64_t lse_head = odd ? 2 : tokens, lse_seq = odd ? 2 * c_.num_heads + 1 : 1;
    const std::int64_t lse_batch = odd ? tokens * lse_seq : c_.num_heads * tokens;
    const std::int64_t lse_elements = (p.ragged_q ? 1 : c_.batch) * lse_batch;
    storage_.lse_blob = storage_.blobs.size();
    Blob* lse = nullptr;
    if (c_.with_lse) {
      lse = &add_blob(static_cast<std::size_t>(lse_elements) * sizeof(float), sizeof(float), odd);
      p.lse = LseOutput{reinterpret_cast<float*>(lse->data()), lse_batch, lse_head, lse_seq};
      lse->is_output = true;
      lse->written.resize(lse->bytes.size());
    }
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      for (std::int64_t i = 0; i < data_.sequences[static_cast<std::size_t>(b)].len_q; ++i) {
        for (int h = 0; h < c_.num_heads; ++h) {
          const std::int64_t row = q_token(b, i, s) + h * s.head;
          storage_.o_offsets.push_back(row);
          mark_written(storage_.blobs[storage_.o_blob], row, c_.head_dim_v, element);
          const std::int64_t token = c_.lens_q.empty()
                                         ? b * lse_batch + i * lse_seq
                                         : (q_begin_[static_cast<std::size_t>(b)] + i) * lse_seq;
          storage_.lse_offsets.push_back(token + h * lse_head);
          if (lse != nullptr) {
            mark_written(storage_.blobs[storage_.lse_blob], storage_.lse_offsets.back(), 1, sizeof(float));
          }
        }
      }
    }
  }

  static void mark_written(Blob& blob, std::int64_t first, std::int64_t count, std::size_t element) {
    const auto begin = blob.written.begin() + static_cast<std::ptrdiff_t>(blob.offset) +
                       first * static_cast<std::int64_t>(element);
    std::fill_n(begin, count * static_cast<std::int64_t>(element), true);
  }

  const AttentionData& data_;
  const AttentionCase& c_;
  AttentionStorage storage_;
  std::vector<std::int64_t> q_begin_, kv_begin_;  ///< of ragged sequences
  std::vector<std::int32_t> pages_;               ///< the block table
};

}  // namespace

AttentionStorage store_attention_data(const AttentionData& data) { return Builder(data).build(); }

}  // namespace tessera
