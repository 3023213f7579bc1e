#include "model/random_checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/aligned_memory.h"
#include "core/block_format.h"
#include "core/mapped_file.h"
#include "core/parallel.h"
#include "core/quantize.h"
#include "model/checkpoint/expected_tensors.h"
#include "model/checkpoint/hf_config.h"
#include "model/checkpoint/quantize_gguf.h"
#include "tessera/error.h"

namespace tessera {
namespace {

// Contexts are those that a benchmark needs, not the longest that such a model was trained for: by default
// the KV cache is allocated for all of it.
constexpr std::int64_t kContext = 8192;

const std::array<RandomModelShape, 7> kShapes = {{
    {"tiny", 512, 64, 192, 1024, 2, 4, 2, 16, true, 0, 0},
    {"tiny-moe", 512, 64, 96, 1024, 2, 4, 2, 16, true, 8, 2},
    {"qwen3-0.6b", 151936, 1024, 3072, kContext, 28, 16, 8, 128, true, 0, 0},
    {"llama-1b", 128256, 2048, 8192, kContext, 16, 32, 8, 64, true, 0, 0},
    {"llama-3b", 128256, 3072, 8192, kContext, 28, 24, 8, 128, true, 0, 0},
    {"llama-8b", 128256, 4096, 14336, kContext, 32, 32, 8, 128, false, 0, 0},
    {"qwen3-30b-a3b", 151936, 2048, 768, kContext, 48, 32, 4, 128, false, 128, 8},
}};

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMostBytes = std::size_t{1} << 60;
constexpr std::size_t kMostConfigBytes = 4 << 20;
constexpr std::size_t kLeastGroup = 32;
constexpr std::size_t kMostGroup = 256;
constexpr std::size_t kGroupsPerTask = 1 << 11;

/// SplitMix64 of Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators" (2014), as a function
/// of a counter.
std::uint64_t random_bits(std::uint64_t counter) {
  std::uint64_t z = (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Elements of a dtype that are made together: whole blocks.
std::size_t group_of(DType dtype) {
  return std::max(kLeastGroup, static_cast<std::size_t>(block_format(dtype).elements));
}

using Group = std::array<float, kMostGroup>;

/// `size` numbers uniform in [-limit, limit).
Group random_group(std::uint64_t group, std::size_t size, float limit) {
  Group values{};
  for (std::size_t i = 0; i < size / 4; ++i) {
    const std::uint64_t bits = random_bits(group * (size / 4) + i);
    for (std::size_t j = 0; j < 4; ++j) {
      values[4 * i + j] = static_cast<float>(static_cast<std::int16_t>(bits >> (16 * j))) * (limit / 32768);
    }
  }
  return values;
}

void store_group(DType dtype, std::span<const float> values, std::byte* out) {
  dispatch_weight(dtype, [&]<class T>() {
    if constexpr (is_block_format<T>) {
      fill_blocks(dtype, values, out);
    } else {
      std::array<T, kMostGroup> converted;
      for (std::size_t i = 0; i < values.size(); ++i) converted[i] = T(values[i]);
      std::memcpy(out, converted.data(), values.size() * sizeof(T));
    }
  });
}

/// Random numbers that matrices are filled from over and over: copying fills billions of weights at the speed
/// of memory.
class RandomPool {
 public:
  /// Uniform in [-limit, limit); no more than most_groups groups.
  RandomPool(DType dtype, float limit, std::size_t most_groups)
      : num_groups_(std::min(group_of(dtype) > kLeastGroup ? kMostLargeGroups : kMostGroups, most_groups)),
        group_bytes_(dtype_bytes(dtype, group_of(dtype))),
        pool_(num_groups_ * group_bytes_) {
    parallel_for((num_groups_ + kGroupsPerTask - 1) / kGroupsPerTask, [&](std::size_t task) {
      const std::size_t end = std::min(num_groups_, (task + 1) * kGroupsPerTask);
      for (std::size_t group = task * kGroupsPerTask; group < end; ++group) {
        const std::size_t size = group_of(dtype);
        const Group values = random_group(group, size, limit);
        store_group(dtype, {values.data(), size}, pool_.data() + group * group_bytes_);
      }
    });
  }

  /// Fills `size_bytes` of a matrix whose first group is number `first_group` of the endless repetition.
  void fill(std::uint64_t first_group, std::size_t size_bytes, std::byte* out) const {
    const std::size_t task_bytes = kGroupsPerTask * group_bytes_;
    parallel_for((size_bytes + task_bytes - 1) / task_bytes, [&](std::size_t task) {
      const std::size_t end = std::min(size_bytes, (task + 1) * task_bytes);
      std::size_t source = (first_group + task * kGroupsPerTask) % num_groups_ * group_bytes_;
      for (std::size_t i = task * task_bytes; i < end;) {
        const std::size_t count = std::min(end - i, pool_.size() - source);
        std::memcpy(out + i, pool_.data() + source, count);
        i += count;
        source = 0;
      }
    });
  }

 private:
  // A prime beyond the rows of any usual matrix, so that no two rows of one are equal.
  static constexpr std::size_t kMostGroups = (1 << 18) - 5;
  // Large blocks take longer to make: a prime beyond the rows of any matrix but those of a vocabulary.
  static constexpr std::size_t kMostLargeGroups = (1 << 15) - 19;

  std::size_t num_groups_;
  std::size_t group_bytes_;
  std::vector<std::byte> pool_;
};

struct TensorPlan {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::kF32;
  std::size_t offset = 0;
  std::size_t size_bytes = 0;
};

ModelConfig make_config(const RandomModelShape& shape) {
  ModelConfig config;
  config.vocab_size = shape.vocab_size;
  config.hidden_size = shape.hidden_size;
  config.intermediate_size = shape.intermediate_size;
  config.max_seq_len = shape.max_seq_len;
  config.num_layers = shape.num_layers;
  config.num_heads = shape.num_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.head_dim;
  config.tied_embeddings = shape.tied_embeddings;
  config.rope.theta = 500000;
  if (shape.num_experts > 0) {
    config.mixture = {.num_experts = shape.num_experts,
                      .num_experts_per_token = shape.num_experts_per_token,
                      .intermediate_size = shape.intermediate_size};
  }
  return config;
}

void check_range(const char* field, std::int64_t value, std::int64_t limit) {
  if (value < 1 || value > limit) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} of the random model is {}; expected 1 to {}", field, value, limit));
  }
}

void check_shape(const RandomModelShape& shape) {
  constexpr std::int64_t kMaxExtent = std::int64_t{1} << 22;  // the bytes of all layers stay within 2^62
  check_range("vocab_size", shape.vocab_size, kMaxExtent);
  check_range("hidden_size", shape.hidden_size, kMaxExtent);
  check_range("intermediate_size", shape.intermediate_size, kMaxExtent);
  check_range("max_seq_len", shape.max_seq_len, std::numeric_limits<std::int32_t>::max());
  check_range("num_layers", shape.num_layers, 4096);
  check_range("num_heads", shape.num_heads, 4096);
  check_range("num_kv_heads", shape.num_kv_heads, shape.num_heads);
  check_range("head_dim", shape.head_dim, 512);
  if (shape.num_experts != 0) {
    check_range("num_experts", shape.num_experts, kMostExperts);
    check_range("num_experts_per_token", shape.num_experts_per_token, shape.num_experts);
    // The bytes of all layers stay within 2^62.
    check_range("intermediate_size of a mixture", shape.intermediate_size, kMaxExtent / kMostExperts * 64);
  }
  if (shape.num_heads % shape.num_kv_heads != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("num_heads of the random model is {}; expected a multiple of num_kv_heads, {}",
                            shape.num_heads, shape.num_kv_heads));
  }
  if (shape.head_dim % 2 != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("head_dim of the random model is {}; expected an even number, since RoPE rotates "
                            "pairs",
                            shape.head_dim));
  }
}

/// The dtype of a matrix of a name and so many columns.
using MatrixDType = std::function<DType(const std::string& name, std::int64_t columns)>;

/// All matrices alike.
MatrixDType only(DType weight_dtype) {
  if (!is_weight_dtype(weight_dtype)) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("weights of a random model can't be {}; expected {}",
                                                         dtype_name(weight_dtype), weight_dtype_list()));
  }
  return [weight_dtype](const std::string&, std::int64_t columns) {
    const BlockFormat& format = block_format(weight_dtype);
    if (columns % format.elements != 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a matrix of the random model has {} columns; expected a multiple of {} for {}",
                              columns, format.elements, format.name));
    }
    return weight_dtype;
  };
}

MatrixDType mix_of(std::string_view mix, const ModelConfig& config) {
  return [mix = std::string(mix), &config](const std::string& name, std::int64_t columns) {
    return mixed_dtype(mix, name, columns, config);
  };
}

/// Vectors are f32 and routers bf16 whatever the matrices are.
std::vector<TensorPlan> plan_tensors(const ModelConfig& config, const MatrixDType& dtype_of) {
  std::vector<TensorPlan> tensors;
  for (ExpectedTensor& expected : expected_tensors(config)) {
    const DType dtype = !is_matrix(expected.name, expected.shape.size()) ? DType::kF32
                        : is_router(expected.name)                       ? DType::kBF16
                                                   : dtype_of(expected.name, expected.shape.back());
    std::int64_t elements = 1;
    for (const std::int64_t extent : expected.shape) elements *= extent;
    tensors.push_back({std::move(expected.name), std::move(expected.shape), dtype, 0,
                       dtype_bytes(dtype, static_cast<std::size_t>(elements))});
  }
  return tensors;
}

RandomCheckpoint make_checkpoint(const std::string& name, const ModelConfig& config,
                                 const MatrixDType& dtype_of) {
  std::vector<TensorPlan> tensors = plan_tensors(config, dtype_of);
  std::size_t total_bytes = 0;
  for (TensorPlan& tensor : tensors) {
    if (tensor.size_bytes > kMostBytes - total_bytes) {
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("the random model \"{}\" would take more than 2^60 bytes of memory", name));
    }
    tensor.offset = total_bytes;
    total_bytes += (tensor.size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  RandomCheckpoint result;
  result.memory = allocate_aligned(total_bytes, fmt::format("the random model \"{}\"", name));
  result.checkpoint.config = config;
  std::map<std::pair<DType, std::int64_t>, RandomPool> pools;  // by the number of columns
  std::uint64_t first_group = 0;
  for (const TensorPlan& tensor : tensors) {
    std::byte* data = result.memory.get() + tensor.offset;
    if (!is_matrix(tensor.name, tensor.shape.size())) {
      const bool is_bias = tensor.name.ends_with(".bias");
      std::fill_n(reinterpret_cast<float*>(data), tensor.size_bytes / sizeof(float), is_bias ? 0.0f : 1.0f);
    } else {
      // A uniform number in [-limit, limit) has variance limit^2 / 3.
      const std::int64_t columns = tensor.shape.back();
      const float limit = std::sqrt(3.0f / static_cast<float>(columns));
      const std::size_t num_groups = total_bytes / dtype_bytes(tensor.dtype, group_of(tensor.dtype)) + 1;
      const RandomPool& pool =
          pools.try_emplace({tensor.dtype, columns}, tensor.dtype, limit, num_groups).first->second;
      pool.fill(first_group, tensor.size_bytes, data);
      first_group += tensor.size_bytes / dtype_bytes(tensor.dtype, group_of(tensor.dtype)) + 1;
    }
    CheckpointTensor& made = result.checkpoint.tensors[tensor.name];
    made.dtype = tensor.dtype;
    made.shape = tensor.shape;
    made.data = data;
    made.size_bytes = tensor.size_bytes;
    made.source = fmt::format("random model, tensor {}", tensor.name);
  }
  return result;
}

}  // namespace

RandomModelShape random_model_shape(std::string_view name) {
  std::string known;
  for (const RandomModelShape& shape : kShapes) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + shape.name;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no model shape called \"{}\"; expected one of: {}", name, known));
}

RandomCheckpoint make_random_checkpoint(const RandomModelShape& shape, DType weight_dtype) {
  check_shape(shape);
  return make_checkpoint(shape.name, make_config(shape), only(weight_dtype));
}

RandomCheckpoint make_random_checkpoint(const RandomModelShape& shape, std::string_view mix) {
  check_shape(shape);
  const ModelConfig config = make_config(shape);
  return make_checkpoint(shape.name, config, mix_of(mix, config));
}

RandomCheckpoint make_random_checkpoint(const std::filesystem::path& config_json, std::string_view type) {
  const std::filesystem::path path = is_directory(config_json) ? config_json / "config.json" : config_json;
  const ModelConfig config = parse_hf_config(read_file(path, kMostConfigBytes), path.string());
  const std::span<const DType> dtypes = weight_dtypes();
  const auto dtype = std::ranges::find(dtypes, type, dtype_name);
  const bool is_mix = mix_problem(type).empty() || dtype == dtypes.end();
  return make_checkpoint(path.string(), config, is_mix ? mix_of(type, config) : only(*dtype));
}

}  // namespace tessera
