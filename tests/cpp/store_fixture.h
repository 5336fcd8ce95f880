// What the suites of the store share: made-up blocks whose bytes follow from a seed, folders that go when the test
// ends.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base_temporary_folder.h"
#include "everlong/store/memory_store.h"

#define ASSERT_OK(expression) ASSERT_TRUE(::everlong::store::IsOk(expression))
#define EXPECT_OK(expression) EXPECT_TRUE(::everlong::store::IsOk(expression))

namespace everlong::store {

inline testing::AssertionResult IsOk(const Status& status) {
  return status.ok() ? testing::AssertionSuccess() : testing::AssertionFailure() << status.ToString();
}

constexpr int32_t kLayers = 5;
constexpr int32_t kPageTokens = 16;

inline Manifest TestManifest() {
  Manifest manifest;
  manifest.fingerprint = {"weights-1", "rope-1", "tokenizer-1"};
  manifest.geometry = {kLayers, 2, 8, kPageTokens, "bf16"};
  manifest.attributes = {{"profile", "{\"heads\": []}"}};
  return manifest;
}

// Return what a store has in RAM of payload, and of its own files: all but its catalog.
inline int64_t PayloadInRam(const MemoryStore& store) {
  const StoreStats stats = store.Stats().value();
  return stats.host_bytes - stats.catalog_bytes;
}

// Odd on purpose: no part and no page ends at a round address.
inline int64_t TestPartBytes(int64_t tokens) { return 37 * tokens + 11; }

// How often a test tries at random: `usual` times, or as EVERLONG_STORE_<name> says for a campaign.
inline int CampaignSize(const std::string& name, int usual) {
  const char* value = std::getenv(("EVERLONG_STORE_" + name).c_str());
  return value == nullptr ? usual : std::stoi(value);
}

// The same numbers in every run, so that a failure can be had again.
inline std::mt19937_64 Repeatable(uint64_t seed) { return std::mt19937_64(seed); }

inline constexpr int64_t kTestTopic = kLargestBlockId + 1;

inline GraphNode BlockNode(int64_t block, std::vector<float> vector = {}) {
  GraphNode node;
  node.id = block;
  node.vector = std::move(vector);
  return node;
}

// A block of `tokens` that begins at token `begin`; equal arguments give equal bytes.
struct TestBlock {
  TestBlock(uint64_t seed, int64_t tokens, int64_t begin = 0) {
    std::mt19937_64 random(seed);
    span = {begin, begin + tokens};
    role = static_cast<Role>(seed % kRoles);
    for (int64_t i = 0; i < tokens; ++i) token_ids.push_back(static_cast<int32_t>(random() % 150'000));
    for (int64_t left = tokens; left > 0; left -= kPageTokens) {
      page_bytes.push_back(kLayers * TestPartBytes(std::min<int64_t>(left, kPageTokens)));
    }
    for (const int64_t bytes : page_bytes) {
      for (int64_t i = 0; i < bytes; ++i) payload.push_back(static_cast<std::byte>(random()));
    }
  }

  [[nodiscard]] BlockDraft Draft() const {
    BlockDraft draft;
    draft.stream = stream;
    draft.span = span;
    draft.sink_tokens = sink_tokens;
    draft.source = source;
    draft.created_at = created_at;
    draft.tags = tags;
    draft.token_ids = token_ids;
    draft.payload = payload;
    draft.page_bytes = page_bytes;
    draft.role = role;
    return draft;
  }
  // The bytes of parts [first, first + parts) of a page.
  [[nodiscard]] std::vector<std::byte> Parts(int32_t page, int32_t first, int32_t parts) const {
    int64_t at = 0;
    for (int32_t i = 0; i < page; ++i) at += page_bytes[static_cast<size_t>(i)];
    const int64_t part_bytes = page_bytes[static_cast<size_t>(page)] / kLayers;
    const auto begin = payload.begin() + at + first * part_bytes;
    return {begin, begin + parts * part_bytes};
  }
  [[nodiscard]] int32_t pages() const { return static_cast<int32_t>(page_bytes.size()); }

  // By name.
  [[nodiscard]] std::vector<TensorView> Tensors() const {
    return {{"detail", "BF16", {3, 7}, std::span(payload).first(42)},
            {"ids", "I32", {std::ssize(token_ids)}, std::as_bytes(std::span(token_ids))},
            {"none", "F8_E4M3", {4, 0}, {}}};
  }
  // With what a block has beside its kv: tensors, and a node of the graph that hangs on a topic.
  // `tensors` is where the views lie.
  [[nodiscard]] BlockDraft FullDraft(std::vector<TensorView>& tensors) const {
    BlockDraft draft = Draft();
    tensors = Tensors();
    draft.tensors = tensors;
    draft.graph.put_nodes = {
        {.id = kThisBlock, .vector = {static_cast<float>(token_ids[0]), 0.5F}, .linear_sum = {}, .created_at = 7},
        {.id = kTestTopic,
         .kind = NodeKind::kTopic,
         .level = 1,
         .vector = {},
         .count = 3,
         .linear_sum = {0.1, 0.2},
         .square_sum = 0.3}};
    draft.graph.put_edges = {{kThisBlock, kTestTopic, EdgeKind::kBelongsTo, 0.25, 8}};
    return draft;
  }

  TokenSpan span;
  std::vector<int32_t> token_ids;
  std::vector<std::byte> payload;
  std::vector<int64_t> page_bytes;
  int64_t stream = 3;
  int32_t sink_tokens = 2;
  Role role = Role::kRead;
  std::string source = "a book";
  double created_at = 1'700'000'000.25;
  std::vector<std::string> tags = {"first", "second"};
};

// Durable on return: what a writer does who waits for every block.
inline Result<int64_t> AppendTo(MemoryStore& store, const BlockDraft& draft) {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t id, store.Submit(draft));
  EVERLONG_RETURN_IF_ERROR(store.Flush());
  return id;
}

// Reads parts of a page into `out`, which it sizes.
inline Status ReadParts(const MemoryStore& store, const TestBlock& block, int64_t id, int32_t page, int32_t first,
                        int32_t parts, std::vector<std::byte>& out) {
  out.assign(static_cast<size_t>(block.page_bytes[static_cast<size_t>(page)] / kLayers * parts), std::byte{0});
  const PageRead read{id, page, first, parts, out};
  return store.ReadPages({&read, 1});
}

// Reads of every page of a block into `out`, which it sizes.
inline std::vector<PageRead> WholeReads(const TestBlock& block, int64_t id, std::vector<std::byte>& out) {
  out.assign(block.payload.size(), std::byte{0});
  std::vector<PageRead> reads;
  size_t at = 0;
  for (int32_t page = 0; page < block.pages(); ++page) {
    const auto bytes = static_cast<size_t>(block.page_bytes[static_cast<size_t>(page)]);
    reads.push_back({id, page, 0, kLayers, std::span(out).subspan(at, bytes)});
    at += bytes;
  }
  return reads;
}

// Every page of a block in one call.
inline Status ReadBlock(const MemoryStore& store, const TestBlock& block, int64_t id, std::vector<std::byte>& out) {
  return store.ReadPages(WholeReads(block, id, out));
}

// A check finds no damage.
inline void ExpectUndamaged(MemoryStore& store) {
  const Result<VerifyReport> report = store.Verify(false);
  ASSERT_OK(report.status());
  for (const Damage& damage : report->damage) ADD_FAILURE() << damage.what;
}

// The block is there with all that was appended.
inline void ExpectStored(const MemoryStore& store, const TestBlock& block, int64_t id) {
  const Result<BlockInfo> info = store.Block(id);
  ASSERT_OK(info.status());
  EXPECT_EQ(info->id, id);
  EXPECT_EQ(info->stream, block.stream);
  EXPECT_EQ(info->span, block.span);
  EXPECT_EQ(info->sink_tokens, block.sink_tokens);
  EXPECT_EQ(info->role, block.role);
  EXPECT_EQ(info->source, block.source);
  EXPECT_EQ(info->created_at, block.created_at);
  EXPECT_EQ(info->tags, block.tags);
  EXPECT_EQ(info->pages, block.pages());
  EXPECT_EQ(info->payload_bytes, static_cast<int64_t>(block.payload.size()));
  const Result<std::vector<int32_t>> ids = store.TokenIds(id);
  ASSERT_OK(ids.status());
  EXPECT_EQ(*ids, block.token_ids);
  std::vector<std::byte> bytes;
  ASSERT_OK(ReadBlock(store, block, id, bytes));
  EXPECT_TRUE(bytes == block.payload) << "payload of block " << id;
}

// Durable on return.
inline Result<int64_t> AppendAll(MemoryStore& store, const TestBlock& block) {
  std::vector<TensorView> tensors;
  return AppendTo(store, block.FullDraft(tensors));
}

// The block's tensors are those of FullDraft, and the graph has its node.
inline void ExpectExtras(const MemoryStore& store, const TestBlock& block, int64_t id) {
  const std::vector<TensorView> expected = block.Tensors();
  const Result<std::vector<TensorInfo>> infos = store.Tensors(id);
  ASSERT_OK(infos.status());
  ASSERT_EQ(infos->size(), expected.size()) << "tensors of block " << id;
  for (size_t i = 0; i < expected.size(); ++i) {
    const TensorView& tensor = expected[i];
    EXPECT_EQ((*infos)[i], (TensorInfo{tensor.name, tensor.dtype, tensor.shape, std::ssize(tensor.bytes)}));
    const Result<Tensor> read = store.ReadTensor(id, tensor.name);
    ASSERT_OK(read.status());
    EXPECT_EQ(read->dtype, tensor.dtype);
    EXPECT_EQ(read->shape, tensor.shape);
    EXPECT_TRUE(std::ranges::equal(read->bytes, tensor.bytes)) << "tensor " << tensor.name << " of block " << id;
  }
  std::vector<TensorView> tensors;
  GraphChange change = block.FullDraft(tensors).graph;
  change.put_nodes[0].id = id;
  const Result<GraphNode> node = store.Node(id);
  ASSERT_OK(node.status());
  EXPECT_EQ(*node, change.put_nodes[0]);
  EXPECT_EQ(store.Node(kTestTopic).value(), change.put_nodes[1]);
  change.put_edges[0].from = id;
  EXPECT_EQ(store.EdgesOf(id).value(), change.put_edges);
}

// A folder name of its own for every test, removed with all that is in it.
class StoreFolderTest : public testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<MemoryStore> Create(const StoreOptions& options = {}) const {
    auto store = MemoryStore::Create(folder_, TestManifest(), options);
    EXPECT_OK(store.status());
    return store.ok() ? std::move(store).value() : nullptr;
  }
  [[nodiscard]] std::unique_ptr<MemoryStore> Open(bool read_only = false, const StoreOptions& options = {}) const {
    auto store = MemoryStore::Open(folder_, read_only, options);
    EXPECT_OK(store.status());
    return store.ok() ? std::move(store).value() : nullptr;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path root_ = temporary_.path();
  // A name that a careless URI would cut at the question mark.
  const std::filesystem::path folder_ = root_ / "a memory?.everlong";
};

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void WriteFile(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Flips one bit in place.
inline void FlipBit(const std::filesystem::path& path, size_t bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(static_cast<char>(byte ^ (1 << (bit % 8))));
  ASSERT_TRUE(file.good());
}

}  // namespace everlong::store
