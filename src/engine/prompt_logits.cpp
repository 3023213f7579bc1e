#include "engine/prompt_logits.h"

#include <algorithm>

namespace tessera {

std::vector<float> prompt_logits(Runtime& runtime, std::span<const std::int32_t> tokens, bool all,
                                 const std::function<void(std::int64_t, bool)>& on_progress) {
  runtime.core().check_prompt(tokens);
  ExecutionPlan& plan = runtime.plan();
  OpsBackend& ops = runtime.model().ops();
  const std::int64_t num_tokens = std::ssize(tokens);
  const std::int64_t vocab_size = runtime.model().config().vocab_size;
  std::vector<float> result(static_cast<std::size_t>((all ? num_tokens : 1) * vocab_size));
  KvSequence pages(runtime.cache());
  pages.reserve(num_tokens);
  for (std::int64_t begin = 0; begin < num_tokens;) {
    const std::int64_t count = std::min<std::int64_t>(runtime.options().prefill_chunk, num_tokens - begin);
    const SequenceSlice slice{
        tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)), begin,
        pages.block_table()};
    std::function<void(double)> after_step;
    if (on_progress) {
      after_step = runtime.core().within_step([&](double share) {
        on_progress(begin + static_cast<std::int64_t>(share * static_cast<double>(count)), true);
      });
    }
    plan.run_layers(plan.begin_step({&slice, 1}), after_step);
    const bool is_last = begin + count == num_tokens;
    for (std::int64_t row = all ? 0 : is_last ? count - 1 : count; row < count;) {
      const RowRange range{row, std::min(plan.options().max_logits_rows, count - row)};
      plan.run_head({&range, 1});
      const std::int64_t position = all ? begin + row : 0;
      ops.download(result.data() + position * vocab_size, plan.logits(range.count).data,
                   static_cast<std::size_t>(range.count * vocab_size) * sizeof(float), ops.stream());
      row += range.count;
    }
    begin += count;
    if (on_progress) on_progress(begin, false);
  }
  return result;
}

}  // namespace tessera
