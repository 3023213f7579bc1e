#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// The first "key : value" of /proc/cpuinfo or /proc/meminfo; empty if absent.
std::string proc_value(const char* path, std::string_view key);

}  // namespace tessera
