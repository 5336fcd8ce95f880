#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "ram_buffer.h"
#include "record.h"
#include "segment_set.h"

namespace everlong::store {
namespace {

constexpr int32_t kOnlySegment = 1;

int64_t SizeOf(const RamBuffer& chunk) { return static_cast<int64_t>(chunk.size()); }

// One segment without end. Every append is a chunk, so nothing ever moves and a reader copies without a lock.
class RamSegments final : public SegmentSet {
 public:
  Result<SegmentSpot> Append(AppendSource& source) override {
    const auto bytes = static_cast<int64_t>(source.bytes());
    auto chunk = std::make_shared<RamBuffer>(source.bytes());
    source.CopyTo(chunk->bytes());
    const std::unique_lock lock(mutex_);
    const int64_t offset = end_;
    chunks_.emplace(offset, std::move(chunk));
    end_ = AlignRecord(offset + bytes);
    bytes_ += bytes;
    return SegmentSpot{kOnlySegment, offset};
  }

  Status Sync() override { return OkStatus(); }

  [[nodiscard]] Status Read(SegmentSpot spot, std::span<std::byte> out) const override {
    std::shared_ptr<const RamBuffer> chunk;
    size_t within = 0;
    {
      const std::shared_lock lock(mutex_);
      const auto after = chunks_.upper_bound(spot.offset);
      if (spot.segment != kOnlySegment || after == chunks_.begin()) return Missing(spot);
      const auto found = std::prev(after);
      within = static_cast<size_t>(spot.offset - found->first);
      chunk = found->second;
    }
    if (within + out.size() > chunk->size()) return Missing(spot);
    std::memcpy(out.data(), chunk->bytes().data() + within, out.size());
    return OkStatus();
  }

  [[nodiscard]] Status Require(SegmentSpot spot, int64_t bytes) const override {
    const std::shared_lock lock(mutex_);
    const auto after = chunks_.upper_bound(spot.offset);
    if (spot.segment != kOnlySegment || after == chunks_.begin()) return Missing(spot);
    const auto chunk = std::prev(after);
    return spot.offset - chunk->first + bytes <= SizeOf(*chunk->second) ? OkStatus() : Missing(spot);
  }

  // Remove a chunk only as a whole: it was one append, and belongs to one block.
  Result<int64_t> KeepOnly(const LiveRanges& live) override {
    const auto found = live.find(kOnlySegment);
    const std::vector<ByteRange> none;
    const std::vector<ByteRange>& ranges = found == live.end() ? none : found->second;
    const std::unique_lock lock(mutex_);
    int64_t freed = 0;
    for (auto chunk = chunks_.begin(); chunk != chunks_.end();) {
      const auto bytes = SizeOf(*chunk->second);
      const auto after = std::partition_point(ranges.begin(), ranges.end(),
                                              [&chunk](const ByteRange& range) { return range.end <= chunk->first; });
      if (after != ranges.end() && after->begin < chunk->first + bytes) {
        ++chunk;
        continue;
      }
      freed += bytes;
      chunk = chunks_.erase(chunk);
    }
    bytes_ -= freed;
    return freed;
  }

  void Free(SegmentSpot spot) override {
    const std::unique_lock lock(mutex_);
    const auto after = chunks_.upper_bound(spot.offset);
    if (spot.segment != kOnlySegment || after == chunks_.begin()) return;
    const auto chunk = std::prev(after);
    if (spot.offset >= chunk->first + SizeOf(*chunk->second)) return;  // gone already, with another record of it
    bytes_ -= SizeOf(*chunk->second);
    chunks_.erase(chunk);
  }

  [[nodiscard]] Result<int64_t> Bytes() const override {
    const std::shared_lock lock(mutex_);
    return bytes_;
  }

  [[nodiscard]] std::string Name(int32_t segment) const override {
    return "segment " + std::to_string(segment) + " in RAM";
  }

 private:
  [[nodiscard]] Status Missing(SegmentSpot spot) const {
    return CorruptError(Name(spot.segment) + " has no such bytes at offset " + std::to_string(spot.offset));
  }

  mutable std::shared_mutex mutex_;
  std::map<int64_t, std::shared_ptr<const RamBuffer>> chunks_;  // by offset
  int64_t end_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<SegmentSet> MakeRamSegments() { return std::make_unique<RamSegments>(); }

}  // namespace everlong::store
