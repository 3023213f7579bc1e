#include "model/checkpoint/hf_checkpoint.h"

#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/json_parse.h"
#include "core/mapped_file.h"
#include "core/text.h"
#include "model/checkpoint/hf_config.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/weights.h"
#include "model/tokenizer/tokenizer.h"
#include "tessera/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Also true if that can't be found out: opening it then says why.
bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::status(path, ignored).type() != fs::file_type::not_found;
}

// Parsed JSON takes up to 28 times its text, so what is far larger than any real file is not parsed.
constexpr std::size_t kMaxConfigBytes = 4 << 20;
constexpr std::size_t kMaxTableBytes = 32 << 20;  // files with an entry for each tensor or token

ModelConfig read_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  if (!is_there(path)) {
    throw Error(ErrorCode::kIo,
                fmt::format("'{}' has no config.json; a folder in the Hugging Face format was expected",
                            folder.string()));
  }
  const std::string config = read_file(path, kMaxConfigBytes);
  const fs::path generation_path = folder / "generation_config.json";
  if (!is_there(generation_path)) return parse_hf_config(config, path.string());
  const std::string generation = read_file(generation_path, kMaxConfigBytes);
  return parse_hf_config(config, path.string(), generation, generation_path.string());
}

/// The weights' names by shard, as an index file gives them. Shards are files of the folder itself.
std::map<std::string, std::set<std::string>> read_index(const fs::path& path) {
  const std::string file = read_file(path, kMaxTableBytes);
  const json document = parse_json_bounded(file, path.string());
  const auto corrupt = [&](const std::string& what) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", path.string(), what));
  };
  if (!document.is_object() || !document.contains("weight_map") || !document["weight_map"].is_object()) {
    corrupt("weight_map, an object from tensors to files, is missing");
  }
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, shard] : document["weight_map"].items()) {
    if (!shard.is_string()) corrupt(fmt::format("weight_map: '{}' must name a file", printable(tensor)));
    const auto& name = shard.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." ||
        name.find_first_of(std::string_view("/\\\0", 3)) != name.npos) {
      corrupt(fmt::format("weight_map: '{}' is in '{}', which is not the name of a file in the same folder",
                          printable(tensor), printable(name)));
    }
    shards[name].insert(tensor);
  }
  return shards;
}

void add_weights(const fs::path& path, const std::set<std::string>* indexed, Checkpoint& checkpoint,
                 WeightCollector& weights) {
  auto file = std::make_shared<const MappedFile>(path);
  const std::string source = path.string();
  const StoredTensors stored = parse_safetensors(file->bytes(), source);
  if (indexed != nullptr) {
    for (const std::string& name : *indexed) {
      if (stored.find(name) == stored.end()) {
        throw Error(ErrorCode::kCorruptFile,
                    fmt::format("{}: the tensor '{}' is missing, which the index says is here", source,
                                printable(name)));
      }
    }
  }
  constexpr std::string_view kPrefix = "model.";
  for (const auto& [name, tensor] : stored) {
    if (indexed != nullptr && indexed->count(name) == 0) continue;  // the index decides, as in transformers
    weights.add(name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name, tensor, name, file->bytes(),
                source);
  }
  checkpoint.files.push_back(std::move(file));
}

void read_weights(const fs::path& folder, Checkpoint& checkpoint) {
  WeightCollector weights;
  const fs::path single = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  if (is_there(single)) {
    add_weights(single, nullptr, checkpoint, weights);
  } else if (is_there(index)) {
    for (const auto& [shard, names] : read_index(index)) {
      add_weights(folder / shard, &names, checkpoint, weights);
    }
  } else {
    const bool has_pickle =
        is_there(folder / "pytorch_model.bin") || is_there(folder / "pytorch_model.bin.index.json");
    throw Error(
        ErrorCode::kIo,
        fmt::format("'{}' has neither model.safetensors nor model.safetensors.index.json{}", folder.string(),
                    has_pickle ? "; save the model again with safe_serialization=True" : ""));
  }
  weights.move_to(checkpoint, folder.string());
}

/// The "default" one of tokenizer_config.json's chat templates, which may be one string or a list.
std::string read_chat_template(const fs::path& folder) {
  // Newer versions keep it in a file of its own, which then counts.
  if (const fs::path path = folder / "chat_template.jinja"; is_there(path)) {
    const std::string file = read_file(path, kMaxTableBytes);
    if (!is_valid_utf8(file)) {
      throw Error(ErrorCode::kCorruptFile, fmt::format("{}: the template is not UTF-8", path.string()));
    }
    return file;
  }
  const fs::path path = folder / "tokenizer_config.json";
  if (!is_there(path)) return {};
  const std::string file = read_file(path, kMaxTableBytes);
  const json document = parse_json_bounded(file, path.string());
  const auto field = document.is_object() ? document.find("chat_template") : document.end();
  if (field == document.end() || field->is_null()) return {};
  if (field->is_string()) return field->get<std::string>();
  if (field->is_array()) {
    for (const json& item : *field) {
      if (item.is_object() && item.value("name", json()) == "default" && item.contains("template") &&
          item["template"].is_string()) {
        return item["template"].get<std::string>();
      }
    }
    return {};
  }
  throw Error(ErrorCode::kCorruptFile,
              fmt::format("{}: chat_template must be a string or a list of templates", path.string()));
}

}  // namespace

Checkpoint open_hf_checkpoint(const fs::path& folder, const CheckpointOptions& options) {
  Checkpoint checkpoint;
  checkpoint.config = read_config(folder);
  read_weights(folder, checkpoint);
  if (options.load_tokenizer) {
    const fs::path path = folder / "tokenizer.json";
    if (is_there(path)) checkpoint.tokenizer = load_tokenizer_json(path);
    checkpoint.chat_template = read_chat_template(folder);
  }
  return checkpoint;
}

}  // namespace tessera
