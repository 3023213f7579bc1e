#include "verify/verify.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/aligned_memory.h"
#include "tessera/error.h"
#include "tessera/threads.h"
#include "verify/attention_judge.h"
#include "verify/prepare_cases.h"

namespace tessera {

VerifyMemory VerifyMemory::cpu() {
  VerifyMemory memory;
  memory.allocate = [](std::size_t size_bytes) {
    return allocate_aligned(size_bytes, "a tensor of the suite");
  };
  memory.upload = memory.download = [](void* destination, const void* source, std::size_t size_bytes) {
    if (size_bytes > 0) std::memcpy(destination, source, size_bytes);
  };
  return memory;
}

VerifyResult run_verify_case(const VerifyCase& verify_case, const std::string& backend,
                             const VerifyMemory& memory, AttentionJudge& judge) {
  using Clock = std::chrono::steady_clock;
  VerifyResult result;
  result.group = verify_case.group;
  result.name = verify_case.name;
  result.backend = backend;
  const Clock::time_point begin = Clock::now();
  try {
    verify_case.run(backend, memory, judge, result);
  } catch (const Error& error) {
    result.passed = false;
    result.message = error.message();
  }
  result.ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  return result;
}

VerifyResult run_verify_case(const VerifyCase& verify_case, const std::string& backend,
                             const VerifyMemory& memory) {
  AttentionJudge judge;
  return run_verify_case(verify_case, backend, memory, judge);
}

std::vector<VerifyResult> run_verify(const std::string& backend, const VerifyMemory& memory,
                                     const VerifyOptions& options,
                                     const std::function<void(const VerifyResult&)>& on_result) {
  std::vector<const VerifyCase*> chosen;
  std::vector<AttentionCase> known;
  for (const VerifyCase& verify_case : attention_verify_cases()) {
    if (options.quick && !verify_case.quick) continue;
    if (verify_case.name.find(options.filter) == std::string::npos) continue;
    chosen.push_back(&verify_case);
    known.insert(known.end(), verify_case.attention.begin(), verify_case.attention.end());
  }
  prepare_cases(known, backend, memory);
  std::vector<VerifyResult> results;
  AttentionJudge judge;
  // As many cases ahead as keep all threads busy, and no more: their numbers take memory.
  const std::size_t at_once = 2 * static_cast<std::size_t>(num_threads());
  for (std::size_t n = 0; n < chosen.size(); ++n) {
    if (n % at_once == 0) {
      std::vector<AttentionCase> judged;
      for (std::size_t next = n; next < std::min(chosen.size(), n + at_once); ++next) {
        if (chosen[next]->judged) judged.push_back(*chosen[next]->judged);
      }
      judge.work_ahead(judged, backend);
    }
    results.push_back(run_verify_case(*chosen[n], backend, memory, judge));
    if (on_result) on_result(results.back());
  }
  return results;
}

}  // namespace tessera
