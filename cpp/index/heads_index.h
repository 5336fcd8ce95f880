// The index of the part "heads": attention itself as the index. It takes the softmax of q . k / sqrt(D) over every
// archived token, for a chosen query head h and a question token t. That is summed inside a page, weighted by the
// token's IDF, and added over t and h. Keys are un-rotated; q too, or rotated to one fixed distance.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "coarse_keys.h"
#include "everlong/base/file_path.h"
#include "everlong/base/stable_vector.h"
#include "everlong/base/status.h"
#include "everlong/index/heads.h"
#include "everlong/index/index_file.h"
#include "everlong/index/page_filter.h"
#include "key_tiles.h"
#include "mapped_pages.h"
#include "page_neighbours.h"

namespace everlong::index {

class HeadsMirror;
struct RowBlock;

// One thread at a time adds and forgets. Searches run beside it, over pages that were there before they began and are
// not forgotten while they run (Part). Keys take key_heads * D * 2 bytes a token in bf16, and half of that in int8 and
// e4m3. These also have a scale of key_heads * D * 4 bytes a page. Pages are padded to a multiple of 32 tokens. From
// `coarse_from` pages the index takes 3/32 of the size in bf16 more (coarse_keys.h). What was loaded is mapped from its
// file, and takes only RAM that the system can take back.
class HeadsIndex {
 public:
  HeadsIndex(std::vector<RetrievalHead> heads, int32_t head_dim, HeadsOptions options = {});
  HeadsIndex(HeadsIndex&& other) noexcept;
  HeadsIndex& operator=(HeadsIndex&& other) noexcept;
  ~HeadsIndex();

  [[nodiscard]] const std::vector<RetrievalHead>& heads() const { return heads_; }
  // Return the distinct (layer, kv_head) whose keys Add needs, in its order.
  [[nodiscard]] const std::vector<KeyHead>& key_heads() const { return key_heads_; }

  // Add the next page ordinal. keys [key_heads, tokens, D] fp32 un-rotated; the first `sink_tokens` (0..tokens) are not
  // scored. kInvalidArgument on a wrong size, no tokens, or a key that is not a finite bf16; nothing has changed then.
  Status Add(std::span<const float> keys, int32_t tokens, int32_t sink_tokens);
  // Make `page` the next page to come; those between stay empty. Nothing happens when it is there.
  void SkipTo(int32_t page);
  // Make a page empty, and remove its keys.
  void Forget(int32_t page);

  // Return the pages that `filter` allows and that have mass, ascending, with their mass. That is the sum over heads
  // and question tokens of weight[t] * softmax mass. q [tokens, heads, D] fp32 (heads in the order of heads()) is
  // rounded to bf16. Keys are as they are kept (KeyStorage). weights [tokens] are >= 0. The softmax runs over the
  // allowed pages only. Every score counts, to 2^-126 of the largest. It takes one pass over the keys, one for every
  // few hundred query rows of a long question, and two where scores may differ by more than 2^80. It makes no [tokens x
  // archive] matrix. The number of threads does not change the result; a device adds in another order. kInvalidArgument
  // on a wrong size, a value that is not finite, a negative weight, or if scores would overflow.
  //
  // Where at least `coarse_from` pages are allowed, every page's largest score along a few axes (coarse_keys.h), for
  // the heaviest question tokens, chooses some of them, and the pages beside() its kWidened best. Only these are scored
  // so. The rest of a row's softmax is taken from the coarse scores, and from the exact ones of a sample. A device
  // scores every page exactly.
  using Beside = std::function<PageNeighbours::Pair(int32_t page)>;
  [[nodiscard]] Result<std::vector<Hit>> Scored(std::span<const float> q, std::span<const float> weights,
                                                const PageFilter& filter, const Beside& beside = nullptr) const;

  // Save the pages of `kept` to one file, replaced whole or not at all (docs/format.md, "Index files"). kIoError;
  // kCorrupt when a file that some of them were loaded from is damaged. Nothing is written then.
  [[nodiscard]] Status Save(const IndexFile& file, std::span<const int32_t> kept) const;
  // Load what Save wrote, behind the pages that are here: its pages at `ordinals` [pages in the file], ascending; those
  // of -1 are left out. Keys and codes are not read: they may be damaged, and a search then scores their pages wrongly.
  // kNotFound, kIoError; kCorrupt when what else the file has is damaged, cut short, or of other heads, key storage or
  // number of pages. Do not use the index after an error.
  Status Load(const FilePath& file, std::span<const int32_t> ordinals);

  [[nodiscard]] int32_t pages() const { return page_sinks_.size(); }
  [[nodiscard]] int32_t tokens(int32_t page) const { return keys_.tokens(page); }
  [[nodiscard]] HeadsOptions options() const;
  [[nodiscard]] int64_t bytes() const;  // of host memory
  [[nodiscard]] DeviceUse device_use() const;
  // Return why the host had to scan since the last call; ok if it did not, or if there is no device.
  [[nodiscard]] Status TakeDeviceFailure() const;
  // Return the bytes of a page of so many tokens.
  [[nodiscard]] int64_t PageBytes(int32_t tokens) const {
    return static_cast<int64_t>(keys_.PageWords(tokens) * sizeof(uint32_t));
  }

 private:
  [[nodiscard]] Status CheckQuery(std::span<const float> q, std::span<const float> weights) const;
  // coarse: nullptr if the coarse level is not needed.
  [[nodiscard]] Result<std::vector<RowBlock>> MakeRowBlocks(std::span<const float> q, std::span<const float> weights,
                                                            const CoarseKeys* coarse) const;
  // Return the pages that `filter` allows and that hold more than sinks.
  [[nodiscard]] PageFilter ScoredPages(const PageFilter& filter) const;
  [[nodiscard]] std::vector<float> MassOf(std::span<const RowBlock> blocks, const PagePositions& scored) const;
  // The pages that the first level leaves, and their mass.
  struct Survivors {
    PageFilter pages;
    std::vector<float> mass;
  };
  [[nodiscard]] Survivors MassOfSurvivors(std::span<const RowBlock> blocks, const PageFilter& pages,
                                          const CoarseKeys& coarse, const Beside& beside) const;
  // Read the axes of a file's codes. Return whether they are those of coarse_, which takes them if it has none.
  Result<bool> LoadAxes(IndexFileReader& reader);
  // Bring the device, and the coarse level where there is to be one, up to date with the keys.
  void FollowKeys();
  void FollowCoarse();

  std::vector<RetrievalHead> heads_;
  std::vector<KeyHead> key_heads_;
  std::vector<int32_t> head_to_key_;  // [heads] -> index into key_heads_
  int32_t head_dim_;
  int32_t coarse_from_;
  MappedPages mapped_;  // pages of keys_ and coarse_ that were loaded
  KeyTiles keys_;
  StableVector<int32_t> page_sinks_;    // [pages]
  std::unique_ptr<CoarseKeys> coarse_;  // none before there are `coarse_from` pages
  bool has_no_coarse_ = false;          // some key is so long that its values along the axes may overflow
  // What searches use: coarse_ once it has every page, or nothing. It is behind a pointer because the index moves.
  std::unique_ptr<std::atomic<const CoarseKeys*>> searched_coarse_;
  std::unique_ptr<HeadsMirror> mirror_;  // none without a device
};

}  // namespace everlong::index
