#include "model/checkpoint/hf_checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/json_parse.h"
#include "core/mapped_file.h"
#include "core/text.h"
#include "model/checkpoint/hf_config.h"
#include "model/checkpoint/hf_names.h"
#include "model/checkpoint/hf_quantization.h"
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
constexpr const char* kConfigJson = "config.json";
constexpr std::size_t kMaxConfigBytes = 4 << 20;
constexpr std::size_t kMaxTableBytes = 32 << 20;  // files with an entry for each tensor or token

std::string read_config_json(const fs::path& folder) {
  const fs::path path = folder / kConfigJson;
  if (!is_there(path)) {
    throw Error(ErrorCode::kIo,
                fmt::format("'{}' has no config.json; a folder in the Hugging Face format was expected",
                            folder.string()));
  }
  return read_file(path, kMaxConfigBytes);
}

ModelConfig read_config(const fs::path& folder, const std::string& config_json) {
  const std::string source = (folder / kConfigJson).string();
  const fs::path generation_path = folder / "generation_config.json";
  if (!is_there(generation_path)) return parse_hf_config(config_json, source);
  const std::string generation = read_file(generation_path, kMaxConfigBytes);
  return parse_hf_config(config_json, source, generation, generation_path.string());
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
  for (const auto& [name, tensor] : stored) {
    if (indexed != nullptr && indexed->count(name) == 0) continue;  // the index decides, as in transformers
    weights.add(hf_checkpoint_name(name, checkpoint.config.architecture), tensor, name, file->bytes(),
                source);
  }
  checkpoint.files.push_back(std::move(file));
}

void read_weights(const fs::path& folder, const std::optional<HfQuantization>& quantization,
                  Checkpoint& checkpoint) {
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
  if (quantization) {
    weights.widen(*quantization, checkpoint.config);
    checkpoint.quantization = quantization->name;
  }
  if (checkpoint.config.tied_embeddings) checkpoint.config.tied_embeddings = weights.tie_head();
  weights.gather_heads(checkpoint.config);
  weights.gather_recurrent(checkpoint.config);
  weights.gather_experts(checkpoint.config);
  weights.move_to(checkpoint, folder.string());
}

std::string read_template(const fs::path& path) {
  const std::string file = read_file(path, kMaxTableBytes);
  if (!is_valid_utf8(file)) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: the template is not UTF-8", path.string()));
  }
  return file;
}

ChatTemplateData read_chat(const fs::path& folder, const std::optional<TokenizerConfig>& config) {
  ChatTemplateData chat;
  chat.source = folder.string();
  if (config) chat.special_tokens = config->special_tokens();
  // Newer versions' place goes before tokenizer_config.json.
  if (const fs::path own_file = folder / "chat_template.jinja"; is_there(own_file)) {
    chat.templates["default"] = read_template(own_file);
  } else if (config) {
    chat.templates = config->chat_templates();
  }
  std::error_code none;  // no such folder: no more templates
  for (const fs::directory_entry& entry :
       fs::directory_iterator(folder / "additional_chat_templates", none)) {
    if (entry.path().extension() == ".jinja")
      chat.templates[entry.path().stem().string()] = read_template(entry.path());
  }
  return chat;
}

/// The model_type of config.json, empty without one.
std::string read_model_type(const fs::path& folder) {
  const fs::path path = folder / kConfigJson;
  if (!is_there(path)) return "";
  const json document = parse_json_bounded(read_file(path, kMaxConfigBytes), path.string());
  const json type = document.is_object() ? document.value("model_type", json()) : json();
  return type.is_string() ? type.get<std::string>() : "";
}

}  // namespace

std::optional<TokenizerConfig> read_tokenizer_config(const fs::path& folder) {
  const fs::path config = folder / "tokenizer_config.json", map = folder / "special_tokens_map.json",
                 added = folder / "added_tokens.json";
  if (!is_there(config) && !is_there(map) && !is_there(added)) return std::nullopt;
  TokenizerConfigFiles files;
  files.config_source = config.string();
  files.special_tokens_map_source = map.string();
  files.added_tokens_source = added.string();
  files.config = is_there(config) ? read_file(config, kMaxTableBytes) : "{}";
  if (is_there(map)) files.special_tokens_map = read_file(map, kMaxTableBytes);
  if (is_there(added)) files.added_tokens = read_file(added, kMaxTableBytes);
  files.model_type = read_model_type(folder);
  return TokenizerConfig(files);
}

std::shared_ptr<const Tokenizer> load_folder_tokenizer(const fs::path& folder) {
  return load_folder_tokenizer(folder, read_tokenizer_config(folder));
}

std::shared_ptr<const Tokenizer> load_folder_tokenizer(const fs::path& folder,
                                                       const std::optional<TokenizerConfig>& config) {
  const fs::path path = folder / kTokenizerJson;
  if (!is_there(path)) return nullptr;
  return parse_tokenizer_json(read_file(path, kLongestTokenizerJson), path.string(),
                              config ? &*config : nullptr);
}

Checkpoint open_hf_checkpoint(const fs::path& folder, const CheckpointOptions& options) {
  Checkpoint checkpoint;
  const std::string config_json = read_config_json(folder);
  checkpoint.config = read_config(folder, config_json);
  read_weights(folder, parse_hf_quantization(config_json, (folder / kConfigJson).string()), checkpoint);
  if (options.load_tokenizer) {
    const std::optional<TokenizerConfig> config = read_tokenizer_config(folder);
    checkpoint.tokenizer = load_folder_tokenizer(folder, config);
    checkpoint.chat = read_chat(folder, config);
  }
  return checkpoint;
}

}  // namespace tessera
