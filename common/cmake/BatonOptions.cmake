# Build options, language level and warnings.

option(BATON_TESTS "Build the tests" ON)
option(BATON_FAULT_POINTS
       "Compile named fault and sync points in (tests); never ship such a build"
       OFF)
set(BATON_SANITIZE "" CACHE STRING
    "Sanitizers to compile with: empty, 'address' (with undefined), 'thread'")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# -g1 keeps line numbers for stack traces at a fraction of the link time.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(BATON_CCACHE ccache)
if(BATON_CCACHE)
  # Paths relative to the source tree, so that another clone finds the objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${BATON_CCACHE})
endif()

# Warnings are errors in our own code; third-party headers are SYSTEM.
add_library(baton_compile_options INTERFACE)
target_compile_options(baton_compile_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Werror -Wunused-result
  # Designated initialisers leave out members that have a default.
  -Wno-missing-field-initializers
  # Products of float expressions are not contracted behind our back: bits must
  # not depend on what the optimiser fused.
  -ffp-contract=off)
target_include_directories(baton_compile_options INTERFACE
  "${PROJECT_SOURCE_DIR}")
if(BATON_FAULT_POINTS)
  target_compile_definitions(baton_compile_options INTERFACE
    BATON_FAULT_POINTS=1)
endif()

if(NOT BATON_SANITIZE STREQUAL "")
  # Instrumented code is slow to compile at -O2 and gains little.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
endif()
if(BATON_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer
                      -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
elseif(BATON_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread)
  add_link_options(-fsanitize=thread)
elseif(NOT BATON_SANITIZE STREQUAL "")
  message(FATAL_ERROR "BATON_SANITIZE='${BATON_SANITIZE}': expected empty, "
                      "'address' or 'thread'")
endif()
