# Third-party libraries, wrapped once so that the rooms name our targets only.

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)

function(baton_dependency name)
  add_library(baton_${name} INTERFACE)
  add_library(baton::${name} ALIAS baton_${name})
  target_link_libraries(baton_${name} INTERFACE ${ARGN})
endfunction()

baton_dependency(absl_deps absl::status absl::statusor absl::strings
  absl::str_format absl::time absl::span absl::flat_hash_map
  absl::flat_hash_set)
baton_dependency(rpc_deps gRPC::grpc++ protobuf::libprotobuf)
baton_dependency(rpc_reflection_deps gRPC::grpc++_reflection)
baton_dependency(metrics_deps prometheus-cpp::pull prometheus-cpp::core)
baton_dependency(json_deps nlohmann_json::nlohmann_json)
baton_dependency(cli_deps CLI11::CLI11)
baton_dependency(pcre2_deps PkgConfig::PCRE2)
baton_dependency(simd_deps PkgConfig::HWY)
baton_dependency(crypto_deps OpenSSL::Crypto)

if(BATON_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
  baton_dependency(test_deps GTest::gtest GTest::gmock)
  baton_dependency(test_main_deps GTest::gmock_main)
  baton_dependency(benchmark_deps benchmark::benchmark)
endif()
