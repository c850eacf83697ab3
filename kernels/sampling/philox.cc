#include "kernels/include/sampling.h"

namespace baton::kernels {

PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

double PhiloxUniform(const RandomKey& key) {
  const PhiloxBlock block = Philox4x32(
      {{key.output_index, key.sample_index, static_cast<uint32_t>(key.purpose),
        0}},
      static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32));
  const uint64_t bits =
      (static_cast<uint64_t>(block.word[0]) << 20) | (block.word[1] >> 12);
  // Half a step off the grid: neither 0 nor 1 can occur.
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace baton::kernels
