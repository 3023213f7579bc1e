#include "backends/gpu/attention/built_modules.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <set>

#include "backends/gpu/attention/choose_kernel.h"

namespace tessera::gpu {

AttentionProblem usual_problem(DType dtype, int head_dim, std::int64_t seq_len_q, bool is_paged) {
  constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
  AttentionProblem p;
  p.batch = 1;
  p.seq_len_q = seq_len_q;
  p.seq_len_kv = 4096;
  p.num_heads = 32;
  p.num_kv_heads = 8;
  p.head_dim_qk = p.head_dim_v = head_dim;
  p.q = attention_input(kLayout, nullptr, dtype, p.seq_len_q, p.num_heads, head_dim);
  p.k = p.v = attention_input(kLayout, nullptr, dtype, p.seq_len_kv, p.num_kv_heads, head_dim);
  p.o = attention_output(kLayout, nullptr, dtype, p.seq_len_q, p.num_heads, head_dim);
  if (is_paged) p.paged_kv.emplace();
  return p;
}

void use_pages(AttentionProblem& p, int page_size) {
  p.paged_kv.emplace();
  p.paged_kv->page_size = page_size;
  p.paged_kv->num_pages = p.seq_len_kv / page_size;
  p.k.batch_stride = p.v.batch_stride = page_size * p.k.seq_stride;
}

std::string built_module_lines(AttentionKernels kernels, std::span<const DeviceProperties> largest_devices) {
  std::string lines;
  std::set<std::string> written;
  for (const AttentionKernel* kernel : kernels) {
    if (kernel->built_ahead == nullptr) continue;
    for (const DeviceProperties& device : largest_devices) {
      for (const BuiltProblem& built : kernel->built_ahead()) {
        if (!reason_against_kernel(*kernel, built.problem, device).empty() ||
            !reason_to_yield(*kernel, built.problem, device).empty() ||
            (kernel->is_plain && choose_kernel(kernels, built.problem, device, {}).kernel != kernel))
          continue;
        const ModuleSpec module = choose_with(*kernel, built.problem, device, {}).module;
        const std::string line = fmt::format("{}|{}|{}|{}\n", module.source, device.architecture,
                                             fmt::join(module.defines, " "), built.may_spill ? 1 : 0);
        if (written.insert(line).second) lines += line;
      }
    }
  }
  return lines;
}

}  // namespace tessera::gpu
