# Embeds GPU kernels into the library: their sources always (for run-time compilation), and machine code where nvcc is found.

# tessera_embed_sources(output namespace folder files…): C++ that defines <namespace>::embedded_sources().
function(tessera_embed_sources output namespace folder)
  set(body "")
  set(table "")
  set(index 0)
  set(paths "")
  foreach(file IN LISTS ARGN)
    set(path ${folder}/${file})
    list(APPEND paths ${path})
    string(APPEND body "TESSERA_EMBED(tessera_source_${index}, \"${path}\")\n")
    string(APPEND table "      {\"${file}\", text_of(tessera_source_${index}, tessera_source_${index}_end)},\n")
    math(EXPR index "${index} + 1")
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded_sources.cpp.in ${output} @ONLY)
  set_source_files_properties(${output} PROPERTIES OBJECT_DEPENDS "${paths}")
endfunction()

# tessera_embed_modules(output logs folder modules…): C++ that defines cuda::embedded_modules(). A module is
# "source|architecture|defines", defines joined by spaces. Without nvcc the list is empty. `logs` gets a line
# "source|defines|architecture|file" for each module: where what ptxas says of it is.
function(tessera_embed_modules output logs folder)
  set(body "")
  set(table "")
  set(index 0)
  set(images "")
  set(log_lines "")
  if(TESSERA_NVCC)
    set(line_info "")
    if(TESSERA_CUDA_LINEINFO)
      set(line_info -lineinfo)
    endif()
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${folder}/*.cuh ${folder}/*.h)
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
      set(image ${CMAKE_CURRENT_BINARY_DIR}/module_${index}.bin)
      # ptxas's resource lines go to a log beside the image, for the check on register spills.
      add_custom_command(
        OUTPUT ${image}
        COMMAND sh -c "'${TESSERA_NVCC}' ${kind} -arch=${architecture} -std=c++17 ${line_info} -Xptxas -v '-I${folder}' ${define_options} -o '${image}' '${folder}/${source}' > '${image}.log' 2>&1 || { cat '${image}.log'; exit 1; }"
        DEPENDS ${folder}/${source} ${headers}
        COMMENT "Compiling ${source} [${defines}] for ${architecture}"
        VERBATIM)
      list(APPEND images ${image})
      string(APPEND log_lines "${source}|${defines}|${architecture}|${image}.log\n")
      string(APPEND body "TESSERA_EMBED(tessera_module_${index}, \"${image}\")\n")
      string(APPEND table "      {\"${source}\", \"${defines}\", \"${architecture}\", image_of(tessera_module_${index}, tessera_module_${index}_end)},\n")
      math(EXPR index "${index} + 1")
    endforeach()
  endif()
  file(WRITE ${logs} "${log_lines}")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded_modules.cpp.in ${output} @ONLY)
  set_source_files_properties(${output} PROPERTIES OBJECT_DEPENDS "${images}")
endfunction()
