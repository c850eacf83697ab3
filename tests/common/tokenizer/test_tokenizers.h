// The two tokenizers that tests use.
#pragma once

#include <string>

#include "common/tokenizer/tokenizer.h"

namespace baton::testing {

// tokenizer.json texts.
std::string DemoTokenizerJson();
std::string RealTokenizerJson();

// Loaded once per process; the test aborts if that fails.
const tokenizer::Tokenizer& DemoTokenizer();
// DeepSeek-V4-Flash at full size: 129,280 ids.
const tokenizer::Tokenizer& RealTokenizer();

// A small file that has only the 256 bytes as tokens (id = byte), for tests
// that edit one field: `"model":{"vocab":..` and so on. Compact JSON.
std::string ByteTokenizerJson();

}  // namespace baton::testing
