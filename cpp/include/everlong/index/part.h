// The contract of a part of the index: what it takes of a block, and what it says of pages to a question. A part is one
// file that implements it (cpp/src/index/NAME_part.cc) and one line in built_in_parts.h, which makes it known by its
// name.
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
#include "everlong/index/neural_inverted_index.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/ranking.h"
#include "everlong/index/token_statistics.h"

namespace everlong::index {

// A key head of the archive.
struct KeyHead {
  int32_t layer = 0;  // among the archived layers
  int32_t kv_head = 0;
  bool operator==(const KeyHead&) const = default;
};

// What a part takes of a block.
struct PartNeeds {
  bool token_ids = false;     // BlockInput::token_ids
  std::vector<KeyHead> keys;  // BlockInput::keys of these
  bool key_sum = false;       // BlockInput::key_sum
  bool tensors = false;       // BlockInput::tensors; of a stored block those of `tensor_names` alone, where it has any
  std::vector<std::string> tensor_names;
  [[nodiscard]] bool payload() const { return !keys.empty() || key_sum; }
  // Whether a block that is in the store already has to be read again for it.
  [[nodiscard]] bool stored() const { return payload() || tensors; }
};

// Un-rotated keys of a block, decoded once for all parts that want some of them.
class BlockKeys {
 public:
  BlockKeys() = default;
  BlockKeys(std::vector<KeyHead> heads, int32_t head_dim) : heads_(std::move(heads)), head_dim_(head_dim) {}
  // The next page: [heads, tokens, D] fp32.
  void AddPage(std::vector<float> keys) { pages_.push_back(std::move(keys)); }

  // [wanted, tokens, D] of a page, in the order of `wanted`, which are all here; `room` holds them where they do not
  // lie so already.
  [[nodiscard]] std::span<const float> Page(int32_t page, std::span<const KeyHead> wanted,
                                            std::vector<float>& room) const;

 private:
  std::vector<KeyHead> heads_;
  int32_t head_dim_ = 0;
  std::vector<std::vector<float>> pages_;
};

// A tensor that came with a block.
struct BlockTensor {
  std::string_view name;
  std::string_view dtype;  // of safetensors, as store/tensor.h has it: "F32", "BF16" ...
  std::span<const int64_t> shape;
  std::span<const std::byte> bytes;
};

// A block as parts see it: what somebody needs of it is there, and maybe more.
struct BlockInput {
  int64_t id = 0;          // 0: it has none yet (Part::Check)
  int32_t first_page = 0;  // ordinal
  int32_t page_tokens = 0;
  int64_t tokens = 0;
  int64_t sink_tokens = 0;             // 0 to tokens
  std::span<const int32_t> token_ids;  // [tokens]
  const BlockKeys* keys = nullptr;
  std::span<const float> key_sum;  // [Hkv * D] fp32: of the un-rotated keys of the last archived layer
  std::span<const BlockTensor> tensors;

  [[nodiscard]] int32_t page_count() const { return static_cast<int32_t>((tokens + page_tokens - 1) / page_tokens); }
  [[nodiscard]] int32_t PageTokens(int32_t page) const {
    return static_cast<int32_t>(std::min<int64_t>(page_tokens, tokens - int64_t{page} * page_tokens));
  }
  // Leading tokens of a page that are sinks.
  [[nodiscard]] int32_t PageSinks(int32_t page) const {
    return static_cast<int32_t>(std::clamp<int64_t>(sink_tokens - int64_t{page} * page_tokens, 0, PageTokens(page)));
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
  int32_t first_page = -1;  // its ordinal here; -1 when it was forgotten since
};

// A page of a saved index.
struct SavedPage {
  int32_t tokens = 0;
  int32_t ordinal = -1;  // here; -1 when its block was forgotten since
};
// The pages of the blocks that `file` has, in its order; kCorrupt where it has fewer bytes than that are pages, for of
// a block that is forgotten nobody else knows how long it was.
Result<std::vector<SavedPage>> PagesOfSaved(const FilePath& file, std::span<const SavedBlock> blocks,
                                            int32_t page_tokens);

// A question.
struct Query {
  std::span<const int32_t> token_ids;
  std::map<std::string, std::span<const float>, std::less<>> inputs;  // of parts, by PartKind::input

  [[nodiscard]] std::span<const float> Input(std::string_view name) const {
    const auto found = inputs.find(name);
    return found == inputs.end() ? std::span<const float>() : found->second;
  }
};

struct DeviceUse {
  int64_t bytes = 0;  // of its memory, now
  int64_t scans = 0;  // searches that it scanned for
};

// What every part of one memory shares; it outlives them. The table does not change during a Rank.
struct PartContext {
  const BlockTable& table;
  const TokenStatistics& statistics;  // of all blocks that parts were given and have not been told to forget
  int32_t kv_heads = 0;               // 0 where there are no keys
  int32_t head_dim = 0;
};

// One thread at a time adds and forgets; any number of Ranks run beside it, over pages that were added before they
// began and are not forgotten while they run: os::Memory puts a block into its table once every part has it, and takes
// it out there before any part forgets it. What searches read while something is added stays in its place, and no lock
// that they take is held for longer than a page or a row takes. All else is called by the one thread too.
class Part {
 public:
  Part() = default;
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  virtual ~Part() = default;

  [[nodiscard]] virtual PartNeeds needs() const { return {}; }

  // kInvalidArgument when Add would refuse the block: asked before it is stored.
  [[nodiscard]] virtual Status Check(const BlockInput& /*block*/) const { return OkStatus(); }
  // The pages of a block, behind all that were added before. Ordinals between are of forgotten blocks.
  virtual Status Add(const BlockInput& block) = 0;
  // No trace of a block's pages is left, in what is searched and in what is saved; nothing happens for one that is not
  // here. `block` has its pages and token ids; for a kind that is from_caller maybe its id alone.
  virtual Status Forget(const BlockInput& block) = 0;
  [[nodiscard]] virtual bool Has(const BlockEntry& block) const = 0;
  // Adds what TokenStatistics::AddBlock would count of all blocks that it Has; false, and nothing is added, where it
  // does not know.
  virtual bool CountInto(TokenStatistics& /*statistics*/) const { return false; }

  // One ranking a granularity that the part scores by: the k >= 1 best pages of those that `filter` allows, best first,
  // ties by the older page. A group's score stands at its middle page.
  [[nodiscard]] virtual Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter,
                                                          int32_t k) const = 0;

  // What else it was made with than blocks, as one text: what was saved with another is of no use.
  [[nodiscard]] virtual std::string settings() const { return {}; }
  // One file, replaced whole or not at all (docs/format.md, "Index files"): the blocks of the table that it has. Its
  // last four bytes tell it from another. The list of its blocks is put behind it, where Load does not look for its
  // own.
  [[nodiscard]] virtual Status Save(const FilePath& /*file*/) const { return OkStatus(); }
  // What Save wrote with these settings, into a part that has nothing yet: `blocks` are those of the file in its order;
  // what is gone is left out. `gaps`: the memory has older blocks than the last of them that are not in it. kNotFound,
  // kIoError, kCorrupt; the part is then of no use any more.
  virtual Status Load(const FilePath& /*file*/, std::span<const SavedBlock> /*blocks*/, bool /*gaps*/) {
    return OkStatus();
  }

  // Vectors that somebody else computed of a block that is in the table: [pages.size(), dimension] of page pages[i] of
  // the block, ascending. For parts whose kind is from_caller. `terms`: token ids of each, or none; heard where the
  // vectors are searched by lists.
  virtual Status AddVectors(const BlockEntry& /*block*/, std::span<const int32_t> /*pages*/,
                            std::span<const float> /*vectors*/, std::span<const std::vector<int32_t>> /*terms*/) {
    return InvalidArgumentError("vectors are given, expected none: this part takes none");
  }

  // One vector of all of a block that is in the table, in the space in which the part compares; empty where it has
  // none. Beside Ranks.
  [[nodiscard]] virtual std::vector<float> BlockVector(const BlockEntry& /*block*/) const { return {}; }

  // What its vectors are searched by, where that has lists whose router can be learned.
  [[nodiscard]] virtual std::shared_ptr<NeuralInvertedIndex> lists() const { return nullptr; }

  // Tensors that were put to a block which is in the table, by a part that takes tensors. `block` has its pages and, as
  // its tensors, those that were put; the others it had stay. CheckTensors is asked before they are stored:
  // kInvalidArgument when TensorsCame would refuse them. No Rank runs beside TensorsCame.
  [[nodiscard]] virtual Status CheckTensors(const BlockInput& /*block*/) const { return OkStatus(); }
  virtual Status TensorsCame(const BlockInput& /*block*/) { return OkStatus(); }

  [[nodiscard]] virtual int64_t bytes() const = 0;  // of host memory, about
  // Of host memory that so many full pages will take, about: room is made before they come.
  [[nodiscard]] virtual int64_t BytesFor(int32_t /*pages*/) const { return 0; }
  [[nodiscard]] virtual DeviceUse device_use() const { return {}; }
  // What a person should know since this was asked last, a sentence without an end each.
  [[nodiscard]] virtual std::vector<std::string> TakeMessages() const { return {}; }
};

}  // namespace everlong::index
