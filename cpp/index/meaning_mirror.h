// A copy of MeaningVectors on a device, and the searches of the part "meaning" there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "device_mirror.h"
#include "everlong/base/status.h"
#include "everlong/index/page_filter.h"
#include "meaning_scan.h"
#include "meaning_vectors.h"

namespace everlong::index {

class MeaningMirror : public DeviceMirror {
 public:
  using DeviceMirror::DeviceMirror;

  // Copy the vectors that the pages of a block have now, or none, in place of what is here.
  void Follow(const MeaningVectors& vectors, PageRun block);

  // Return what ScoreMeaning returns, to the bit; none when the host must scan.
  [[nodiscard]] std::optional<std::vector<MeaningScore>> Scores(const MeaningVectors& vectors,
                                                                const MeaningQuery& query, const MeaningPages& scored);

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

  std::unordered_map<int32_t, Block> blocks_;  // by first page
  std::vector<const uint32_t*> pages_;         // the tiles of each one's block; nullptr without vectors
};

}  // namespace everlong::index
