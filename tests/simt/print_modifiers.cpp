// print_modifiers FOLDER: FOLDER/texts/modifier_text.cuh, what the kernels' sources include as the code of a
// score modifier, for a compiler of the host, which has no run-time one: that of the first example, and that
// of all in a namespace each. FOLDER/window/modifier_text.cuh: that of a window alone.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

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
    if (name == "window") write(folder / "window" / "modifier_text.cuh", text);
    const std::string space = "example_" + std::to_string(index++);
    const std::string open = "namespace tessera::kernels {";
    all += "namespace tessera::kernels::" + space + " {" + text.substr(open.size());
    table += "  TESSERA_PRINTED(" + space + ") \\\n";
  }
  write(folder / "texts" / "modifier_text.cuh", all + "#define TESSERA_ALL_PRINTED \\\n" + table + "\n");
}
