// Deterministic mutations of safetensors images. Whatever the bytes, the parser
// must return a status or views that lie inside the image: never crash, and
// never read outside (every image is a heap block of its exact size, so ASan
// sees the first byte too far).
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/checkpoint/safetensors.h"
#include "tests/common/checkpoint/tiny_checkpoint.h"

namespace baton::checkpoint {
namespace {

constexpr uint32_t kSeed = 20260801;
constexpr int32_t kIterations = 100'000;

// What real damage and hostile writers put into headers.
constexpr const char* kTokens[] = {"{",
                                   "}",
                                   "[",
                                   "]",
                                   ",",
                                   ":",
                                   "\"",
                                   "\\",
                                   "\\u0000",
                                   "\\ud800",
                                   "null",
                                   "true",
                                   "-1",
                                   "0",
                                   "1e308",
                                   "1.5",
                                   "9223372036854775807",
                                   "18446744073709551615",
                                   "4294967296",
                                   "\"dtype\"",
                                   "\"shape\"",
                                   "\"data_offsets\"",
                                   "\"F32\"",
                                   "\"I64\"",
                                   "\"F4\"",
                                   "__metadata__",
                                   "\xff",
                                   "[[[[[[[["};

std::vector<std::string> Seeds() {
  StoredTensors mixed;
  mixed["scalar"] = {DType::kF32, {}, std::string(4, '\1')};
  mixed["empty"] = {DType::kI64, {0, 5}, ""};
  mixed["matrix"] = {DType::kBf16, {3, 4}, std::string(24, '\2')};
  mixed["bytes"] = {DType::kF8E8M0, {7}, std::string(7, '\3')};
  StoredTensors many;
  for (int32_t i = 0; i < 12; ++i) {
    many["layers." + std::to_string(i) + ".w"] = {
        DType::kF8E4M3, {i, 2}, std::string(static_cast<size_t>(2 * i), '\4')};
  }
  return {ImageOf(mixed), ImageOf(many), ImageOf({}),
          SafetensorsImage(R"({"__metadata__":{"format":"pt"},)"
                           R"("a":{"dtype":"U8","shape":[2],)"
                           R"("data_offsets":[0,2]}})",
                           "xy")};
}

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }

  void Mutate(std::string* image) {
    const size_t changes = 1 + Below(4);
    for (size_t i = 0; i < changes; ++i) MutateOnce(image);
    // Mostly keep the length truthful, or few mutations get past it.
    if (image->size() >= 8 && Below(4) != 0) {
      const size_t data = Below(8) == 0 ? Below(image->size()) : tail_bytes_;
      const uint64_t header =
          image->size() - 8 >= data ? image->size() - 8 - data : 0;
      std::memcpy(image->data(), &header, sizeof(header));
    }
  }
  // Data bytes behind the header of the seed in use.
  void set_tail_bytes(size_t bytes) { tail_bytes_ = bytes; }

 private:
  void MutateOnce(std::string* image) {
    const size_t at = image->empty() ? 0 : Below(image->size());
    switch (Below(7)) {
      case 0:
        if (!image->empty()) {
          (*image)[at] = static_cast<char>((*image)[at] ^ (1 << Below(8)));
        }
        break;
      case 1:
        if (!image->empty()) (*image)[at] = static_cast<char>(random_());
        break;
      case 2:
        image->insert(at, kTokens[Below(std::size(kTokens))]);
        break;
      case 3:
        image->erase(at, 1 + Below(16));
        break;
      case 4: {  // repeat a piece: duplicate keys, overlapping ranges
        const std::string piece = image->substr(at, 1 + Below(64));
        image->insert(at, piece);
        break;
      }
      case 5: {  // change a number
        const size_t digit = image->find_first_of("0123456789", at);
        if (digit != std::string::npos) {
          (*image)[digit] = static_cast<char>('0' + Below(10));
        }
        break;
      }
      default:  // cut the end
        if (Below(4) == 0) image->resize(at);
        break;
    }
  }

  std::mt19937 random_;
  size_t tail_bytes_ = 0;
};

// Reads every byte of every view and checks that it lies inside the image.
void Exercise(const std::string& image, int64_t* accepted, uint64_t* sum) {
  const auto block = std::make_unique<std::byte[]>(image.size());
  std::memcpy(block.get(), image.data(), image.size());
  const auto views = ParseSafetensors("fuzz", {block.get(), image.size()});
  if (!views.ok()) {
    ASSERT_FALSE(views.status().message().empty());
    return;
  }
  ++*accepted;
  for (const TensorView& view : *views) {
    ASSERT_GE(view.bytes, 0);
    ASSERT_GE(view.data, block.get() + 8);
    ASSERT_LE(view.data + view.bytes, block.get() + image.size());
    for (int64_t i = 0; i < view.bytes; ++i) {
      *sum += static_cast<uint64_t>(view.data[i]);
    }
  }
}

TEST(SafetensorsFuzz, MutatedImagesNeverCrashTheParser) {
  const std::vector<std::string> seeds = Seeds();
  Mutator mutator(kSeed);
  int64_t accepted = 0;
  uint64_t sum = 0;
  for (int32_t i = 0; i < kIterations; ++i) {
    std::string image = seeds[mutator.Below(seeds.size())];
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, image.data(), sizeof(header_bytes));
    mutator.set_tail_bytes(image.size() - 8 - header_bytes);
    mutator.Mutate(&image);
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", iteration ", i));
    Exercise(image, &accepted, &sum);
    if (HasFatalFailure()) return;
  }
  // Both sides of the door were reached.
  EXPECT_GT(accepted, 1000) << "byte sum " << sum;
  EXPECT_LT(accepted, kIterations / 2);
}

}  // namespace
}  // namespace baton::checkpoint
