// The memory behind blocks and slots of one worker: pages per growing region,
// rings and tails per slot (design.md 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/state_format.h"

namespace baton::kv {

// Where one sequence's cached state lies: its block table (block i holds
// positions 256 i .. 256 i + 255) and its slot. Borrowed, immutable while used.
struct SequenceView {
  absl::Span<const BlockId> blocks;
  int32_t slot = -1;
};

// Rows of different sequences may be read and written by different threads at
// the same time; rows of one sequence are ordered by whoever owns it.
class KvStore final {
 public:
  // InvalidArgument when a size is not positive.
  static absl::StatusOr<std::unique_ptr<KvStore>> Create(
      const StateFormat& format, int32_t num_blocks, int32_t num_slots);

  const StateFormat& format() const { return format_; }
  int32_t num_blocks() const { return num_blocks_; }
  int32_t num_slots() const { return num_slots_; }
  // Bytes of all pages, and of all rings and tails.
  int64_t page_bytes() const;
  int64_t slot_bytes() const;

  // First byte of a row of a growing region; page stride for kernels.
  std::byte* PageRow(Region region, BlockId block, int64_t row_in_page);
  int64_t PageStride(Region region) const;         // bytes between blocks
  int32_t RowsPerPage(Component component) const;  // 64 or 2
  // First byte of a slot's ring or tail (layout: kernels/include/compressor.h
  // for tails; window rows at position % capacity).
  std::byte* SlotData(Region region, int32_t slot);

  // Copies rows out of / into the store in the order of `rows`, RowBytes each.
  // `data` holds CountRows * RowBytes bytes.
  void GatherRows(Region region, const SequenceView& sequence,
                  const std::vector<RowRange>& rows, std::byte* data) const;
  void ScatterRows(Region region, const SequenceView& sequence,
                   const std::vector<RowRange>& rows, const std::byte* data);
  // Order-independent 64-bit checksum of the rows as they lie in the store
  // (kernels/include/page_copy.h).
  uint64_t ChecksumRows(Region region, const SequenceView& sequence,
                        const std::vector<RowRange>& rows) const;

  // Clears rings and tails of a slot before its next owner.
  void ResetSlot(int32_t slot);
  // Copies block `from` to `to`, slot likewise (Fork of the private parts).
  void CopyBlock(BlockId from, BlockId to);
  void CopySlot(int32_t from, int32_t to);
  // Fills pages with NaN patterns so that a read of a stale row cannot pass
  // unseen (tests, and --poison-free-pages).
  void PoisonBlock(BlockId block);
  void PoisonSlot(int32_t slot);

 private:
  KvStore() = default;

  struct RegionMemory;
  struct RowPieces;

  const RegionMemory& Memory(Region region) const;
  RowPieces Row(const RegionMemory& memory, Region region,
                const SequenceView& sequence, int64_t row) const;
  template <typename F>  // visit(row number, pieces)
  void ForEachRow(Region region, const SequenceView& sequence,
                  const std::vector<RowRange>& rows, F visit) const;
  void FillSlot(int32_t slot, int value);
  void CopyChunks(bool growing, int32_t from, int32_t to);

  StateFormat format_;
  int32_t num_blocks_ = 0;
  int32_t num_slots_ = 0;
  // By layer and component; null where a layer lacks the component.
  std::vector<std::shared_ptr<RegionMemory>> regions_;
};

}  // namespace baton::kv
