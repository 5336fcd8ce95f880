// The contract of a part of the index: what it takes from a block, and how it ranks pages for a question. A part is one
// file that implements it (cpp/index/NAME_part.cc) and one line in index_part.h, which makes it known by name. What
// that line says of it is a PartKind (part_kinds.h); a kind without inputs of its own gets a question's token ids.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"
#include "everlong/index/block_table.h"
#include "everlong/index/index_file.h"
#include "everlong/index/neural_inverted_index.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/ranking.h"
#include "everlong/index/token_statistics.h"

namespace everlong::index {

// A key head of the archive.
struct KeyHead {
  int32_t layer = 0;  // number among the archived layers
  int32_t kv_head = 0;
  bool operator==(const KeyHead&) const = default;
};

// What a part needs from a block.
struct PartNeeds {
  bool token_ids = false;          // BlockInput::token_ids
  std::vector<KeyHead> keys = {};  // BlockInput::keys of these heads
  bool key_sum = false;            // BlockInput::key_sum
  bool tensors = false;            // BlockInput::tensors; of a stored block only `tensor_names`, if there are any
  std::vector<std::string> tensor_names = {};
  [[nodiscard]] bool payload() const { return !keys.empty() || key_sum; }
  // Return whether a block that is already in the store must be read again for the part.
  [[nodiscard]] bool stored() const { return payload() || tensors; }
};

// The un-rotated keys of a block, decoded once for all parts that need some of them.
class BlockKeys {
 public:
  BlockKeys() = default;
  explicit BlockKeys(std::vector<KeyHead> heads) : heads_(std::move(heads)) {}
  // Add the next page: [heads, tokens, D] fp32.
  void AddPage(std::vector<float> keys) { pages_.push_back(std::move(keys)); }

  // Return [wanted, tokens, D] of a page, in the order of `wanted`. All of `wanted` must be here. `room` holds the
  // result where the keys do not lie in that order already.
  [[nodiscard]] std::span<const float> Page(int32_t page, std::span<const KeyHead> wanted,
                                            std::vector<float>& room) const;

 private:
  std::vector<KeyHead> heads_;
  std::vector<std::vector<float>> pages_;
};

// A tensor that came with a block.
struct BlockTensor {
  std::string_view name;
  std::string_view dtype;  // of safetensors, as in store/tensor.h: "F32", "BF16" ...
  std::span<const int64_t> shape;
  std::span<const std::byte> bytes;
};

// A block as parts see it. It has all that some part needs, and maybe more.
struct BlockInput {
  int64_t id = 0;          // 0: it has none yet (Part::Check)
  int32_t first_page = 0;  // ordinal
  int32_t page_tokens = 0;
  int64_t tokens = 0;
  int64_t sink_tokens = 0;             // 0 to tokens
  std::span<const int32_t> token_ids;  // [tokens]
  const BlockKeys* keys = nullptr;
  std::span<const float> key_sum;  // [Hkv * D] fp32: sum of the un-rotated keys of the last archived layer
  std::span<const BlockTensor> tensors;

  [[nodiscard]] int32_t page_count() const { return static_cast<int32_t>((tokens + page_tokens - 1) / page_tokens); }
  [[nodiscard]] int32_t PageTokens(int32_t page) const { return index::PageTokens(tokens, page_tokens, page); }
  // Return how many of a page's first tokens are sinks.
  [[nodiscard]] int32_t PageSinks(int32_t page) const {
    return index::PageSinks(tokens, sink_tokens, page_tokens, page);
  }
  [[nodiscard]] std::span<const int32_t> PageIds(int32_t page) const {
    return token_ids.subspan(static_cast<size_t>(page) * static_cast<size_t>(page_tokens),
                             static_cast<size_t>(PageTokens(page)));
  }
};

// A block of a saved index.
struct SavedBlock {
  int64_t id = 0;
  int64_t tokens = 0;
  int32_t first_page = -1;  // its ordinal now; -1 when it was forgotten since
};

// A page of a saved index.
struct SavedPage {
  int32_t tokens = 0;
  int32_t ordinal = -1;  // now; -1 when its block was forgotten since
};
// Return the pages of the blocks that `file` has, in its order. kCorrupt where the file has fewer bytes than pages.
// That check is needed because only the file knows how long a forgotten block was.
Result<std::vector<SavedPage>> PagesOfSaved(const FilePath& file, std::span<const SavedBlock> blocks,
                                            int32_t page_tokens);

// What a question gives a part. The numbers lie row by row.
struct InputArray {
  std::span<const float> numbers;
  std::vector<int64_t> shape = {};  // empty: not told, so that a part checks only how many numbers there are
};
// By their names (PartKind::input).
using Inputs = std::map<std::string, InputArray, std::less<>>;

// A question.
struct Query {
  std::span<const int32_t> token_ids;
  Inputs inputs;

  // Return the numbers of an input; none without it.
  [[nodiscard]] std::span<const float> Input(std::string_view name) const;
  // Return kInvalidArgument unless an input has this shape, or is told without one. `letters` name its dimensions. A
  // length below 0 may be any.
  [[nodiscard]] Status CheckShape(std::string_view name, std::vector<int64_t> expected, std::string_view letters) const;
};

struct DeviceUse {
  int64_t bytes = 0;  // of the device's memory, now
  int64_t scans = 0;  // searches that it scanned for
};

// What all parts of one memory share. It outlives them. The table does not change during a Rank.
struct PartContext {
  const BlockTable& table;
  const TokenStatistics& statistics;  // of all blocks that parts were given and not told to forget
  int32_t kv_heads = 0;               // 0 where there are no keys
  int32_t head_dim = 0;
};

// Threads: one thread at a time adds and forgets, and makes all other calls. Any number of Ranks run beside it. A Rank
// sees pages that were added before it began and are not forgotten while it runs. To ensure that, os::Memory puts a
// block into its table after every part has it, and takes it out before any part forgets it. What searches read stays
// in its place while something is added. No lock that they take is held longer than a page or a row takes.
class Part {
 public:
  Part() = default;
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  virtual ~Part() = default;

  [[nodiscard]] virtual PartNeeds needs() const { return {}; }

  // Return kInvalidArgument when Add would refuse the block. It is called before the block is stored.
  [[nodiscard]] virtual Status Check(const BlockInput& /*block*/) const { return OkStatus(); }
  // Add the pages of a block, behind all that were added before. Ordinals between are of forgotten blocks.
  virtual Status Add(const BlockInput& block) = 0;
  // Remove every trace of a block's pages from searches and from what is saved. An unknown block changes nothing.
  // `block` has its pages and token ids. For a kind that is from_caller it may have only its id.
  virtual Status Forget(const BlockInput& block) = 0;
  [[nodiscard]] virtual bool Has(const BlockEntry& block) const = 0;
  // Add what TokenStatistics::AddBlock would count for all blocks that it Has. Return false, and add nothing, if
  // unknown.
  virtual bool CountInto(TokenStatistics& /*statistics*/) const { return false; }

  // Return one ranking for each granularity that the part scores by. Each has the k >= 1 best pages that `filter`
  // allows, best first, ties by the older page. A group's score is given at its middle page.
  [[nodiscard]] virtual Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter,
                                                          int32_t k) const = 0;

  // Return, as one text, what the part was made with besides blocks. A file saved with other settings is useless.
  [[nodiscard]] virtual std::string settings() const { return {}; }
  // Save those of `blocks` that the part has, by an IndexFileWriter (docs/format.md, "Index files"). The list of them
  // is the appendix; Load ignores it. Where the kind is not in_segments, `blocks` are all of the table.
  [[nodiscard]] virtual Status Save(const IndexFile& /*file*/, BlockRun /*blocks*/) const { return OkStatus(); }
  // Load what Save wrote with these settings. The part is still empty; where its kind is in_segments, it may have older
  // blocks of other files. `blocks` are those of the file in its order. Forgotten blocks are left out. `gaps` says that
  // the memory has blocks older than the last of them that are in no file so far. kNotFound, kIoError, kCorrupt; the
  // part must not be used after an error.
  virtual Status Load(const FilePath& /*file*/, std::span<const SavedBlock> /*blocks*/, bool /*gaps*/) {
    return OkStatus();
  }

  // Add vectors that the caller computed for a block in the table: [pages.size(), dimension], of pages[i] of the block,
  // ascending. Only for parts whose kind is from_caller. `terms` are the token ids of each vector, or none. They count
  // where the vectors are searched by lists.
  virtual Status AddVectors(const BlockEntry& /*block*/, std::span<const int32_t> /*pages*/,
                            std::span<const float> /*vectors*/, std::span<const std::vector<int32_t>> /*terms*/) {
    return InvalidArgumentError("vectors are given, expected none: this part takes none");
  }

  // Return one vector for a whole block, in the space that the part compares in; empty without. It runs beside Ranks.
  [[nodiscard]] virtual std::vector<float> BlockVector(const BlockEntry& /*block*/) const { return {}; }

  // Return the index of its vectors, if that has lists with a router that can be learned.
  [[nodiscard]] virtual std::shared_ptr<NeuralInvertedIndex> lists() const { return nullptr; }

  // Take tensors that were put to a block in the table, if the part takes tensors. `block` has its pages, and the new
  // tensors as its tensors; its other tensors stay. CheckTensors is called before they are stored. It returns
  // kInvalidArgument when TensorsCame would refuse them. No Rank runs beside TensorsCame.
  [[nodiscard]] virtual Status CheckTensors(const BlockInput& /*block*/) const { return OkStatus(); }
  virtual Status TensorsCame(const BlockInput& /*block*/) { return OkStatus(); }
  // Remove what is made of these tensors of a block, which are dropped. No Rank runs beside it.
  virtual Status TensorsWent(const BlockInput& /*block*/, std::span<const std::string> /*names*/) { return OkStatus(); }

  [[nodiscard]] virtual int64_t bytes() const = 0;  // of host memory, about
  // Return about how much host memory so many full pages will take. Room is made before they come.
  [[nodiscard]] virtual int64_t BytesFor(int32_t /*pages*/) const { return 0; }
  [[nodiscard]] virtual DeviceUse device_use() const { return {}; }
  // Return what the user should know since the last call. Each message is a sentence without a full stop.
  [[nodiscard]] virtual std::vector<std::string> TakeMessages() const { return {}; }
};

}  // namespace everlong::index
