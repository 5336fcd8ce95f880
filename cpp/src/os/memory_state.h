// What stands behind os::Memory: the store, the indexes over it and who may touch them when.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "everlong/base/fair_shared_mutex.h"
#include "everlong/base/status.h"
#include "everlong/index/fusion.h"
#include "everlong/index/heads_index.h"
#include "everlong/index/index_part.h"
#include "everlong/index/lexical_index.h"
#include "everlong/index/page_directory.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/token_statistics.h"
#include "everlong/index/vector_index.h"
#include "everlong/kv/payload.h"
#include "everlong/os/memory.h"
#include "everlong/store/memory_store.h"
#include "page_vectors.h"
#include "saved_indexes.h"

namespace everlong::os {

// Names in store::kIndexFolder, a folder of the memory.
inline constexpr const char* kHeadsFile = "heads";
inline constexpr const char* kMeanPoolFile = "mean_pool";
inline constexpr const char* kHnswFile = "hnsw";
inline constexpr const char* kPageVectorsFile = "embedding";
inline constexpr std::array kSavedIndexes = {kHeadsFile, kMeanPoolFile, kHnswFile, kPageVectorsFile};

// What messages call a memory.
std::string NameOf(const store::MemoryStore& store);

// Of stored blocks, in the order of their ids: whether Append could have stored them.
class StoredBlocks {
 public:
  StoredBlocks(const kv::PayloadLayout& layout, std::string memory) : layout_(layout), memory_(std::move(memory)) {}
  // kCorrupt when the next one is not of this layout, or overlaps what came before.
  Status CheckNext(const store::BlockInfo& info, std::span<const int32_t> token_ids);

 private:
  kv::PayloadLayout layout_;
  std::string memory_;
  std::map<int64_t, int64_t> ends_;  // of streams
};

struct Memory::State {
  // Ordinals of a block's pages in the directory.
  struct BlockPages {
    int32_t first = 0;
    int32_t count = 0;
    TokenSpan span;
    int64_t stream = 0;
    std::string source;
    double created_at = 0;
    std::vector<std::string> tags;

    [[nodiscard]] bool Passes(const SearchFilter& filter) const;
  };

  // --- fixed once the memory is open
  std::unique_ptr<store::MemoryStore> store;
  kv::PayloadLayout layout;
  // Whether blocks have token ids and no payload (store::TextAlone).
  [[nodiscard]] bool text_alone() const { return layout.layers == 0; }

  // --- one change at a time; taken before `guard`
  std::mutex writer;

  // Token ids of blocks that were submitted and may yet be lost, by block; `writer` guards it.
  std::map<int64_t, std::vector<int32_t>> submitted;

  // Since freed heap went back to the system; `writer` guards it. What is kept in between is a small part of a
  // forward's.
  static constexpr int64_t kTrimTokens = 16'384;
  int64_t appended_tokens = 0;

  // Names of indexes that differ from what index/ has of them; `writer` guards it.
  std::set<std::string> unsaved;

  // --- guards what follows: shared by searches and reads, exclusive for the moment in which a change is put in place
  FairSharedMutex guard;
  index::PageDirectory directory;
  index::TokenStatistics statistics;
  std::unique_ptr<index::LexicalIndex> lexical;
  std::optional<index::HeadsIndex> heads;  // none until retrieval heads are set
  // By block; none until a search asks for it: it costs a read of every page.
  std::unique_ptr<index::VectorIndex> mean_pool;
  std::unique_ptr<index::VectorIndex> hnsw;
  std::optional<PageVectors> page_vectors;                // none until the caller brings vectors
  std::unordered_map<int64_t, BlockPages> blocks;         // not forgotten
  std::map<int64_t, std::map<int64_t, int64_t>> streams;  // stream -> first token -> block, not forgotten
  Status broken;  // why the indexes do not match the store any more; ok as long as they do

  std::mutex message_guard;
  std::vector<std::string> messages;  // for TakeMessages

  // What the indexes take from a block's payload, computed before the block is acknowledged.
  struct PayloadKeys {
    std::vector<std::vector<float>> head_keys;  // [pages] of [key_heads, tokens, D]
    std::vector<float> mean_pool_sum;           // [Hkv * D]; empty when neither mean_pool nor hnsw is there
  };

  // Fills directory, statistics, word index and streams from the store, in place of what they held, and the heads index
  // if there is one. `guard` is held exclusively, or nobody else knows this state yet.
  Status LoadIndexes();
  // The same for a memory that is in use: whatever fails, `broken` says so. `guard` is held exclusively.
  Status ReloadIndexes();
  [[nodiscard]] std::string Name() const { return NameOf(*store); }

  // Puts a stored block into every index. `guard` is held exclusively, or nobody else knows this state yet.
  Status AddToIndexes(const store::BlockInfo& info, std::span<const int32_t> token_ids, const PayloadKeys& keys);

  // Notes what a submitted block needs if it is lost, and puts it into every index. `writer` is held.
  Status IndexSubmitted(int64_t id, const store::BlockDraft& draft, const PayloadKeys& keys);

  // Takes a block out of every index; `token_ids` are those it was added with. `guard` is held exclusively.
  Status RemoveFromIndexes(int64_t id, std::span<const int32_t> token_ids);

  // A forgotten page keeps its number, and what the indexes hold by number, until they are made anew: in RAM once most
  // pages are forgotten, in a folder once all are, for keys that are read again may be damaged and were there until
  // then. `guard` is held exclusively.
  Status GiveBackForgotten();

  // Whether a block of the indexes is not in the store any more. `writer` is held.
  [[nodiscard]] bool IndexesBlocksThatAreGone() const;

  // Tells the store what the indexes hold in RAM, or will hold: `more`. `guard` or `writer` is held, or nobody else
  // knows this state yet.
  void TellIndexBytes(int64_t more = 0) const;

  // Waits for the store, and takes blocks that it could not keep out of the indexes. `writer` is held.
  Status Flush();

  // A block of the directory, forgotten ones too.
  struct ListedBlock {
    int64_t id = 0;
    int32_t first = 0;  // ordinal of its first page
    int32_t count = 0;  // pages
    TokenSpan span;
    bool forgotten = false;
  };
  // Calls visit for blocks in their order, with its keys out of the store, or with nullptr when they are
  // gone: the block is forgotten. The keys are those of `heads_index` (or none), and the last layer's sum (or not).
  using KeysVisitor = std::function<Status(const ListedBlock& block, const PayloadKeys* keys)>;
  Status VisitKeys(std::span<const ListedBlock> listed, const index::HeadsIndex* heads_index, bool with_sum,
                   const KeysVisitor& visit) const;

  // The keys of one block out of its payload.
  [[nodiscard]] PayloadKeys DecodePayloadKeys(std::span<const std::byte> payload, int64_t tokens,
                                              const index::HeadsIndex* heads_index, bool with_sum) const;

  [[nodiscard]] std::vector<ListedBlock> ListBlocks() const;
  // Keys of some blocks out of the store, in one read.
  [[nodiscard]] Result<std::vector<PayloadKeys>> ReadKeys(std::span<const ListedBlock> listed,
                                                          const index::HeadsIndex* heads_index, bool with_sum) const;

  // The index of these heads over every page of the directory; none for no heads.
  [[nodiscard]] Result<std::optional<index::HeadsIndex>> BuildHeads(std::vector<index::RetrievalHead> of,
                                                                    index::HeadsOptions options);

  // --- indexes in index/: memory_saved.cc
  [[nodiscard]] std::vector<CoveredBlock> CoveredBlocks() const;  // not forgotten, in order of archiving
  // The place of a saved index; none for a memory in RAM.
  [[nodiscard]] std::optional<SavedIndex> Saved(const std::string& name) const;
  // What a saved index covers; none where it cannot be used, with a message where it should.
  [[nodiscard]] std::optional<Coverage> CoverageOf(const std::string& name, const std::string& settings);
  // The saved index of these heads, and over how many blocks of the directory; none where there is none to use.
  struct SavedHeads {
    index::HeadsIndex heads;
    size_t blocks = 0;
  };
  [[nodiscard]] std::optional<SavedHeads> LoadHeads(const std::vector<index::RetrievalHead>& of,
                                                    index::HeadsOptions options);
  [[nodiscard]] std::unique_ptr<index::VectorIndex> LoadBlockIndex(index::IndexPart kind);
  [[nodiscard]] PageVectors LoadPageVectors(const PageVectorOptions& options);
  Status SaveIndexes();
  // What index/ has of forgotten blocks goes; what it has of others stays, also for an encoder that is not loaded.
  void RemoveSavedIndexesOfForgotten();
  Status SavePageVectors(const PageVectors& vectors) const;
  // The saved vectors of what is not forgotten in the place of all; false when there are none to keep.
  [[nodiscard]] bool KeepSavedPageVectors(const SavedIndex& saved);
  // Copies what index/ has into the folder of a fork.
  void CarrySavedIndexes(const std::filesystem::path& folder) const;
  // Every index that there is differs from what is saved.
  void MarkUnsaved();
  void Say(const std::string& name, const Status& why);

  // The `count` best pages by the vector of their block, of those that `filter` allows.
  [[nodiscard]] Result<index::Ranking> RankBlocks(const index::VectorIndex& block_index, std::span<const float> query,
                                                  int32_t count, const index::PageFilter& filter) const;
  // The `count` best pages by the best of their vectors, of those that `filter` allows.
  [[nodiscard]] Result<index::Ranking> RankPages(const PageVectors& vectors, std::span<const float> query,
                                                 int32_t count, const index::PageFilter& filter) const;
  // Whether there is an index over the sums of keys.
  [[nodiscard]] bool NeedsSums() const { return mean_pool != nullptr || hnsw != nullptr; }
  // Reads every block's last layer for the index that kMeanPool or kHnsw names, once.
  Status BuildBlockIndex(index::IndexPart kind);
  // `guard`, shared, with those of the two indexes there that are asked for.
  Result<std::shared_lock<FairSharedMutex>> LockWithBlockIndexes(bool with_mean_pool, bool with_hnsw);

  // Whether a read failed because the writer beside this reader has forgotten the block meanwhile.
  [[nodiscard]] bool ForgottenByWriter(const Status& status) const;

  [[nodiscard]] PageRef RefOf(int32_t ordinal) const;
  // The directory's entry of a page that a caller names; kNotFound, or kInvalidArgument when its span is another.
  [[nodiscard]] Result<int32_t> OrdinalOf(const PageRef& page) const;
  // Pages of blocks that pass `filter` and may be recalled into a frame of `stream` that still holds everything from
  // token `resident_from` on.
  [[nodiscard]] index::PageFilter Recallable(int64_t stream, int64_t resident_from,
                                             const SearchFilter& filter = {}) const;
};

}  // namespace everlong::os
