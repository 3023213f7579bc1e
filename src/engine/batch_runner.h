#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "engine/step_recorder.h"
#include "model/execution_plan.h"
#include "tessera/engine.h"

namespace tessera {

/// What one sequence brings to a step, and what it wants of it.
struct StepEntry {
  std::uint64_t sequence = 0;            ///< names it, the same in every step
  std::span<const std::int32_t> tokens;  ///< all of its tokens
  std::int64_t num_computed = 0;         ///< of these, in the cache
  std::int64_t num_new = 0;              ///< of these, that go through the model now
  std::span<const std::int32_t> block_table;
  std::int32_t state_slot = 0;

  /// Whether a token is drawn after the last one; then `sampling` is not null.
  bool draws = false;
  const SamplingOptions* sampling = nullptr;
  std::int64_t num_drawn = 0;             ///< tokens drawn before
  std::span<const DrawnToken> drawn;      ///< these, if has_penalties(*sampling)
  TokenConstraint* constraint = nullptr;  ///< null: any token
  std::optional<int> top_logprobs;
  /// Tokens that followed each of the new ones, from the first on, and whose log probabilities are wanted.
  std::span<const std::int32_t> followers;
  bool wants_hidden_states = false;  ///< of its new tokens; such a sequence doesn't draw
  /// Those of its new tokens whose queries are wanted, and of which layers; such a sequence doesn't draw.
  std::span<const std::int64_t> query_positions;
  std::span<const int> query_layers;
};

/// What came of it.
struct StepOutcome {
  std::int32_t token = -1;  ///< drawn
  float logprob = 0;
  std::vector<TokenLogprob> top_logprobs;
  std::vector<PromptLogprob> follower_logprobs;
  std::vector<float> hidden_states;  ///< (num_new, hidden_size), after the last norm
  /// (query_layers): (query_positions, num_heads * head_dim), rotated.
  std::vector<std::vector<float>> queries;
  std::optional<Error> error;  ///< of this sequence alone; then there is no token
};

/// Takes steps of sequences through the model and the sampler. Steps that only decode are recorded, and their
/// tokens stay on the device for the next one, which may be started before they are known.
class BatchRunner {
 public:
  /// Ids from token_limit on are never drawn. `plan` and `ops` must outlive the runner.
  BatchRunner(ExecutionPlan& plan, OpsBackend& ops, std::int64_t token_limit);

  /// One outcome an entry. after_step, unless empty, is told the share of a prefill's kernels that are done,
  /// and may throw. Throws Error if the step as a whole failed; nothing is in the cache then that counts.
  std::vector<StepOutcome> run(std::span<const StepEntry> entries,
                               const std::function<void(double share)>& after_step = {});

  /// Whether start() takes these: the device works by itself, and all that they want is a token each that the
  /// device draws alone.
  bool can_start(std::span<const StepEntry> entries) const;
  /// Puts a step into the device's queue. An entry whose tokens end where num_computed does takes what the
  /// step started before draws; that one then has the same sequences in the same order. At most two steps may
  /// be under way.
  void start(std::span<const StepEntry> entries);
  /// Waits for the one of them that was started first. One outcome an entry. Throws Error as run() does.
  std::vector<StepOutcome> finish();
  /// Forgets those that were started; what they drew is nobody's.
  void forget_started();

 private:
  /// What a step draws, an element an entry that draws.
  struct Drawing {
    std::vector<std::size_t> entries;  // their indices
    std::vector<std::uint64_t> sequences;
    std::vector<SampleRequest> samples;
    std::vector<RowRange> rows;  // of the step, merged
  };

  /// Gives the samples the masks of their constraints, which it returns; what one throws is its entry's
  /// error.
  std::vector<std::vector<std::uint32_t>> constrain(std::span<const StepEntry> entries, Drawing& drawing,
                                                    std::span<StepOutcome> outcomes);
  /// Reads the drawn tokens, and their log probabilities where they are wanted. drawing: the entries that
  /// drew.
  void take_tokens(std::span<const StepEntry> entries, std::span<const std::size_t> drawing,
                   std::span<StepOutcome> outcomes);
  /// The layers, the head of these rows and, if draws_at_once, the drawing: what is_drawn_ says. A step that
  /// only decodes is recorded.
  void run_to_logits(const StepShape& shape, bool is_decode, const std::vector<RowRange>& rows,
                     bool draws_at_once, bool uses_history, const std::function<void()>& run_layers);
  /// Draws a token for each row, or returns false if the logits of one are bad.
  bool try_draw(const Matrix& logits, bool uses_history, std::int32_t* tokens);
  /// Draws a token for each row. Rows whose logits are bad get -1 and disturb no other.
  void draw(std::span<const SampleRequest> requests);
  void run_layers_reading_queries(const StepShape& shape, std::span<const StepEntry> entries,
                                  std::vector<StepOutcome>& outcomes);
  std::vector<float> read(const Matrix& rows);
  std::vector<float> hidden_states(std::int64_t first_row, std::int64_t count);
  /// Of the tokens that followed the step's rows from first_row on.
  std::vector<PromptLogprob> follower_logprobs(std::int64_t first_row,
                                               std::span<const std::int32_t> followers, int num_top);

  ExecutionPlan& plan_;
  OpsBackend& ops_;
  std::int64_t token_limit_;
  Sampler sampler_;
  StepRecorder recorder_;
  bool is_drawn_ = false;                    // the running step's tokens, behind its logits
  std::vector<std::uint64_t> last_sampled_;  // whose tokens stand in the plan's first rows, in this order
  std::array<std::unique_ptr<Readback>, 2> readbacks_;  // taken in turns; null: the device needs the host
  std::size_t num_started_ = 0;                         // of all steps
  std::size_t num_finished_ = 0;                        // of these, or forgotten
};

}  // namespace tessera
