// print_modifiers FOLDER: what the kernels' sources include as the code of the example modifiers, for a
// compiler of the host, which has no run-time one. FOLDER/texts/modifier_text.cuh has them all, each in a
// namespace of its own; FOLDER/<name>/ has one, for kernels that are compiled whole with it.

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/binary_cache.h"
#include "modifier/kernel_text.h"
#include "modifier/parse.h"
#include "simt/modifier_texts.h"

namespace {

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc != 2) {
    std::fputs("usage: print_modifiers FOLDER\n", stderr);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  const ModifierTexts texts;
  std::string all;
  std::string table;
  int index = 0;
  for (const auto& [name, modifier] : texts.all()) {
    const std::string text =
        modifier::kernel_text(modifier::parse(modifier).program, {.has_small_indices = index % 2 == 0});
    if (index == 0) all += text;  // what apply_modifier finds
    const std::string space = "example_" + std::to_string(index++);
    const std::string open = "namespace tessera::kernels {";
    all += "namespace tessera::kernels::" + space + " {" + text.substr(open.size());
    table += "  TESSERA_PRINTED(" + space + ") \\\n";
    std::string plain;
    for (const char c : name) plain += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    const std::string whole =
        modifier::kernel_text(modifier::parse(modifier).program, {.has_small_indices = true});
    write(folder / plain / "modifier_text.cuh", whole);
    write(folder / plain / "modifier_key.h", "#define TESSERA_MODIFIER_KEY \"" +
                                                 BinaryCache::make_key(std::vector<std::string_view>{whole}) +
                                                 "\"\n");
  }
  write(folder / "texts" / "modifier_text.cuh", all + "#define TESSERA_ALL_PRINTED \\\n" + table + "\n");
}
