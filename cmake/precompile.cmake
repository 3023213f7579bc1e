# Headers that nearly every file includes are compiled once: reading them is a third to a half of what a file takes to compile.
# No file may lean on it: the preset `fuzz` builds without. So does whoever uses ccache, whose results would otherwise serve in
# the checkout alone that they were made in.
set(is_on OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  set(is_on ON)
endif()
option(TESSERA_PRECOMPILE "Compile common headers once for all files" ${is_on})

set(TESSERA_COMMON_HEADERS
    <algorithm> <array> <cmath> <cstddef> <cstdint> <cstring> <functional> <limits> <map> <memory> <optional> <span> <string>
    <string_view> <utility> <vector> <fmt/core.h>)

# tessera_precompiled(name LIBRARIES … HEADERS …): what tessera_use_precompiled(target name) takes over. Both must agree in
# sanitizers and in -fPIC, which programs have to ask for.
function(tessera_precompiled name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;HEADERS" ${ARGN})
  if(TESSERA_PRECOMPILE)
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp CONTENT "")
    add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
    target_link_libraries(${name} PRIVATE tessera_options tessera_instrumented ${ARG_LIBRARIES})
    target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  endif()
endfunction()

function(tessera_use_precompiled target name)
  if(TESSERA_PRECOMPILE)
    target_compile_options(${target} PRIVATE -fPIC)
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()
