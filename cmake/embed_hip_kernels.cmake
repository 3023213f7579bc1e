# Builds HIP kernels ahead of time and embeds the code objects. A kernel includes nothing but the project's own files and
# calls nothing but the compiler's builtins, so that clang and lld are all that this takes: no header or device library of ROCm.

# What every HIP kernel is compiled with.
set(TESSERA_HIP_FLAGS -x hip --offload-device-only --no-gpu-bundle-output -nogpuinc -nogpulib -fuse-cuid=none -c -std=c++20 -O3
                      -mcode-object-version=5 -Xoffload-linker -s CACHE INTERNAL "Flags that HIP kernels are compiled with")

# tessera_find_hip_compiler(): sets TESSERA_HIP_COMPILER to a clang that can build for all of TESSERA_HIP_TARGETS, or to nothing.
function(tessera_find_hip_compiler)
  find_program(TESSERA_HIP_CLANG NAMES amdclang++ clang++-21 clang++-20 clang++-19 clang++
               HINTS $ENV{ROCM_PATH}/bin $ENV{HIP_PATH}/bin /opt/rocm/bin
               DOC "clang 19 or later, for HIP kernels")
  set(compiler "")
  if(TESSERA_HIP_AOT AND TESSERA_HIP_CLANG)
    # The newest target is one that an older compiler does not know.
    set(probe ${CMAKE_CURRENT_BINARY_DIR}/probe.hip)
    file(WRITE ${probe} "extern \"C\" __attribute__((global)) void probe() {}\n#if __clang_major__ < 19\n#error\n#endif\n")
    list(GET TESSERA_HIP_TARGETS -1 target)
    execute_process(COMMAND ${TESSERA_HIP_CLANG} ${TESSERA_HIP_FLAGS} --offload-arch=${target} ${probe} -o ${probe}.co
                    RESULT_VARIABLE status OUTPUT_VARIABLE log ERROR_VARIABLE log)
    if(status EQUAL 0)
      set(compiler ${TESSERA_HIP_CLANG})
    else()
      string(STRIP "${log}" log)
      message(STATUS "HIP kernels are not built ahead of time: ${TESSERA_HIP_CLANG} can't (clang 19 and lld 19 or later can): ${log}")
    endif()
  elseif(TESSERA_HIP_AOT)
    message(STATUS "HIP kernels are not built ahead of time: no clang was found (clang-19 and lld-19, or ROCm's)")
  endif()
  set(TESSERA_HIP_COMPILER ${compiler} CACHE INTERNAL "The compiler that builds HIP kernels ahead of time")
endfunction()

# tessera_embed_hip_modules(folder includes modules…): C++ in folder/embedded_modules.cpp that defines hip::embedded_modules(). A
# module is "source|targets|defines|entries", each a list joined by spaces; entries are the kernels that it must have. folder/modules.txt
# gets a line "source|target|defines|entries|code object" for each module and target, for the test that looks into them.
function(tessera_embed_hip_modules folder includes)
  set(embedded "")
  set(lines "")
  set(index 0)
  set(include_options ${includes})
  list(TRANSFORM include_options PREPEND "-I")
  set(launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
  if(launcher MATCHES "ccache$")  # other checkouts' results then serve, too
    list(PREPEND launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR})
  endif()
  foreach(module IN LISTS ARGN)
    string(REPLACE "|" ";" fields "${module}")
    list(GET fields 0 source)
    list(GET fields 1 targets)
    list(GET fields 2 defines)
    list(GET fields 3 entries)
    separate_arguments(targets UNIX_COMMAND "${targets}")
    separate_arguments(define_options UNIX_COMMAND "${defines}")
    list(TRANSFORM define_options PREPEND "-D")
    tessera_find_kernel(path "${includes}" ${source})
    foreach(target IN LISTS targets)
      set(warp_size 32)
      if(target MATCHES "^gfx9")
        set(warp_size 64)
      endif()
      set(image ${folder}/module_${index}.co)
      if(TESSERA_HIP_COMPILER)
        add_custom_command(
          OUTPUT ${image}
          COMMAND ${launcher} ${TESSERA_HIP_COMPILER} ${TESSERA_HIP_FLAGS} --offload-arch=${target} -DTESSERA_WARP_SIZE=${warp_size}
                  ${define_options} ${include_options} -MD -MT ${image} -MF ${image}.d ${path} -o ${image}
          DEPENDS ${path}
          DEPFILE ${image}.d
          COMMENT "Compiling ${source} [${defines}] for ${target}"
          VERBATIM)
        list(APPEND embedded "${source}|${target}|${defines}|${image}")
      endif()
      string(APPEND lines "${source}|${target}|${defines}|${entries}|${image}\n")
      math(EXPR index "${index} + 1")
    endforeach()
  endforeach()
  tessera_embed_code(${folder}/embedded_modules.cpp tessera::hip ${embedded})
  file(WRITE ${folder}/modules.txt "${lines}")
  set(TESSERA_HIP_MODULES_FILE ${folder}/modules.txt CACHE INTERNAL "The list of HIP kernel modules for tests")
endfunction()
