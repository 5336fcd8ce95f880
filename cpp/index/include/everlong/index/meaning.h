// The parts "meaning" and "encoder": late interaction. A page has a small vector for every few of its tokens, and a
// question has one for each of its tokens. A question token matches a page as well as the nearest of the page's vectors
// does. The two parts differ in who makes the vectors, and in what their evidence weighs. A memory may have both.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "everlong/base/status.h"
#include "everlong/index/index_device.h"
#include "everlong/index/index_part.h"
#include "everlong/index/part.h"

namespace everlong::index {

// So many pages take a few milliseconds without the first level.
inline constexpr int32_t kMeaningCoarseFrom = 8'192;

struct MeaningOptions {
  std::string pack;  // id of the trained pack that makes the vectors; vectors of other packs are ignored
  int32_t dimension = 0;
  int32_t group_tokens = 0;  // tokens of a vector: a page of n tokens has ceil(n / group_tokens), none spans two pages
  // If set, vectors are copied to the device as they come, into at most `device_bytes` of its memory. Searches then
  // scan there, with the same scores to the bit. The host scans once they do not fit, and whenever the device fails.
  std::shared_ptr<IndexDevice> device = nullptr;
  int64_t device_bytes = 0;
  // Of vectors of whole sentences beside them, in the same way, and of one vector a page of the whole passage that it
  // stands in; 0: it has none of either.
  int32_t sentence_dimension = 0;
  int32_t sentence_tokens = 0;
  int32_t coarse_from = kMeaningCoarseFrom;  // pages from which a search has two levels
  bool operator==(const MeaningOptions&) const = default;
};
// The largest values allowed; each value is at least 1. Dot products of so many numbers are exact in 32 bits.
inline constexpr int32_t kMostMeaningDimension = 4096;
inline constexpr int32_t kMostGroupTokens = 1 << 16;
inline constexpr size_t kMostPackBytes = 119;

// Return kInvalidArgument that names an option out of range.
Status Validate(const MeaningOptions& options);

// Return the name of the block's tensor with the vectors: I8 [vectors of the block, dimension], its pages one after the
// other. A vector may have any length, since only its direction counts. Zeros have no direction and score 0. This part
// cannot find a block before its tensor comes.
// The tensor is named after the part: "meaning.PACK" or "encoder.PACK".
std::string MeaningTensor(const std::string& pack, IndexPart part = IndexPart::kMeaning);
// Return the name of the tensor with the vectors of sentences: I8 [vectors of the block by sentence_tokens,
// sentence_dimension]. Each is of a sentence that its tokens are part of. The block is found without it, by less, and
// is one of those that lack something.
std::string SentenceTensor(const std::string& pack);
// Return the name of the tensor with the vectors of passages: I8 [pages of the block, sentence_dimension]. Each is of
// the passage that its page stands in; zeros for a page of a longer text. The block is found without it, as without
// those of sentences.
std::string PassageTensor(const std::string& pack);
// The Query::inputs of a question's vector as a sentence: [1, sentence_dimension] fp32, its length is its weight.
inline constexpr std::string_view kSentenceInput = "sentence_query";
// Return how many vectors a block of so many tokens has.
int64_t MeaningVectorsOf(int64_t tokens, int32_t page_tokens, int32_t group_tokens);

// Make kMeaning or kEncoder, or another kind that is from_pack. The input of the kind is [question tokens, dimension]
// fp32. The length of a row is the token's weight w. Rows are rounded to int8, each by its own largest
// number. A page scores the sum over the rows of w times the largest cosine with any of its vectors. A group scores the
// same over its middle page, which has vectors, and the pages beside it that may be returned and have vectors. Both are
// ranked. With kSentenceInput a page, not a group, also scores its weight times the largest cosine with the vector of a
// sentence, and its weight times that with the vector of its passage, or else with that sentence once more: a statement
// is one sentence, and what a short text is about is said by all of it. Both are searched on the host.
//
// Every vector counts. Where a search on the host may return at least `coarse_from` pages, and has kSentenceInput or
// more than eight rows, a first level compares the eight heaviest rows with the signs of the vectors' numbers
// (sign_kernel.h). It leaves the best 64th of the pages, at least 512, and at least 8 k. Only these are scored as
// above, with the pages beside them, and ranked.
//
// A saved file has the vectors as a search reads them, and is mapped. A block that lacks some of its tensors is not in
// it.
std::unique_ptr<Part> MakeMeaningPart(const PartContext& context, const MeaningOptions& options,
                                      IndexPart part = IndexPart::kMeaning);

}  // namespace everlong::index
