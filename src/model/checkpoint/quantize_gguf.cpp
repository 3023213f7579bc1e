#include "model/checkpoint/quantize_gguf.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "core/block_format.h"
#include "core/element.h"
#include "core/mapped_file.h"
#include "core/parallel.h"
#include "core/quantize.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_checkpoint.h"
#include "tessera/error.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kAlignment = 32;
constexpr std::uint32_t kQuantizationVersion = 2;  // of all formats of blocks here

/// general.file_type: what readers call the whole file.
constexpr std::array<std::pair<std::string_view, std::uint32_t>, 22> kFileTypes = {{
    {"f32", 0},     {"f16", 1},     {"q4_0", 2},    {"q4_1", 3},    {"q8_0", 7},    {"q5_0", 8},
    {"q5_1", 9},    {"q2_k", 10},   {"q3_k_s", 11}, {"q3_k_m", 12}, {"q3_k_l", 13}, {"q4_k_s", 14},
    {"q4_k_m", 15}, {"q5_k_s", 16}, {"q5_k_m", 17}, {"q6_k", 18},   {"iq4_nl", 25}, {"iq4_xs", 30},
    {"bf16", 32},   {"tq1_0", 36},  {"tq2_0", 37},  {"mxfp4", 38},
}};

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& to, std::string_view text) {
  append(to, std::uint64_t{text.size()});
  to += text;
}

/// A metadata value as it was read.
void append_value(std::string& to, const GgufValue& value) {
  append(to, static_cast<std::uint32_t>(value.type));
  if (value.type == GgufType::kArray) {
    append(to, static_cast<std::uint32_t>(value.element_type));
    append(to, value.count);
  } else if (value.type == GgufType::kString) {
    append(to, std::uint64_t{value.bytes.size()});
  }
  to.append(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
}

/// A tensor and how it is to be stored.
struct Job {
  std::string name;
  const StoredTensor* tensor = nullptr;
  std::span<const std::byte> data;
  DType dtype = DType::kF32;
  std::size_t size_bytes = 0;
};

/// A file that is there under its name once it is whole, and is taken away again otherwise.
class NewFile {
 public:
  explicit NewFile(const fs::path& path) : path_(path), partial_(path.string() + ".partial") {
    std::error_code ignored;
    if (fs::exists(path_, ignored)) {
      throw Error(ErrorCode::kIo,
                  fmt::format("'{}' exists already; remove it first, or give another name", path_.string()));
    }
    file_.open(partial_, std::ios::binary | std::ios::trunc);
    check();
  }
  ~NewFile() {
    std::error_code ignored;
    if (!is_whole_) fs::remove(partial_, ignored);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, std::size_t size_bytes) {
    file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(size_bytes));
    size_ += size_bytes;
    check();
  }
  void pad() {
    static constexpr char kZeros[kAlignment] = {};
    write(kZeros, static_cast<std::size_t>((kAlignment - size_ % kAlignment) % kAlignment));
  }
  void finish() {
    file_.close();
    check();
    std::error_code error;
    fs::rename(partial_, path_, error);
    if (error)
      throw Error(ErrorCode::kIo, fmt::format("cannot write '{}': {}", path_.string(), error.message()));
    is_whole_ = true;
  }

 private:
  void check() const {
    if (file_) return;
    throw Error(ErrorCode::kIo, fmt::format("cannot write '{}': {}", partial_.string(),
                                            std::error_code(errno, std::generic_category()).message()));
  }

  fs::path path_, partial_;
  std::ofstream file_;
  std::uint64_t size_ = 0;
  bool is_whole_ = false;
};

/// Elements [first, first + out.size()) of stored numbers or blocks, whole ones, as fp32.
void read_elements(const Job& job, std::size_t first, std::span<float> out) {
  dispatch_weight(*job.tensor->dtype, [&]<class T>() {
    if constexpr (is_block_format<T>) {
      const auto* block =
          reinterpret_cast<const unsigned char*>(job.data.data()) + first / T::kElements * T::kBytes;
      for (std::size_t i = 0; i < out.size(); i += T::kElements, block += T::kBytes) {
        float values[T::kElements];
        T::decode(block, 0, values);
        std::copy_n(values, T::kElements, out.begin() + static_cast<std::ptrdiff_t>(i));
      }
    } else {
      for (std::size_t i = 0; i < out.size(); ++i) {
        T value;
        std::memcpy(&value, job.data.data() + (first + i) * sizeof(T), sizeof value);
        out[i] = static_cast<float>(value);
      }
    }
  });
}

void store_elements(DType dtype, std::span<const float> values, std::byte* out) {
  if (block_format(dtype).elements > 1) return quantize_blocks(dtype, values, out);
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(out, dtype, static_cast<std::int64_t>(i), static_cast<double>(values[i]));
  }
}

/// Writes a tensor a piece of rows at a time; each row is converted by itself.
template <class OnBytes>
void write_tensor(NewFile& file, const Job& job, OnBytes on_bytes) {
  constexpr std::size_t kPieceElements = std::size_t{1} << 22;
  if (job.dtype == *job.tensor->dtype) {
    file.write(job.data.data(), job.data.size());
    on_bytes(job.data.size());
    return file.pad();
  }
  const auto columns = static_cast<std::size_t>(job.tensor->shape.back());
  const std::size_t row_bytes = dtype_bytes(job.dtype, columns);
  const std::size_t rows = row_bytes == 0 ? 0 : job.size_bytes / row_bytes;
  const std::size_t step = std::max<std::size_t>(1, kPieceElements / std::max<std::size_t>(1, columns));
  std::vector<std::byte> piece(std::min(step, rows) * row_bytes);
  for (std::size_t begin = 0; begin < rows; begin += step) {
    const std::size_t count = std::min(step, rows - begin);
    parallel_for(count, [&](std::size_t row) {
      std::vector<float> values(columns);
      read_elements(job, (begin + row) * columns, values);
      try {
        store_elements(job.dtype, values, piece.data() + row * row_bytes);
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}, row {}: {}", job.name, begin + row, error.message()));
      }
    });
    file.write(piece.data(), count * row_bytes);
    on_bytes(job.data.size() * count / rows);
  }
  file.pad();
}

/// All that stands in front of the tensors' data.
std::string head_of(const GgufFile& file, std::string_view mix, std::span<const Job> jobs) {
  const auto type = std::find_if(kFileTypes.begin(), kFileTypes.end(),
                                 [&](const auto& entry) { return entry.first == mix; });
  std::string metadata;
  std::uint64_t entries = 2;
  for (const auto& [key, value] : file.metadata()) {
    if (key == "general.file_type" || key == "general.quantization_version" || key == "general.alignment" ||
        key.starts_with("split.")) {
      continue;
    }
    append_text(metadata, key);
    append_value(metadata, value);
    ++entries;
  }
  for (const auto& [key, value] :
       {std::pair<std::string_view, std::uint32_t>{"general.file_type", type->second},
        {"general.quantization_version", kQuantizationVersion}}) {
    append_text(metadata, key);
    append(metadata, static_cast<std::uint32_t>(GgufType::kUint32));
    append(metadata, value);
  }
  std::string head = "GGUF";
  append(head, std::uint32_t{3});
  append(head, std::uint64_t{jobs.size()});
  append(head, entries);
  head += metadata;
  std::uint64_t offset = 0;
  for (const Job& job : jobs) {
    append_text(head, job.name);
    append(head, static_cast<std::uint32_t>(job.tensor->shape.size()));
    for (auto dim = job.tensor->shape.rbegin(); dim != job.tensor->shape.rend(); ++dim) append(head, *dim);
    append(head, gguf_tensor_type(job.dtype));
    append(head, offset);
    offset += (job.size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return head;
}

}  // namespace

QuantizedSizes quantize_gguf(const fs::path& in, std::string_view mix, const fs::path& out,
                             const std::function<void(std::uint64_t, std::uint64_t)>& on_progress) {
  const auto first = std::make_shared<const MappedFile>(in);
  if (!has_gguf_magic(first->bytes())) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("'{}' is no .gguf file; only those can be quantised", in.string()));
  }
  // Opened as for running first: what is wrong with the model is said here.
  const Checkpoint checkpoint = open_gguf_checkpoint(first, {.load_tokenizer = false});
  std::vector<GgufFile> files;
  for (const auto& file : checkpoint.files) files.emplace_back(file->bytes(), file->path().string());
  std::vector<Job> jobs;
  QuantizedSizes sizes;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const auto& [name, tensor] : files[i].tensors()) {
      Job job{name, &tensor, checkpoint.files[i]->bytes().subspan(tensor.offset, tensor.size_bytes),
              *tensor.dtype, tensor.size_bytes};
      const std::string known = gguf_checkpoint_name(name);
      const auto weight = checkpoint.tensors.find(known);
      if (weight != checkpoint.tensors.end() && tensor.shape.size() == 2) {
        job.dtype = mixed_dtype(mix, known, tensor.shape.back(), checkpoint.config);
        const std::size_t rows = static_cast<std::size_t>(tensor.shape.front());
        job.size_bytes = rows * dtype_bytes(job.dtype, static_cast<std::size_t>(tensor.shape.back()));
      }
      sizes.bytes_before += tensor.size_bytes;
      sizes.bytes_after += job.size_bytes;
      jobs.push_back(std::move(job));
    }
  }
  NewFile file(out);
  const std::string head = head_of(files.front(), mix, jobs);
  file.write(head.data(), head.size());
  file.pad();
  std::uint64_t done = 0;
  for (const Job& job : jobs) {
    write_tensor(file, job, [&](std::size_t bytes) {
      done += bytes;
      if (on_progress) on_progress(done, sizes.bytes_before);
    });
  }
  file.finish();
  return sizes;
}

}  // namespace tessera
