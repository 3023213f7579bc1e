#include <fmt/core.h>

#include "attention/backend.h"
#include "tessera/error.h"

namespace tessera {
namespace {

std::string reason_against(const AttentionBackend& backend, const AttentionProblem& problem) {
  std::string reason = backend.unavailable_reason();
  if (reason.empty() && problem.scores.modifier && !backend.runs_modifiers())
    reason = "it has no kernels for scores.modifier";
  return reason.empty() ? backend.unsupported_reason(problem) : reason;
}

[[noreturn]] void throw_unknown_backend(std::string_view name,
                                        std::span<const std::unique_ptr<AttentionBackend>> backends) {
  std::string known = "auto";
  for (const auto& backend : backends) known += fmt::format(", {}", backend->name());
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no attention backend '{}'; expected one of {}", name, known));
}

const AttentionBackend& find_in(std::string_view name,
                                std::span<const std::unique_ptr<AttentionBackend>> backends) {
  for (const auto& backend : backends) {
    if (backend->name() == name) return *backend;
  }
  throw_unknown_backend(name, backends);
}

}  // namespace

const AttentionBackend& find_attention_backend(std::string_view name) {
  return find_in(name, all_attention_backends());
}

BackendChoice choose_backend(const AttentionProblem& problem, const AttentionOptions& options,
                             std::span<const std::unique_ptr<AttentionBackend>> backends) {
  BackendChoice choice;
  if (options.backend != "auto") {
    const AttentionBackend& named = find_in(options.backend, backends);
    const std::string reason = reason_against(named, problem);
    if (reason.empty()) {
      choice.backend = &named;
    } else if (options.allow_fallback) {
      choice.fallback_reason = fmt::format("backend '{}' can't run it: {}", named.name(), reason);
    } else {
      throw Error(ErrorCode::kUnsupported, fmt::format("backend '{}' can't run this problem ({}): {}. Choose "
                                                       "another backend, 'auto', or allow fall-back",
                                                       named.name(), to_string(problem), reason));
    }
  }
  std::string reasons;
  for (const auto& backend : backends) {
    if (choice.backend != nullptr) break;
    const std::string reason = reason_against(*backend, problem);
    if (reason.empty()) choice.backend = backend.get();
    reasons += fmt::format("\n  {}: {}", backend->name(), reason);
  }
  if (choice.backend == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("no backend can run this problem ({}):{}", to_string(problem), reasons));
  }
  return choice;
}

std::vector<RejectedBackend> reasons_against_others(
    const AttentionProblem& problem, const AttentionOptions& options, const BackendChoice& choice,
    std::span<const std::unique_ptr<AttentionBackend>> backends) {
  std::vector<RejectedBackend> rejected;
  for (const auto& backend : backends) {
    if (backend.get() == choice.backend) continue;
    std::string reason;
    try {
      reason = reason_against(*backend, problem);
    } catch (const Error& error) {
      reason = error.message();
    }
    if (reason.empty() && options.backend == "auto") {
      reason = fmt::format("can run it, but '{}' is preferred: this is {}", choice.backend->name(),
                           backend->description());
    } else if (reason.empty()) {
      reason = fmt::format("'{}' was asked for", choice.backend->name());
    }
    rejected.push_back({std::string(backend->name()), std::move(reason)});
  }
  return rejected;
}

std::string unsupported_reason(const std::string& name, const AttentionProblem& problem) {
  validate(problem);
  return reason_against(find_attention_backend(name), with_tight_bounds(problem));
}

std::vector<BackendInfo> attention_backends() {
  std::vector<BackendInfo> infos;
  for (const auto& backend : all_attention_backends()) {
    infos.push_back(
        {std::string(backend->name()), std::string(backend->description()), backend->unavailable_reason()});
  }
  return infos;
}

}  // namespace tessera
