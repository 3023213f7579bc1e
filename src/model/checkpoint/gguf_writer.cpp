#include "model/checkpoint/gguf_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/block_format.h"
#include "core/element.h"
#include "core/new_file.h"
#include "core/parallel.h"
#include "core/quantize.h"
#include "tessera/error.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kAlignment = 32;

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& to, std::string_view text) {
  append(to, std::uint64_t{text.size()});
  to += text;
}

std::string typed(GgufType type) {
  std::string value;
  append(value, static_cast<std::uint32_t>(type));
  return value;
}

std::string array_of(GgufType type, std::size_t count) {
  std::string value = typed(GgufType::kArray);
  append(value, static_cast<std::uint32_t>(type));
  append(value, std::uint64_t{count});
  return value;
}

/// Zeros up to where the next tensor begins.
void pad(NewFile& file) {
  static constexpr char kZeros[kAlignment] = {};
  file.write(kZeros, static_cast<std::size_t>((kAlignment - file.size_bytes() % kAlignment) % kAlignment));
}

/// The stored row that becomes row `row` of what is written.
std::size_t source_row(const GgufTensor& tensor, std::size_t row) {
  if (tensor.interleaved_heads == 0) return row;
  const auto heads = static_cast<std::size_t>(tensor.interleaved_heads);
  const std::size_t head_dim = static_cast<std::size_t>(tensor.source.shape.front()) / heads;
  const std::size_t begin = row / head_dim * head_dim, in_head = row % head_dim;
  return begin + in_head % 2 * (head_dim / 2) + in_head / 2;
}

void store_elements(DType dtype, std::span<const float> values, std::byte* out) {
  if (block_format(dtype).elements > 1) return quantize_blocks(dtype, values, out);
  constexpr float kMaxHalf = 65504, kHalfBecomesInfinite = 65520;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float size = std::abs(values[i]);
    if (dtype == DType::kF16 && std::isfinite(size) && size >= kHalfBecomesInfinite) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("value {} is {}, but F16 ends at {}; choose bf16 or f32", i, values[i], kMaxHalf));
    }
    store_element(out, dtype, static_cast<std::int64_t>(i), static_cast<double>(values[i]));
  }
}

/// Writes the rows of a tensor that begin at byte `first` of it and are all of `bytes`, a piece of rows at a
/// time; each row is converted by itself.
template <class OnBytes>
void write_rows(NewFile& file, const GgufTensor& tensor, std::span<const std::byte> bytes, std::size_t first,
                OnBytes on_bytes) {
  constexpr std::size_t kPieceElements = std::size_t{1} << 22;
  if (tensor.dtype == tensor.source.dtype && tensor.interleaved_heads == 0) {
    constexpr std::size_t kPieceBytes = std::size_t{1} << 26;
    for (std::size_t begin = 0; begin < bytes.size(); begin += kPieceBytes) {
      const auto piece = bytes.subspan(begin, std::min(kPieceBytes, bytes.size() - begin));
      file.write(piece.data(), piece.size());
      on_bytes(piece.size());
    }
    return;
  }
  // Of a vector whose order changes each number is a row.
  const bool is_column = tensor.interleaved_heads != 0 && tensor.source.shape.size() == 1;
  const std::size_t columns = is_column ? 1 : static_cast<std::size_t>(tensor.source.shape.back());
  const std::size_t row_bytes = dtype_bytes(tensor.dtype, columns);
  const std::size_t source_bytes = dtype_bytes(tensor.source.dtype, columns);
  const std::size_t rows = source_bytes == 0 ? 0 : bytes.size() / source_bytes;
  const std::size_t step = std::max<std::size_t>(1, kPieceElements / std::max<std::size_t>(1, columns));
  std::vector<std::byte> piece(std::min(step, rows) * row_bytes);
  for (std::size_t begin = 0; begin < rows; begin += step) {
    const std::size_t count = std::min(step, rows - begin);
    parallel_for(count, [&](std::size_t row) {
      std::vector<float> values(columns);
      read_elements(tensor.source.dtype, bytes.data(), source_row(tensor, begin + row) * columns, values);
      try {
        store_elements(tensor.dtype, values, piece.data() + row * row_bytes);
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}, row {}: {}", tensor.name,
                                              first / source_bytes + begin + row, error.message()));
      }
    });
    file.write(piece.data(), count * row_bytes);
    on_bytes(bytes.size() * count / rows);
  }
}

template <class OnBytes>
void write_tensor(NewFile& file, const GgufTensor& tensor, OnBytes on_bytes) {
  if (tensor.interleaved_heads != 0 && tensor.source.read_part) {
    // Rows of heads whose order changes must not be apart.
    std::vector<std::byte> whole(tensor.source.size_bytes);
    read_tensor(tensor.source, [&](std::span<const std::byte> bytes, std::size_t first) {
      std::memcpy(whole.data() + first, bytes.data(), bytes.size());
    });
    write_rows(file, tensor, whole, 0, on_bytes);
    pad(file);
    return;
  }
  read_tensor(tensor.source, [&](std::span<const std::byte> bytes, std::size_t first) {
    write_rows(file, tensor, bytes, first, on_bytes);
  });
  pad(file);
}

/// All that stands in front of the tensors' data.
std::string head_of(const GgufMetadata& metadata, std::span<const GgufTensor> tensors) {
  std::string head = "GGUF";
  append(head, std::uint32_t{3});
  append(head, std::uint64_t{tensors.size()});
  append(head, std::uint64_t{metadata.size()});
  head += metadata.encoded();
  std::uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    append_text(head, tensor.name);
    const std::vector<std::int64_t>& shape = tensor.source.shape;
    append(head, static_cast<std::uint32_t>(shape.size()));
    for (auto dim = shape.rbegin(); dim != shape.rend(); ++dim) append(head, *dim);
    append(head, gguf_tensor_type(tensor.dtype));
    append(head, offset);
    offset += (tensor.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  return head;
}

}  // namespace

void GgufMetadata::set_uint32(const std::string& key, std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("{} is {}; GGUF files have 0 to {} there", key, value,
                                                     std::numeric_limits<std::uint32_t>::max()));
  }
  append(values_[key] = typed(GgufType::kUint32), static_cast<std::uint32_t>(value));
}

void GgufMetadata::set_float(const std::string& key, float value) {
  append(values_[key] = typed(GgufType::kFloat32), value);
}

void GgufMetadata::set_bool(const std::string& key, bool value) {
  append(values_[key] = typed(GgufType::kBool), static_cast<std::uint8_t>(value));
}

void GgufMetadata::set_text(const std::string& key, std::string_view value) {
  append_text(values_[key] = typed(GgufType::kString), value);
}

void GgufMetadata::set_integers(const std::string& key, std::span<const std::int32_t> values) {
  std::string& value = values_[key] = array_of(GgufType::kInt32, values.size());
  value.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

void GgufMetadata::set_bools(const std::string& key, const std::vector<bool>& values) {
  std::string& value = values_[key] = array_of(GgufType::kBool, values.size());
  for (const bool flag : values) value.push_back(flag ? 1 : 0);
}

void GgufMetadata::set_floats(const std::string& key, std::span<const float> values) {
  std::string& value = values_[key] = array_of(GgufType::kFloat32, values.size());
  value.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

void GgufMetadata::set_texts(const std::string& key, std::span<const std::string> values) {
  std::string& value = values_[key] = array_of(GgufType::kString, values.size());
  for (const std::string& text : values) append_text(value, text);
}

void GgufMetadata::set_value(const std::string& key, const GgufValue& value) {
  std::string& to = values_[key] = typed(value.type);
  if (value.type == GgufType::kArray) {
    to = array_of(value.element_type, value.count);
  } else if (value.type == GgufType::kString) {
    append(to, std::uint64_t{value.bytes.size()});
  }
  to.append(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
}

std::string GgufMetadata::encoded() const {
  std::string entries;
  for (const auto& [key, value] : values_) {
    append_text(entries, key);
    entries += value;
  }
  return entries;
}

std::size_t GgufTensor::size_bytes() const {
  if (dtype == source.dtype) return source.size_bytes;
  const auto columns = static_cast<std::size_t>(source.shape.back());
  const std::size_t row_bytes = dtype_bytes(source.dtype, columns);
  return row_bytes == 0 ? 0 : source.size_bytes / row_bytes * dtype_bytes(dtype, columns);
}

void write_gguf(const fs::path& path, const GgufMetadata& metadata, std::span<const GgufTensor> tensors,
                const std::function<void(std::uint64_t, std::uint64_t)>& on_progress) {
  NewFile file(path);
  const std::string head = head_of(metadata, tensors);
  file.write(head.data(), head.size());
  pad(file);
  std::uint64_t done = 0, all = 0;
  for (const GgufTensor& tensor : tensors) all += tensor.source.size_bytes;
  for (const GgufTensor& tensor : tensors) {
    write_tensor(file, tensor, [&](std::size_t bytes) {
      done += bytes;
      if (on_progress) on_progress(done, all);
    });
  }
  file.finish();
}

}  // namespace tessera
