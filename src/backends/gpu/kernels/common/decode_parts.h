#pragma once

#include "common/attention_params.h"

// How the work of a decode is shared out, whatever lengths the sequences have. Laid end to end, the key tiles
// of all kv heads of all sequences, each head's followed by `piece_cost` more for its start and end, are cut
// into `num_parts` equal parts, one a block. Lengths may live on the device: who needs the cut computes it
// (decode_parts.cuh). A head's tiles in one part are a piece; heads that lie in one part whole are written to
// o, pieces of others to the workspace, whence they are merged. FlashMLA (DeepSeek, 2025)
// balances so.
//
// Or each head has a block or a cluster of blocks for itself, which share its tiles out by its own length.

namespace tessera::kernels {

struct DecodePiecesOfHead {
  int first_part;
  int count;  // 1: the head is whole
};

struct DecodeParts {
  int num_parts;
  int block_n;        // keys of a tile
  int piece_cost;     // in tiles
  int prefers_whole;  // 1: where the longest sequence is at most 1/16 longer than the mean, part n is head n
  int parts_of_head;  // above 0: each head has as many for itself, and only num_parts and block_n matter
                      // beside
  DecodePiecesOfHead* pieces;  // (batch, num_kv_heads)
  // AttentionParams::o_partial is (num_parts + batch * num_kv_heads, rows, head_dim_v) and lse_partial
  // (num_parts + batch * num_kv_heads, rows), rows = seq_len_q * group being packed (query, head of the
  // group). What part n has of kv head h of sequence b is at n + b * num_kv_heads + h.
};

}  // namespace tessera::kernels
