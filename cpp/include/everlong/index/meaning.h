// The part "meaning": late interaction. A page has a small vector for every few of its tokens, a question one for each
// of its own, and what a question token looks for is in the page as far as the nearest of the page's vectors has it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "everlong/base/status.h"
#include "everlong/index/index_device.h"
#include "everlong/index/part.h"

namespace everlong::index {

struct MeaningOptions {
  std::string pack;  // id of the trained pack that makes the vectors; those of another one are not seen
  int32_t dimension = 0;
  int32_t group_tokens = 0;  // of a vector. A page of n tokens has ceil(n / group_tokens): none is of two pages
  // Where there is one, the vectors are copied to it as they come, into `device_bytes` of its memory at most, and
  // searches scan there, with the same scores to the bit. The host scans once they do not fit, and whenever the device
  // fails.
  std::shared_ptr<IndexDevice> device = nullptr;
  int64_t device_bytes = 0;
  bool operator==(const MeaningOptions&) const = default;
};
// The largest that there may be; each is at least 1. Dot products of so many numbers are exact in 32 bits.
inline constexpr int32_t kMostMeaningDimension = 4096;
inline constexpr int32_t kMostGroupTokens = 1 << 16;
inline constexpr size_t kMostPackBytes = 120;

// kInvalidArgument names the option that is out of range.
Status Validate(const MeaningOptions& options);

// The block's tensor that the vectors are: I8 [vectors of the block, dimension], of its pages one after the other, each
// a vector of any length (only its direction counts; zeros have none and score 0). A block without it is found by
// nothing here until it comes.
std::string MeaningTensor(const std::string& pack);
// How many vectors a block of so many tokens has.
int64_t MeaningVectorsOf(int64_t tokens, int32_t page_tokens, int32_t group_tokens);

// Its input is Query::Input("meaning_query"): [question tokens, dimension] fp32, in which the length of a row is the
// token's weight w. Rows are rounded to int8, each by its own largest number. A page alone scores the sum over the rows
// of w times the largest cosine with any of its vectors; a group that, over its middle page (which has vectors) and
// those beside it that may be returned and have some. Both are ranked. Exact: every vector is looked at.
//
// It is not saved to a file. The store has the very tensors, each with its checksum: those of 2,000 blocks of 512
// tokens (33 MB) are read and laid out in 0.1 to 0.2 s. That is too little for a second copy on disk, in which
// something forgotten could be left.
std::unique_ptr<Part> MakeMeaningPart(const PartContext& context, const MeaningOptions& options);

}  // namespace everlong::index
