// A memory: one conversation's or library's store and indexes behind one door. The index is made from the store, from
// the very bytes a recall would restore, so a reopened memory answers as the open one did; what SaveIndexes left is
// taken where it fits the catalog.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/page_ref.h"
#include "everlong/base/status.h"
#include "everlong/base/token_span.h"
#include "everlong/graph/gardener.h"
#include "everlong/graph/tag_tree.h"
#include "everlong/graph/walker.h"
#include "everlong/index/block_table.h"
#include "everlong/index/confidence.h"
#include "everlong/index/fusion.h"
#include "everlong/index/heads.h"
#include "everlong/index/index_part.h"
#include "everlong/index/meaning.h"
#include "everlong/index/neural_inverted_index.h"
#include "everlong/index/page_vectors.h"
#include "everlong/index/ranking.h"
#include "everlong/kv/payload.h"
#include "everlong/store/memory_store.h"

namespace everlong::os {

using index::kMaxDecisiveness;
using index::kMaxPageVectors;
using index::MeaningOptions;
using index::PageVectorOptions;
using index::SearchFilter;

// What somebody beside the index says of a page, in the unit of its fused score.
struct AddedScore {
  PageRef page;
  float score = 0;
};

// A walk from what a search found on (graph/walker.h).
struct WalkRequest {
  const graph::WalkerPolicy* policy = nullptr;  // outlives the search
  graph::WalkBudget budget;
  graph::WalkChoice::By by = graph::WalkChoice::By::kBest;
  uint64_t seed = 0;
  std::vector<PageRef> gold;
  bool keep_all = false;
};

// The blocks that a question's times and tags leave (graph/tag_tree.h); a block's time is when it happened, where that
// was said (graph/own_tags.h), else when it was archived.
struct NarrowRequest {
  graph::TagQuery query;
  bool soft = true;  // where nothing matches, as NarrowedBy has it; else nothing is found
};

struct SearchRequest {
  std::span<const int32_t> token_ids;   // the question's tokens
  std::span<const float> head_queries;  // [tokens, heads, D] of the retrieval heads; empty: no heads search
  std::span<const float> mean_query;    // [Hkv * D] for mean_pool and hnsw; empty: no search by them
  std::span<const float> page_query;    // [dimension] of the page vectors; empty: no search by embedding
  std::map<std::string, std::span<const float>, std::less<>> inputs;  // of other parts, by PartKind::input
  // Several are fused by how far a page stands out in each (index/fusion.h).
  index::IndexParts kinds{index::IndexPart::kHeads, index::IndexPart::kLexical};
  int32_t max_groups = 4;
  int32_t neighbours = 1;
  int64_t token_budget = 1024;
  float least_share = index::kLeastShare;  // below it a hit beside a group adds nothing to it (index::MakeGroups)
  // On top of the fused scores, before groups are made; what a part alone found keeps its own scores, and these on top.
  // A page that no part names, or that is not there (any more), gains nothing by it.
  std::vector<AddedScore> added;
  // The pages that a walk loads come first: each has at least the score of the best that it did not load. What the
  // search found fills up the groups.
  std::optional<WalkRequest> walk;
  // Never returned: pages of `stream` that begin at this token or later (they are still in the frame).
  int64_t stream = 0;
  int64_t resident_from = INT64_MAX;
  // Prunes before any index scores a page; no group crosses it. Where it names no roles, a page of what was said has
  // kSaidDiscount less.
  SearchFilter filter;
  // Prunes further. Soft also where the filter allows none of the blocks that are left.
  std::optional<NarrowRequest> narrow;
};

struct FoundGroup {
  std::vector<PageRef> pages;      // in order of time
  std::vector<float> page_scores;  // of `pages`; minus infinity for a neighbour that nothing found
  int64_t stream = 0;
  TokenSpan span;
  std::string source;
  float score = 0;
  index::IndexParts found_by;
  std::optional<float> confidence;  // how likely the answer is in it, 0..1; none as SearchResult::confidence
  bool walked = false;              // a walk came to it from another page
};

// What a page that was said counts less than one that was read, in log-odds on its fused score, unless a search names
// roles. An answer repeats what was recalled for it, and says so in few words and close to the question's, which every
// part takes for evidence; where it was wrong it would vouch for itself. This is what all that one part can say of a
// page weighs beside the encoder (LeastEvidence, logit_fusion.cc): what was said comes first where another part names
// it too.
inline constexpr double kSaidDiscount = 2.0;

// How far down a ranking the best page may stand for that index to agree with it.
inline constexpr int64_t kAgreementRanks = 3;

// A walk, its nodes as pages.
struct WalkReport {
  graph::WalkTrace trace;
  std::vector<std::vector<PageRef>> pages;  // of each way of each step; of ending one of block 0
  std::vector<PageRef> loads;
};

struct SearchResult {
  std::vector<FoundGroup> groups;  // best first
  float top_mass = 0;              // heads: mass of the best page over the sum of weights and heads, 0..1
  bool agreed = false;             // every index that was asked has the best page among its first kAgreementRanks
  float decisiveness = 0;  // heads: mass of the best page over the second best (1 to kMaxDecisiveness; 0 without heads)
  // How likely the answer is in one of the groups, 0..1 (index/confidence.h): the sum of theirs. None where only parts
  // were asked whose scores do not tell right from wrong.
  std::optional<float> confidence;
  index::Signs signs;  // what it is made of
  std::optional<WalkReport> walk;
  std::optional<graph::NarrowedBy> narrowed_by;  // of a search that was asked to be narrowed
  int64_t narrowed_to = 0;                       // blocks
};

// A part's pages, best first, by one of its granularities (index::Ranking).
struct PageRanking {
  index::IndexPart part;
  index::Granularity granularity = index::Granularity::kPage;
  std::vector<PageRef> pages;  // of a group, the one in the middle
  std::vector<float> scores;   // of `pages`
  float whole = 0;             // what a page scores that has all that is asked for
  float unnamed = 0;           // what a page scores at most that is not among these
};

// Thread-safe: searches and reads run beside each other; Append, Forget and SetRetrievalHeads exclude them only while
// the outcome is put in place, and take turns among themselves. A search finds blocks that every part of the index has,
// or nothing of them.
//
// A read-only memory is indexed as it was when it was opened; of what its writer forgets later, reads are kNotFound.
class Memory {
 public:
  static Result<std::unique_ptr<Memory>> Create(const std::optional<std::filesystem::path>& folder,
                                                const store::Manifest& manifest,
                                                const store::StoreOptions& options = {});
  static Result<std::unique_ptr<Memory>> Open(const std::filesystem::path& folder, bool read_only,
                                              const store::StoreOptions& options = {});
  // A new memory with all that Export wrote into `file`.
  static Result<std::unique_ptr<Memory>> Import(const std::filesystem::path& file,
                                                const std::optional<std::filesystem::path>& folder,
                                                const store::StoreOptions& options = {});

  // Archives a block: payload in `layout()`, durable after the next Flush; and indexes it. Returns the block's id.
  // A block that could not be stored is out of every search and read again once Flush, or a later Append, has said so.
  // draft.page_bytes is not read: the layout decides. kInvalidArgument when a size does not fit, when a key that the
  // indexes read is not finite, or when the span begins before StreamEnd(stream).
  Result<int64_t> Append(const store::BlockDraft& draft);

  // Which heads search by attention, how their keys are kept, and from how many pages on they search by two levels
  // (HeadsIndex::Search), and on which device. Takes up the saved heads index where it is the same, or rebuilds it from
  // the stored payload; the index that it takes the place of stays until then, on its device too. No heads: none.
  Status SetRetrievalHeads(std::vector<index::RetrievalHead> heads, index::HeadsOptions options = {});
  [[nodiscard]] std::vector<index::RetrievalHead> retrieval_heads() const;
  [[nodiscard]] index::DeviceUse device_use(index::IndexPart part) const;  // of the part's device; zeros without one

  // Search by vectors of pages from now on, none yet. What was there before is dropped, unless the options are the
  // same. kInvalidArgument on a dimension < 1.
  Status SetPageVectors(const PageVectorOptions& options);
  // The vectors of a block, once: vectors [pages.size(), dimension], of page pages[i] of the block (ascending, at most
  // kMaxPageVectors a page). kNotFound for a block that is not here (any more), kAlreadyExists for one that has
  // vectors.
  // `terms`: token ids of each vector, or none; where the vectors are searched by lists, a question's rare ones name
  // vectors, too.
  Status AddPageVectors(int64_t block, std::span<const int32_t> pages, std::span<const float> vectors,
                        std::span<const std::vector<int32_t>> terms = {});
  // The lists that they are searched by; nullptr where they are searched otherwise, or there are none. What it is asked
  // and what is written into it is thread-safe; SetPageVectors may put another in its place.
  [[nodiscard]] std::shared_ptr<index::NeuralInvertedIndex> page_lists() const;
  // NeuralInvertedIndex::SetRouter, saved with the index. kInvalidArgument where there are no lists.
  Status SetPageRouter(const index::NeuralInvertedIndex::Router& router);
  // The pages of every block that has no vectors yet, in order of archiving; empty without SetPageVectors.
  [[nodiscard]] std::vector<PageRef> PagesWithoutVectors() const;

  // Search by the vectors of meaning of that pack from now on (index/meaning.h), of every block that has them among its
  // tensors, in place of another pack's or those on another device; none: by no such vectors. kInvalidArgument.
  Status SetMeaning(const std::optional<MeaningOptions>& options);
  [[nodiscard]] std::optional<MeaningOptions> meaning() const;
  // The store's: tensors of a block, each in place of the one of its name, durable on return; and parts of the index
  // that take such have them. kNotFound for a block that is not here (any more); kInvalidArgument when a part or the
  // store refuses one, and then none is stored.
  Status PutTensors(int64_t block, std::span<const store::TensorView> tensors);
  // The store's: tags of a block behind those it has, durable on return. Searches go by them from then on.
  Status AddTags(int64_t block, std::span<const std::string> tags);
  // The blocks of which a part has nothing, in order of archiving: for kMeaning those that have no vectors yet. Empty
  // where the part is not there.
  [[nodiscard]] std::vector<int64_t> BlocksWithout(index::IndexPart part) const;

  // A graph over the blocks from now on (graph/memory_graph.h), which TendGraph grows: real nodes with vectors of the
  // encoder where SetPageVectors was called, else the direction of the sum of the block's un-rotated keys of the last
  // layer, else none; topics over them by the Gardener, whose `dimension` is not read. Of a graph that is there with
  // vectors of another space nothing is kept. Durable on return. kInvalidArgument, kReadOnly.
  Status SetGraph(const graph::GardenerOptions& options);
  // Gives at most so many blocks their nodes, the oldest without first, in one commit, beside searches and appends; how
  // many: 0 once all have, or wait for vectors of the encoder, and without SetGraph. Forget keeps the graph right
  // whether it was called or not.
  Result<int64_t> TendGraph(int32_t most_blocks);
  // The store's: what is committed. kNotFound for a node that is not there.
  [[nodiscard]] Result<store::Graph> Graph() const;
  [[nodiscard]] Result<store::GraphNode> Node(int64_t id) const;
  [[nodiscard]] Result<std::vector<store::GraphNode>> Nodes(store::NodeKind kind) const;
  [[nodiscard]] Result<std::vector<store::GraphEdge>> EdgesOf(int64_t node) const;
  // Of the Time -> Tag tree: days, and sessions in them, which are streams.
  [[nodiscard]] std::vector<graph::TagTree::Bucket> TagBuckets() const;
  // graph::ShortestPath.
  [[nodiscard]] Result<std::vector<int64_t>> Path(int64_t from, int64_t to) const;

  // Pages by every kind of `request.kinds` that has its input, fused; a kind with one ranking keeps its own scores
  // where it is asked alone.
  // Pages that hold nothing but sinks are never returned. The first search by mean_pool or hnsw reads a layer of
  // every page.
  [[nodiscard]] Result<SearchResult> Search(const SearchRequest& request) const;
  // What each of these kinds says by itself, in each of its granularities: what Search fuses, its k best pages each. Of
  // the request nothing counts that is about groups. kInvalidArgument on k < 1 and as Search.
  [[nodiscard]] Result<std::vector<PageRanking>> Rankings(const SearchRequest& request, int32_t k) const;

  // The `blocks` most recent blocks of `stream` that end at or before `before` and pass `filter`, pages in order of
  // time (the designs' MVP policy, 3.1.2).
  [[nodiscard]] Result<std::vector<PageRef>> RecentPages(int64_t stream, int64_t before, int32_t blocks,
                                                         const SearchFilter& filter = {}) const;
  // `count` pages (or all there are) drawn without replacement, in the order of drawing, from all that a search with
  // resident_from = before may return: the random control of every evaluation.
  [[nodiscard]] Result<std::vector<PageRef>> RandomPages(int64_t stream, int64_t before, int32_t count, uint64_t seed,
                                                         const SearchFilter& filter = {}) const;
  // The pages that hold `span` of `stream`, in order of time. kNotFound when a token of it is not archived, or
  // forgotten.
  [[nodiscard]] Result<std::vector<PageRef>> PagesOf(int64_t stream, TokenSpan span) const;

  // The payload of whole pages, one after the other: sum of layout().PageBytes(tokens of each). kNotFound;
  // kInvalidArgument when a page is not as the memory has it, in stream, span and sinks, or out has another size.
  [[nodiscard]] Status ReadPages(std::span<const PageRef> pages, std::span<std::byte> out) const;
  // The same for layers [first_layer, first_layer + layers) of each page, without waiting: `out` is filled once Wait
  // has returned. Destroy what it returns before this memory and before `out`.
  [[nodiscard]] Result<std::unique_ptr<store::PendingReads>> StartReadPages(std::span<const PageRef> pages,
                                                                            int32_t first_layer, int32_t layers,
                                                                            std::span<std::byte> out) const;
  // Un-rotated keys of one page and archived layer: [Hkv, tokens, D] fp32; what calibration reads.
  [[nodiscard]] Status ReadKeys(const PageRef& page, int32_t layer, std::span<float> keys) const;
  [[nodiscard]] Result<std::vector<int32_t>> TokenIds(int64_t stream, TokenSpan span) const;
  // The store's, of one block.
  [[nodiscard]] Result<std::vector<store::TensorInfo>> Tensors(int64_t block) const;
  [[nodiscard]] Result<store::Tensor> ReadTensor(int64_t block, const std::string& name) const;

  // IDF(t) = log(1 + pages / df(t)) over the pages of this memory (index/token_statistics.h).
  [[nodiscard]] std::vector<float> Idf(std::span<const int32_t> token_ids) const;

  // Every page that is not forgotten, in order of archiving.
  [[nodiscard]] std::vector<PageRef> Pages() const;
  [[nodiscard]] Result<std::vector<store::BlockInfo>> Blocks(const store::BlockFilter& filter = {}) const;
  [[nodiscard]] Result<store::BlockInfo> Block(int64_t id) const;  // kNotFound
  // Gone from every later search and read, and from document frequencies.
  Status Forget(std::span<const int64_t> blocks);
  // Keeps the indexes that took a reading of the payload, or came from the caller, in the folder's index/: the next
  // opener takes them instead. What is saved already is not written again; what a crash left of a save goes. Nothing
  // happens for a memory in RAM, or opened for reading. kIoError.
  Status SaveIndexes();
  // What was wrong with saved indexes, which were then made anew, which tensors a part does without for their damage,
  // and why the host searched in place of the heads' device: a sentence each, once.
  [[nodiscard]] std::vector<std::string> TakeMessages();
  // The store's, of this memory (everlong/store/memory_store.h). A repair indexes what is left.
  Status Flush();
  Result<int64_t> Compact();
  Result<store::VerifyReport> Verify(bool repair);
  // The store's, and the saved indexes with it.
  Status Fork(const std::filesystem::path& folder);
  Status Export(const std::filesystem::path& file);
  [[nodiscard]] int64_t StreamEnd(int64_t stream) const;  // one past the newest archived token; 0 when there is none
  [[nodiscard]] kv::PayloadLayout layout() const;
  [[nodiscard]] store::Manifest manifest() const;
  Status SetAttribute(const std::string& key, const std::string& value);
  Status PutFile(const std::string& name, std::span<const std::byte> bytes);
  [[nodiscard]] Result<std::vector<std::byte>> File(const std::string& name) const;
  [[nodiscard]] Result<store::StoreStats> Stats() const;
  [[nodiscard]] bool read_only() const;

  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

 private:
  friend class MemoryWalk;
  struct State;
  struct Asked;  // memory_search.cc
  // Every kind of the request, for its k best pages; without k as many as a search fuses.
  [[nodiscard]] Result<Asked> Ask(const SearchRequest& request, std::optional<int32_t> k) const;
  // `filter` without what the request's times and tags leave out. While the index is read.
  [[nodiscard]] index::PageFilter NarrowTo(const NarrowRequest& request, const index::PageFilter& filter,
                                           graph::Narrowed& narrowed) const;
  [[nodiscard]] Result<WalkReport> WalkFrom(const SearchRequest& request, const Asked& asked,
                                            std::span<const index::FusedHit> fused) const;
  static Result<std::unique_ptr<Memory>> Over(std::unique_ptr<store::MemoryStore> store);
  explicit Memory(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace everlong::os
