# What this build makes of the HIP kernels: embedded_sources.cpp, and embedded_modules.cpp with the code objects
# for common targets where a compiler is found. Others are compiled by hipRTC when first used.
include(${PROJECT_SOURCE_DIR}/cmake/embed_kernels.cmake)
include(${PROJECT_SOURCE_DIR}/cmake/embed_hip_kernels.cmake)

set(is_on ON)
if(TESSERA_SANITIZE OR TESSERA_BUILD_FUZZERS)  # which change nothing in kernels
  set(is_on OFF)
endif()
option(TESSERA_HIP_AOT "Build HIP kernels ahead of time where clang 19 or later is found" ${is_on})
set(TESSERA_HIP_TARGETS gfx90a gfx942 gfx1100 gfx1102 gfx1151 gfx1201 CACHE STRING "GPUs that HIP kernels are built ahead for")
tessera_find_hip_compiler()

tessera_embed_kernel_sources(kernels ${CMAKE_CURRENT_BINARY_DIR}/embedded_sources.cpp tessera::hip ${CMAKE_CURRENT_LIST_DIR}/kernels *.cu *.cuh *.hip *.h)

# "source|targets|defines|entries", each a list joined by spaces. Which entries a common one has is written in tests/simt.
list(JOIN TESSERA_HIP_TARGETS " " all_targets)
set(modules "")
foreach(source attention_generic attention_combine attention_join attention_unfused merge_states widen_queries ceilings
        elementwise gemm_batched gemm_tiled gemv logits rms_norm rope sample softmax)
  set(entries "")
  if(source STREQUAL ceilings)  # which measures time, and has no test on the host
    set(entries "read_rate fma_rate")
  endif()
  list(APPEND modules "common/${source}.cu|${all_targets}||${entries}")
endforeach()
foreach(format Q4_K Q6_K)
  list(APPEND modules "common/widen_blocks.cu|${all_targets}|TESSERA_BLOCKS=${format}|widen_blocks_bf16")
endforeach()
set(entries "")
foreach(x f32 f16 bf16)
  foreach(rows 1 2 4 8)
    string(APPEND entries " gemv_blocks_${x}_${rows}")
  endforeach()
endforeach()
foreach(format Q4_0 Q4_K Q5_K Q6_K)
  list(APPEND modules "common/gemv_blocks.cu|${all_targets}|TESSERA_BLOCKS=${format}|${entries}")
endforeach()
list(APPEND modules "matrix/ceilings.hip|${all_targets}||mma_rate")
set(entries "")
foreach(types f16_f16 bf16_bf16 f16_q8_0 bf16_q8_0 f32_q8_0)
  string(APPEND entries " gemm_${types}_large gemm_${types}_small")
endforeach()
list(APPEND modules "matrix/gemm.hip|${all_targets}||${entries}")

# Attention: what its kernels themselves choose. A source's one entry has its name.
tessera_read_module_list(attention/built_modules.txt attention_modules)
foreach(line IN LISTS attention_modules)
  string(REPLACE "|" ";" fields "${line}")
  list(GET fields 0 source)
  list(GET fields 1 target)
  list(GET fields 2 defines)
  get_filename_component(entry ${source} NAME_WE)
  if(target IN_LIST TESSERA_HIP_TARGETS)
    list(APPEND modules "${source}|${target}|${defines}|${entry}")
  endif()
endforeach()

tessera_embed_hip_modules(${CMAKE_CURRENT_BINARY_DIR} "${kernels}" ${modules})
set(TESSERA_HIP_KERNELS ${kernels} CACHE INTERNAL "Folders that HIP kernels include from")
