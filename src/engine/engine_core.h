#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/batch_runner.h"
#include "engine/kv_cache.h"
#include "engine/prefix_cache.h"
#include "engine/sequence.h"
#include "engine/state_cache.h"
#include "model/execution_plan.h"
#include "model/tokenizer/tokenizer.h"
#include "tessera/engine.h"

namespace tessera {

/// How far a request's prompt is.
struct PrefillProgress {
  RequestId id = 0;
  std::int64_t tokens = 0;  ///< of the prompt, in the cache
};

struct EngineCoreOptions {
  std::int64_t vocab_size = 0;
  std::int64_t token_limit = 0;          ///< ids from here on are never drawn
  std::int64_t max_seq_len = 0;          ///< tokens of a sequence
  std::int64_t prefill_chunk = 0;        ///< prompt tokens in a step
  bool prefix_cache = false;             ///< full pages of keys and values are found again by their tokens
  std::vector<std::int32_t> end_tokens;  ///< ascending
  const Tokenizer* tokenizer = nullptr;  ///< null: events have no text
  /// Told of the prompts in a step when it is over, and on a CPU, where steps are long, also every now and
  /// then within it (is_within_step). May throw, which step() lets through.
  std::function<void(std::span<const PrefillProgress>, bool is_within_step)> on_prefill;
};

/// The engine without its threads' safety: which requests run, and what a step makes of them.
///
/// A step takes one token of each sequence that is decoding and prompt tokens of the others up to
/// prefill_chunk, which are shared out evenly. Requests begin in the order in which they came, as soon as
/// there are pages for their prompts; one whose prompt begins as another's that is being computed waits for
/// those pages. When pages run out the sequence that began last gives its pages back and is computed again
/// later; only one that doesn't fit into the cache alone fails. What a step takes never depends on time, and
/// so neither do the results.
///
/// Where the device works by itself and a step is known to be followed by one of the same sequences, unless
/// what it draws ends one, that one is put into the device's queue before the first is waited for. A sequence
/// that ends has then been computed a token further, which only those see that take over what it leaves: what
/// its pages become afterwards comes behind that in the queue.
///
/// Where layers have states, what a sequence leaves is of use only to one that begins with all of its tokens,
/// and pages of keys and values alone to nobody: the prefix cache has none.
///
/// engine_core.cpp decides what runs and makes steps of it, engine_core_outcomes.cpp makes events of what
/// comes of them.
class EngineCore {
 public:
  /// All but the options must outlive the core.
  EngineCore(ExecutionPlan& plan, KvCache& cache, StateCache& states, OpsBackend& ops,
             EngineCoreOptions options);

  /// Throws Error{kInvalidArgument} for what can't be submitted; from any thread.
  void check(const Request& request) const;
  void check(const AttentionRequest& request) const;
  void check_prompt(std::span<const std::int32_t> prompt) const;

  /// Requests that were checked, in the order of their ids. keep_cache: the next request with it starts
  /// behind the tokens that both have; such a request must be alone. Others forget what was kept.
  void add(RequestId id, Request request, bool keep_cache = false);
  void add(RequestId id, EmbeddingRequest request);
  void add(RequestId id, AttentionRequest request);

  /// Its pages are free at once; kFinished comes with the next step. False if there is none such.
  bool cancel(RequestId id);
  /// Forgets all requests, without events, and what was kept.
  void clear();

  bool has_work() const { return !running_.empty() || !waiting_.empty() || !events_.empty(); }
  std::vector<Event> step();
  /// What to call while a step runs whose end is worth not waiting for: `report`, as often as people see.
  /// Empty if the device works by itself.
  std::function<void(double share)> within_step(std::function<void(double share)> report) const;
  /// All but what the queue in front counts.
  EngineStats stats() const;

 private:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;
  /// What a sequence with keep_cache left: tokens whose keys and values are in its pages.
  struct Kept {
    std::vector<std::int32_t> tokens;
    KvSequence pages;
    StateSlot state;
  };
  /// Tokens of a sequence that go into a step.
  struct Scheduled {
    Sequence* sequence = nullptr;
    std::int64_t num_tokens = 0;
  };

  void take_kept(Sequence& sequence);
  /// Leaves a sequence's tokens, pages and state to the next that keeps the cache.
  void keep(Sequence& sequence);
  void admit();
  /// Gives a sequence pages for all of its tokens, those that the prefix cache has among them. False if too
  /// few are free.
  bool take_pages(Sequence& sequence);
  bool uses_prefix_cache(const Sequence& sequence) const;
  /// Whether a running sequence is about to compute the page that the prefix cache lacks for this one.
  bool is_being_computed(const Sequence& sequence) const;
  void put_back(std::unique_ptr<Sequence> sequence);
  void make_room_for_decodes();
  std::vector<Scheduled> schedule() const;
  StepEntry entry_of(const Scheduled& scheduled) const;
  void run(const std::vector<Scheduled>& scheduled);
  void start(std::span<const StepEntry> entries);
  /// Whether a step of the same sequences will follow the one that has been started, unless they end by what
  /// it draws.
  bool can_start_next() const;
  void start_next();
  void finish_started();
  void forget_started();
  Sequence* find_running(RequestId id);
  /// Whether f() returned; if it threw these have failed.
  template <class Function>
  bool try_step(const std::vector<Scheduled>& scheduled, Function f);
  void accept_step(const std::vector<Scheduled>& scheduled, std::vector<StepOutcome>& outcomes);
  void accept(Sequence& sequence, StepOutcome& outcome);
  void accept_token(Sequence& sequence, StepOutcome& outcome);
  void accept_hidden_states(Sequence& sequence, std::int64_t num_tokens, const StepOutcome& outcome);
  void accept_queries(Sequence& sequence, const StepOutcome& outcome);
  static void give_prompt_logprobs(Sequence& sequence, Event& event);
  /// One layer of a sequence whose tokens are all in the cache, so that others don't wait for long.
  void weigh_layer(Sequence& sequence);
  /// Ends a sequence; it leaves running_ at the end of the step.
  void finish(Sequence& sequence, StopReason reason, std::string text = {},
              std::vector<float> embedding = {});
  void fail(Sequence& sequence, const Error& error);
  void remove_ended();
  void report_prefill(const std::vector<Scheduled>& scheduled, double share, bool is_within_step) const;

  ExecutionPlan& plan_;
  KvCache& cache_;
  StateCache& states_;
  OpsBackend& ops_;
  EngineCoreOptions options_;
  std::int64_t max_batch_;
  BatchRunner runner_;
  std::optional<PrefixCache> prefix_cache_;
  std::deque<std::unique_ptr<Sequence>> waiting_;  // by id
  Sequences running_;                              // as they began; they have pages
  std::vector<RequestId> started_;                 // of the step that the device is busy with, or none
  std::optional<Kept> kept_;
  std::vector<Event> events_;  // that the next step returns
  EngineStats stats_;
};

}  // namespace tessera
