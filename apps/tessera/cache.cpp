#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "core/binary_cache.h"
#include "output.h"

namespace tessera::cli {

namespace {

std::string folder_text(const BinaryCache& cache) {
  return cache.folder().empty() ? "none: none of TESSERA_CACHE_DIR, XDG_CACHE_HOME and HOME is set"
                                : cache.folder().string();
}

nlohmann::ordered_json to_json(const BinaryCache& cache, const std::vector<BinaryCache::Entry>& entries) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const BinaryCache::Entry& entry : entries) {
    list.push_back({{"file", entry.path.filename().string()},
                    {"kernel", entry.description},
                    {"size_bytes", entry.size_bytes},
                    {"damage", entry.damage}});
  }
  return {{"folder", cache.folder().string()}, {"entries", list}};
}

std::string summary(const std::vector<BinaryCache::Entry>& entries) {
  std::size_t size_bytes = 0;
  std::size_t damaged = 0;
  for (const BinaryCache::Entry& entry : entries) {
    size_bytes += entry.size_bytes;
    if (!entry.damage.empty()) ++damaged;
  }
  return fmt::format("{}, {}, {} damaged\n", counted(std::ssize(entries), "entry", "entries"),
                     bytes_text(static_cast<double>(size_bytes)), damaged);
}

std::string to_text(const std::vector<BinaryCache::Entry>& entries) {
  Table table({{"size"}, {"kernel", Table::Align::kLeft}});
  for (const BinaryCache::Entry& entry : entries) {
    table.add_row({bytes_text(static_cast<double>(entry.size_bytes)),
                   entry.damage.empty()
                       ? entry.description
                       : fmt::format("{}: damaged: {}", entry.path.filename().string(), entry.damage)});
  }
  return entries.empty() ? "" : table.to_string();
}

int list(bool json) {
  const BinaryCache cache(BinaryCache::default_folder());
  const std::vector<BinaryCache::Entry> entries = cache.list();
  if (json) {
    write_json(to_json(cache, entries));
  } else {
    write_stdout(fmt::format("folder: {}\n{}{}", folder_text(cache), to_text(entries), summary(entries)));
  }
  return kExitDone;
}

/// Fails if an entry is damaged. What is damaged goes when it is next wanted, or by `clear`.
int verify(bool json) {
  const BinaryCache cache(BinaryCache::default_folder());
  const std::vector<BinaryCache::Entry> entries = cache.list();
  std::vector<BinaryCache::Entry> damaged;
  for (const BinaryCache::Entry& entry : entries) {
    if (!entry.damage.empty()) damaged.push_back(entry);
  }
  if (json) {
    write_json(to_json(cache, damaged));
  } else {
    write_stdout(fmt::format("folder: {}\n{}{}", folder_text(cache), to_text(damaged), summary(entries)));
  }
  return damaged.empty() ? kExitDone : kExitFailed;
}

int clear() {
  BinaryCache cache(BinaryCache::default_folder());
  const int removed = cache.clear();
  const std::vector<BinaryCache::Entry> left = cache.list();
  const auto foreign = std::ranges::count_if(left, [](const auto& entry) { return !entry.removable; });
  const std::ptrdiff_t stuck = std::ssize(left) - foreign;
  write_stdout(
      fmt::format("folder: {}\n{} removed\n", folder_text(cache), counted(removed, "file", "files")));
  if (foreign > 0) {
    write_stderr(fmt::format("left {} files alone that have an entry's name but are none\n", foreign));
  }
  if (stuck > 0) write_stderr(fmt::format("error: {} files could not be removed\n", stuck));
  return stuck == 0 ? kExitDone : kExitFailed;
}

void add_listing(Command& cache, const std::string& name, const std::string& help, int (*action)(bool)) {
  auto json = std::make_shared<bool>(false);
  Command command = cache.add_command(name, help);
  command.add_flag("--json", *json, "Print one JSON document");
  command.set_action([json, action] { return action(*json); });
}

}  // namespace

void add_cache_command(Command& parent) {
  Command cache = parent.add_command(
      "cache", "List, verify or clear the GPU kernels compiled on this machine, and what was tuned there");
  add_listing(cache, "list", "Show the folder and every entry in it", list);
  add_listing(cache, "verify", "Check every entry; fails if one is damaged", verify);
  Command clearing =
      cache.add_command("clear", "Remove all entries and what killed processes left; other files stay");
  clearing.set_action(clear);
  cache.set_examples({"tessera cache list", "TESSERA_CACHE_DIR=/tmp/kernels tessera cache verify"});
}

}  // namespace tessera::cli
