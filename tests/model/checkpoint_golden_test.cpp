#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "model/checkpoint/checkpoint.h"
#include "tessera/error.h"

namespace tessera {
namespace {

const std::filesystem::path kModels = std::filesystem::path(TESSERA_FIXTURES) / "models";

TEST(GoldenCheckpoint, AllOpen) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    if (!entry.is_directory()) continue;
    const auto path =
        std::filesystem::exists(entry.path() / "model.gguf") ? entry.path() / "model.gguf" : entry.path();
    EXPECT_NO_THROW(open_checkpoint(path, {.load_tokenizer = false})) << path;
    ++count;
  }
  EXPECT_GE(count, 13);
}

}  // namespace
}  // namespace tessera
