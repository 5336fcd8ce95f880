// A memory: the store and the indexes of one conversation or library. The index is built from the store, from the same
// bytes that a recall restores. So a reopened memory answers as the open one did. Saved indexes are used where they
// fit.
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

// A score for a page from outside of the index, in the unit of its fused score.
struct AddedScore {
  PageRef page;
  float score = 0;
};

// A walk from what a search found (graph/walker.h).
struct WalkRequest {
  const graph::WalkerPolicy* policy = nullptr;  // outlives the search
  graph::WalkBudget budget;
  graph::WalkChoice::By by = graph::WalkChoice::By::kBest;
  uint64_t seed = 0;
  std::vector<PageRef> gold;
  bool keep_all = false;
};

// A request to search only blocks that match the question's times and tags (graph/tag_tree.h). A block's time is when
// it happened, where that was given (graph/own_tags.h), else when it was archived.
struct NarrowRequest {
  graph::TagQuery query;
  bool soft = true;  // where nothing matches, relax as NarrowedBy says; else nothing is found
};

struct SearchRequest {
  std::span<const int32_t> token_ids;   // the question's tokens
  std::span<const float> head_queries;  // [tokens, heads, D] of the retrieval heads; empty: no search by heads
  std::span<const float> mean_query;    // [Hkv * D] for mean_pool and hnsw; empty: no search by them
  std::span<const float> page_query;    // [dimension] of the page vectors; empty: no search by embedding
  std::map<std::string, std::span<const float>, std::less<>> inputs;  // of other parts, by PartKind::input
  // Several kinds are fused by how far a page stands out in each (index/fusion.h).
  index::IndexParts kinds{index::IndexPart::kHeads, index::IndexPart::kLexical};
  int32_t max_groups = 4;
  int32_t neighbours = 1;
  int64_t token_budget = 1024;
  float least_share = index::kLeastShare;  // below it a hit beside a group adds nothing to it (index::MakeGroups)
  // Added to the fused scores before groups are made. The hits of a part that searches alone keep its own scores, with
  // these added. A page that no part names, or that is unknown or forgotten, gains nothing.
  std::vector<AddedScore> added;
  // The pages that a walk loads come first: each scores at least as much as the best page that it did not load. What
  // the search found fills up the groups.
  std::optional<WalkRequest> walk;
  // Pages of `stream` that begin at this token or later are never returned: they are still in the frame.
  int64_t stream = 0;
  int64_t resident_from = INT64_MAX;
  // Applied before any page is scored; no group crosses it. Without roles here, a page that was said loses
  // kSaidDiscount.
  SearchFilter filter;
  // Narrows further. With `soft` also where the filter allows none of the blocks that are left.
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
  std::optional<float> confidence;  // probability that the answer is in it, 0 to 1; none as SearchResult::confidence
  bool walked = false;              // a walk came to it from another page
};

// How much less a page that was said counts than one that was read, in log-odds on its fused score, unless a search
// names roles. An answer repeats what was recalled for it, in few words that are close to the question's. Every part
// takes that for evidence, so a wrong answer would confirm itself. The discount equals the most that one part can say
// of a page beside the encoder (LeastEvidence, logit_fusion.cc). So it comes first only where another part names it
// too.
inline constexpr double kSaidDiscount = 2.0;

// An index agrees with the best page if that is among so many first pages of its ranking.
inline constexpr int64_t kAgreementRanks = 3;

// A walk, with its nodes as pages.
struct WalkReport {
  graph::WalkTrace trace;
  std::vector<std::vector<PageRef>> pages;  // of each way of each step; block 0 stands for stopping
  std::vector<PageRef> loads;
};

struct SearchResult {
  std::vector<FoundGroup> groups;  // best first
  float top_mass = 0;              // heads: mass of the best page over the sum of weights and heads, 0 to 1
  bool agreed = false;             // every index that was asked has the best page among its first kAgreementRanks
  float decisiveness = 0;  // heads: mass of the best page over the second best (1 to kMaxDecisiveness; 0 without heads)
  // The probability that the answer is in one of the groups, 0 to 1 (index/confidence.h): the sum of theirs. None where
  // only parts were asked whose scores do not tell right from wrong.
  std::optional<float> confidence;
  index::Signs signs;  // what `confidence` is computed from
  std::optional<WalkReport> walk;
  std::optional<graph::NarrowedBy> narrowed_by;  // of a search with a NarrowRequest
  int64_t narrowed_to = 0;                       // blocks
};

// The pages of a part, best first, by one of its granularities (index::Ranking).
struct PageRanking {
  index::IndexPart part;
  index::Granularity granularity = index::Granularity::kPage;
  std::vector<PageRef> pages;  // of a group, the middle one
  std::vector<float> scores;   // of `pages`
  float whole = 0;             // score of a page that has all that is asked for
  float unnamed = 0;           // the most that a page outside of these can score
};

// Thread-safe: searches and reads run beside each other. Append, Forget and SetRetrievalHeads take turns, and exclude
// searches only while they put the outcome in place. A search finds a block only if every part of the index has it.
//
// A read-only memory is indexed as it was when it was opened. Reads of what its writer forgets later are kNotFound.
class Memory {
 public:
  static Result<std::unique_ptr<Memory>> Create(const std::optional<std::filesystem::path>& folder,
                                                const store::Manifest& manifest,
                                                const store::StoreOptions& options = {});
  static Result<std::unique_ptr<Memory>> Open(const std::filesystem::path& folder, bool read_only,
                                              const store::StoreOptions& options = {});
  // Make a new memory with all that Export wrote into `file`.
  static Result<std::unique_ptr<Memory>> Import(const std::filesystem::path& file,
                                                const std::optional<std::filesystem::path>& folder,
                                                const store::StoreOptions& options = {});

  // Archive a block and index it: payload in `layout()`, durable after the next Flush. Return the block's id. A block
  // that could not be stored leaves every search and read once Flush, or a later Append, has reported it. The layout
  // decides the page sizes, so draft.page_bytes is not read. kInvalidArgument when a size does not fit, when a key that
  // the indexes read is not finite, or when the span begins before StreamEnd(stream).
  Result<int64_t> Append(const store::BlockDraft& draft);

  // Set the heads that search by attention, how their keys are kept, from how many pages a search has two levels
  // (HeadsIndex::Scored), and the device. It takes the saved heads index where that is the same, or rebuilds it from
  // the stored payload. The old index stays until then, on its device too. No heads: no search by them.
  Status SetRetrievalHeads(std::vector<index::RetrievalHead> heads, index::HeadsOptions options = {});
  [[nodiscard]] std::vector<index::RetrievalHead> retrieval_heads() const;
  [[nodiscard]] index::DeviceUse device_use(index::IndexPart part) const;  // of the part's device; zeros without one

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

  // Search from now on by the meaning vectors of this pack (index/meaning.h), of every block that has them among its
  // tensors. They replace those of another pack or on another device. None: no search by meaning. kInvalidArgument.
  Status SetMeaning(const std::optional<MeaningOptions>& options);
  [[nodiscard]] std::optional<MeaningOptions> meaning() const;
  // Put tensors of a block into the store, durable on return. Each replaces the one of its name. Parts of the index
  // that take such tensors get them. kNotFound for an unknown or forgotten block. kInvalidArgument when a part or the
  // store refuses one; then none is stored.
  Status PutTensors(int64_t block, std::span<const store::TensorView> tensors);
  // Add tags of a block behind those it has, durable on return, as the store does. Later searches use them.
  Status AddTags(int64_t block, std::span<const std::string> tags);
  // Return the blocks of which a part has nothing, in order of archiving; for kMeaning: no vectors yet. Empty without
  // it.
  [[nodiscard]] std::vector<int64_t> BlocksWithout(index::IndexPart part) const;

  // Keep a graph over the blocks from now on (graph/memory_graph.h). TendGraph grows it. A block's node gets a vector
  // of the encoder where SetPageVectors was called. Else it gets the direction of the sum of the block's un-rotated
  // keys of the last layer, or none. The Gardener grows topics over them; its `dimension` is not read. A graph with
  // vectors of another space is dropped. Durable on return. kInvalidArgument, kReadOnly.
  Status SetGraph(const graph::GardenerOptions& options);
  // Give at most so many blocks their nodes, the oldest without one first, in one commit, beside searches and appends.
  // Return how many: 0 once all have one, or wait for vectors of the encoder, and without SetGraph. Forget keeps the
  // graph right anyway.
  Result<int64_t> TendGraph(int32_t most_blocks);
  // Return what the store has committed. kNotFound for an unknown node.
  [[nodiscard]] Result<store::Graph> Graph() const;
  [[nodiscard]] Result<store::GraphNode> Node(int64_t id) const;
  [[nodiscard]] Result<std::vector<store::GraphNode>> Nodes(store::NodeKind kind) const;
  [[nodiscard]] Result<std::vector<store::GraphEdge>> EdgesOf(int64_t node) const;
  // Return the days of the Time -> Tag tree, and the sessions in them, which are streams.
  [[nodiscard]] std::vector<graph::TagTree::Bucket> TagBuckets() const;
  // Call graph::ShortestPath.
  [[nodiscard]] Result<std::vector<int64_t>> Path(int64_t from, int64_t to) const;

  // Search for pages by every kind of `request.kinds` that has its input, and fuse them. A kind with one ranking keeps
  // its own scores when it is asked alone. Pages that hold only sinks are never returned. The first search by mean_pool
  // or hnsw reads a layer of every page.
  [[nodiscard]] Result<SearchResult> Search(const SearchRequest& request) const;
  // Return what each of these kinds ranks by itself, in each of its granularities: the k best pages of what Search
  // fuses. The fields of the request about groups do not count. kInvalidArgument on k < 1 and as in Search.
  [[nodiscard]] Result<std::vector<PageRanking>> Rankings(const SearchRequest& request, int32_t k) const;

  // Return the pages of the `blocks` newest blocks of `stream` that end at or before `before` and pass `filter`, in
  // order of time. It is the simplest recall policy: the newest blocks.
  [[nodiscard]] Result<std::vector<PageRef>> RecentPages(int64_t stream, int64_t before, int32_t blocks,
                                                         const SearchFilter& filter = {}) const;
  // Return `count` pages (or all there are) drawn without replacement, in the order of drawing, from all that a search
  // with resident_from = before may return. Every evaluation uses it as the random control.
  [[nodiscard]] Result<std::vector<PageRef>> RandomPages(int64_t stream, int64_t before, int32_t count, uint64_t seed,
                                                         const SearchFilter& filter = {}) const;
  // Return the pages that hold `span` of `stream`, in order of time. kNotFound if a token is not archived, or
  // forgotten.
  [[nodiscard]] Result<std::vector<PageRef>> PagesOf(int64_t stream, TokenSpan span) const;

  // Read the payload of whole pages, one after the other: sum of layout().PageBytes(tokens of each). kNotFound;
  // kInvalidArgument when a page differs from the memory's in stream, span or sinks, or out has another size.
  [[nodiscard]] Status ReadPages(std::span<const PageRef> pages, std::span<std::byte> out) const;
  // Do the same for layers [first_layer, first_layer + layers) of each page, without waiting. `out` is filled once Wait
  // has returned. Destroy the result before this memory and before `out`.
  [[nodiscard]] Result<std::unique_ptr<store::PendingReads>> StartReadPages(std::span<const PageRef> pages,
                                                                            int32_t first_layer, int32_t layers,
                                                                            std::span<std::byte> out) const;
  // Read the un-rotated keys of one page and archived layer, [Hkv, tokens, D] fp32, for calibration.
  [[nodiscard]] Status ReadKeys(const PageRef& page, int32_t layer, std::span<float> keys) const;
  [[nodiscard]] Result<std::vector<int32_t>> TokenIds(int64_t stream, TokenSpan span) const;
  // Read the store's tensors of one block.
  [[nodiscard]] Result<std::vector<store::TensorInfo>> Tensors(int64_t block) const;
  [[nodiscard]] Result<store::Tensor> ReadTensor(int64_t block, const std::string& name) const;

  // Return IDF(t) = log(1 + pages / df(t)) over the pages of this memory (index/token_statistics.h).
  [[nodiscard]] std::vector<float> Idf(std::span<const int32_t> token_ids) const;

  // Return every page that is not forgotten, in order of archiving.
  [[nodiscard]] std::vector<PageRef> Pages() const;
  [[nodiscard]] Result<std::vector<store::BlockInfo>> Blocks(const store::BlockFilter& filter = {}) const;
  [[nodiscard]] Result<store::BlockInfo> Block(int64_t id) const;  // kNotFound
  // Remove blocks from every later search and read, and from document frequencies.
  Status Forget(std::span<const int64_t> blocks);
  // Save indexes in the folder's index/, for the next opener: those that read the payload, or that came from the
  // caller. What is saved already is not written again. Leftovers of a crashed save are removed. Nothing happens for a
  // memory in RAM, or opened for reading. kIoError.
  Status SaveIndexes();
  // Return messages for the user, a sentence each, once. They tell of saved indexes that were wrong and rebuilt, of
  // damaged tensors that a part does without, and why the host searched instead of the heads' device.
  [[nodiscard]] std::vector<std::string> TakeMessages();
  // Call the store's methods (everlong/store/memory_store.h). A repair indexes what is left.
  Status Flush();
  Result<int64_t> Compact();
  Result<store::VerifyReport> Verify(bool repair);
  // Call the store's methods, with the saved indexes.
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
  // Ask every kind of the request for its k best pages; without k for as many as a search fuses.
  [[nodiscard]] Result<Asked> Ask(const SearchRequest& request, std::optional<int32_t> k) const;
  // Return `filter` without what the request's times and tags leave out. Call it while the index is read.
  [[nodiscard]] index::PageFilter NarrowTo(const NarrowRequest& request, const index::PageFilter& filter,
                                           graph::Narrowed& narrowed) const;
  [[nodiscard]] Result<WalkReport> WalkFrom(const SearchRequest& request, const Asked& asked,
                                            std::span<const index::FusedHit> fused) const;
  static Result<std::unique_ptr<Memory>> Over(std::unique_ptr<store::MemoryStore> store);
  explicit Memory(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace everlong::os
