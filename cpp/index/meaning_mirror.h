// A copy of MeaningVectors on a device, and the searches of the part "meaning" there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "device_room.h"
#include "everlong/base/status.h"
#include "everlong/index/index_device.h"
#include "everlong/index/page_filter.h"
#include "meaning_scan.h"
#include "meaning_vectors.h"

namespace everlong::index {

// Thread-safe. It takes at most `most_bytes` of the device's memory, with the room for a search. The vectors are there
// as a whole or not at all: where a block's do not fit, or their copy fails, all memory is freed for good.
class MeaningMirror {
 public:
  MeaningMirror(std::shared_ptr<IndexDevice> device, int64_t most_bytes);

  // Copy the vectors that the pages of a block have now, or none, in place of what is here.
  void Follow(const MeaningVectors& vectors, PageRun block);

  // Return what ScoreMeaning returns, to the bit; none when the host must scan.
  [[nodiscard]] std::optional<std::vector<MeaningScore>> Scores(const MeaningVectors& vectors,
                                                                const MeaningQuery& query, const MeaningPages& scored);

  [[nodiscard]] int64_t bytes() const;  // of the device, now
  [[nodiscard]] int64_t scans() const;  // how many times Scores had an answer
  // Return why the host had to scan since the last call; ok if it did not.
  [[nodiscard]] Status TakeFailure();

 private:
  struct Block {
    std::byte* at;
    int64_t bytes;
  };

  // Call these under the lock.
  Status TakeIn(const MeaningVectors& vectors, PageRun block);
  Status Score(std::span<const MeaningQuery::Block> blocks, std::span<const MeaningPage> pages, int32_t quads,
               std::span<MeaningScore> scores);
  void GiveUp(Status why);

  mutable std::mutex mutex_;
  DeviceRoom room_;
  std::unordered_map<int32_t, Block> blocks_;  // by first page
  std::vector<const uint32_t*> pages_;         // the tiles of each one's block; nullptr without vectors
  bool given_up_ = false;
  int64_t scans_ = 0;
  Status failure_;
};

}  // namespace everlong::index
