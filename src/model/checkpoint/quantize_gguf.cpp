#include "model/checkpoint/quantize_gguf.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
#include <system_error>
#include <utility>

#include "core/mapped_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/expected_tensors.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_checkpoint.h"
#include "model/checkpoint/gguf_export.h"
#include "model/checkpoint/gguf_names.h"
#include "model/checkpoint/gguf_writer.h"
#include "tessera/error.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr std::uint32_t kQuantizationVersion = 2;  // of all formats of blocks here

/// general.file_type: what readers call the whole file.
constexpr std::array<std::pair<std::string_view, std::uint32_t>, 22> kFileTypes = {{
    {"f32", 0},     {"f16", 1},     {"q4_0", 2},    {"q4_1", 3},    {"q8_0", 7},    {"q5_0", 8},
    {"q5_1", 9},    {"q2_k", 10},   {"q3_k_s", 11}, {"q3_k_m", 12}, {"q3_k_l", 13}, {"q4_k_s", 14},
    {"q4_k_m", 15}, {"q5_k_s", 16}, {"q5_k_m", 17}, {"q6_k", 18},   {"iq4_nl", 25}, {"iq4_xs", 30},
    {"bf16", 32},   {"tq1_0", 36},  {"tq2_0", 37},  {"mxfp4", 38},
}};

/// A GGUF file's model as it is.
GgufModel gguf_model_of_file(const fs::path& path) {
  auto first = std::make_shared<const MappedFile>(path);
  if (!has_gguf_magic(first->bytes())) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("'{}' is neither a folder in the Hugging Face format nor a .gguf file; only those "
                    "can be quantised",
                    path.string()));
  }
  GgufModel model;
  // Opened as for running first: what is wrong with the model is said here.
  model.checkpoint = open_gguf_checkpoint(std::move(first), {.load_tokenizer = false});
  for (const auto& mapped : model.checkpoint.files) {
    const GgufFile file(mapped->bytes(), mapped->path().string());
    for (const auto& [name, tensor] : file.tensors()) {
      GgufTensor& out = model.tensors.emplace_back();
      out.name = name;
      out.source.dtype = out.dtype = *tensor.dtype;
      out.source.shape = tensor.shape;
      out.source.data = mapped->bytes().data() + tensor.offset;
      out.source.size_bytes = tensor.size_bytes;
    }
    if (mapped != model.checkpoint.files.front()) continue;
    for (const auto& [key, value] : file.metadata()) {
      if (key != gguf_keys::kAlignment && !key.starts_with("split.")) model.metadata.set_value(key, value);
    }
  }
  return model;
}

}  // namespace

QuantizedSizes quantize_gguf(const fs::path& in, std::string_view mix, const fs::path& out,
                             const std::function<void(std::uint64_t, std::uint64_t)>& on_progress) {
  std::error_code ignored;  // opening it then says why
  GgufModel model = fs::is_directory(in, ignored) ? gguf_model_of_folder(in) : gguf_model_of_file(in);
  QuantizedSizes sizes;
  for (GgufTensor& tensor : model.tensors) {
    std::string known = gguf_checkpoint_name(tensor.name, model.checkpoint.config.architecture);
    constexpr std::string_view kGateUp = ".mlp.experts.gate_up_proj.weight";  // two of the checkpoint's
    if (known.ends_with(kGateUp))
      known.replace(known.size() - kGateUp.size(), kGateUp.size(), ".mlp.experts.gate_proj.weight");
    const std::vector<std::int64_t>& shape = tensor.source.shape;
    // Those that are parted when they are read are no tensors of the model's.
    const bool is_of_model = model.checkpoint.tensors.contains(known) ||
                             known.ends_with(".in_proj_ba.weight") || known.ends_with(".in_proj_qkvz.weight");
    if (is_of_model && is_matrix(known, shape.size()) && !is_router(known))
      tensor.dtype = mixed_dtype(mix, known, shape.back(), model.checkpoint.config);
    sizes.bytes_before += tensor.source.size_bytes;
    sizes.bytes_after += tensor.size_bytes();
  }
  const auto type = std::find_if(kFileTypes.begin(), kFileTypes.end(),
                                 [&](const auto& entry) { return entry.first == mix; });
  model.metadata.set_uint32(gguf_keys::kFileType, type->second);
  model.metadata.set_uint32(gguf_keys::kQuantizationVersion, kQuantizationVersion);
  write_gguf(out, model.metadata, model.tensors, on_progress);
  return sizes;
}

}  // namespace tessera
