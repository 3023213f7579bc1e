# Embeds GPU kernels into the library: their sources always (for run-time compilation), and machine code where nvcc is found.

# The path of a kernel source that stands in one of `folders`.
function(tessera_find_kernel path folders file)
  foreach(folder IN LISTS folders)
    if(EXISTS ${folder}/${file})
      set(${path} ${folder}/${file} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "no kernel source ${file} in ${folders}")
endfunction()

# tessera_embed_kernel_sources(folders output namespace folder patterns…): C++ that defines <namespace>::embedded_sources(), of the kernels
# for any GPU and of those with a vendor's instructions, files in `folder` that match one of `patterns`. Sets `folders` to what
# includes name files from: these two, and src for core/formats and modifier/interval.h.
function(tessera_embed_kernel_sources folders output namespace folder)
  set(found_folders ${PROJECT_SOURCE_DIR}/src/backends/gpu/kernels ${folder})
  set(files "")
  foreach(from IN LISTS found_folders)
    set(patterns ${ARGN})
    list(TRANSFORM patterns PREPEND ${from}/)
    file(GLOB_RECURSE found RELATIVE ${from} CONFIGURE_DEPENDS ${patterns})
    list(APPEND files ${found})
  endforeach()
  file(GLOB found RELATIVE ${PROJECT_SOURCE_DIR}/src CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/core/formats/*.h)
  list(APPEND files ${found} modifier/interval.h)
  list(APPEND found_folders ${PROJECT_SOURCE_DIR}/src)
  list(SORT files)
  set(${folders} ${found_folders} PARENT_SCOPE)
  set(body "")
  set(table "")
  set(index 0)
  set(paths "")
  foreach(file IN LISTS files)
    tessera_find_kernel(path "${found_folders}" ${file})
    list(APPEND paths ${path})
    string(APPEND body "TESSERA_EMBED(tessera_source_${index}, \"${path}\")\n")
    string(APPEND table "      {\"${file}\", embedded_text(tessera_source_${index}, tessera_source_${index}_end)},\n")
    math(EXPR index "${index} + 1")
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded_sources.cpp.in ${output} @ONLY)
  tessera_compiled_again_with(${output} ${paths})
endfunction()

# tessera_embed_code(output namespace modules…): C++ that defines <namespace>::embedded_modules(), of lines
# "source|architecture|defines|image": what the build made of a kernel source. An architecture's images are packed together
# (gpu/runtime/code_archive.h): they have much in common.
function(tessera_embed_code output namespace)
  set(body "")
  set(table "")
  set(archives "")
  set(archive_files "")
  set(architectures "")
  get_filename_component(folder ${output} DIRECTORY)
  foreach(module IN LISTS ARGN)
    string(REPLACE "|" ";" fields "${module}")
    list(GET fields 0 source)
    list(GET fields 1 architecture)
    list(GET fields 2 defines)
    list(GET fields 3 image)
    file(RELATIVE_PATH member ${folder} ${image})
    list(APPEND architectures ${architecture})
    list(APPEND images_${architecture} ${image})
    list(APPEND members_${architecture} ${member})
    string(APPEND table "      {\"${source}\", \"${defines}\", \"${architecture}\", &code_for_${architecture}, \"${member}\"},\n")
  endforeach()
  list(REMOVE_DUPLICATES architectures)
  foreach(architecture IN LISTS architectures)
    set(archive ${folder}/code_for_${architecture}.tar.xz)
    add_custom_command(
      OUTPUT ${archive}
      COMMAND ${CMAKE_COMMAND} -E tar cJf ${archive} --format=gnutar --mtime=1970-01-01 ${members_${architecture}}
      WORKING_DIRECTORY ${folder}
      DEPENDS ${images_${architecture}}
      COMMENT "Packing the kernels for ${architecture}"
      VERBATIM)
    list(APPEND archive_files ${archive})
    string(APPEND body "TESSERA_EMBED(tessera_code_for_${architecture}, \"${archive}\")\n")
    string(APPEND archives "  static const gpu::CodeArchive code_for_${architecture}(embedded_bytes(tessera_code_for_${architecture}, tessera_code_for_${architecture}_end));\n")
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded_modules.cpp.in ${output} @ONLY)
  tessera_compiled_again_with(${output} ${archive_files})
endfunction()

# tessera_embed_modules(output logs folders modules…): C++ that defines cuda::embedded_modules(). A module, for warps of 32, is
# "source|architecture|defines", defines joined by spaces. Without nvcc the list is empty. `logs` gets a line
# "source|defines|architecture|file" for each module: where what ptxas says of it is.
function(tessera_embed_modules output logs folders)
  set(index 0)
  set(embedded "")
  set(log_lines "")
  if(TESSERA_NVCC)
    set(line_info "")
    if(TESSERA_CUDA_LINEINFO)
      set(line_info -lineinfo)
    endif()
    set(include_options "")
    foreach(folder IN LISTS folders)
      string(APPEND include_options " '-I${folder}'")
    endforeach()
    foreach(module IN LISTS ARGN)
      string(REPLACE "|" ";" fields "${module}")
      list(GET fields 0 source)
      list(GET fields 1 architecture)
      list(LENGTH fields length)
      set(defines "")
      if(length GREATER 2)
        list(GET fields 2 defines)
      endif()
      separate_arguments(define_list UNIX_COMMAND "${defines}")
      list(TRANSFORM define_list PREPEND "-D" OUTPUT_VARIABLE define_options)
      list(JOIN define_options " " define_options)
      set(kind -cubin)
      if(architecture MATCHES "^compute_")
        set(kind -ptx)
      endif()
      tessera_find_kernel(path "${folders}" ${source})
      set(image ${CMAKE_CURRENT_BINARY_DIR}/module_${index}.bin)
      # ptxas's resource lines go to a log beside the image, for the check on register spills.
      add_custom_command(
        OUTPUT ${image}
        COMMAND sh -c "'${TESSERA_NVCC}' ${kind} -arch=${architecture} -std=c++17 -DTESSERA_WARP_SIZE=32 ${line_info} -Xptxas -v -MD -MF '${image}.d' -MT '${image}' ${include_options} ${define_options} -o '${image}' '${path}' > '${image}.log' 2>&1 || { cat '${image}.log'; exit 1; }"
        DEPENDS ${path}
        DEPFILE ${image}.d
        COMMENT "Compiling ${source} [${defines}] for ${architecture}"
        VERBATIM)
      list(APPEND embedded "${source}|${architecture}|${defines}|${image}")
      string(APPEND log_lines "${source}|${defines}|${architecture}|${image}.log\n")
      math(EXPR index "${index} + 1")
    endforeach()
  endif()
  file(WRITE ${logs} "${log_lines}")
  tessera_embed_code(${output} tessera::cuda ${embedded})
endfunction()

# tessera_read_module_list(file variable): the lines of a list of modules; CMake runs again when it changes.
function(tessera_read_module_list file variable)
  file(STRINGS ${file} lines)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  set(${variable} "${lines}" PARENT_SCOPE)
endfunction()

# tessera_module_list(name file): a program prints which modules the build compiles ahead, as the kernels of backends/<name>
# choose them, and `file` is its output, committed because a build's rules are made before its programs. The target
# renew_<name>_modules writes it anew; the test <name>_modules_test compares.
function(tessera_module_list name file)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/list_modules.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/list_modules.cpp @ONLY)
  add_executable(list_${name}_modules ${CMAKE_CURRENT_BINARY_DIR}/list_modules.cpp)
  target_link_libraries(list_${name}_modules PRIVATE tessera_internal)
  target_include_directories(list_${name}_modules PRIVATE ${PROJECT_SOURCE_DIR}/src/backends/gpu/kernels)
  add_custom_target(renew_${name}_modules
    COMMAND list_${name}_modules > ${CMAKE_CURRENT_SOURCE_DIR}/${file} VERBATIM)
  if(TESSERA_BUILD_TESTS)
    set_property(GLOBAL APPEND PROPERTY TESSERA_MODULE_LISTS "${name}|${CMAKE_CURRENT_SOURCE_DIR}/${file}")
  endif()
endfunction()
