#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "attention/backend.h"
#include "backends/family.h"
#include "bench_report.h"
#include "commands.h"
#include "core/binary_cache.h"
#include "core/new_file.h"
#include "gpu_info.h"
#include "output.h"
#include "problem_options.h"
#include "tessera/error.h"
#include "threads_option.h"
#include "tune_grid.h"
#include "tune_measure.h"

namespace tessera::cli {

namespace {

using Clock = std::chrono::steady_clock;

struct TuneOptions {
  ProblemOptions problem;
  std::string backend = "auto";
  std::uint64_t seed = 0;
  double seconds = 300;
  int threads = 0;
  bool dry_run = false;
  std::string output;
  bool json = false;
};

struct TuneOutcome {
  std::vector<MeasuredProblem> measured;
  std::vector<std::string> failures;
  std::size_t num_left = 0;  ///< for which there was no time
};

/// The backend of that name, or the first of a GPU that there is, or else of the CPU. Throws UsageError for
/// one whose choices follow from no measurement, Error{kUnsupported} for one that this machine can't run.
const AttentionBackend& find_tuned_backend(const std::string& name) {
  std::string with_tuner;
  const AttentionBackend* best = nullptr;
  for (const auto& backend : all_attention_backends()) {
    if (backend->tuner() == nullptr) continue;
    with_tuner += fmt::format("{}{}", with_tuner.empty() ? "" : ", ", backend->name());
    if (!backend->unavailable_reason().empty()) continue;
    if (best == nullptr ||
        (best->device_kind() == DeviceKind::kCpu) > (backend->device_kind() == DeviceKind::kCpu))
      best = backend.get();
  }
  if (name == "auto" && best != nullptr) return *best;
  const AttentionBackend& backend = find_attention_backend(name);
  if (backend.tuner() == nullptr)
    throw UsageError(fmt::format("backend '{}' has nothing to tune; expected one of {}", name, with_tuner));
  if (const std::string reason = backend.unavailable_reason(); !reason.empty())
    throw Error(ErrorCode::kUnsupported, fmt::format("backend '{}' can't run here: {}", name, reason));
  return backend;
}

/// One problem, or the grid; those of classes that were never measured come first, so that a run that had no
/// time for all is gone on with by the next.
std::vector<ProblemOptions> problems_of(const TuneOptions& options, DeviceKind kind,
                                        const TuningTable& known) {
  if (options.problem.seq_len_q || options.problem.seq_len_kv) return {options.problem};
  std::vector<ProblemOptions> problems = tuning_grid(options.problem, kind);
  std::stable_partition(problems.begin(), problems.end(), [&](const ProblemOptions& problem) {
    return !known.entries.contains(shape_class(ProblemData(problem).problem()));
  });
  return problems;
}

bool is_gain(const MeasuredProblem& m) { return !m.entry.best.kernel.empty(); }

double gain(const MeasuredProblem& m) { return m.entry.default_us / m.entry.best_us; }

/// "sm80/decode 16 x 128, 4 splits".
std::string describe(const MeasuredCandidate& c) {
  return fmt::format("{} {} x {}, {} split{}", c.candidate.kernel, c.config.block_m, c.config.block_n,
                     c.config.num_splits, c.config.num_splits == 1 ? "" : "s");
}

const MeasuredCandidate& quickest_of(const MeasuredProblem& m) {
  const auto found = std::ranges::find(m.candidates, m.entry.best, &MeasuredCandidate::candidate);
  return found == m.candidates.end() ? m.candidates.front() : *found;
}

nlohmann::ordered_json to_json(const MeasuredProblem& m) {
  nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
  for (const MeasuredCandidate& c : m.candidates) {
    candidates.push_back({{"kernel", c.candidate.kernel},
                          {"block_m", c.config.block_m},
                          {"block_n", c.config.block_n},
                          {"num_warps", c.config.num_warps},
                          {"num_stages", c.config.num_stages},
                          {"num_splits", c.config.num_splits},
                          {"num_parts", c.config.num_parts},
                          {"us", c.us},
                          {"rounds", c.rounds},
                          {"failure", c.failure}});
  }
  return {{"problem", m.description},
          {"class", m.shapes},
          {"kernel", quickest_of(m).candidate.kernel},
          {"default_kernel", m.entry.default_kernel},
          {"us", m.entry.best_us},
          {"default_us", m.entry.default_us},
          {"gain", gain(m)},
          {"is_default", !is_gain(m)},
          {"candidates", candidates}};
}

std::string to_text(const std::vector<MeasuredProblem>& measured) {
  Table table({{"shapes", Table::Align::kLeft},
               {"untuned", Table::Align::kLeft},
               {"us"},
               {"quickest", Table::Align::kLeft},
               {"us"},
               {"gain"},
               {"of"}});
  for (const MeasuredProblem& m : measured) {
    table.add_row({m.shapes, describe(m.candidates.front()), fmt::format("{:.2f}", m.entry.default_us),
                   is_gain(m) ? describe(quickest_of(m)) : "the same", fmt::format("{:.2f}", m.entry.best_us),
                   is_gain(m) ? fmt::format("{:.2f} x", gain(m)) : "",
                   std::to_string(m.entry.num_candidates)});
  }
  std::string text = measured.empty() ? "" : table.to_string();
  for (const MeasuredProblem& m : measured) {
    for (const MeasuredCandidate& c : m.candidates) {
      if (!c.failure.empty())
        text += fmt::format("left out: {} of {}: {}\n", describe(c), m.shapes, c.failure);
    }
  }
  return text;
}

/// A line on a terminal's standard error.
void show_progress(std::size_t done, std::size_t total, const std::string& what) {
  if (!stderr_is_terminal()) return;
  write_stderr(what.empty() ? "\r\x1b[K" : fmt::format("\rtuning {} of {}: {}\x1b[K", done + 1, total, what));
}

TuneOutcome measure(const AttentionBackend& backend, const Device& device, const TuneOptions& options) {
  const Clock::time_point start = Clock::now();
  gpu::Gpu* const gpu = device.kind == DeviceKind::kCpu ? nullptr : &find_gpu(device);
  const std::vector<ProblemOptions> problems =
      problems_of(options, device.kind, backend.tuner()->tuned(device));
  TuneOutcome outcome;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    if (i > 0 && std::chrono::duration<double>(Clock::now() - start).count() >= options.seconds) {
      outcome.num_left = problems.size() - i;
      break;
    }
    AttentionProblem described = ProblemData(problems[i]).problem();
    described.device = device;
    const std::string description = to_string(described);
    show_progress(i, problems.size(), description);
    try {
      if (std::string reason = backend.unsupported_reason(described); !reason.empty())
        throw Error(ErrorCode::kUnsupported, reason);
      outcome.measured.push_back(measure_candidates(backend, gpu, problems[i], options.seed));
    } catch (const Error& error) {
      if (problems.size() == 1) throw;
      outcome.failures.push_back(fmt::format("{}: {}", description, error.message()));
      continue;
    }
    // At once, so that who stops a long run keeps what it has found.
    const MeasuredProblem& m = outcome.measured.back();
    if (!options.dry_run) backend.tuner()->remember(device, {{}, {{m.shapes, m.entry}}});
  }
  show_progress(0, 0, "");
  return outcome;
}

void write_table(const std::string& path, const TuningTable& table) {
  const std::string text = tuning_to_json(table);
  NewFile file(path);
  file.write(text.data(), text.size());
  file.finish();
}

int tune_attention(const TuneOptions& options) {
  use_threads(options.threads);
  if (!options.output.empty()) require_new_file(options.output);
  const AttentionBackend& backend = find_tuned_backend(options.backend);
  const Device device = {backend.device_kind(), 0};
  const bool is_gpu = device.kind != DeviceKind::kCpu;
  const TuneOutcome outcome = measure(backend, device, options);
  TuningTable table{backend.tuner()->tuned(device).device, {}};
  for (const MeasuredProblem& m : outcome.measured) table.entries.insert_or_assign(m.shapes, m.entry);

  const std::string folder = BinaryCache::default_folder().string();
  const auto gains = static_cast<std::size_t>(std::ranges::count_if(outcome.measured, is_gain));
  if (options.json) {
    nlohmann::ordered_json document = bench_environment_json();
    if (is_gpu) document["gpu"] = gpu_environment_json(device);
    document["results"] = nlohmann::ordered_json::array();
    for (const MeasuredProblem& m : outcome.measured) document["results"].push_back(to_json(m));
    document["failures"] = outcome.failures;
    document["left"] = outcome.num_left;
    document["remembered_in"] = options.dry_run ? "" : folder;
    write_json(document);
  } else {
    std::string text =
        bench_environment_text() + '\n' + (is_gpu ? gpu_environment_text(device) + '\n' : "") + '\n';
    text += to_text(outcome.measured);
    for (const std::string& failure : outcome.failures) text += "failed: " + failure + '\n';
    text += fmt::format("\nclasses of shapes measured: {}, with a quicker choice: {}; ",
                        outcome.measured.size(), gains);
    text +=
        options.dry_run ? "nothing is remembered (--dry-run)\n" : fmt::format("remembered in {}\n", folder);
    if (outcome.num_left > 0)
      text += fmt::format("no time for {} more; run it again, or with more --seconds\n", outcome.num_left);
    write_stdout(text);
  }
  // Last, so that a name that can't be written costs nobody the results of a long run.
  if (!options.output.empty()) write_table(options.output, table);
  return outcome.failures.empty() ? kExitDone : kExitFailed;
}

}  // namespace

void add_tune_attention_command(Command& parent) {
  auto options = std::make_shared<TuneOptions>();
  Command command = parent.add_command(
      "attention",
      "Measure which kernel, tiles and splits are quickest on this machine, and choose them from now on");
  command.add_text("--backend", options->backend, "cuda, hip, cpu; auto: a GPU if there is one", "NAME",
                   check_backend_name);
  command.add_real("--seconds", options->seconds, 0.0, 86400.0, "Begin no further problem after so long");
  command.add_flag("--dry-run", options->dry_run, "Remember nothing");
  command.add_text("--output", options->output,
                   "Also write this run's results there, as JSON; must not exist yet", "FILE");
  command.add_seed("--seed", options->seed, "Of the random q, k and v");
  add_threads_option(command, options->threads);
  command.add_flag("--json", options->json, "Print one JSON document");
  add_problem_options(command, options->problem);
  command.set_examples(
      {"tessera tune attention --dtype bf16",
       "tessera tune attention --dtype bf16 --seq-len-q 1 --seq-len-kv 8192 --batch 16 --num-heads 32 "
       "--num-kv-heads 8 --page-size 16 --causal",
       "tessera explain attention --backend cuda --dtype bf16 --seq-len-q 1 --seq-len-kv 8192",
       "TESSERA_TUNING=off tessera bench attention --dtype bf16", "",
       "Without --seq-len-q and --seq-len-kv: a grid of shapes that models have, of the types and scores "
       "given.",
       "A choice is remembered for its class of shapes if it is at least 3 % quicker than the untuned one "
       "and the",
       "fp64 reference confirms its result; 'tessera cache clear' forgets them all."});
  command.set_action([options] { return tune_attention(*options); });
}

}  // namespace tessera::cli
