# Helpers that keep each room's CMakeLists.txt a declarative list.

include(CMakeParseArguments)

# baton_library(NAME kv HDRS a.h SRCS a.cc DEPS baton::base PRIVATE_DEPS ...)
# makes target baton_kv with alias baton::kv. DEPS are what the headers need,
# PRIVATE_DEPS what only the .cc files need.
function(baton_library)
  cmake_parse_arguments(ARG "" "NAME" "HDRS;SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "baton_library(${ARG_NAME}): unknown ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  set(target baton_${ARG_NAME})
  if(ARG_SRCS)
    add_library(${target} STATIC ${ARG_SRCS} ${ARG_HDRS})
    target_link_libraries(${target}
      PUBLIC ${ARG_DEPS}
      PRIVATE baton_compile_options ${ARG_PRIVATE_DEPS})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${ARG_DEPS})
  endif()
  add_library(baton::${ARG_NAME} ALIAS ${target})
endfunction()

# baton_binary(NAME baton-router SRCS main.cc DEPS ...)
function(baton_binary)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE baton_compile_options ${ARG_DEPS})
  set_target_properties(${ARG_NAME} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
endfunction()

# baton_test(NAME kv_block_pool_test SRCS ... DEPS ... LABELS unit [TIMEOUT s])
# One CTest entry per binary. Labels: unit, integration, numeric, interop,
# fuzz, gpu, slow.
function(baton_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SRCS;DEPS;LABELS;ENV" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(NOT BATON_SANITIZE STREQUAL "")
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")  # instrumented code is slow
  endif()
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE
    baton_compile_options ${ARG_DEPS} baton::testing
    baton::test_deps baton::test_main_deps)
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
  set_tests_properties(${ARG_NAME} PROPERTIES
    LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "BATON_SOURCE_DIR=${PROJECT_SOURCE_DIR};BATON_BINARY_DIR=${PROJECT_BINARY_DIR};${ARG_ENV}")
  # tests_LABEL builds what ctest --label-regex LABEL runs (tests/run.sh).
  foreach(label IN LISTS ARG_LABELS)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${ARG_NAME})
  endforeach()
endfunction()

# baton_benchmark(NAME tokenizer_benchmark SRCS ... DEPS ...): Google Benchmark,
# built with the tests, run by hand.
function(baton_benchmark)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE
    baton_compile_options ${ARG_DEPS} baton::benchmark_deps)
endfunction()
