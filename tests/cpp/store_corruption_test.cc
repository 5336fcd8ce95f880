// Damage to every file of a memory: an error that names the file, or the right bytes. Never wrong bytes, never a crash.
#include "store_fixture.h"
#include "store_sql.h"

namespace everlong::store {
namespace {

const int kFlips = CampaignSize("FLIPS", 400);
const int kTruncations = CampaignSize("TRUNCATIONS", 60);
constexpr StoreOptions kFromDisk{.host_bytes = 0};  // nothing is answered out of RAM

class StoreCorruption : public StoreFolderTest {
 protected:
  void SetUp() override {
    const auto store = Create();
    for (uint64_t i = 0; i < 6; ++i) {
      blocks_.emplace_back(i, 20 + 10 * static_cast<int64_t>(i));
      ASSERT_OK(AppendAll(*store, blocks_.back()).status());
    }
    ASSERT_OK(store->Forget(std::vector<int64_t>{kForgotten}));
    graph_ = store->ReadGraph().value();
    ASSERT_EQ(graph_.nodes.size(), 6U);
    ASSERT_EQ(graph_.edges.size(), 5U);
  }

  static constexpr int64_t kForgotten = 4;

  [[nodiscard]] std::filesystem::path segment() const { return folder_ / "segments" / "000001.kvseg"; }
  [[nodiscard]] std::filesystem::path catalog() const { return folder_ / "catalog.sqlite"; }

  // How many live blocks come back whole. What does not come back must say kCorrupt and name `file`.
  int ReadWhatIsWhole(const MemoryStore& store, const std::filesystem::path& file) {
    int whole = 0;
    for (int64_t id = 1; id <= static_cast<int64_t>(blocks_.size()); ++id) {
      const TestBlock& block = blocks_[static_cast<size_t>(id - 1)];
      std::vector<std::byte> bytes;
      const Status status = ReadBlock(store, block, id, bytes);
      if (id == kForgotten) {
        EXPECT_FALSE(status.ok());
      } else if (status.ok()) {
        EXPECT_TRUE(bytes == block.payload) << "wrong bytes in block " << id;
        ++whole;
      } else {
        ExpectCorrupt(status, file);
      }
    }
    return whole;
  }

  // The whole catalog, as written or as an error that names it.
  void ReadCatalog(const MemoryStore& store) {
    const Result<std::vector<BlockInfo>> infos = store.Blocks();
    if (infos.ok()) {
      EXPECT_EQ(infos->size(), blocks_.size() - 1);
      for (const BlockInfo& info : *infos) {
        ASSERT_TRUE(info.id >= 1 && info.id <= static_cast<int64_t>(blocks_.size()) && info.id != kForgotten);
        const TestBlock& block = blocks_[static_cast<size_t>(info.id - 1)];
        EXPECT_EQ(info.span, block.span);
        EXPECT_EQ(info.source, block.source);
        EXPECT_EQ(info.tags, block.tags);
        EXPECT_EQ(info.created_at, block.created_at);
      }
    } else {
      ExpectCorrupt(infos.status(), catalog());
    }
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const auto id = static_cast<int64_t>(i + 1);
      const Result<std::vector<int32_t>> ids = store.TokenIds(id);
      if (ids.ok()) {
        EXPECT_NE(id, kForgotten);
        EXPECT_EQ(*ids, blocks_[i].token_ids);
      } else if (id != kForgotten) {
        ExpectCorrupt(ids.status(), catalog());
      }
    }
  }

  // Tensors and graph, as written or as an error that names the file that they lie in.
  void ReadExtras(const MemoryStore& store) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const auto id = static_cast<int64_t>(i + 1);
      if (id == kForgotten) continue;
      const std::vector<TensorView> expected = blocks_[i].Tensors();
      const Result<std::vector<TensorInfo>> infos = store.Tensors(id);
      if (infos.ok()) {
        EXPECT_EQ(infos->size(), expected.size());
      } else {
        ExpectCorrupt(infos.status(), catalog());
      }
      for (const TensorView& tensor : expected) {
        const Result<Tensor> read = store.ReadTensor(id, tensor.name);
        if (read.ok()) {
          EXPECT_EQ(read->shape, tensor.shape);
          EXPECT_TRUE(std::ranges::equal(read->bytes, tensor.bytes)) << "wrong bytes in a tensor of block " << id;
        } else {
          EXPECT_EQ(read.status().code(), StatusCode::kCorrupt) << read.status().ToString();
        }
      }
    }
    const Result<Graph> graph = store.ReadGraph();
    if (graph.ok()) {
      EXPECT_EQ(*graph, graph_);
    } else {
      ExpectCorrupt(graph.status(), catalog());
    }
  }

  static void ExpectCorrupt(const Status& status, const std::filesystem::path& file) {
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.ToString();
    EXPECT_NE(status.message().find(file.string()), std::string::npos) << status.ToString();
  }

  std::vector<TestBlock> blocks_;
  Graph graph_;
};

TEST_F(StoreCorruption, FlippedBitsOfASegment) {
  const size_t bits = 8 * std::filesystem::file_size(segment());
  std::mt19937_64 random = Repeatable(1);
  const auto store = Open(true, kFromDisk);
  int hit = 0;
  for (int i = 0; i < kFlips; ++i) {
    const size_t bit = random() % bits;
    FlipBit(segment(), bit);
    const int whole = ReadWhatIsWhole(*store, segment());
    ReadExtras(*store);
    EXPECT_GE(whole, 4) << "one bit touches one block";
    hit += whole == 4 ? 1 : 0;
    FlipBit(segment(), bit);
  }
  EXPECT_GT(hit, kFlips / 10);  // headers, padding and the forgotten block are not read
  EXPECT_EQ(ReadWhatIsWhole(*store, segment()), 5);
}

TEST_F(StoreCorruption, AFlippedBitNamesBlockPageAndPart) {
  const std::vector<std::byte> part = blocks_[5].Parts(1, 2, 1);
  const std::string bytes = ReadFile(segment());
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(part.data()), part.size()));
  ASSERT_NE(at, std::string::npos);
  FlipBit(segment(), 8 * at + 5);
  const auto store = Open(true);
  std::vector<std::byte> out;
  const Status status = ReadBlock(*store, blocks_[5], 6, out);
  ExpectCorrupt(status, segment());
  EXPECT_NE(status.message().find("block 6 page 1 part 2"), std::string::npos) << status.message();
  // The other parts of the page are readable, each alone.
  for (int32_t other = 0; other < kLayers; ++other) {
    const Status alone = ReadParts(*store, blocks_[5], 6, 1, other, 1, out);
    EXPECT_EQ(alone.ok(), other != 2);
    EXPECT_TRUE(other == 2 || out == blocks_[5].Parts(1, other, 1));
  }
}

TEST_F(StoreCorruption, TruncatedSegment) {
  const std::string good = ReadFile(segment());
  // The last record of kv ends with padding that no read needs, and has one of tensors behind it.
  const size_t tensors = size_t{2} * 4096;
  const size_t needed = good.size() - tensors - 4096 + static_cast<size_t>(blocks_.back().page_bytes.back());
  std::mt19937_64 random = Repeatable(2);
  for (int i = 0; i < kTruncations; ++i) {
    const size_t length = random() % good.size();
    WriteFile(segment(), good.substr(0, length));
    EXPECT_EQ(ReadWhatIsWhole(*Open(true), segment()) == 5, length >= needed) << length;
    // A writer opens it too, and what it appends is readable.
    const auto writer = Open();
    const Result<int64_t> id = AppendTo(*writer, blocks_[0].Draft());
    ASSERT_OK(id.status());
    ExpectStored(*writer, blocks_[0], *id);
    ReadWhatIsWhole(*writer, segment());
  }
}

TEST_F(StoreCorruption, MissingSegment) {
  {
    const auto store = Open(false, {.segment_bytes = 1});
    ASSERT_EQ(AppendTo(*store, blocks_[0].Draft()).value(), 7);
    ASSERT_EQ(AppendTo(*store, blocks_[1].Draft()).value(), 8);
  }
  std::filesystem::remove(segment());
  std::filesystem::remove(folder_ / "segments" / "000003.kvseg");
  const auto store = Open();
  EXPECT_EQ(ReadWhatIsWhole(*store, segment()), 0);
  ExpectStored(*store, blocks_[0], 7);
  ASSERT_EQ(AppendTo(*store, blocks_[2].Draft()).value(), 9);
  ExpectStored(*store, blocks_[2], 9);
  // The lost file's number was not given away: what lay in it is missing, not something else.
  EXPECT_FALSE(std::filesystem::exists(folder_ / "segments" / "000003.kvseg"));
  std::vector<std::byte> out;
  ExpectCorrupt(ReadBlock(*store, blocks_[1], 8, out), folder_ / "segments" / "000003.kvseg");
}

TEST_F(StoreCorruption, FlippedBitsOfTheCatalog) {
  const size_t bits = 8 * std::filesystem::file_size(catalog());
  std::mt19937_64 random = Repeatable(3);
  int refused = 0;
  for (int i = 0; i < kFlips; ++i) {
    const size_t bit = random() % bits;
    FlipBit(catalog(), bit);
    const auto store = MemoryStore::Open(folder_, true);
    if (store.ok()) {
      ReadCatalog(**store);
      ReadExtras(**store);
      ReadWhatIsWhole(**store, catalog());
    } else {
      ++refused;
      // A bit of the version may make it look newer: refused as well.
      if (store.status().code() != StatusCode::kNewerFormat) ExpectCorrupt(store.status(), catalog());
    }
    FlipBit(catalog(), bit);
  }
  EXPECT_GT(refused, 0);
  ReadCatalog(*Open(true));
  ReadExtras(*Open(true));
  for (const int64_t id : {1, 2, 3, 5, 6}) ExpectExtras(*Open(true), blocks_[static_cast<size_t>(id - 1)], id);
  EXPECT_EQ(ReadWhatIsWhole(*Open(true), segment()), 5);
}

// What structure alone does not show: rows that are well-formed and wrong.
class StoreTampering : public StoreCorruption {
 protected:
  void SetUp() override {
    StoreCorruption::SetUp();
    good_ = ReadFile(catalog());
  }

  // Opens the memory whose catalog this one change was made to.
  Result<std::unique_ptr<MemoryStore>> OpenAfter(const char* sql) {
    for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(catalog().string() + suffix);
    WriteFile(catalog(), good_);
    EXPECT_EQ(PlainSql(catalog()).Run(sql), 1) << sql;
    return MemoryStore::Open(folder_, true);
  }
  // The same, of a change that a check finds and a repair mends. `store` is repaired then.
  VerifyReport Repair(std::unique_ptr<MemoryStore>& store) {
    EXPECT_FALSE(store->Verify(false)->damage.empty());
    store = Open();
    const Result<VerifyReport> repair = store->Verify(true);
    EXPECT_OK(repair.status());
    ExpectUndamaged(*store);
    return *repair;
  }

  std::string good_;
};

TEST_F(StoreTampering, AnOtherMemorysNumbers) {
  // Ids that were given would be given again.
  ExpectCorrupt(OpenAfter("UPDATE sqlite_sequence SET seq = 5 WHERE name = 'blocks'").status(), catalog());
  ExpectCorrupt(
      OpenAfter("PRAGMA application_id = 1; UPDATE sqlite_sequence SET seq = 6 WHERE name = 'blocks'").status(),
      catalog());
  ExpectCorrupt(OpenAfter("UPDATE sqlite_sequence SET seq = 9223372036854775807 WHERE name = 'blocks'").status(),
                catalog());
  EXPECT_EQ(
      OpenAfter("PRAGMA user_version = 3; UPDATE sqlite_sequence SET seq = 6 WHERE name = 'blocks'").status().code(),
      StatusCode::kNewerFormat);
}

TEST_F(StoreTampering, Blocks) {
  for (const char* sql :
       {"UPDATE blocks SET state = 0 WHERE id = 4", "UPDATE blocks SET state = 1 WHERE id = 1",
        "UPDATE blocks SET source = 'another' WHERE id = 1", "DELETE FROM tags WHERE block = 1 AND tag = 'second'",
        "UPDATE blocks SET span_begin = span_begin + 1 WHERE id = 1"}) {
    const auto store = OpenAfter(sql);
    ASSERT_OK(store.status());
    ExpectCorrupt((*store)->Blocks().status(), catalog());
    EXPECT_GE(ReadWhatIsWhole(**store, catalog()), 4) << sql;
  }
}

TEST_F(StoreTampering, Pages) {
  std::vector<std::byte> out;
  for (const char* sql : {"DELETE FROM pages WHERE block = 1 AND page = 1",
                          "UPDATE pages SET record_offset = 0 WHERE block = 1 AND page = 1",
                          "UPDATE pages SET part_crcs = x'00' WHERE block = 1 AND page = 1",
                          "UPDATE pages SET part_crcs = x'' WHERE block = 1 AND page = 1",
                          "UPDATE pages SET part_bytes = -1 WHERE block = 1 AND page = 1"}) {
    const auto store = OpenAfter(sql);
    ASSERT_OK(store.status());
    ExpectCorrupt(ReadBlock(**store, blocks_[0], 1, out), catalog());
    EXPECT_EQ(ReadWhatIsWhole(**store, catalog()), 4) << sql;
  }
}

TEST_F(StoreTampering, Tensors) {
  for (const char* sql :
       {"DELETE FROM tensors WHERE block = 1 AND name = 'none'", "DELETE FROM pages WHERE block = 1 AND kind = 5",
        "UPDATE tensors SET data_offset = data_offset + 1 WHERE block = 1 AND name = 'ids'",
        "UPDATE tensors SET data_bytes = -1 WHERE block = 1 AND name = 'ids'",
        "UPDATE tensors SET shape = x'01' WHERE block = 1 AND name = 'ids'",
        "UPDATE tensors SET block = 7 WHERE block = 1 AND name = 'ids'",
        "UPDATE pages SET record_offset = 0 WHERE block = 1 AND kind = 5"}) {
    SCOPED_TRACE(sql);
    auto store = OpenAfter(sql);
    ASSERT_OK(store.status());
    ExpectCorrupt((*store)->ReadTensor(1, "ids").status(), catalog());
    EXPECT_EQ(ReadWhatIsWhole(**store, catalog()), 5);
    Repair(*store);
    EXPECT_TRUE((*store)->Tensors(1)->empty());
    ExpectExtras(**store, blocks_[1], 2);
  }
}

TEST_F(StoreTampering, TheGraph) {
  for (const char* sql : {"UPDATE nodes SET count = 4 WHERE id = 34359738368",
                          "UPDATE nodes SET vector = x'00' WHERE id = 1", "UPDATE nodes SET id = 9 WHERE id = 1",
                          "INSERT INTO nodes SELECT 4, kind, level, count, square_sum, created_at, updated_at, crc, "
                          "vector, linear_sum FROM nodes WHERE id = 1",
                          "DELETE FROM nodes WHERE id = 2", "UPDATE edges SET weight = 2 WHERE source = 1",
                          "UPDATE edges SET target = 2 WHERE source = 1"}) {
    SCOPED_TRACE(sql);
    auto store = OpenAfter(sql);
    ASSERT_OK(store.status());
    ExpectCorrupt((*store)->ReadGraph().status(), catalog());
    EXPECT_TRUE(Repair(*store).dropped.empty());  // blocks are none the worse
    EXPECT_OK((*store)->ReadGraph().status());
    EXPECT_EQ(ReadWhatIsWhole(**store, catalog()), 5);
  }
}

TEST_F(StoreCorruption, TruncatedCatalog) {
  const std::string good = ReadFile(catalog());
  std::mt19937_64 random = Repeatable(4);
  for (int i = 0; i < kTruncations; ++i) {
    WriteFile(catalog(), good.substr(0, random() % good.size()));
    for (const bool read_only : {true, false}) {
      ExpectCorrupt(MemoryStore::Open(folder_, read_only).status(), catalog());
    }
  }
  std::filesystem::remove(catalog());
  ExpectCorrupt(MemoryStore::Open(folder_, true).status(), catalog());
  ExpectCorrupt(MemoryStore::Open(folder_, false).status(), catalog());
  WriteFile(catalog(), good);
  EXPECT_EQ(ReadWhatIsWhole(*Open(), segment()), 5);
}

TEST_F(StoreCorruption, AForeignCatalog) {
  for (const std::string& text :
       {std::string("not a database, but long enough for a header of one hundred bytes ") + std::string(100, '.'),
        std::string()}) {
    WriteFile(catalog(), text);
    ExpectCorrupt(MemoryStore::Open(folder_, true).status(), catalog());
    ExpectCorrupt(MemoryStore::Open(folder_, false).status(), catalog());
  }
}

TEST_F(StoreCorruption, SegmentsOfAnotherMemory) {
  const std::filesystem::path other = root_ / "other.everlong";
  {
    const auto store = MemoryStore::Create(other, TestManifest());
    ASSERT_OK(store.status());
    for (uint64_t i = 0; i < 6; ++i) {
      ASSERT_OK(AppendTo(**store, TestBlock(50 + i, 20 + 10 * static_cast<int64_t>(i)).Draft()).status());
    }
  }
  std::filesystem::copy_file(other / "segments" / "000001.kvseg", segment(),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(ReadWhatIsWhole(*Open(), segment()), 0);
}

}  // namespace
}  // namespace everlong::store
