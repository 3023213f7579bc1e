#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A folder of compiled kernels. Every entry is one file that carries its own key, description and checksum;
/// it is written to a temporary file and renamed, so that a reader sees a whole entry or none, however many
/// processes write and whenever one is killed. Nothing here throws for a folder that can't be read or
/// written: a cache that fails is a slower start, and write_problem() says why.
///
/// What is loaded is run, so only files that this user or root owns and nobody else may write to are. Other
/// programs' files in the folder are never touched: a file counts as the cache's if its name has the form
/// that store() gives, and is removed only if it also starts like an entry.
class BinaryCache {
 public:
  struct Entry {
    std::filesystem::path path;
    std::string description;     ///< as given to store()
    std::size_t size_bytes = 0;  ///< of the file
    std::string damage;          ///< empty: whole; else why it is not loaded
    bool removable = true;       ///< false: only the name is an entry's; clear() leaves it alone
  };

  explicit BinaryCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// $TESSERA_CACHE_DIR, or tessera/ in $XDG_CACHE_HOME, or ~/.cache/tessera; empty if none of them is set.
  static std::filesystem::path default_folder();

  /// 32 hexadecimal digits that depend on every byte of `parts` and where each ends: the keys of this cache.
  static std::string make_key(std::span<const std::string_view> parts);

  /// The payload stored under `key`. A damaged entry is removed and counts as absent.
  std::optional<std::vector<std::byte>> load(const std::string& key) const;

  /// Returns false, and write_problem() says why, if the entry could not be written.
  bool store(const std::string& key, const std::string& description, std::span<const std::byte> payload);

  /// Holds other processes' and threads' locks of this folder off as long as it lives: who changes an entry
  /// by what it holds takes one first. It makes the folder; where that or locks don't work (some network file
  /// systems) it holds nothing off.
  class Lock {
   public:
    explicit Lock(const BinaryCache& cache);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    int folder_;
  };

  /// Every entry with its state, sorted by name; leftovers of killed writers that are older than an hour
  /// count as damaged.
  std::vector<Entry> list() const;

  /// Removes all entries, damaged ones too, and leftovers; returns how many files went.
  int clear();

  const std::filesystem::path& folder() const { return folder_; }
  const std::string& write_problem() const { return write_problem_; }

 private:
  std::filesystem::path folder_;
  std::string write_problem_;
};

}  // namespace tessera
