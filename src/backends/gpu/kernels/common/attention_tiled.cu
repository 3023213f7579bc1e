// o = softmax(softmax_scale * q k^T + terms) v by tiles in fp32, with no unit for matrices: for what no tuned
// kernel takes, on any GPU. FlashAttention-2: Dao (2023), algorithm 1.
//
// Grid and rows as block_work() of common/attention_block.cuh reads them. A block of 256 threads takes
// kBlockM rows, (query, head of the group) pairs, and tiles of 64 keys. For each tile
//   scores: queries and keys come 64 dims at a time through shared memory, widened to fp32; a thread has
//     products of 4 rows and 4 keys, of the dims too if there are few rows, whose sums are then joined;
//   weights: the products go through shared memory to threads that have a row each, or share one, and its
//     base and sum;
//   results: values come some keys at a time, all columns of them; a thread has the sums of 4 rows and some
//     columns, of the keys too if there are few rows.
// What is multiplied next is on its way to registers meanwhile.
//
// Defined by the build: TESSERA_DTYPE, TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of 64; the tensors'
// own may be smaller), TESSERA_BLOCK_M (4, 8, 16, 32 or 64), TESSERA_TERMS, TESSERA_MASK_DTYPE,
// TESSERA_VECTOR (1: rows are 16-byte aligned and head_dims multiples of 16 bytes), else
// TESSERA_PIECE_BYTES (that rows and head_dims are multiples of), TESSERA_SHARED_KIB (that a block may have),
// and TESSERA_KV_DTYPE=f8e4m3 for keys and values of 8 bits with any scales.

#include "common/tiled_results.cuh"

namespace tessera::kernels {

/// How kRows rows of kColumns elements are shared out on their way to shared memory: each thread has some
/// pieces.
template <class Element, int kRows, int kColumns>
struct SharedOut {
  static constexpr int kPiecesOfRow = kColumns / Piece<Element>::kElements;
  static constexpr int kPieces = kRows * kPiecesOfRow;
  static constexpr int kOfThread = (kPieces + kTiledAttentionThreads - 1) / kTiledAttentionThreads;
  static constexpr bool kIsWhole = kPieces % kTiledAttentionThreads == 0;         // each thread has as many
  static constexpr bool kHasColumn = kTiledAttentionThreads % kPiecesOfRow == 0;  // each has the same columns

  /// Calls use(number of the thread's piece, its row, its first column).
  template <class Use>
  TESSERA_DEVICE static void for_pieces(Use use) {
    constexpr int kElements = Piece<Element>::kElements;
    // The compiler, which knows how many threads there are, would divide in 16 bits.
    const int thread = static_cast<int>(as_word(static_cast<unsigned>(thread_x())));
    TESSERA_UNROLL
    for (int n = 0; n < kOfThread; ++n) {
      const int place = thread + n * kTiledAttentionThreads;
      if (!kIsWhole && place >= kPieces) break;
      if constexpr (kHasColumn) {
        use(n, thread / kPiecesOfRow + n * (kTiledAttentionThreads / kPiecesOfRow),
            thread % kPiecesOfRow * kElements);
      } else {
        use(n, place / kPiecesOfRow, place % kPiecesOfRow * kElements);
      }
    }
  }

  /// Columns [first, first + kColumns) of rows that begin at `offsets`, in shared memory, from `data` on;
  /// zeros for kNoRow, and from head_dim on.
  TESSERA_DEVICE static void load(const void* data, const int64* offsets, int first, int head_dim,
                                  Piece<Element>* pieces) {
    int64 offset[kOfThread];  // all of them before any load
    for_pieces([&](int n, int row, int) { offset[n] = offsets[row]; });
    for_pieces([&](int n, int, int column) {
      pieces[n].load(static_cast<const Element*>(data), offset[n], first + column, head_dim);
    });
  }
  TESSERA_DEVICE static void store(const Piece<Element>* pieces, float* to, int stride) {
    for_pieces([&](int n, int row, int column) { pieces[n].store(to + row * stride + column); });
  }
};

using SharedQueries = SharedOut<T, kBlockM, kTiledDims>;
using SharedKeys = SharedOut<Kv, kBlockN, kTiledDims>;
using SharedValues = SharedOut<Kv, kValueKeys, kHeadDimV>;
constexpr int kPiecesInFlight =
    SharedKeys::kOfThread > SharedValues::kOfThread ? SharedKeys::kOfThread : SharedValues::kOfThread;

/// Notes where a tile's keys and values are, and their scales. The first threads do it, a key each.
TESSERA_DEVICE void find_keys(const AttentionParams& p, const BlockWork& w, int first_key,
                              KeyPlaces& places) {
  const int n = thread_x();
  if (n >= kBlockN) return;
  const int j = first_key + n;
  const bool exists = j < w.sequence.len_kv;
  const auto offset_in = [&](const TensorArgument& x) {
    return exists ? kv_row<Kv>(p, x, w.sequence, w.b, w.kv_head, j) - static_cast<const Kv*>(x.data) : kNoRow;
  };
  places.k[n] = offset_in(p.k);
  places.v[n] = offset_in(p.v);
  if constexpr (HasKvScales<Kv>::kValue) {
    places.k_scale[n] =
        exists ? kv_scale(p, p.kv_scales.k, w.b, w.kv_head, j) * q_scale(p, w.b, w.kv_head) : 0.0f;
    places.v_scale[n] = exists ? kv_scale(p, p.kv_scales.v, w.b, w.kv_head, j) : 0.0f;
  }
}

/// products[n * 4 + i] += row i of the thread's queries times its key n, of its part of kTiledDims dims.
TESSERA_DEVICE void multiply_q_k(const float* queries, const float* keys, float (&products)[kProducts]) {
  TESSERA_UNROLL_BY(1)
  for (int d = 0; d < kTiledDims; d += 4 * kDimGroups) {
    Floats4 q[kThreadRows];
    TESSERA_UNROLL
    for (int i = 0; i < kThreadRows; ++i) q[i] = load_floats(queries + i * kLayout.query_stride + d);
    TESSERA_UNROLL
    for (int n = 0; n < kThreadKeys; ++n) {
      const Floats4 k = load_floats(keys + n * kKeyLanes * kKeyStride + d);
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) {
        TESSERA_UNROLL
        for (int i = 0; i < kThreadRows; ++i)
          products[n * kThreadRows + i] = fmaf(q[i].element[e], k.element[e], products[n * kThreadRows + i]);
      }
    }
  }
}

/// Adds what the threads of the same products have of them, and writes these as weights lie.
TESSERA_DEVICE void join_products(const ThreadPlace& t, float (&products)[kProducts], float* weights) {
  int first = 0;  // of the thread's own, of which it has fewer in each round
  TESSERA_UNROLL
  for (int mask = 1; mask < kDimGroups; mask *= 2) {
    const int half = kProducts / (2 * mask);
    const bool is_upper = (t.dim_group & mask) != 0;
    TESSERA_UNROLL
    for (int c = 0; c < kProducts / 2; ++c) {
      if (c >= half) break;
      const float others = is_upper ? products[c] : products[c + half];
      products[c] = (is_upper ? products[c + half] : products[c]) + shuffle_xor(others, mask);
    }
    if (is_upper) first += half;
  }
  constexpr int kOwn = kProducts / kDimGroups;
  constexpr int kAtOnce = kOwn < kThreadRows ? kOwn : kThreadRows;
  TESSERA_UNROLL
  for (int c = 0; c < kOwn; c += kAtOnce) {
    const int key = t.key_lane + (first + c) / kThreadRows * kKeyLanes;
    float* to = weights + key * kWeightStride + t.score_row + (first + c) % kThreadRows;
    if constexpr (kAtOnce == 4) {
      store_floats(to, {products[c], products[c + 1], products[c + 2], products[c + 3]});
    } else {
      TESSERA_UNROLL
      for (int e = 0; e < kAtOnce; ++e) to[e] = products[c + e];
    }
  }
}

/// Replaces a row's products by the weights exp(score - base), in natural units, as the plain loop has them.
/// The threads of a row call it together. weights: the row's first.
TESSERA_DEVICE void weigh(const AttentionParams& p, const BlockWork& w, const KeyPlaces& places,
                          int first_key, const TileRow& here, SoftmaxState& row, float* weights,
                          float& rescale) {
  const int lane = thread_x() % kRowThreads;
  float scores[kRowKeys];
  float top = row.base;
  TESSERA_UNROLL
  for (int n = 0; n < kRowKeys; ++n) {
    const int key = lane + n * kRowThreads;
    const int j = first_key + key;
    scores[n] = -infinity();
    if (j >= here.keys.begin && j < here.keys.end) {
      float product = weights[key * kWeightStride];
      if constexpr (HasKvScales<Kv>::kValue) product *= places.k_scale[key];
      scores[n] = modified_score<kTerms, TESSERA_MASK_DTYPE>(p, w.sequence, product, w.b, here.index.h,
                                                             here.index.i, j);
    }
    top = fmaxf(top, scores[n]);  // NaN does not count: its weight tells
  }
  TESSERA_UNROLL
  for (int mask = 1; mask < kRowThreads; mask *= 2) top = fmaxf(top, shuffle_xor(top, mask));
  const float base = top == -infinity() ? 0.0f : top;
  const float factor = row.base == top ? 1.0f : expf(row.base - base);
  row.base = top;
  row.sum *= factor;
  TESSERA_UNROLL
  for (int n = 0; n < kRowKeys; ++n) {
    const int key = lane + n * kRowThreads;
    float weight = expf(scores[n] - base);
    row.sum += weight;
    if constexpr (HasKvScales<Kv>::kValue) weight *= places.v_scale[key];
    weights[key * kWeightStride] = weight;
  }
  if (lane == 0) rescale = factor;
}

/// o *= the rows' factors.
TESSERA_DEVICE void rescale_sums(const float* factors, Sums& o) {
  const Floats4 factor = load_floats(factors);
  bool moves = false;
  TESSERA_UNROLL
  for (int i = 0; i < kThreadRows; ++i) moves = moves || factor.element[i] != 1.0f;
  if (!moves) return;  // as is usual after the first tiles
  TESSERA_UNROLL
  for (int i = 0; i < kThreadRows; ++i) {
    TESSERA_UNROLL
    for (int c = 0; c < kColumnSteps; ++c) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) o[i][c][e] *= factor.element[i];
    }
  }
}

/// o += weights values, of kValueKeys keys. weights: of the first one and the thread's first row; values: of
/// the first one and the thread's first column.
TESSERA_DEVICE void multiply_p_v(const ThreadPlace& t, const float* weights, const float* values, Sums& o) {
  TESSERA_UNROLL_BY(1)
  for (int k = 0; k < kValueKeys; k += kKeyGroups) {
    const Floats4 weight = load_floats(weights + (k + t.key_group) * kWeightStride);
    TESSERA_UNROLL
    for (int c = 0; c < kColumnSteps; ++c) {
      if (!has_column(t, c)) break;
      const Floats4 v = load_floats(values + (k + t.key_group) * kHeadDimV + c * kStepColumns);
      TESSERA_UNROLL
      for (int i = 0; i < kThreadRows; ++i) {
        TESSERA_UNROLL
        for (int e = 0; e < 4; ++e) o[i][c][e] = fmaf(weight.element[i], v.element[e], o[i][c][e]);
      }
    }
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

TESSERA_KERNEL(attention_tiled, TESSERA_TILED_BOUNDS)(TESSERA_GRID_CONSTANT AttentionParams p) {
  TESSERA_DYNAMIC_SHARED(shared_bytes);
  SharedStorage& shared = *reinterpret_cast<SharedStorage*>(shared_bytes);
  const BlockWork w = block_work<kBlockM>(p);
  if (w.row_begin >= w.num_rows) return;
  const ThreadPlace t;

  // Keys that the block's rows see, in whole tiles counted from key 0, and of these the split's share.
  const TileRows rows = rows_of_block(w, kBlockM);
  const KeyRange share = visible_share(p, rows, kBlockN, w.split);
  const int tile_begin = maximum(keys_of_query(p, w.sequence, rows.first_query).begin, share.begin) / kBlockN;
  const int tile_end =
      (minimum(keys_of_query(p, w.sequence, rows.last_query).end, share.end) + kBlockN - 1) / kBlockN;
  VisibleTiles visible(p, rows, kBlockN);
  int tile = visible.next(tile_begin, tile_end);

  find_rows(p, w, share, shared);
  SoftmaxState row = {-infinity(), 0.0f};
  Sums o = {};
  if (tile < tile_end) {
    find_keys(p, w, tile * kBlockN, shared.places[0]);
    sync_threads();
    Piece<T> next_queries[SharedQueries::kOfThread];
    Piece<Kv> next[kPiecesInFlight];  // keys or values
    if constexpr (kLayout.keeps_queries) {
      TESSERA_UNROLL_BY(1)
      for (int first = 0; first < kHeadDimQk; first += kTiledDims) {
        SharedQueries::load(p.q.data, shared.q, first, p.head_dim_qk, next_queries);
        SharedQueries::store(next_queries, shared.floats + first, kLayout.query_stride);
      }
    } else {
      SharedQueries::load(p.q.data, shared.q, 0, p.head_dim_qk, next_queries);
    }
    SharedKeys::load(p.k.data, shared.places[0].k, 0, p.head_dim_qk, next);
    float* const weights = shared.floats + kLayout.weights_begin;
    float* const keys = shared.floats + kLayout.keys_begin;
    const float* const queries = shared.floats + t.score_row * kLayout.query_stride + t.dim_group * 4;
    int place = 0;  // of the tile's keys in shared.places
    TESSERA_UNROLL_BY(1)
    while (tile < tile_end) {
      const int next_tile = visible.next(tile + 1, tile_end);
      const KeyPlaces& here = shared.places[place];
      float products[kProducts] = {};
      TESSERA_UNROLL_BY(1)
      for (int first = 0; first < kHeadDimQk; first += kTiledDims) {
        sync_threads();  // everyone has finished with what was there
        if (!kLayout.keeps_queries) SharedQueries::store(next_queries, shared.floats, kLayout.query_stride);
        SharedKeys::store(next, keys, kKeyStride);
        sync_threads();
        if (first + kTiledDims < kHeadDimQk) {
          if (!kLayout.keeps_queries)
            SharedQueries::load(p.q.data, shared.q, first + kTiledDims, p.head_dim_qk, next_queries);
          SharedKeys::load(p.k.data, here.k, first + kTiledDims, p.head_dim_qk, next);
        } else {
          SharedValues::load(p.v.data, here.v, 0, p.head_dim_v, next);
        }
        if (first == 0 && next_tile < tile_end)
          find_keys(p, w, next_tile * kBlockN, shared.places[1 - place]);
        multiply_q_k(queries + (kLayout.keeps_queries ? first : 0),
                     keys + t.key_lane * kKeyStride + t.dim_group * 4, products);
      }
      sync_threads();
      join_products(t, products, weights);
      SharedValues::store(next, keys, kHeadDimV);
      sync_threads();
      const auto load_next = [&](int first) {  // what follows the values of keys from `first` on
        if (first + kValueKeys < kBlockN) {
          SharedValues::load(p.v.data, here.v + first + kValueKeys, 0, p.head_dim_v, next);
        } else if (next_tile < tile_end) {
          if (!kLayout.keeps_queries) SharedQueries::load(p.q.data, shared.q, 0, p.head_dim_qk, next_queries);
          SharedKeys::load(p.k.data, shared.places[1 - place].k, 0, p.head_dim_qk, next);
        }
      };
      load_next(0);
      if (has_row())
        weigh(p, w, here, tile * kBlockN, shared.rows[softmax_row()], row, weights + softmax_row(),
              shared.factors[softmax_row()]);
      sync_threads();
      rescale_sums(shared.factors + t.sum_row, o);
      TESSERA_UNROLL_BY(1)
      for (int first = 0; first < kBlockN; first += kValueKeys) {
        if (first > 0) {
          sync_threads();
          SharedValues::store(next, keys, kHeadDimV);
          sync_threads();
          load_next(first);
        }
        multiply_p_v(t, weights + first * kWeightStride + t.sum_row, keys + t.column, o);
      }
      tile = next_tile;
      place = 1 - place;
    }
  }
  join_sums(t, shared, o);
  sync_threads();  // everyone has read the factors of the last tile
  norm_row(p, w, row, shared);
  sync_threads();
  store_sums(p, w, t, shared, o);
  sync_threads();
  redo_spoilt_rows(p, w, shared);
}
