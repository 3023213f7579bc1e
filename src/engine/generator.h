#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/sampler.h"
#include "engine/step_recorder.h"
#include "model/execution_plan.h"
#include "model/tokenizer/tokenizer.h"
#include "tessera/model.h"

namespace tessera {

using TokenCallback = std::function<bool(std::int32_t token, std::string_view text)>;

/// A prompt to continue.
struct GenerationRequest {
  std::span<const std::int32_t> prompt;
  GenerateOptions options;
  TokenCallback on_token;  ///< may be empty
};

struct GeneratorOptions {
  std::int64_t vocab_size = 0;
  std::int64_t token_limit = 0;    ///< ids from here on are never drawn
  std::int64_t max_seq_len = 0;    ///< tokens of a sequence
  std::int64_t prefill_chunk = 0;  ///< prompt tokens in a step
  std::vector<std::int32_t> eos_token_ids;
  const Tokenizer* tokenizer = nullptr;  ///< null: on_token gets no text
  std::function<void(const Progress&)> on_progress;
};

/// Runs sequences through the model side by side. Each step takes one token of every sequence that is
/// decoding and prompt tokens of the others up to prefill_chunk; a sequence that ends makes room for the next
/// at once. How prompts are cut into steps never depends on time, and so neither do the results; on a CPU
/// on_progress is called within a step too, so that it can show what goes on and end it.
///
/// When pages run out, the sequence that came last gives its pages back and is computed again later; only a
/// sequence that doesn't fit into the cache alone is an error.
class Generator {
 public:
  /// `plan`, `cache` and `ops` must outlive the generator.
  Generator(ExecutionPlan& plan, KvCache& cache, OpsBackend& ops, GeneratorOptions options);

  /// Results in the order of the requests. Throws Error{kInvalidArgument} for a prompt that is empty, longer
  /// than max_seq_len or has a token outside the vocabulary, for more requests than the plan's max_batch and
  /// for options out of range; Error{kOutOfMemory} if a sequence doesn't fit into the cache. Pages are free
  /// again afterwards, whatever happens.
  std::vector<Generation> generate(std::span<const GenerationRequest> requests);

  /// Logits after each of `tokens` (all) or after the last: (tokens or 1) * vocab_size. Throws like generate.
  std::vector<float> logits(std::span<const std::int32_t> tokens, bool all);

 private:
  /// What a sequence with keep_cache left: tokens whose keys and values are in its pages.
  struct Kept {
    std::vector<std::int32_t> tokens;
    KvSequence pages;
  };
  struct Sequence;
  struct Batch;
  struct Scheduled;

  void check_prompt(std::span<const std::int32_t> prompt) const;
  void take_kept(Sequence& sequence);
  bool make_room(Batch& batch, std::size_t index, bool others_run) const;
  std::vector<Scheduled> schedule(Batch& batch) const;
  std::vector<Sequence*> run_step(Batch& batch, const std::vector<Scheduled>& scheduled);
  void accept(Sequence& sequence, std::int32_t token) const;
  /// Tells on_progress how many prompt tokens are done, of those in a running step `share`.
  void report_prefill(Batch& batch, std::span<const Scheduled> running = {}, double share = 0) const;
  /// What to call while a step runs whose end is worth not waiting for; empty if nobody wants to know, or the
  /// device works by itself.
  std::function<void(double share)> step_progress(std::function<void(double share)> report) const;

  ExecutionPlan& plan_;
  KvCache& cache_;
  OpsBackend& ops_;
  GeneratorOptions options_;
  Sampler sampler_;
  StepRecorder recorder_;
  std::optional<Kept> kept_;
};

}  // namespace tessera
