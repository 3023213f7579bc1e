#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/backend.h"
#include "tessera/model.h"

namespace tessera {

/// Whether tokens that were drawn before are less likely.
bool has_penalties(const SamplingOptions& options);

/// Throws Error{kInvalidArgument} naming the field that is out of range.
void validate(const SamplingOptions& options);

/// How often a token was drawn.
struct DrawnToken {
  std::int32_t token = 0;
  std::int32_t count = 0;
};

/// The tokens that a sequence has drawn, each once, ascending: penalties are due at every step, and to count
/// all of a long text anew would take longer than the step.
class DrawnTokens {
 public:
  void add(std::int32_t token);
  std::span<const DrawnToken> all() const { return tokens_; }

 private:
  std::vector<DrawnToken> tokens_;
};

/// One sequence whose next token is to be drawn.
struct SampleRequest {
  const SamplingOptions* options = nullptr;
  std::span<const std::int32_t> history;     ///< the sequence so far: prompt and new tokens
  std::int64_t num_drawn = 0;                ///< tokens drawn before
  std::span<const DrawnToken> drawn = {};    ///< these, as DrawnTokens has them
  std::span<const std::uint32_t> mask = {};  ///< a bit a token that may come; empty: any
};

/// Log probabilities of drawn tokens and of the likeliest, a row a sequence.
struct SampledLogprobs {
  std::vector<float> logprobs;                 // (batch)
  std::vector<std::vector<TokenLogprob>> top;  // (batch), the likeliest first
};

/// Draws next tokens on the device. What the kernel reads and writes stands at addresses that don't change,
/// so that it can be recorded.
class Sampler {
 public:
  /// Histories are at most max_seq_len tokens. Ids from token_limit on are never drawn, nor are those below
  /// it but num_drawable, whose logits are -inf. `ops` must outlive the sampler.
  Sampler(std::int64_t max_batch, std::int64_t max_seq_len, std::int64_t token_limit,
          std::int64_t num_drawable, OpsBackend& ops);

  /// Uploads what sampling of these sequences needs: row i of the logits is requests[i]. Returns whether any
  /// of them has a repetition penalty.
  bool begin_step(std::span<const SampleRequest> requests);

  /// Whether its logits are changed before the draw: by biases, penalties or a mask.
  static bool adjusts(const SampleRequest& request);

  /// Logits with the requests' biases, penalties and masks, in memory of the sampler's own that the next call
  /// uses again; row i is requests[i].
  Matrix adjust(const Matrix& logits, std::span<const SampleRequest> requests);

  /// Of the tokens that stand at `tokens` on the device, by logits that nothing was done to. Fewer than
  /// num_top are the likeliest where fewer can be drawn.
  SampledLogprobs logprobs(const Matrix& logits, const std::int32_t* tokens, int num_top);
  /// The same of tokens that stand on the host; -inf for those that are never drawn.
  SampledLogprobs logprobs(const Matrix& logits, std::span<const std::int32_t> tokens, int num_top);

  /// tokens[i] is drawn from row i of `logits`, with a look at the histories if uses_history.
  void run(const Matrix& logits, bool uses_history, std::int32_t* tokens);

  /// The first tokens of a device array; -1 where a GPU found logits that are NaN or +inf, or all -inf.
  void download(const std::int32_t* tokens, std::span<std::int32_t> out);

 private:
  void upload_histories(std::span<const SampleRequest> requests);

  std::int64_t max_batch_;
  std::int64_t max_seq_len_;
  std::int64_t token_limit_;
  std::int64_t num_drawable_;
  OpsBackend& ops_;
  std::vector<SamplingParameters> host_parameters_;
  std::vector<std::int64_t> host_steps_;
  DeviceBuffer parameters_, steps_;
  DeviceBuffer history_, history_lens_;  // allocated when a penalty is first used
  // Allocated when first used, biases and likeliest tokens larger as need be.
  DeviceBuffer adjusted_, masks_, mask_rows_, biases_, bias_offsets_;
  DeviceBuffer logprobs_, top_tokens_, top_logprobs_, given_tokens_;
};

}  // namespace tessera
