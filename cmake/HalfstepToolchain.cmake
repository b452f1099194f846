# Language level, warnings and sanitizers for every target of the tree. No -march: the wheel runs on any x86-64, and ISA-L
# chooses its CRC32C routine at run time.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(halfstep_compiler_minimum 12)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(halfstep_compiler_minimum 14)
else()
  message(FATAL_ERROR "compiler ${CMAKE_CXX_COMPILER_ID}: Halfstep is built with g++ >= 12 or clang >= 14; "
                      "set CMAKE_CXX_COMPILER to one of them")
endif()
if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS halfstep_compiler_minimum)
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}: C++20 as used here "
                      "needs version ${halfstep_compiler_minimum}; install it and set CMAKE_CXX_COMPILER")
endif()

# A compiler cache is used where there is one. Without the sloppiness it would not keep what includes a precompiled header,
# and it is safe here: nothing expands __DATE__ or __TIME__.
find_program(HALFSTEP_CCACHE ccache DOC "Compiler cache; empty builds without one")
mark_as_advanced(HALFSTEP_CCACHE)
if(HALFSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime" "${HALFSTEP_CCACHE}")
endif()

# What every target of ours links: warnings and sanitizer flags, and nothing that third-party sources would inherit.
add_library(halfstep_flags INTERFACE)
target_compile_options(halfstep_flags INTERFACE
  -Wall -Wextra -Wconversion -Wno-sign-conversion -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough)
if(HALFSTEP_WERROR)
  target_compile_options(halfstep_flags INTERFACE -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # These come from the optimiser, about inlined library code, and g++ 12 is known to be wrong about std::string and
    # std::copy (GCC bugs 105329, 105651). They stay visible; the sanitizer builds judge what they claim.
    target_compile_options(halfstep_flags INTERFACE -Wno-error=array-bounds -Wno-error=restrict
      -Wno-error=stringop-overflow -Wno-error=stringop-overread -Wno-error=maybe-uninitialized)
  endif()
endif()

if(HALFSTEP_SANITIZE STREQUAL "address")
  set(halfstep_sanitizers "address,undefined")
  set(halfstep_sanitizer_flags -fno-sanitize-recover=undefined)
elseif(HALFSTEP_SANITIZE STREQUAL "thread")
  set(halfstep_sanitizers "thread")
  set(halfstep_sanitizer_flags "")
elseif(NOT HALFSTEP_SANITIZE STREQUAL "")
  message(FATAL_ERROR "HALFSTEP_SANITIZE=${HALFSTEP_SANITIZE}: must be empty, address or thread")
endif()
if(DEFINED halfstep_sanitizers)
  if(HALFSTEP_FUZZ)
    string(APPEND halfstep_sanitizers ",fuzzer-no-link")
  endif()
  # Global, because libnanobind has to be built with them too. -g1: the reports need lines, not variables.
  add_compile_options(-fsanitize=${halfstep_sanitizers} ${halfstep_sanitizer_flags} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${halfstep_sanitizers})
endif()
