#pragma once

#include <span>
#include <string_view>

namespace tessera::server {

/// A file of the page that the server shows, embedded in the program.
struct PageFile {
  std::string_view path;  ///< of the request: "/page.js"
  std::string_view content_type;
  std::string_view text;
};

std::span<const PageFile> page_files();

}  // namespace tessera::server
