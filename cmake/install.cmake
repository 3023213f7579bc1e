# `cmake --install` puts the program, the library, its public headers and a package that find_package(tessera) finds under
# a prefix, which may be moved afterwards. `cpack` makes an archive of the same with every shared library that is not part
# of glibc, for systems that have none of the packages.
include(CMakePackageConfigHelpers)

set(TESSERA_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
# Libraries of other projects get a folder of their own: programs that link libtessera have its folder in their run path
# and must not pick up, say, an older libstdc++ from there.
set(TESSERA_BUNDLE_DIR ${CMAKE_INSTALL_LIBDIR}/tessera)

# DT_RPATH, unlike DT_RUNPATH, also holds for the libraries that the bundled libraries load in turn.
target_link_options(tessera PRIVATE -Wl,--disable-new-dtags)
target_link_options(tessera_cli PRIVATE -Wl,--disable-new-dtags)
# The build tree's are the same: those that are replaced when installed CMake fills up with colons, and an empty folder is the
# working one, from where every library would then be taken.
function(tessera_run_path target)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${ARGN}" BUILD_WITH_INSTALL_RPATH ON)
endfunction()
tessera_run_path(tessera "$ORIGIN" "$ORIGIN/tessera")
file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(run_path "$ORIGIN/${bin_to_lib}" "$ORIGIN/${bin_to_lib}/tessera")
if(NOT bin_to_lib STREQUAL ../lib)
  list(APPEND run_path "$ORIGIN/../lib")  # where the build tree has it
endif()
tessera_run_path(tessera_cli ${run_path})

install(TARGETS tessera tessera_cli EXPORT tesseraTargets RUNTIME_DEPENDENCY_SET tessera_dependencies
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tessera
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT tessera NAMELINK_COMPONENT tessera
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT tessera)
# The README and what it points to.
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT tessera)
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT tessera)
install(DIRECTORY models/demo DESTINATION ${CMAKE_INSTALL_DOCDIR}/models COMPONENT tessera)
install(DIRECTORY bench/compare DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench COMPONENT tessera
        PATTERN __pycache__ EXCLUDE)

install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${TESSERA_PACKAGE_DIR} COMPONENT tessera)
configure_package_config_file(cmake/tesseraConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/tesseraConfig.cmake
                              INSTALL_DESTINATION ${TESSERA_PACKAGE_DIR} PATH_VARS TESSERA_BUNDLE_DIR)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tesseraConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/tesseraConfigVersion.cmake
        DESTINATION ${TESSERA_PACKAGE_DIR} COMPONENT tessera)

set(pkg_config_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_PREFIX}/${pkg_config_dir} ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/tessera.pc.in ${CMAKE_CURRENT_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tessera.pc DESTINATION ${pkg_config_dir} COMPONENT tessera)

# What belongs to glibc must come from the system that the archive runs on; everything else goes along.
install(RUNTIME_DEPENDENCY_SET tessera_dependencies
        PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|mvec|dl|rt|pthread|util|resolv|anl|BrokenLocale|nsl)\\.so"
        POST_EXCLUDE_REGEXES "/libtessera\\.so"
        LIBRARY DESTINATION ${TESSERA_BUNDLE_DIR} COMPONENT dependencies EXCLUDE_FROM_ALL)

# Their licences go along too.
foreach(package libdnnl2 libfmt9 libgcc-s1 libgomp1 libhwy1 liblzma5 libpcre2-8-0 libstdc++6 libutf8proc2 ocl-icd-libopencl1)
  if(EXISTS /usr/share/doc/${package}/copyright)
    install(FILES /usr/share/doc/${package}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR}/licences RENAME ${package}
            COMPONENT dependencies EXCLUDE_FROM_ALL)
  endif()
endforeach()

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VENDOR Tessera)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_FILE_NAME tessera-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_COMPONENTS_ALL tessera dependencies)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};tessera;ALL;/")
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
include(CPack)
