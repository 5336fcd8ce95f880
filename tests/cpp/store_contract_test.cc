// The contract of MemoryStore, the same for a memory in RAM and in a folder.
#include <algorithm>
#include <limits>
#include <optional>
#include <thread>

#include "everlong/base/parallel_for.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

enum class Place { kRam, kFolder };

class StoreContract : public StoreFolderTest, public testing::WithParamInterface<Place> {
 protected:
  void SetUp() override {
    auto made = MemoryStore::Create(
        GetParam() == Place::kRam ? std::nullopt : std::optional<std::filesystem::path>(folder_), TestManifest());
    ASSERT_OK(made.status());
    store_ = std::move(made).value();
  }

  int64_t Append(const TestBlock& block) {
    const Result<int64_t> id = AppendTo(*store_, block.Draft());
    EXPECT_OK(id.status());
    return id.ok() ? *id : -1;
  }

  std::unique_ptr<MemoryStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Places, StoreContract, testing::Values(Place::kRam, Place::kFolder),
                         [](const auto& place) { return place.param == Place::kRam ? "Ram" : "Folder"; });

TEST_P(StoreContract, EmptyMemory) {
  EXPECT_TRUE(store_->Blocks().value().empty());
  EXPECT_EQ(store_->Stats()->blocks, 0);
  EXPECT_FALSE(store_->read_only());
  EXPECT_EQ(store_->folder().has_value(), GetParam() == Place::kFolder);
  EXPECT_EQ(store_->manifest().geometry, TestManifest().geometry);
  EXPECT_EQ(store_->manifest().fingerprint, TestManifest().fingerprint);
  EXPECT_OK(store_->ReadPages({}));
}

TEST_P(StoreContract, KeepsWhatWasAppended) {
  TestBlock plain(1, 48);
  TestBlock short_last_page(2, 2 * kPageTokens + 3, 48);
  TestBlock one_token(3, 1, 83);
  one_token.sink_tokens = 1;
  TestBlock bare(4, 7);
  bare.source.clear();
  bare.tags.clear();
  bare.sink_tokens = 0;
  bare.stream = 0;
  bare.created_at = -0.0;  // SQLite gives it back as 0
  TestBlock unicode(5, 16);
  unicode.source = "Война и мир — 戰爭與和平 \U0001F4D6 '); DROP TABLE blocks; --";
  unicode.tags = {"", "тег", std::string("nul\0inside", 10)};
  const std::vector<TestBlock> blocks = {plain, short_last_page, one_token, bare, unicode};
  EXPECT_EQ(short_last_page.pages(), 3);
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(Append(blocks[i]), static_cast<int64_t>(i + 1));
  for (size_t i = 0; i < blocks.size(); ++i) ExpectStored(*store_, blocks[i], static_cast<int64_t>(i + 1));

  const std::vector<BlockInfo> infos = store_->Blocks().value();
  ASSERT_EQ(infos.size(), blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(infos[i].id, static_cast<int64_t>(i + 1));
    EXPECT_EQ(infos[i].source, blocks[i].source);
    EXPECT_EQ(infos[i].tags, blocks[i].tags);
    EXPECT_EQ(infos[i].span, blocks[i].span);
  }
  const StoreStats stats = store_->Stats().value();
  int64_t payload_bytes = 0;
  for (const TestBlock& block : blocks) payload_bytes += static_cast<int64_t>(block.payload.size());
  EXPECT_EQ(stats.blocks, 5);
  EXPECT_EQ(stats.pages, 3 + 3 + 1 + 1 + 1);
  EXPECT_EQ(stats.tokens, 48 + 35 + 1 + 7 + 16);
  EXPECT_EQ(stats.payload_bytes, payload_bytes);
  if (GetParam() == Place::kRam) {
    EXPECT_EQ(stats.disk_bytes, 0);
  } else {
    EXPECT_GT(stats.disk_bytes, payload_bytes);
  }
}

TEST_P(StoreContract, ReadsEveryRangeOfParts) {
  const TestBlock block(7, 2 * kPageTokens + 5);
  const int64_t id = Append(block);
  for (int32_t page = 0; page < block.pages(); ++page) {
    for (int32_t first = 0; first < kLayers; ++first) {
      for (int32_t parts = 1; first + parts <= kLayers; ++parts) {
        std::vector<std::byte> out;
        ASSERT_OK(ReadParts(*store_, block, id, page, first, parts, out));
        EXPECT_TRUE(out == block.Parts(page, first, parts)) << page << " " << first << " " << parts;
      }
    }
  }
}

TEST_P(StoreContract, ReadsManyPagesOfManyBlocksInOneCallOnSeveralThreads) {
  std::vector<TestBlock> blocks;
  for (uint64_t i = 0; i < 6; ++i) {
    blocks.emplace_back(100 + i, 40);
    Append(blocks.back());
  }
  std::vector<PageRead> reads;
  std::vector<std::vector<std::byte>> buffers;
  std::vector<std::vector<std::byte>> expected;
  for (const int64_t id : {4, 1, 6, 1, 2}) {  // unordered and repeated
    for (int32_t page = 2; page >= 0; --page) {
      const TestBlock& block = blocks[static_cast<size_t>(id - 1)];
      expected.push_back(block.Parts(page, 1, 3));
      buffers.emplace_back(expected.back().size());
      reads.push_back({id, page, 1, 3, {}});
    }
  }
  for (size_t i = 0; i < reads.size(); ++i) reads[i].out = buffers[i];
  SetParallelForHook([](int64_t begin, int64_t end, int64_t grain, const void* context, ParallelBody body) {
    std::vector<std::thread> threads;
    for (int64_t first = begin; first < end; first += grain) {
      threads.emplace_back(body, context, first, std::min(end, first + grain));
    }
    for (std::thread& thread : threads) thread.join();
  });
  const Status status = store_->ReadPages(reads);
  SetParallelForHook(nullptr);
  ASSERT_OK(status);
  for (size_t i = 0; i < reads.size(); ++i) EXPECT_TRUE(buffers[i] == expected[i]) << i;
}

TEST_P(StoreContract, ForgottenIsGoneAndIdsAreNeverReused) {
  std::vector<TestBlock> blocks;
  for (uint64_t i = 0; i < 4; ++i) {
    blocks.emplace_back(i, 20);
    Append(blocks.back());
  }
  const std::vector<int64_t> forgotten = {4, 2, 4};
  ASSERT_OK(store_->Forget(forgotten));
  for (const int64_t id : {2, 4}) {
    std::vector<std::byte> out;
    EXPECT_EQ(store_->Block(id).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(store_->TokenIds(id).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(ReadBlock(*store_, blocks[0], id, out).code(), StatusCode::kNotFound);
  }
  ASSERT_EQ(store_->Blocks()->size(), 2U);
  EXPECT_EQ(store_->Stats()->blocks, 2);
  EXPECT_EQ(store_->Stats()->tokens, 40);
  EXPECT_EQ(Append(blocks[0]), 5);
  ExpectStored(*store_, blocks[0], 1);
  ExpectStored(*store_, blocks[2], 3);
  ExpectStored(*store_, blocks[0], 5);
}

TEST_P(StoreContract, ForgetsAllOrNothing) {
  const TestBlock block(1, 20);
  Append(block);
  Append(block);
  EXPECT_EQ(store_->Forget(std::vector<int64_t>{1, 99}).code(), StatusCode::kNotFound);
  ExpectStored(*store_, block, 1);
  ASSERT_OK(store_->Forget(std::vector<int64_t>{2}));
  EXPECT_EQ(store_->Forget(std::vector<int64_t>{1, 2}).code(), StatusCode::kNotFound);
  ExpectStored(*store_, block, 1);
  EXPECT_OK(store_->Forget({}));
}

TEST_P(StoreContract, RefusesDraftsThatDoNotFit) {
  const TestBlock good(1, 40);
  const auto code = [&](const auto& spoil) {
    BlockDraft draft = good.Draft();
    spoil(draft);
    return AppendTo(*store_, draft).status().code();
  };
  const auto kBad = StatusCode::kInvalidArgument;
  EXPECT_EQ(code([&](BlockDraft& d) { d.payload = d.payload.first(d.payload.size() - 1); }), kBad);
  std::vector<std::byte> longer(good.payload);
  longer.emplace_back();
  EXPECT_EQ(code([&](BlockDraft& d) { d.payload = longer; }), kBad);
  EXPECT_EQ(code([](BlockDraft& d) { d.payload = {}; }), kBad);
  EXPECT_EQ(code([](BlockDraft& d) { d.page_bytes = {}; }), kBad);
  EXPECT_EQ(code([](BlockDraft& d) { d.page_bytes = d.page_bytes.first(2); }), kBad);
  std::vector<int64_t> uneven = good.page_bytes;  // sums up, but no page divides into layers
  uneven[0] += 1;
  uneven[1] -= 1;
  EXPECT_EQ(code([&](BlockDraft& d) { d.page_bytes = uneven; }), kBad);
  std::vector<int64_t> negative = good.page_bytes;
  negative[0] += negative[1] + kLayers;
  negative[1] = -kLayers;
  EXPECT_EQ(code([&](BlockDraft& d) { d.page_bytes = negative; }), kBad);
  EXPECT_EQ(code([](BlockDraft& d) { d.token_ids = d.token_ids.first(39); }), kBad);
  EXPECT_EQ(code([](BlockDraft& d) { d.span = {0, 0}; }), kBad);
  EXPECT_EQ(code([](BlockDraft& d) { d.span = {-40, 0}; }), kBad);
  EXPECT_EQ(code([](BlockDraft& d) { d.sink_tokens = -1; }), kBad);
  EXPECT_EQ(code([](BlockDraft& d) { d.sink_tokens = 41; }), kBad);
  EXPECT_EQ(code([](BlockDraft& d) { d.role = static_cast<Role>(kRoles); }), kBad);
  EXPECT_EQ(code([](BlockDraft& d) { d.created_at = std::numeric_limits<double>::quiet_NaN(); }), kBad);
  EXPECT_TRUE(store_->Blocks()->empty());
  EXPECT_EQ(Append(good), 1);  // no refused draft took an id
}

TEST_P(StoreContract, RefusesReadsThatDoNotFit) {
  const TestBlock block(1, 40);
  const int64_t id = Append(block);
  std::vector<std::byte> page(static_cast<size_t>(block.page_bytes[0]));
  const auto code = [&](int64_t block_id, int32_t number, int32_t first, int32_t parts, size_t bytes) {
    std::vector<std::byte> out(bytes);
    // The good read beside it must not make a bad one pass.
    const std::vector<PageRead> reads = {{id, 0, 0, kLayers, page}, {block_id, number, first, parts, out}};
    return store_->ReadPages(reads).code();
  };
  const auto part = static_cast<size_t>(block.page_bytes[0] / kLayers);
  EXPECT_EQ(code(id, 0, 0, 1, part), StatusCode::kOk);
  EXPECT_EQ(code(id + 1, 0, 0, 1, part), StatusCode::kNotFound);
  EXPECT_EQ(code(0, 0, 0, 1, part), StatusCode::kNotFound);
  EXPECT_EQ(code(id, 3, 0, 1, part), StatusCode::kNotFound);
  EXPECT_EQ(code(id, -1, 0, 1, part), StatusCode::kNotFound);
  EXPECT_EQ(code(id, 0, 0, 1, part - 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(id, 0, 0, 1, part + 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(id, 2, 0, 1, part), StatusCode::kInvalidArgument);  // the last page is shorter
  EXPECT_EQ(code(id, 0, kLayers, 1, part), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(id, 0, 1, kLayers, kLayers * part), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(id, 0, -1, 2, 2 * part), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(id, 0, 0, 0, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(id, 0, 1, std::numeric_limits<int32_t>::max(), part), StatusCode::kInvalidArgument);
}

TEST_P(StoreContract, Attributes) {
  EXPECT_OK(store_->SetAttribute("profile", "новый"));
  EXPECT_OK(store_->SetAttribute("../x", "keys are only texts"));
  const std::map<std::string, std::string> expected = {{"profile", "новый"}, {"../x", "keys are only texts"}};
  EXPECT_EQ(store_->manifest().attributes, expected);
}

TEST_P(StoreContract, RefusesManifestsThatNoMemoryCanHave) {
  const std::vector<void (*)(Manifest&)> spoilers = {
      [](Manifest& m) { m.geometry.layers = -1; },      [](Manifest& m) { m.geometry.page_tokens = -1; },
      [](Manifest& m) { m.geometry.kv_heads = 0; },     [](Manifest& m) { m.geometry.head_dim = 0; },
      [](Manifest& m) { m.geometry.codec.clear(); },    [](Manifest& m) { m.format_version = kFormatVersion + 1; },
      [](Manifest& m) { m.geometry.layers = 1 << 30; },
  };
  for (const auto& spoil : spoilers) {
    Manifest manifest = TestManifest();
    spoil(manifest);
    const auto where = GetParam() == Place::kRam ? std::nullopt : std::optional(root_ / "other");
    EXPECT_EQ(MemoryStore::Create(where, manifest).status().code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(std::filesystem::exists(root_ / "other"));
  }
}

}  // namespace
}  // namespace everlong::store
