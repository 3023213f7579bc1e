#include "verify/verify.h"

#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "attention/backend.h"
#include "bench_report.h"
#include "commands.h"
#include "output.h"
#include "tessera/attention.h"
#include "threads_option.h"
#include "verify/memory/backend_memory.h"
#include "verify/random_check.h"
#include "verify/random_verify.h"

namespace tessera::cli {

namespace {

struct VerifyCommandOptions {
  std::string backend = "all";
  VerifyOptions verify;
  bool random = false;
  RandomVerifyOptions random_options;
  std::optional<std::int64_t> most_random_cases;
  std::optional<std::string> random_case;
  int threads = 0;
  bool json = false;
};

struct Counts {
  int passed = 0;
  int failed = 0;
  int unsupported = 0;  ///< cases that a backend rightly does not take
};

enum class Outcome { kPassed, kFailed, kUnsupported };

Outcome outcome_of(const VerifyResult& r) {
  if (!r.passed) return Outcome::kFailed;
  return r.unsupported_reason.empty() ? Outcome::kPassed : Outcome::kUnsupported;
}

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return "passed";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kUnsupported:
      return "unsupported";
  }
  return "";
}

std::string line_of(const VerifyResult& r) {
  std::string line = fmt::format("{:<11}  {:<9}  {:<52}", outcome_name(outcome_of(r)), r.backend, r.name);
  if (r.unsupported_reason.empty()) {
    line += fmt::format("  error {:8.2e}  bound {:8.2e}  {}", r.error, r.bound, r.kernel);
  } else {
    line += "  " + r.unsupported_reason;
  }
  if (!r.message.empty()) line += "\n             " + r.message;
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

nlohmann::ordered_json to_json(const VerifyResult& r) {
  return {{"group", r.group},
          {"name", r.name},
          {"backend", r.backend},
          {"kernel", r.kernel},
          {"outcome", outcome_name(outcome_of(r))},
          {"error", r.error},
          {"bound", r.bound},
          {"lse_error", r.lse_error},
          {"lse_bound", r.lse_bound},
          {"passed", r.passed},
          {"unsupported_reason", r.unsupported_reason},
          {"message", r.message},
          {"ms", r.ms}};
}

std::string replay_command(const std::string& backend, const RandomCase& random_case) {
  return fmt::format("tessera verify --backend {} --case '{}'", backend, to_text(random_case));
}

/// Random problems on each backend in turn.
int verify_random(const VerifyCommandOptions& options) {
  bool passed = true;
  nlohmann::ordered_json backends = nlohmann::ordered_json::array();
  for (const std::string& backend : backends_to_verify(options.backend)) {
    nlohmann::ordered_json failures = nlohmann::ordered_json::array();
    const auto on_failure = [&](const RandomFailure& failure) {
      if (options.json) {
        failures.push_back({{"index", failure.index},
                            {"case", failure.result.name},
                            {"kernel", failure.result.kernel},
                            {"message", failure.result.message},
                            {"shrunk", to_text(failure.shrunk)},
                            {"shrunk_message", failure.shrunk_result.message}});
        return;
      }
      write_stdout(fmt::format("failed       {:<9}  case {}, {}: {}\n  {}\n  smaller: {}\n  {}\n", backend,
                               failure.index, failure.result.kernel, failure.result.message,
                               failure.result.name, failure.shrunk_result.message,
                               replay_command(backend, failure.shrunk)));
    };
    RandomVerifyOptions random_options = options.random_options;
    random_options.limits.takes_f64 = backend == "reference";
    if (options.most_random_cases)
      random_options.max_cases = static_cast<std::uint64_t>(*options.most_random_cases);
    const RandomVerifyReport report =
        run_random_verify(backend, verify_memory_of(backend), random_options, on_failure);
    passed = passed && report.failed == 0;
    if (options.json) {
      backends.push_back({{"backend", backend},
                          {"cases", report.cases},
                          {"failed", report.failed},
                          {"unsupported", report.unsupported},
                          {"largest_share", report.largest_share},
                          {"failures", failures}});
    } else {
      write_stdout(fmt::format(
          "{}: {} random cases of seed {}, {} failed, {} not supported; the largest error took {:.2f} of "
          "its bound\n",
          backend, report.cases, random_options.seed, report.failed, report.unsupported,
          report.largest_share));
    }
  }
  if (options.json) {
    nlohmann::ordered_json document = bench_environment_json();
    document["seed"] = options.random_options.seed;
    document["passed"] = passed;
    document["backends"] = backends;
    write_json(document);
  }
  return passed ? kExitDone : kExitFailed;
}

int verify(const VerifyCommandOptions& options) {
  use_threads(options.threads);
  if (options.random) return verify_random(options);
  Counts counts;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  const auto on_result = [&](const VerifyResult& result) {
    switch (outcome_of(result)) {
      case Outcome::kPassed:
        ++counts.passed;
        break;
      case Outcome::kFailed:
        ++counts.failed;
        break;
      case Outcome::kUnsupported:
        ++counts.unsupported;
        break;
    }
    if (options.json) {
      results.push_back(to_json(result));
    } else {
      write_stdout(line_of(result));
    }
  };
  for (const std::string& backend : backends_to_verify(options.backend)) {
    if (options.random_case) {
      on_result(run_random_case(parse_random_case(*options.random_case), backend, verify_memory_of(backend)));
    } else {
      run_verify(backend, verify_memory_of(backend), options.verify, on_result);
    }
  }
  if (counts.passed + counts.failed + counts.unsupported == 0) {
    throw UsageError(fmt::format("no case has '{}' in its name", options.verify.filter));
  }
  if (options.json) {
    nlohmann::ordered_json document = bench_environment_json();
    document["passed"] = counts.passed;
    document["failed"] = counts.failed;
    document["unsupported"] = counts.unsupported;
    document["results"] = results;
    write_json(document);
  } else {
    write_stdout(fmt::format("{} passed, {} failed, {} not supported by the backend\n", counts.passed,
                             counts.failed, counts.unsupported));
  }
  return counts.failed == 0 ? kExitDone : kExitFailed;
}

}  // namespace

void add_verify_command(Command& parent) {
  auto options = std::make_shared<VerifyCommandOptions>();
  Command command =
      parent.add_command("verify", "Compare every backend with the fp64 reference on this machine");
  const ValueCheck check_backend = [](const std::string& name) {
    return name == "all" ? std::string() : check_backend_name(name);
  };
  command.add_text("--backend", options->backend, "all, or a name that 'tessera info' lists", "NAME",
                   check_backend);
  command.add_flag("--quick", options->verify.quick, "A selection that takes seconds");
  command.add_text("--filter", options->verify.filter, "Only cases whose name contains this");
  command.begin_group("Random problems");
  command.add_flag("--random", options->random,
                   "Problems with all features combined, each number with a bound of its own");
  command.add_real("--seconds", options->random_options.seconds, 1e-6, 1e6, "For how long, on each backend");
  command.add_integer("--cases", options->most_random_cases, 1, std::int64_t{1} << 62,
                      "At most so many, on each backend");
  command.add_seed("--seed", options->random_options.seed, "Which problems: the same seed draws the same");
  command.add_optional_text("--case", options->random_case, "One problem, as printed for one that failed",
                            "LINE");
  for (const char* const option : {"--seconds", "--cases", "--seed"}) command.let_need(option, "--random");
  for (const char* const option : {"--quick", "--filter", "--case"}) command.let_exclude(option, "--random");
  for (const char* const option : {"--quick", "--filter"}) command.let_exclude(option, "--case");
  command.begin_group("Options");
  add_threads_option(command, options->threads);
  command.add_flag("--json", options->json, "Print one JSON document");
  command.set_examples(
      {"tessera verify", "tessera verify --quick --backend cpu", "tessera verify --filter paged",
       "tessera verify --random --seconds 60 --seed 7 --backend cpu", "",
       "One line a case: what came of it, error and bound. The exit code is 1 if any failed."});
  command.set_action([options] { return verify(*options); });
}

}  // namespace tessera::cli
