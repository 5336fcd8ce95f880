// Where a block ends (design-four-mi100 3.2.1.2): the rule L_max now; learned triggers join the same class.
#pragma once

#include <cstdint>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/base/token_span.h"

namespace everlong::os {

struct SegmenterConfig {
  int32_t block_tokens = 512;  // L_max
};

// kInvalidArgument unless block_tokens is positive.
Status Validate(const SegmenterConfig& config);

class Segmenter {
 public:
  explicit Segmenter(const SegmenterConfig& config) : config_(config) {}
  // Blocks that are complete in [open_from, stream_end), oldest first.
  [[nodiscard]] std::vector<TokenSpan> Cut(int64_t open_from, int64_t stream_end) const;
  // The same, and the rest as a last, shorter block.
  [[nodiscard]] std::vector<TokenSpan> CutAll(int64_t open_from, int64_t stream_end) const;
  [[nodiscard]] const SegmenterConfig& config() const { return config_; }

 private:
  SegmenterConfig config_;
};

}  // namespace everlong::os
