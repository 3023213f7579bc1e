# Headers that nearly every file includes are compiled once: reading them is a third to a half of what a file takes to compile.
# No file may lean on it, nor on what stands before it in a batch of CMAKE_UNITY_BUILD: the preset `tsan` has no batches, `debug`
# and a plain `cmake -B build` neither. With ccache, results then serve in the checkout alone that they were made in.
option(TESSERA_PRECOMPILE "Compile common headers once for all files" OFF)

set(TESSERA_COMMON_HEADERS
    <algorithm> <array> <cmath> <cstddef> <cstdint> <cstring> <functional> <limits> <map> <memory> <optional> <span> <string>
    <string_view> <utility> <vector> <fmt/core.h>)

# tessera_precompiled(name LIBRARIES … HEADERS …): what tessera_use_precompiled(target name) takes over. Both must agree in
# sanitizers, in -O and in -fPIC, which programs have to ask for.
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

# tessera_compiled_again_with(source files…): compiles a source again when files change that it doesn't include. Alone: a batch
# forgets what its files depend on.
function(tessera_compiled_again_with source)
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS "${ARGN}" SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
