# Writes OUTPUT, a C++ file that names the commit of SOURCE_DIR. Runs at each build and leaves the file alone if nothing
# changed, so that only a new commit leads to a new link.
set(commit "")
find_program(git git)
if(git)
  execute_process(COMMAND ${git} describe --always --dirty --abbrev=12 --exclude=*
                  WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "build_info.h"

namespace tessera::cli {

const char* build_commit() noexcept { return "@commit@"; }

}  // namespace tessera::cli
]])
