# halfstep_library(<name> LINKS <folder>... [THIRD_PARTY <target>...])
# Called from native/<name>/CMakeLists.txt. Makes of that folder
#   halfstep_<name>, alias halfstep::<name>   static library of x.cc (headers alone make an interface library)
#   <name>_tests                              one GoogleTest executable of all x_test.cc, its cases in ctest, label native
#   <name>_<x>_test                           one per x_test.cc, which nothing else builds
#   <name>_<x>_fuzz                           one libFuzzer executable per x_fuzz.cc, where HALFSTEP_FUZZ is on
# LINKS names other folders and is the whole list of arrows that leave this one. Includes are written "base/status.h".
function(halfstep_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINKS;THIRD_PARTY")
  halfstep_sources(sources tests fuzzers)
  file(GLOB headers CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.h")
  if(NOT sources AND NOT headers)
    message(STATUS "native/${name}: no sources, skipped")
    return()
  endif()
  foreach(link IN LISTS arg_LINKS)
    if(NOT TARGET halfstep::${link})
      message(WARNING "native/${name} links native/${link}, which has no sources: ${name} is skipped")
      return()
    endif()
  endforeach()

  set(library halfstep_${name})
  if(sources)
    set(scope PUBLIC)
    add_library(${library} STATIC ${sources})
    target_link_libraries(${library} PRIVATE halfstep_flags)
  else()
    set(scope INTERFACE)
    add_library(${library} INTERFACE)
  endif()
  add_library(halfstep::${name} ALIAS ${library})
  target_include_directories(${library} ${scope} "${PROJECT_SOURCE_DIR}/native" "${HALFSTEP_GENERATED_DIR}")
  list(TRANSFORM arg_LINKS PREPEND halfstep::)
  target_link_libraries(${library} ${scope} ${arg_LINKS} ${arg_THIRD_PARTY})

  halfstep_tests(${name} TESTS ${tests} LINKS ${library})
  if(HALFSTEP_FUZZ)
    foreach(fuzzer IN LISTS fuzzers)
      cmake_path(GET fuzzer STEM stem)
      add_executable(${name}_${stem} "${fuzzer}")
      target_link_libraries(${name}_${stem} PRIVATE ${library} halfstep_flags)
      target_link_options(${name}_${stem} PRIVATE -fsanitize=fuzzer)
      set_target_properties(${name}_${stem} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fuzz")
      add_dependencies(halfstep_fuzzers ${name}_${stem})
    endforeach()
  endif()
endfunction()

# Sorts the *.cc of the current folder and of its rooms by suffix into three lists of the caller.
macro(halfstep_sources sources_out tests_out fuzzers_out)
  file(GLOB ${sources_out} CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc" "${CMAKE_CURRENT_SOURCE_DIR}/*/*.cc")
  set(${tests_out} ${${sources_out}})
  set(${fuzzers_out} ${${sources_out}})
  list(FILTER ${sources_out} EXCLUDE REGEX "_(test|fuzz)\\.cc$")
  list(FILTER ${tests_out} INCLUDE REGEX "_test\\.cc$")
  list(FILTER ${fuzzers_out} INCLUDE REGEX "_fuzz\\.cc$")
endmacro()

# The headers that nearly every test includes, compiled once. It is an executable because a precompiled header fits only where
# it was compiled with the same flags, -fPIE among them; without cases of its own it is never run.
function(halfstep_test_headers)
  add_executable(halfstep_test_headers "${PROJECT_SOURCE_DIR}/cmake/test_headers.cc")
  target_link_libraries(halfstep_test_headers PRIVATE GTest::gtest_main halfstep_flags)
  halfstep_test_options(halfstep_test_headers)
  target_precompile_headers(halfstep_test_headers PRIVATE
    <gtest/gtest.h> <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <cstring> <deque> <functional> <map>
    <memory> <mutex> <optional> <random> <set> <span> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>)
endfunction()

# Optimised, the bodies of tests take most of the build's time; what they test is optimised all the same.
function(halfstep_test_options target)
  target_compile_options(${target} PRIVATE -O0)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # a compiler cache asks for it
  endif()
endfunction()

# halfstep_left_out(<name> <variable>)
# Whether HALFSTEP_TESTS_EXCEPT matches the name, "<folder>/<x_test>" or that of a further run of such tests.
function(halfstep_left_out name variable)
  set(${variable} FALSE PARENT_SCOPE)
  if(HALFSTEP_TESTS_EXCEPT AND name MATCHES "${HALFSTEP_TESTS_EXCEPT}")
    set(${variable} TRUE PARENT_SCOPE)
  endif()
endfunction()

# halfstep_tests(<folder> TESTS <x_test.cc>... LINKS <target>...)
# Makes <folder>_tests, which ctest runs: all of them in a few large sources, which take a third of the time that as many
# programs would. Beside it <folder>_<x_test> of each, which is built by who asks for it: quick to compile anew, and to debug.
function(halfstep_tests folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "TESTS;LINKS")
  if(NOT HALFSTEP_TESTS)
    return()
  endif()
  set(programs "")
  set(together "")
  foreach(test IN LISTS arg_TESTS)
    cmake_path(GET test STEM stem)
    halfstep_left_out(${folder}/${stem} left_out)
    if(left_out)
      continue()
    endif()
    halfstep_test_program(${folder}_${stem} SOURCES "${test}" LINKS ${arg_LINKS})
    # What replaces the allocator replaces that of its whole program.
    file(STRINGS "${test}" allocator REGEX "void\\* operator new\\(")
    if(allocator)
      list(APPEND programs ${folder}_${stem})
    else()
      set_target_properties(${folder}_${stem} PROPERTIES EXCLUDE_FROM_ALL ON)
      list(APPEND together "${test}")
    endif()
  endforeach()
  if(together)
    halfstep_test_program(${folder}_tests SOURCES ${together} LINKS ${arg_LINKS})
    set_target_properties(${folder}_tests PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    list(APPEND programs ${folder}_tests)
  endif()
  # A sanitizer makes what crashes a store hundreds of times some ten times slower.
  set(timeout_s 120)
  if(HALFSTEP_SANITIZE)
    set(timeout_s 400)
  endif()
  # PRE_TEST: the cases are listed when ctest starts, so that a build never runs what it built.
  foreach(program IN LISTS programs)
    gtest_discover_tests(${program} TEST_PREFIX "${folder}/" DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS native TIMEOUT ${timeout_s})
  endforeach()
endfunction()

function(halfstep_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINKS} GTest::gtest_main halfstep_flags)
  halfstep_test_options(${name})
  target_precompile_headers(${name} REUSE_FROM halfstep_test_headers)
endfunction()
