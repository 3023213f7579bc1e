#include "model/checkpoint/gguf_checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/mapped_file.h"
#include "model/checkpoint/gguf_config.h"
#include "model/checkpoint/gguf_names.h"
#include "model/tokenizer/tokenizer.h"
#include "tessera/error.h"

namespace tessera {
namespace {

/// Null if the file has no tokenizer.
std::shared_ptr<const Tokenizer> read_tokenizer(const GgufFile& file) {
  if (const auto json = file.text(gguf_keys::kHuggingFaceTokenizer)) {
    try {
      return parse_tokenizer_json(*json,
                                  fmt::format("{}: {}", file.source(), gguf_keys::kHuggingFaceTokenizer));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;  // the other keys may say it in a way that is
    }
  }
  const auto model = file.text(gguf_keys::kTokenizerModel);
  if (!model || *model == "none" || *model == "no_vocab") return nullptr;
  GgufTokenizerData data;
  data.model = *model;
  data.pre = file.text(gguf_keys::kTokenizerPre).value_or("");
  auto tokens = file.texts(gguf_keys::kTokens);
  if (!tokens) file.fail(gguf_keys::kTokens, "is missing");
  data.tokens = std::move(*tokens);
  data.scores = file.floats(gguf_keys::kScores).value_or(std::vector<float>());
  for (const std::int64_t type :
       file.integers(gguf_keys::kTokenTypes).value_or(std::vector<std::int64_t>())) {
    if (type < 0 || type > std::numeric_limits<std::int32_t>::max()) {
      file.fail(gguf_keys::kTokenTypes, fmt::format("holds {}, which is no token type", type));
    }
    data.token_types.push_back(static_cast<std::int32_t>(type));
  }
  auto merges = file.texts(gguf_keys::kMerges);
  if (!merges && (data.model == "gpt2" || data.model == "gemma4"))
    file.fail(gguf_keys::kMerges, "is missing");
  if (merges) data.merges = std::move(*merges);
  const auto token = [&](const char* key) -> std::optional<TokenId> {
    const auto id = file.integer(key);
    if (!is_token(id, static_cast<std::int64_t>(data.tokens.size()))) return std::nullopt;
    return static_cast<TokenId>(*id);
  };
  data.bos_token_id = token(gguf_keys::kBosToken);
  data.eos_token_id = token(gguf_keys::kEosToken);
  data.unknown_token_id = token(gguf_keys::kUnknownToken);
  data.add_bos_token = file.boolean(gguf_keys::kAddBosToken);
  data.add_eos_token = file.boolean(gguf_keys::kAddEosToken);
  data.add_space_prefix = file.boolean(gguf_keys::kAddSpacePrefix);
  return make_gguf_tokenizer(data, file.source());
}

/// Templates, the default one and those with names, and the special tokens that they know.
ChatTemplateData read_chat(const GgufFile& file, const Tokenizer* tokenizer) {
  ChatTemplateData chat;
  chat.source = file.source();
  const auto read_template = [&](const std::string& key, const std::string& name) {
    const auto text = file.text(key);
    if (!text) return;
    if (!is_valid_utf8(*text)) file.fail(key, "is not UTF-8");
    chat.templates[name] = *text;
  };
  read_template(gguf_keys::kChatTemplate, "default");
  for (const std::string& name : file.texts(gguf_keys::kChatTemplates).value_or(std::vector<std::string>())) {
    read_template(std::string(gguf_keys::kChatTemplate) + "." + name, name);
  }
  if (tokenizer == nullptr) return chat;
  for (const auto& [name, key] : gguf_keys::kSpecialTokens) {
    const auto id = file.integer(key);
    if (!is_token(id, tokenizer->vocab_size()) || !tokenizer->contains(static_cast<TokenId>(*id))) continue;
    chat.special_tokens[name] = tokenizer->token_text(static_cast<TokenId>(*id));
  }
  return chat;
}

/// The parts of a model in order; the first has the metadata.
Checkpoint read_parts(std::span<const GgufPart> parts, const CheckpointOptions& options) {
  const GgufFile& file = parts.front().file;
  const std::int64_t count = file.integer("split.count").value_or(1);
  if (std::max<std::int64_t>(count, 1) != static_cast<std::int64_t>(parts.size())) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: it is one of {} parts of a model, which lie in files NAME-00001-of-{:05}.gguf "
                    "and so on; give the first of them",
                    file.source(), count, count));
  }
  const Architecture architecture = read_gguf_architecture(file);
  WeightCollector weights;
  std::size_t num_tensors = 0;
  for (const GgufPart& part : parts) {
    num_tensors += part.file.tensors().size();
    for (const auto& [name, tensor] : part.file.tensors()) {
      weights.add(gguf_checkpoint_name(name, architecture), tensor, name, part.bytes, part.file.source());
    }
  }
  if (const auto expected = file.integer("split.tensors.count");
      parts.size() > 1 && expected && *expected != static_cast<std::int64_t>(num_tensors)) {
    file.fail("split.tensors.count",
              fmt::format("is {}, but the parts have {} tensors", *expected, num_tensors));
  }
  Checkpoint checkpoint;
  checkpoint.config = read_gguf_config(parts, weights, architecture);
  weights.gather_recurrent(checkpoint.config);
  weights.gather_experts(checkpoint.config);
  weights.move_to(checkpoint, file.source());
  if (options.load_tokenizer) {
    checkpoint.tokenizer = read_tokenizer(file);
    checkpoint.chat = read_chat(file, checkpoint.tokenizer.get());
  }
  return checkpoint;
}

/// Throws unless the file says that it is part `number` (from 0 on) of `count`.
void check_part(const GgufFile& file, std::int64_t number, std::int64_t count) {
  if (file.integer("split.count").value_or(1) != count) {
    file.fail("split.count", fmt::format("is {}, but the first part says {}",
                                         file.integer("split.count").value_or(1), count));
  }
  if (const auto no = file.integer("split.no"); !no || *no != number) {
    file.fail("split.no", no ? fmt::format("is {}; by the file's name {} was expected", *no, number)
                             : std::string("is missing"));
  }
}

}  // namespace

Checkpoint parse_gguf_checkpoint(std::span<const std::byte> bytes, const std::string& source,
                                 const CheckpointOptions& options) {
  std::vector<GgufPart> parts;
  parts.emplace_back(bytes, source);
  return read_parts(parts, options);
}

std::shared_ptr<const Tokenizer> parse_gguf_tokenizer(std::span<const std::byte> bytes,
                                                      const std::string& source) {
  return read_tokenizer(GgufFile(bytes, source));
}

Checkpoint open_gguf_checkpoint(std::shared_ptr<const MappedFile> file, const CheckpointOptions& options) {
  std::vector<std::shared_ptr<const MappedFile>> files = {std::move(file)};
  std::vector<GgufPart> parts;
  const std::filesystem::path path = files.front()->path();
  parts.emplace_back(files.front()->bytes(), path.string());
  const std::int64_t count = parts.front().file.integer("split.count").value_or(1);
  const std::string name = path.filename().string();
  const std::string ending = fmt::format("-00001-of-{:05}.gguf", count);
  if (count > 1 && name.ends_with(ending)) {
    check_part(parts.front().file, 0, count);
    const std::string stem = name.substr(0, name.size() - ending.size());
    for (std::int64_t number = 1; number < count; ++number) {
      files.push_back(std::make_shared<const MappedFile>(
          path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", stem, number + 1, count)));
      parts.emplace_back(files.back()->bytes(), files.back()->path().string());
      check_part(parts.back().file, number, count);
    }
  }
  Checkpoint checkpoint = read_parts(parts, options);
  checkpoint.files = std::move(files);
  return checkpoint;
}

}  // namespace tessera
