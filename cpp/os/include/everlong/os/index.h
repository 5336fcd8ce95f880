// The parts of a memory's index that the caller chooses: which there are, and what only the caller can give them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/page_ref.h"
#include "everlong/base/status.h"
#include "everlong/index/heads.h"
#include "everlong/index/index_part.h"
#include "everlong/index/meaning.h"
#include "everlong/index/neural_inverted_index.h"
#include "everlong/index/page_vectors.h"
#include "everlong/index/part.h"
#include "everlong/index/word_table.h"

namespace everlong::os {

struct MemoryState;  // private

using index::kMaxPageVectors;
using index::MeaningOptions;
using index::PageVectorOptions;

// Thread-safe: changes take turns with every other change of the memory. They exclude searches only while they put the
// outcome in place.
class Indexes {
 public:
  // Set the heads that search by attention, how their keys are kept, from how many pages a search has two levels
  // (HeadsIndex::Search), and the device. It takes the saved heads index where that is the same, or rebuilds it from
  // the stored payload. The old index stays until then, on its device too. No heads: no search by them.
  Status SetRetrievalHeads(std::vector<index::RetrievalHead> heads, index::HeadsOptions options = {});
  [[nodiscard]] std::vector<index::RetrievalHead> retrieval_heads() const;
  [[nodiscard]] index::DeviceUse device_use(index::IndexPart part) const;  // of the part's device; zeros without one

  // Search by these words from now on; null: by none, as at first. The part "words" takes what is saved by the same
  // table, or is made anew from the blocks' token ids. The old one stays until then.
  Status SetWords(std::shared_ptr<const index::WordTable> words);
  [[nodiscard]] std::shared_ptr<const index::WordTable> words() const;

  // Search by vectors of pages from now on. There are none yet. Vectors from before are dropped, unless the options are
  // the same. kInvalidArgument on a dimension < 1.
  Status SetPageVectors(const PageVectorOptions& options);
  // Add the vectors of a block, once: vectors [pages.size(), dimension], of page pages[i] of the block (ascending, at
  // most kMaxPageVectors a page). kNotFound for an unknown or forgotten block, kAlreadyExists for one that has vectors.
  // `terms` are the token ids of each vector, or none. In a search by lists, a question's rare tokens name vectors too.
  Status AddPageVectors(int64_t block, std::span<const int32_t> pages, std::span<const float> vectors,
                        std::span<const std::vector<int32_t>> terms = {});
  // Return the lists that the vectors are searched by; nullptr where they are searched otherwise, or there are none.
  // Reads and writes of them are thread-safe. SetPageVectors may replace them.
  [[nodiscard]] std::shared_ptr<index::NeuralInvertedIndex> page_lists() const;
  // Call NeuralInvertedIndex::SetRouter; the index saves it. kInvalidArgument where there are no lists.
  Status SetPageRouter(const index::NeuralInvertedIndex::Router& router);
  // Return the pages of every block without vectors, in order of archiving; empty without SetPageVectors.
  [[nodiscard]] std::vector<PageRef> PagesWithoutVectors() const;

  // Search from now on by the vectors of this pack in a part that is from_pack (index/meaning.h), of every block that
  // has them among its tensors. They replace the part's of another pack or on another device. None: no search by that
  // part. kInvalidArgument, for another part, too.
  Status SetMeaning(const std::optional<MeaningOptions>& options, index::IndexPart part = index::IndexPart::kMeaning);
  [[nodiscard]] std::optional<MeaningOptions> meaning(index::IndexPart part = index::IndexPart::kMeaning) const;
  // Return the blocks of which a part has nothing, in order of archiving; where it is from_pack: no vectors yet.
  // Empty without it.
  [[nodiscard]] std::vector<int64_t> BlocksWithout(index::IndexPart part) const;

  // Save indexes in the folder's index/, for the next opener: those that read the payload, or that came from the
  // caller. What is saved already is not written again. Leftovers of a crashed save are removed. Nothing happens for a
  // memory in RAM, or opened for reading. kIoError.
  Status Save();
  // Return messages for the user, a sentence each, once. They tell of saved indexes that were wrong and rebuilt, of
  // damaged tensors that a part does without, and why the host searched instead of the heads' device.
  [[nodiscard]] std::vector<std::string> TakeMessages();

 private:
  friend class Memory;
  explicit Indexes(MemoryState& state) : state_(state) {}

  MemoryState& state_;  // of the memory, which outlives this
};

}  // namespace everlong::os
