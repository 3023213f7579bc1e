#include "server/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace tessera::server {

namespace {

template <class T>
std::string metric(const char* name, const char* type, const char* help, T value) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
}

}  // namespace

void Histogram::add(double seconds) {
  sum_ += seconds;
  ++counts_[static_cast<std::size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())];
}

std::string Histogram::text(const std::string& name, const std::string& help) const {
  std::string out = fmt::format("# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    count += counts_[i];
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], count);
  }
  count += counts_.back();
  return out + fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count, sum_);
}

std::string Metrics::text(const EngineStats& engine, std::size_t connections, std::size_t preparing,
                          double network_cpu_seconds) const {
  std::string out =
      "# HELP tessera_http_responses_total Answers by path and status.\n# TYPE tessera_http_responses_total "
      "counter\n";
  for (const auto& [key, count] : responses) {
    out += fmt::format("tessera_http_responses_total{{path=\"{}\",status=\"{}\"}} {}\n", key.first,
                       key.second, count);
  }
  out += metric("tessera_http_disconnected_total", "counter",
                "Clients that went, or did not read, before the end of an answer.", disconnected);
  out += metric("tessera_http_connections", "gauge", "Open connections.", connections);
  out += metric("tessera_network_cpu_seconds_total", "counter", "Processor time of the network thread.",
                network_cpu_seconds);
  out += metric("tessera_requests_preparing", "gauge", "Requests that are being read and turned into tokens.",
                preparing);
  out += metric("tessera_requests_running", "gauge", "Sequences that have pages of the KV cache.",
                engine.running);
  out += metric("tessera_requests_waiting", "gauge", "Sequences that wait for their turn.", engine.waiting);
  out += metric("tessera_sequences_finished_total", "counter",
                "Sequences that ended, cancelled ones included.", engine.requests_finished);
  out += metric("tessera_sequences_cancelled_total", "counter", "Sequences that were cancelled.",
                engine.requests_cancelled);
  out += metric("tessera_sequences_failed_total", "counter", "Sequences that ended with an error.",
                engine.requests_failed);
  out += metric("tessera_sequences_refused_total", "counter", "Sequences refused because the queue was full.",
                engine.requests_refused);
  out += metric("tessera_prompt_tokens_total", "counter", "Tokens of prompts.", engine.prompt_tokens);
  out += metric("tessera_cached_tokens_total", "counter", "Tokens of prompts found in the prefix cache.",
                engine.cached_tokens);
  out += metric("tessera_generated_tokens_total", "counter", "Tokens drawn.", engine.generated_tokens);
  out += metric("tessera_preemptions_total", "counter", "Sequences that gave their pages to others.",
                engine.preemptions);
  out += metric("tessera_steps_total", "counter", "Steps of the engine.", engine.steps);
  out += metric("tessera_kv_pages", "gauge", "Pages of the KV cache.", engine.kv_pages);
  out += metric("tessera_kv_pages_used", "gauge", "Pages that sequences use.", engine.kv_pages_used);
  out += metric("tessera_kv_pages_cached", "gauge", "Free pages kept for prompts that begin the same.",
                engine.kv_pages_cached);
  out += metric("tessera_kv_cache_bytes", "gauge", "Memory of the KV cache.", engine.kv_cache_bytes);
  out +=
      first_token_time.text("tessera_time_to_first_token_seconds", "From a request's end to its first text.");
  out += request_time.text("tessera_request_seconds", "From a request's end to its answer's.");
  return out;
}

}  // namespace tessera::server
