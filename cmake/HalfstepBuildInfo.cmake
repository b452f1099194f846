# base/build_info.h: what this build is. `halfstep --version` shows it, and benchmarks refuse to report from any build type
# but "release".
if(HALFSTEP_FUZZ)
  set(HALFSTEP_BUILD_TYPE fuzz)
elseif(HALFSTEP_SANITIZE STREQUAL "address")
  set(HALFSTEP_BUILD_TYPE asan)
elseif(HALFSTEP_SANITIZE STREQUAL "thread")
  set(HALFSTEP_BUILD_TYPE tsan)
elseif(CMAKE_BUILD_TYPE MATCHES "^(Release|RelWithDebInfo|MinSizeRel)$")
  set(HALFSTEP_BUILD_TYPE release)
else()
  set(HALFSTEP_BUILD_TYPE debug)
endif()

# The commit at configure time. A source distribution says which one it is made of (scripts/build_backend.py); it may have been
# unpacked inside somebody else's repository, which is not asked. One that was made without git is told by its version.
set(HALFSTEP_COMMIT unknown)
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS "${PROJECT_SOURCE_DIR}/.git")
  execute_process(
    COMMAND "${GIT_EXECUTABLE}" describe --always --dirty --tags --abbrev=12
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    OUTPUT_VARIABLE halfstep_described OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET RESULT_VARIABLE halfstep_describe_result)
  if(halfstep_describe_result EQUAL 0)
    set(HALFSTEP_COMMIT "${halfstep_described}")
  endif()
elseif(EXISTS "${PROJECT_SOURCE_DIR}/cmake/COMMIT")
  file(STRINGS "${PROJECT_SOURCE_DIR}/cmake/COMMIT" HALFSTEP_COMMIT LIMIT_COUNT 1)
elseif(EXISTS "${PROJECT_SOURCE_DIR}/PKG-INFO")
  set(HALFSTEP_COMMIT "of the source distribution ${PROJECT_VERSION}")
endif()

set(HALFSTEP_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")
configure_file("${PROJECT_SOURCE_DIR}/native/base/build_info.h.in" "${HALFSTEP_GENERATED_DIR}/base/build_info.h" @ONLY)
message(STATUS "halfstep ${PROJECT_VERSION}, ${HALFSTEP_BUILD_TYPE} build, commit ${HALFSTEP_COMMIT}")
