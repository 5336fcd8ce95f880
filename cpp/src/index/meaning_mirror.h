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

// Thread-safe. Of the device's memory it takes `most_bytes` at most, the room for a search included. Vectors are there
// as a whole or not at all: where a block's do not fit, or their copy fails, all memory is given back for good.
class MeaningMirror {
 public:
  MeaningMirror(std::shared_ptr<IndexDevice> device, int64_t most_bytes);

  // What the pages of a block have among `vectors` is here from now on, in place of what it was: other vectors, or
  // none.
  void Follow(const MeaningVectors& vectors, PageRun block);

  // What ScoreMeaning says, to the bit; none when it is for the host to scan.
  [[nodiscard]] std::optional<std::vector<MeaningScore>> Scores(const MeaningVectors& vectors,
                                                                const MeaningQuery& query, const MeaningPages& scored);

  [[nodiscard]] int64_t bytes() const;  // of the device, now
  [[nodiscard]] int64_t scans() const;  // how many times Scores had an answer
  // Why the host was left to scan since it was asked last; ok if it was not.
  [[nodiscard]] Status TakeFailure();

 private:
  struct Block {
    std::byte* at;
    int64_t bytes;
  };

  // All of these under the lock.
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
