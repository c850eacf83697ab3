#include "tests/common/tokenizer/test_tokenizers.h"

#include <zlib.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/check.h"
#include "common/testing/paths.h"
#include "common/tokenizer/byte_alphabet.h"

namespace baton::testing {
namespace {

std::string ReadGzip(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  CHECK(file != nullptr) << path;
  std::string out;
  std::array<char, 65536> buffer;
  int n = 0;
  while ((n = gzread(file, buffer.data(), buffer.size())) > 0) {
    out.append(buffer.data(), static_cast<size_t>(n));
  }
  CHECK_EQ(n, 0) << path;
  gzclose(file);
  return out;
}

const tokenizer::Tokenizer* Load(const std::string& json) {
  auto loaded = tokenizer::Tokenizer::Create(json);
  CHECK_OK(loaded);
  return loaded->release();
}

}  // namespace

std::string DemoTokenizerJson() {
  std::ifstream file(SourcePath("deploy/demo-model/tokenizer.json"));
  CHECK(file.good());
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string RealTokenizerJson() {
  return ReadGzip(
      SourcePath("tests/data/tokenizer/deepseek-v4.tokenizer.json.gz"));
}

const tokenizer::Tokenizer& DemoTokenizer() {
  static const tokenizer::Tokenizer* const loaded = Load(DemoTokenizerJson());
  return *loaded;
}

const tokenizer::Tokenizer& RealTokenizer() {
  static const tokenizer::Tokenizer* const loaded = Load(RealTokenizerJson());
  return *loaded;
}

std::string ByteTokenizerJson() {
  nlohmann::json root = nlohmann::json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
       "use_regex": false}]},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true,
                "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null,
              "continuing_subword_prefix": null, "end_of_word_suffix": null,
              "fuse_unk": false, "byte_fallback": false,
              "ignore_merges": false, "vocab": {}, "merges": []}})");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    root["model"]["vocab"][tokenizer::AlphabetTextOfBytes(text)] = byte;
  }
  return root.dump();
}

}  // namespace baton::testing
