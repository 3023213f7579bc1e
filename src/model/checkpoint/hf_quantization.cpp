#include "model/checkpoint/hf_quantization.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/json_parse.h"
#include "core/text.h"
#include "model/checkpoint/hf_architectures.h"
#include "model/checkpoint/json_fields.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostColumns = std::int64_t{1} << 24;

/// {rows, columns} that share a scale; none: as the scales' shape says.
void parse_block(const JsonFields& fields, const char* key, HfQuantization& quantization) {
  const json* block = fields.find(key);
  if (block == nullptr || !block->is_array())
    return;  // compressed-tensors may have it as a text, always "128x128"
  if (block->size() != 2) fields.fail(key, *block, "two numbers were expected, of rows and columns");
  for (std::size_t i = 0; i < 2; ++i) {
    quantization.block[i] = fields.as_integer(key, (*block)[i]);
    if (quantization.block[i] < 1 || quantization.block[i] > kMostColumns)
      fields.fail(key, *block, "positive numbers of rows and columns were expected");
  }
}

void parse_fp8(const JsonFields& fields, HfQuantization& quantization) {
  if (const auto format = fields.text("fmt"); format && *format != "e4m3")
    fields.unsupported("fmt", *format, "only e4m3 is supported");
  parse_block(fields, "weight_block_size", quantization);
  quantization.name = "fp8";
}

/// One of the groups of layers that compressed-tensors stores alike.
void parse_config_group(const JsonFields& group, HfQuantization& quantization) {
  const json* weights = group.find("weights");
  if (weights == nullptr) return;
  const JsonFields fields(*weights, group.where() + ": weights");
  const std::string type = fields.text("type").value_or("int");
  const std::int64_t bits = fields.integer("num_bits").value_or(8);
  if (type != "float" && type != "int") fields.unsupported("type", type, "supported are float and int");
  if (bits != 8 && (bits != 4 || type == "float"))
    fields.unsupported("num_bits", bits, "supported are float of 8 bits and int of 4 or 8");
  quantization.is_symmetric |= fields.boolean("symmetric").value_or(true);
  parse_block(fields, "block_structure", quantization);
}

void parse_compressed_tensors(const JsonFields& fields, HfQuantization& quantization) {
  const std::string format = fields.text("format").value_or("dense");
  constexpr std::string_view kFormats[] = {"float-quantized", "int-quantized",   "naive-quantized",
                                           "pack-quantized",  "mixed-precision", "dense"};
  if (std::find(std::begin(kFormats), std::end(kFormats), format) == std::end(kFormats)) {
    fields.unsupported("format", format,
                       "supported are float-quantized, int-quantized, naive-quantized and pack-quantized");
  }
  if (const json* sparsity = fields.find("sparsity_config"); sparsity != nullptr && sparsity->is_object()) {
    const JsonFields of_sparsity(*sparsity, fields.where() + ": sparsity_config");
    if (const auto kind = of_sparsity.text("format"); kind && *kind != "dense")
      of_sparsity.unsupported("format", *kind, "only dense matrices are supported");
  }
  if (const json* transform = fields.find("transform_config"); transform != nullptr && !transform->empty())
    fields.unsupported("transform_config", *transform,
                       "only matrices that no transform goes with are supported");
  if (const json* groups = fields.find("config_groups")) {
    if (!groups->is_object()) fields.fail("config_groups", *groups, "an object was expected");
    for (const auto& [name, group] : groups->items())
      parse_config_group(JsonFields(group, fmt::format("{}: {}", fields.where(), printable(name))),
                         quantization);
  }
  quantization.name = "compressed-tensors, " + format;
}

/// What GPTQ and AWQ have in common.
void parse_groups(const JsonFields& fields, HfQuantization& quantization) {
  quantization.bits = fields.small_integer("bits", fields.integer("w_bit").value_or(4));
  if (quantization.bits != 4 &&
      (quantization.bits != 8 || quantization.method == HfQuantization::Method::kAwq)) {
    fields.unsupported("bits", quantization.bits,
                       quantization.method == HfQuantization::Method::kAwq ? "only 4 bits are supported"
                                                                           : "supported are 4 and 8 bits");
  }
  quantization.group_size =
      fields.integer("group_size").value_or(fields.integer("q_group_size").value_or(128));
  if (quantization.group_size != -1 &&
      (quantization.group_size < 1 || quantization.group_size > kMostColumns))
    fields.fail("group_size", quantization.group_size,
                "a positive number, or -1 for whole rows, was expected");
}

void parse_gptq(const JsonFields& fields, HfQuantization& quantization) {
  parse_groups(fields, quantization);
  const std::string format = fields.text("checkpoint_format").value_or("gptq");
  if (format != "gptq" && format != "gptq_v2")
    fields.unsupported("checkpoint_format", format, "supported are gptq and gptq_v2");
  quantization.zero_points_less_one = format == "gptq";
  quantization.is_symmetric = fields.boolean("sym").value_or(true);
  quantization.name = fmt::format("gptq, {} bits", quantization.bits);
}

void parse_awq(const JsonFields& fields, HfQuantization& quantization) {
  parse_groups(fields, quantization);
  const std::string version = lower_case(fields.text("version").value_or("gemm"));
  if (version != "gemm") fields.unsupported("version", version, "only gemm is supported");
  quantization.name = fmt::format("awq, {} bits", quantization.bits);
}

void parse_modelopt(const JsonFields& fields, HfQuantization& quantization) {
  const std::string algorithm = fields.text("quant_algo").value_or("FP8");
  if (algorithm != "FP8") fields.unsupported("quant_algo", algorithm, "only FP8 is supported");
  quantization.name = "modelopt, FP8";
}

void parse_bitsandbytes(const JsonFields& fields, HfQuantization& quantization) {
  quantization.method = HfQuantization::Method::kBitsAndBytes;
  const bool is_of_8_bits = fields.boolean("load_in_8bit").value_or(false);
  quantization.name = fmt::format(
      "bitsandbytes, {}", is_of_8_bits ? "8 bits" : fields.text("bnb_4bit_quant_type").value_or("fp4"));
}

/// The dtype that config.json says the model has. Matrices of one that says none are widened to bf16.
DType parse_dtype_field(const JsonFields& fields) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto name = fields.text(key);
    if (!name) continue;
    if (*name == "float16") return DType::kF16;
    if (*name == "float32") return DType::kF32;
    break;
  }
  return DType::kBF16;
}

}  // namespace

std::optional<HfQuantization> parse_hf_quantization(std::string_view config_json, const std::string& source) {
  const auto [document, defaults] = parse_hf_document(config_json, source);
  const JsonFields outer(document, source);
  const json* const field = outer.find("quantization_config");
  if (field == nullptr || field->empty()) return std::nullopt;
  const JsonFields fields(*field, source + ": quantization_config");
  const std::string method = fields.text("quant_method").value_or("");
  if (method == "mxfp4" && defaults.experts.keys == ExpertKeys::kGptOss) return std::nullopt;

  HfQuantization quantization;
  quantization.dtype = parse_dtype_field(outer);
  if (method == "fp8") {
    quantization.method = HfQuantization::Method::kFp8;
    parse_fp8(fields, quantization);
  } else if (method == "fbgemm_fp8") {
    quantization.name = method;
  } else if (method == "modelopt") {
    parse_modelopt(fields, quantization);
  } else if (method == "bitsandbytes") {
    parse_bitsandbytes(fields, quantization);
  } else if (method == "compressed-tensors") {
    quantization.method = HfQuantization::Method::kCompressedTensors;
    parse_compressed_tensors(fields, quantization);
  } else if (method == "gptq") {
    quantization.method = HfQuantization::Method::kGptq;
    parse_gptq(fields, quantization);
  } else if (method == "awq") {
    quantization.method = HfQuantization::Method::kAwq;
    parse_awq(fields, quantization);
  } else {
    fields.unsupported("quant_method", method,
                       "supported are fp8, fbgemm_fp8, modelopt, compressed-tensors, gptq, awq, bitsandbytes "
                       "and, of gpt-oss, mxfp4; a folder of "
                       "plain F32, F16 or BF16 weights or a GGUF file of the model may be at hand");
  }
  return quantization;
}

}  // namespace tessera
