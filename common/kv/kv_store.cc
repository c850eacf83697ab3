#include "common/kv/kv_store.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kernels/include/page_copy.h"

namespace baton::kv {

namespace {

constexpr size_t kNumComponents = 8;  // ids start at 1

size_t RegionIndex(Region region) {
  return static_cast<size_t>(region.layer) * kNumComponents +
         static_cast<size_t>(region.component);
}

// Anonymous memory: zero at first, and a pool larger than what is used costs
// address space only.
class Mapping final {
 public:
  explicit Mapping(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* const data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(data != MAP_FAILED) << "mmap of " << bytes_ << " bytes failed";
    data_ = static_cast<std::byte*>(data);
  }
  ~Mapping() { munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

// Rows that a slot's ring of this component holds. For the overlapping tails
// this is the state of kernels/include/compressor.h, [8 tokens][kvraw, g]
// [half A, half B][d]: a row (one half of a token) lies in it as two pieces.
int64_t RingRows(const StateFormat& format, Component component) {
  switch (component) {
    case Component::kWindow:
      return format.geometry.window_capacity;
    case Component::kC4Tail:
    case Component::kC4IndexTail:
      return 16;  // halves A and B of 8 tokens: 4 previous, 4 current
    case Component::kC128Tail:
      return 1;
    default:
      CHECK(false) << ComponentName(component) << " has no ring";
      return 0;
  }
}

}  // namespace

struct KvStore::RegionMemory {
  RegionMemory(int64_t row, int64_t rows, int32_t chunks)
      : row_bytes(row),
        rows_per_chunk(rows),
        chunk_bytes(row * rows),
        num_chunks(chunks),
        memory(chunk_bytes * chunks) {}

  std::byte* Chunk(int32_t chunk) const {
    CHECK(chunk >= 0 && chunk < num_chunks)
        << "page or slot " << chunk << " of " << num_chunks;
    return memory.data() + chunk * chunk_bytes;
  }

  int64_t row_bytes;
  int64_t rows_per_chunk;
  int64_t chunk_bytes;  // of one page, or of one slot's ring
  int32_t num_chunks;   // blocks, or slots
  Mapping memory;
};

// Where one row lies: one piece, or two of equal size.
struct KvStore::RowPieces {
  std::byte* CopyTo(std::byte* data) const {
    std::memcpy(data, first, piece_bytes);
    data += piece_bytes;
    if (second == nullptr) return data;
    std::memcpy(data, second, piece_bytes);
    return data + piece_bytes;
  }
  const std::byte* CopyFrom(const std::byte* data) const {
    std::memcpy(first, data, piece_bytes);
    data += piece_bytes;
    if (second == nullptr) return data;
    std::memcpy(second, data, piece_bytes);
    return data + piece_bytes;
  }

  std::byte* first;
  std::byte* second;  // null when the row is one piece
  size_t piece_bytes;
};

absl::StatusOr<std::unique_ptr<KvStore>> KvStore::Create(
    const StateFormat& format, int32_t num_blocks, int32_t num_slots) {
  const StateGeometry& geometry = format.geometry;
  if (num_blocks <= 0 || num_slots <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a store of ", num_blocks, " blocks and ", num_slots,
                     " slots; expected both positive"));
  }
  if (geometry.ratios.empty() || geometry.head_dim <= 0 ||
      geometry.index_head_dim <= 0 || geometry.window_tokens <= 0 ||
      geometry.window_capacity < geometry.window_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "state geometry cannot be stored: ", format.ToString(),
        "; expected layers, positive widths and capacity >= window"));
  }
  auto store = std::unique_ptr<KvStore>(new KvStore());
  store->format_ = format;
  store->num_blocks_ = num_blocks;
  store->num_slots_ = num_slots;
  store->regions_.resize(geometry.ratios.size() * kNumComponents);
  for (const Region& region : Regions(format)) {
    const bool growing = IsGrowing(region.component);
    store->regions_[RegionIndex(region)] = std::make_shared<RegionMemory>(
        RowBytes(format, region.component),
        growing ? store->RowsPerPage(region.component)
                : RingRows(format, region.component),
        growing ? num_blocks : num_slots);
  }
  return store;
}

const KvStore::RegionMemory& KvStore::Memory(Region region) const {
  const size_t index = RegionIndex(region);
  CHECK(index < regions_.size() && regions_[index] != nullptr)
      << "no region " << ToString(region);
  return *regions_[index];
}

int64_t KvStore::page_bytes() const {
  int64_t bytes = 0;
  for (const Region& region : Regions(format_)) {
    const RegionMemory& memory = Memory(region);
    if (IsGrowing(region.component)) {
      bytes += memory.chunk_bytes * memory.num_chunks;
    }
  }
  return bytes;
}

int64_t KvStore::slot_bytes() const {
  int64_t bytes = 0;
  for (const Region& region : Regions(format_)) {
    const RegionMemory& memory = Memory(region);
    if (!IsGrowing(region.component)) {
      bytes += memory.chunk_bytes * memory.num_chunks;
    }
  }
  return bytes;
}

std::byte* KvStore::PageRow(Region region, BlockId block, int64_t row_in_page) {
  DCHECK(IsGrowing(region.component));
  const RegionMemory& memory = Memory(region);
  return memory.Chunk(Index(block)) + row_in_page * memory.row_bytes;
}

int64_t KvStore::PageStride(Region region) const {
  DCHECK(IsGrowing(region.component));
  return Memory(region).chunk_bytes;
}

int32_t KvStore::RowsPerPage(Component component) const {
  CHECK(IsGrowing(component)) << ComponentName(component) << " has no pages";
  return component == Component::kC128 ? kBlockTokens / 128 : kBlockTokens / 4;
}

std::byte* KvStore::SlotData(Region region, int32_t slot) {
  DCHECK(!IsGrowing(region.component));
  return Memory(region).Chunk(slot);
}

KvStore::RowPieces KvStore::Row(const RegionMemory& memory, Region region,
                                const SequenceView& sequence,
                                int64_t row) const {
  const int64_t chunk_row = row % memory.rows_per_chunk;
  const auto row_bytes = static_cast<size_t>(memory.row_bytes);
  if (region.component == Component::kC4Tail ||
      region.component == Component::kC4IndexTail) {
    std::byte* const token =
        memory.Chunk(sequence.slot) + chunk_row / 2 * 2 * memory.row_bytes;
    std::byte* const half = token + chunk_row % 2 * (memory.row_bytes / 2);
    return {half, half + row_bytes, row_bytes / 2};
  }
  if (!IsGrowing(region.component)) {
    std::byte* const data =
        memory.Chunk(sequence.slot) + chunk_row * memory.row_bytes;
    return {data, nullptr, row_bytes};
  }
  const auto page = static_cast<size_t>(row / memory.rows_per_chunk);
  CHECK(page < sequence.blocks.size())
      << ToString(region) << " row " << row << " is beyond the block table of "
      << sequence.blocks.size() << " blocks";
  std::byte* const data =
      memory.Chunk(Index(sequence.blocks[page])) + chunk_row * memory.row_bytes;
  return {data, nullptr, row_bytes};
}

template <typename F>
void KvStore::ForEachRow(Region region, const SequenceView& sequence,
                         const std::vector<RowRange>& rows, F visit) const {
  const RegionMemory& memory = Memory(region);
  for (const RowRange& range : rows) {
    for (int64_t i = 0; i < range.count; ++i) {
      const int64_t row = range.first + i * range.stride;
      visit(row, Row(memory, region, sequence, row));
    }
  }
}

void KvStore::GatherRows(Region region, const SequenceView& sequence,
                         const std::vector<RowRange>& rows,
                         std::byte* data) const {
  ForEachRow(region, sequence, rows,
             [&](int64_t, const RowPieces& row) { data = row.CopyTo(data); });
}

void KvStore::ScatterRows(Region region, const SequenceView& sequence,
                          const std::vector<RowRange>& rows,
                          const std::byte* data) {
  ForEachRow(region, sequence, rows,
             [&](int64_t, const RowPieces& row) { data = row.CopyFrom(data); });
}

uint64_t KvStore::ChecksumRows(Region region, const SequenceView& sequence,
                               const std::vector<RowRange>& rows) const {
  const int64_t row_bytes = Memory(region).row_bytes;
  std::vector<std::byte> whole(static_cast<size_t>(row_bytes));
  uint64_t sum = 0;
  ForEachRow(region, sequence, rows, [&](int64_t index, const RowPieces& row) {
    const std::byte* data = row.first;
    if (row.second != nullptr) {
      row.CopyTo(whole.data());
      data = whole.data();
    }
    sum += kernels::BufferChecksum(data, index, /*num_rows=*/1, row_bytes);
  });
  return sum;
}

void KvStore::FillSlot(int32_t slot, int value) {
  for (const Region& region : Regions(format_)) {
    if (IsGrowing(region.component)) continue;
    const RegionMemory& memory = Memory(region);
    std::memset(memory.Chunk(slot), value,
                static_cast<size_t>(memory.chunk_bytes));
  }
}

void KvStore::ResetSlot(int32_t slot) { FillSlot(slot, 0); }

void KvStore::CopyBlock(BlockId from, BlockId to) {
  CopyChunks(/*growing=*/true, Index(from), Index(to));
}

void KvStore::CopySlot(int32_t from, int32_t to) {
  CopyChunks(/*growing=*/false, from, to);
}

void KvStore::CopyChunks(bool growing, int32_t from, int32_t to) {
  if (from == to) return;
  for (const Region& region : Regions(format_)) {
    if (IsGrowing(region.component) != growing) continue;
    const RegionMemory& memory = Memory(region);
    std::memcpy(memory.Chunk(to), memory.Chunk(from),
                static_cast<size_t>(memory.chunk_bytes));
  }
}

// All ones is a NaN in fp32 and in bf16.
void KvStore::PoisonBlock(BlockId block) {
  for (const Region& region : Regions(format_)) {
    if (!IsGrowing(region.component)) continue;
    const RegionMemory& memory = Memory(region);
    std::memset(memory.Chunk(Index(block)), 0xff,
                static_cast<size_t>(memory.chunk_bytes));
  }
}

void KvStore::PoisonSlot(int32_t slot) { FillSlot(slot, 0xff); }

}  // namespace baton::kv
