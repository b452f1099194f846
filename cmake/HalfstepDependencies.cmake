# Third-party libraries, each behind one imported target, each found by compiling and linking a probe.
include(CheckCXXSourceCompiles)
find_package(Threads REQUIRED)

# halfstep_find(<target> NAME <library> HEADER <header> PROBE <expression> PACKAGE <Debian package>)
# Makes <target>. The static archive is taken where it links into a shared object (it has to be position independent; not
# every distribution's is), so that a wheel carries the library; otherwise the shared library is.
function(halfstep_find target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAME;HEADER;PROBE;PACKAGE" "")
  string(TOUPPER "${arg_NAME}" upper)
  find_path(${upper}_INCLUDE_DIR "${arg_HEADER}")
  find_library(${upper}_SHARED NAMES "lib${arg_NAME}.so")
  find_library(${upper}_STATIC NAMES "lib${arg_NAME}.a")
  mark_as_advanced(${upper}_INCLUDE_DIR ${upper}_SHARED ${upper}_STATIC)
  if(NOT ${upper}_INCLUDE_DIR OR NOT (${upper}_SHARED OR ${upper}_STATIC))
    message(FATAL_ERROR "${arg_HEADER} or lib${arg_NAME} not found: apt-get install ${arg_PACKAGE}")
  endif()

  set(library "${${upper}_SHARED}")
  if(${upper}_STATIC)
    set(CMAKE_REQUIRED_INCLUDES "${${upper}_INCLUDE_DIR}")
    set(CMAKE_REQUIRED_LIBRARIES "${${upper}_STATIC}")
    set(CMAKE_REQUIRED_FLAGS "-fPIC")
    set(CMAKE_REQUIRED_LINK_OPTIONS -shared)
    check_cxx_source_compiles("#include <${arg_HEADER}>\nauto probe() { return ${arg_PROBE}; }" ${upper}_STATIC_IS_PIC)
    if(${upper}_STATIC_IS_PIC)
      set(library "${${upper}_STATIC}")
    endif()
  endif()
  if(NOT library)
    message(FATAL_ERROR "${${upper}_STATIC} does not link into a shared object and there is no lib${arg_NAME}.so: "
                        "apt-get install ${arg_PACKAGE}")
  endif()

  add_library(${target} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES
    IMPORTED_LOCATION "${library}" INTERFACE_INCLUDE_DIRECTORIES "${${upper}_INCLUDE_DIR}")
  message(STATUS "${arg_NAME}: ${library}")
endfunction()

# CRC32C. The only caller is base/.
halfstep_find(halfstep::isal NAME isal HEADER isa-l.h PROBE "crc32_iscsi(nullptr, 0, 0)" PACKAGE libisal-dev)
# io_uring. The only caller is io/; the client never links it.
halfstep_find(halfstep::uring NAME uring HEADER liburing.h PROBE "io_uring_queue_init(1, nullptr, 0)" PACKAGE liburing-dev)
# The codec of values of unknown make. The only caller is compress/.
halfstep_find(halfstep::zstd NAME zstd HEADER zstd.h PROBE "ZSTD_createCCtx()" PACKAGE libzstd-dev)

# XXH3, as headers alone. XXH_INLINE_ALL is defined empty so that a source that says it itself agrees.
find_path(XXHASH_INCLUDE_DIR xxhash.h)
if(NOT XXHASH_INCLUDE_DIR)
  message(FATAL_ERROR "xxhash.h not found: apt-get install libxxhash-dev")
endif()
add_library(halfstep_xxhash INTERFACE)
add_library(halfstep::xxhash ALIAS halfstep_xxhash)
target_include_directories(halfstep_xxhash SYSTEM INTERFACE "${XXHASH_INCLUDE_DIR}")
target_compile_definitions(halfstep_xxhash INTERFACE "XXH_INLINE_ALL=")

if(HALFSTEP_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "GoogleTest not found: apt-get install libgtest-dev, or -DHALFSTEP_TESTS=OFF")
  endif()
  include(GoogleTest)
endif()

if(HALFSTEP_PYTHON)
  # scikit-build-core names the interpreter; with a plain preset it is the first python3 that has nanobind.
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE nanobind_result)
  if(NOT nanobind_result EQUAL 0)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no nanobind: ${Python_EXECUTABLE} -m pip install nanobind, "
                        "or -DPython_EXECUTABLE=.venv/bin/python after `make build`")
  endif()
  find_package(nanobind CONFIG REQUIRED)
endif()

if(HALFSTEP_FUZZ AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "HALFSTEP_FUZZ=ON needs clang (libFuzzer); CMAKE_CXX_COMPILER is ${CMAKE_CXX_COMPILER}")
endif()
