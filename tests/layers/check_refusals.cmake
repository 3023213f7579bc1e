# Whether cmake/check_layering.cmake refuses what it is for, in every kind of source, and nothing else:
# cmake -D SOURCE_DIR=. -D WORK=folder -P check_refusals.cmake
cmake_minimum_required(VERSION 3.25)

set(refused
  "src/core/text.cpp|attention/backend.h"
  "src/verify/verify.cpp|engine/kv_cache.h"
  "src/model/weights.cpp|cuda.h"
  "src/backends/cpu/ceilings.cpp|backends/gpu/platform.h"
  "src/backends/unfused/sgemm.cpp|backends/reference/attention.h"
  "src/backends/gpu/platform.h|backends/cuda/runtime/driver.h"
  "src/backends/cuda/kernels/sm80/ptx.cuh|backends/hip/runtime/hip_api.h"
  "src/backends/cuda/kernels/sm80/attention_mma.cu|engine/kv_cache.h"
  "src/backends/hip/kernels/matrix/gemm.hip|backends/cuda/runtime/driver.h"
  "src/backends/hip/kernels/matrix/gemm.hip|engine/kv_cache.h"
  "src/backends/gpu/kernels/common/gemv.cu|sm80/ptx.cuh"
  "apps/tessera/info.cpp|backends/cuda/cuda_platform.h"
  "bench/ops_bench.cpp|backends/hip/hip_platform.h"
  "include/tessera/error.h|core/text.h")
set(accepted
  "src/verify/verify.cpp|attention/backend.h"
  "src/backends/hip/kernels/matrix/gemm.hip|backends/gpu/platform.h"
  "src/backends/gpu/kernels/common/gemv.cu|common/types.cuh"
  "apps/tessera/info.cpp|backends/cpu/ceilings.h")

# A tree with the folders of this one and no file but `file`, which includes `header`.
function(check file header status_variable)
  file(REMOVE_RECURSE ${WORK})
  foreach(pattern src/* src/backends/*)
    file(GLOB folders LIST_DIRECTORIES true RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/${pattern})
    foreach(folder IN LISTS folders)
      if(IS_DIRECTORY ${SOURCE_DIR}/${folder})
        file(MAKE_DIRECTORY ${WORK}/${folder})
      endif()
    endforeach()
  endforeach()
  file(WRITE ${WORK}/${file} "#include \"${header}\"\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${WORK} -P ${SOURCE_DIR}/cmake/check_layering.cmake
                  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE output)
  if(NOT status EQUAL 0 AND NOT output MATCHES "${file}:")
    message(FATAL_ERROR "${file} is not what is refused:\n${output}")
  endif()
  set(${status_variable} ${status} PARENT_SCOPE)
endfunction()

set(faults "")
foreach(kind refused accepted)
  foreach(line IN LISTS ${kind})
    string(REPLACE "|" ";" fields "${line}")
    list(GET fields 0 file)
    list(GET fields 1 header)
    check(${file} ${header} status)
    if(kind STREQUAL "refused" AND status EQUAL 0 OR kind STREQUAL "accepted" AND NOT status EQUAL 0)
      string(APPEND faults "\n  ${file} with \"${header}\" is not ${kind}")
    endif()
  endforeach()
endforeach()
file(REMOVE_RECURSE ${WORK})
if(faults)
  message(FATAL_ERROR "check_layering.cmake:${faults}")
endif()
