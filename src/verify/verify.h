#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/device.h"
#include "verify/attention_case.h"

namespace tessera {

class AttentionJudge;

/// How one case went on one backend.
struct VerifyResult {
  std::string group;    ///< "attention", "ops"
  std::string name;     ///< e.g. "paged/page_size 16/bf16"
  std::string backend;  ///< e.g. "cpu"
  std::string kernel;   ///< what ran, as the backend calls it; empty if nothing did
  double error = 0;     ///< largest absolute error of the output; infinite for a wrong NaN or infinity
  double bound = 0;     ///< what `error` may be at most
  double lse_error = 0;
  double lse_bound = 0;
  bool passed = false;
  std::string
      unsupported_reason;  ///< not empty: the backend can't run it; passed tells if that is permissible
  std::string message;     ///< why it failed; empty if it passed
  double ms = 0;           ///< of the whole case, its judge included unless that worked ahead
};

/// How the suite reaches a device's memory.
struct VerifyMemory {
  Device device;
  std::function<std::shared_ptr<std::byte>(std::size_t size_bytes)> allocate;
  std::function<void(void* destination, const void* source, std::size_t size_bytes)> upload;
  /// Waits for the work on the device that came before.
  std::function<void(void* destination, const void* source, std::size_t size_bytes)> download;
  /// Records what `work` puts into its stream as a graph and runs that. Empty: the device has no graphs.
  std::function<void(const std::function<void(Stream stream)>& work)> replay;

  /// Main memory.
  static VerifyMemory cpu();
};

/// One check that every backend has to pass. `run` fills in everything but group, name, backend and ms; an
/// Error that it throws is a failure with the error's message.
struct VerifyCase {
  std::string group;
  std::string name;
  bool quick = false;  ///< part of the short suite
  std::function<void(const std::string& backend, const VerifyMemory& memory, AttentionJudge& judge,
                     VerifyResult& result)>
      run;
  /// Calls like all that `run` makes, so that backends can get ready for them.
  std::vector<AttentionCase> attention = {};
  /// What `run` asks its judge for, so that it can be worked out before.
  std::optional<AttentionCase> judged = std::nullopt;
};

/// The conformance suite of attention: each case compares a backend with the fp64 reference, and the
/// reference with a direct evaluation in extended precision.
std::span<const VerifyCase> attention_verify_cases();

/// Runs one case; never throws Error. Who runs a case on several backends, one after the other, hands all of
/// them the same judge (attention_judge.h), which then works once.
VerifyResult run_verify_case(const VerifyCase& verify_case, const std::string& backend,
                             const VerifyMemory& memory, AttentionJudge& judge);
VerifyResult run_verify_case(const VerifyCase& verify_case, const std::string& backend,
                             const VerifyMemory& memory);

struct VerifyOptions {
  bool quick = false;
  std::string filter;  ///< only cases whose name contains it
};

/// Runs the attention suite on the backend called `backend` and calls on_result after each case.
std::vector<VerifyResult> run_verify(const std::string& backend, const VerifyMemory& memory,
                                     const VerifyOptions& options = {},
                                     const std::function<void(const VerifyResult&)>& on_result = {});

}  // namespace tessera
