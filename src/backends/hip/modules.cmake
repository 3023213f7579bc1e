# What this build makes of the HIP kernels: embedded_sources.cpp, and embedded_modules.cpp with the code objects
# for common targets where a compiler is found. Others are compiled by hipRTC when first used.
include(${PROJECT_SOURCE_DIR}/cmake/embed_kernels.cmake)
include(${PROJECT_SOURCE_DIR}/cmake/embed_hip_kernels.cmake)

set(is_on ON)
if(TESSERA_SANITIZE OR TESSERA_BUILD_FUZZERS)  # which change nothing in kernels
  set(is_on OFF)
endif()
option(TESSERA_HIP_AOT "Build HIP kernels ahead of time where clang 19 or later is found" ${is_on})
set(TESSERA_HIP_TARGETS gfx90a gfx942 gfx1100 gfx1101 gfx1102 gfx1151 gfx1201 CACHE STRING "GPUs that HIP kernels are built ahead for")
tessera_find_hip_compiler()

# What includes name files from: the kernels for any GPU, those with AMD's instructions, and src for core/formats.
set(kernels ${PROJECT_SOURCE_DIR}/src/backends/gpu/kernels ${CMAKE_CURRENT_LIST_DIR}/kernels)
set(kernel_files "")
foreach(folder IN LISTS kernels)
  file(GLOB_RECURSE found RELATIVE ${folder} CONFIGURE_DEPENDS ${folder}/*.cu ${folder}/*.cuh ${folder}/*.hip ${folder}/*.h)
  list(APPEND kernel_files ${found})
endforeach()
file(GLOB found RELATIVE ${PROJECT_SOURCE_DIR}/src CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/core/formats/*.h)
list(APPEND kernel_files ${found})
list(APPEND kernels ${PROJECT_SOURCE_DIR}/src)
list(SORT kernel_files)
tessera_embed_sources(${CMAKE_CURRENT_BINARY_DIR}/embedded_sources.cpp tessera::hip "${kernels}" ${kernel_files})

# "source|targets|defines|entries", each a list joined by spaces. Which entries a common one has is written in tests/simt.
list(JOIN TESSERA_HIP_TARGETS " " all_targets)
set(modules "")
foreach(source attention_generic attention_combine attention_unfused merge_states ceilings
        elementwise gemm_batched gemm_tiled gemv rms_norm rope sample softmax)
  set(entries "")
  if(source STREQUAL ceilings)  # which measures time, and has no test on the host
    set(entries "read_rate fma_rate")
  endif()
  list(APPEND modules "common/${source}.cu|${all_targets}||${entries}")
endforeach()
list(APPEND modules "matrix/ceilings.hip|${all_targets}||mma_rate")
set(entries "")
foreach(types f16_f16 bf16_bf16 f16_q8_0 bf16_q8_0 f32_q8_0)
  string(APPEND entries " gemm_${types}_large gemm_${types}_small")
endforeach()
list(APPEND modules "matrix/gemm.hip|${all_targets}||${entries}")

# Attention of few queries, as attention/decode.cpp picks its workgroups: head_dim|row tiles|targets|dtypes|waves. RDNA's
# waves share keys where one has not the registers for all sums.
set(mfma_targets ${TESSERA_HIP_TARGETS})
list(FILTER mfma_targets INCLUDE REGEX "^gfx9")
set(wmma_targets ${TESSERA_HIP_TARGETS})
list(FILTER wmma_targets EXCLUDE REGEX "^gfx9")
foreach(entry "64|1|mfma|f16 bf16 f32|4" "64|2|mfma|f16 bf16|4" "128|1|mfma|f16 bf16 f32|4" "128|2|mfma|f16 bf16|4"
        "256|1|mfma|f16 bf16|4"
        "64|1|wmma|f16 bf16|4" "64|2|wmma|f16 bf16|4" "128|1|wmma|f16 bf16|4" "128|2|wmma|f16 bf16|8" "256|1|wmma|f16 bf16|8")
  string(REPLACE "|" ";" fields "${entry}")
  list(GET fields 0 head_dim)
  list(GET fields 1 row_tiles)
  list(GET fields 2 unit)
  list(GET fields 3 dtypes)
  list(GET fields 4 num_warps)
  list(JOIN ${unit}_targets " " targets)
  separate_arguments(dtypes UNIX_COMMAND "${dtypes}")
  foreach(dtype IN LISTS dtypes)
    set(shape "TESSERA_DTYPE=${dtype} TESSERA_HEAD_DIM_QK=${head_dim} TESSERA_HEAD_DIM_V=${head_dim} TESSERA_TERMS=0 TESSERA_MASK_DTYPE=0")
    foreach(paged 0 1)
      list(APPEND modules "matrix/attention_decode.hip|${targets}|${shape} TESSERA_PAGED=${paged} TESSERA_VECTOR=1 TESSERA_NUM_WARPS=${num_warps} TESSERA_ROW_TILES=${row_tiles}|attention_decode")
    endforeach()
  endforeach()
endforeach()

# Attention of many queries, by the first tiles of attention/prefill_tiles.cpp: head_dim|block_m block_n waves min_waves shared_q
# prefetch|targets|dtypes. gfx90a leaves f16 to the plain kernel.
set(prefill_attention
    "64|128 64 4 2 0 1|gfx942|f16 bf16 f32" "128|128 64 4 2 0 0|gfx942|f16 bf16" "128|128 32 4 2 0 0|gfx942|f32" "256|128 32 4 1 0 1|gfx942|f16 bf16"
    "64|128 64 4 2 0 1|gfx90a|bf16 f32" "128|128 64 4 2 0 0|gfx90a|bf16" "128|128 32 4 2 0 0|gfx90a|f32" "256|128 32 4 1 0 1|gfx90a|bf16"
    "64|128 64 8 4 1 1|gfx11|f16 bf16" "128|128 32 8 4 1 1|gfx11|f16 bf16" "256|64 32 4 4 1 0|gfx11|f16 bf16"
    "64|128 64 8 4 0 1|gfx12|f16 bf16" "128|128 32 8 4 0 1|gfx12|f16 bf16" "256|64 16 4 4 1 1|gfx12|f16 bf16")
foreach(entry IN LISTS prefill_attention)
  string(REPLACE "|" ";" fields "${entry}")
  list(GET fields 0 head_dim)
  list(GET fields 1 tiles)
  list(GET fields 2 generation)
  list(GET fields 3 dtypes)
  set(targets ${TESSERA_HIP_TARGETS})
  list(FILTER targets INCLUDE REGEX "^${generation}")
  list(JOIN targets " " targets)
  if(targets STREQUAL "")
    continue()
  endif()
  string(REGEX REPLACE "(.+) (.+) (.+) (.+) (.+) (.+)"
         "TESSERA_PADDED=0 TESSERA_BLOCK_M=\\1 TESSERA_BLOCK_N=\\2 TESSERA_NUM_WARPS=\\3 TESSERA_MIN_WAVES=\\4 TESSERA_SHARED_Q=\\5 TESSERA_PREFETCH=\\6" tiles "${tiles}")
  separate_arguments(dtypes UNIX_COMMAND "${dtypes}")
  foreach(dtype IN LISTS dtypes)
    set(shape "TESSERA_DTYPE=${dtype} TESSERA_HEAD_DIM_QK=${head_dim} TESSERA_HEAD_DIM_V=${head_dim} TESSERA_TERMS=0 TESSERA_MASK_DTYPE=0")
    foreach(paged 0 1)
      list(APPEND modules "matrix/attention_prefill.hip|${targets}|${shape} TESSERA_PAGED=${paged} TESSERA_VECTOR=1 ${tiles}|attention_prefill")
    endforeach()
  endforeach()
endforeach()

tessera_embed_hip_modules(${CMAKE_CURRENT_BINARY_DIR} "${kernels}" ${modules})
set(TESSERA_HIP_KERNELS ${kernels} CACHE INTERNAL "Folders that HIP kernels include from")
