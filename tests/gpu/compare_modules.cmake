# Whether LIST is what PROGRAM prints; the build's target TARGET writes it anew.
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE printed RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR printed STREQUAL "")
  message(FATAL_ERROR "${PROGRAM} ends with ${status} and prints: ${printed}")
endif()
file(READ ${LIST} listed)
if(NOT printed STREQUAL listed)
  message(FATAL_ERROR "The kernels choose other modules than those in ${LIST}, so that none would be built ahead for them. "
                      "Write it anew: cmake --build BUILD --target ${TARGET}\nThey choose:\n${printed}")
endif()
