#include "sampling_options.h"

namespace tessera::cli {

void add_sampling_options(Command& command, SamplingOptions& sampling, std::optional<std::uint64_t>& seed) {
  command.begin_group("Sampling, in this order");
  command.add_real("--presence-penalty", sampling.presence_penalty, -2, 2,
                   "Taken from the logits of tokens that were drawn before");
  command.add_real("--frequency-penalty", sampling.frequency_penalty, -2, 2,
                   "The same, times how often they were");
  command.add_real("--repetition-penalty", sampling.repetition_penalty, 1e-6f, 1e6f,
                   "Above 1 makes earlier tokens less likely");
  command.add_real("--temperature", sampling.temperature, 0, 1e6f, "0: always the most likely token");
  command.add_integer("--top-k", sampling.top_k, 0, 1 << 30, "Only the N most likely tokens; 0: all");
  command.add_real("--top-p", sampling.top_p, 1e-9f, 1,
                   "Only the likeliest tokens that make up this probability");
  command.add_real("--min-p", sampling.min_p, 0, 1,
                   "Only tokens at least this likely, relative to the likeliest");
  command.add_seed("--seed", seed, "The same seed gives the same text; none: one is drawn and told");
}

}  // namespace tessera::cli
