// A memory as one file, and what a damaged one does; tensors beside the kv.
#include <cstring>
#include <optional>

#include "everlong/base/crc32c.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

std::vector<std::byte> RandomBytes(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class StoreExport : public StoreFolderTest {
 protected:
  void SetUp() override {
    store_ = Create();
    for (uint64_t i = 0; i < 4; ++i) {
      blocks_.emplace_back(i, 20 + 10 * static_cast<int64_t>(i));
      ASSERT_OK(AppendTo(*store_, blocks_.back().Draft()).status());
    }
    const TensorView tensors[] = {{"keys", "F32", {4, 6}, keys_}, {"codes", "F8_E4M3", {0}, {}}};
    ASSERT_OK(store_->PutTensors(2, tensors));
    BlockDraft bare = blocks_[0].Draft();  // no kv
    bare.payload = {};
    bare.page_bytes = {};
    ASSERT_EQ(AppendTo(*store_, bare).value(), 5);
    ASSERT_OK(AppendTo(*store_, blocks_[0].Draft()).status());
    GraphChange change;
    change.put_nodes = TheGraph().nodes;
    change.put_edges = TheGraph().edges;
    change.put_nodes.push_back(BlockNode(6));
    change.put_edges.push_back({.from = 6, .to = 1});
    ASSERT_OK(store_->ChangeGraph(change));
    ASSERT_OK(store_->Forget(std::vector<int64_t>{3, 6}));
    ASSERT_OK(store_->PutFile("frame", keys_));
  }

  // Without what the forgotten block had in it.
  static Graph TheGraph() {
    const int64_t topic = kLargestBlockId + 1;
    Graph graph;
    graph.nodes = {BlockNode(1, {1.5F, -0.0F}),
                   BlockNode(2, {0.5F, 3}),
                   {.id = topic,
                    .kind = NodeKind::kTopic,
                    .level = 1,
                    .vector = {},
                    .count = 2,
                    .linear_sum = {2.0, 3.0},
                    .square_sum = 11.5,
                    .created_at = 17.25,
                    .updated_at = 18}};
    graph.edges = {
        {1, 2, EdgeKind::kNext, 1, 17}, {1, topic, EdgeKind::kBelongsTo, 0.5, 17}, {2, 1, EdgeKind::kPrevious, 1, 17}};
    return graph;
  }

  void ExpectSame(MemoryStore& memory) {
    ASSERT_EQ(memory.Blocks()->size(), 4U);
    for (const int64_t id : {1, 2, 4}) ExpectStored(memory, blocks_[static_cast<size_t>(id - 1)], id);
    EXPECT_EQ(memory.Block(5)->pages, 0);
    EXPECT_EQ(memory.TokenIds(5).value(), blocks_[0].token_ids);
    const std::vector<TensorInfo> tensors = memory.Tensors(2).value();
    ASSERT_EQ(tensors.size(), 2U);
    EXPECT_EQ(tensors[0].name, "codes");
    EXPECT_EQ(tensors[1].name, "keys");
    EXPECT_EQ(tensors[1].dtype, "F32");
    EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{4, 6}));
    EXPECT_EQ(memory.ReadTensor(2, "keys")->bytes, keys_);
    EXPECT_TRUE(memory.ReadTensor(2, "codes")->bytes.empty());
    EXPECT_EQ(memory.ReadGraph().value(), TheGraph());
    EXPECT_EQ(memory.manifest().fingerprint, TestManifest().fingerprint);
    EXPECT_EQ(memory.File("frame").value(), keys_);
    EXPECT_TRUE(memory.Verify(false)->damage.empty());
    EXPECT_EQ(AppendTo(memory, blocks_[1].Draft()).value(), 7);  // 6 was given and forgotten
  }

  std::unique_ptr<MemoryStore> store_;
  std::vector<TestBlock> blocks_;
  std::vector<std::byte> keys_ = RandomBytes(1, 96);
};

TEST_F(StoreExport, ComesBackWhole) {
  const std::filesystem::path file = root_ / "all.everlong-export";
  ASSERT_OK(store_->Export(file));
  EXPECT_EQ(store_->Export(file).code(), StatusCode::kAlreadyExists);
  {
    auto folder = MemoryStore::Import(file, root_ / "copy");
    ASSERT_OK(folder.status());
    ExpectSame(**folder);
  }
  auto again = MemoryStore::Open(root_ / "copy", false);
  ASSERT_OK(again.status());
  EXPECT_EQ((*again)->Blocks()->size(), 5U);
  auto ram = MemoryStore::Import(file, std::nullopt);
  ASSERT_OK(ram.status());
  ExpectSame(**ram);
  EXPECT_EQ(MemoryStore::Import(file, folder_).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(MemoryStore::Import(root_ / "none", root_ / "x").status().code(), StatusCode::kNotFound);
  ASSERT_OK((*ram)->Export(root_ / "ram-export"));
  ASSERT_OK(MemoryStore::Import(root_ / "ram-export", std::nullopt).status());
}

TEST_F(StoreExport, ADamagedFileIsRefusedAndNothingIsMade) {
  const std::filesystem::path file = root_ / "export";
  ASSERT_OK(store_->Export(file));
  const std::string good = ReadFile(file);
  std::mt19937_64 random = Repeatable(1);
  for (int i = 0; i < CampaignSize("FLIPS", 200); ++i) {
    const size_t bit = random() % (8 * good.size());
    FlipBit(file, bit);
    const StatusCode code = MemoryStore::Import(file, root_ / "copy").status().code();
    if (bit / 8 >= 12 && bit / 8 < 16) {
      EXPECT_EQ(code, StatusCode::kOk);  // four bytes that mean nothing yet
      std::filesystem::remove_all(root_ / "copy");
    } else {
      EXPECT_TRUE(code == StatusCode::kCorrupt || code == StatusCode::kNewerFormat)
          << bit << " " << static_cast<int>(code);
    }
    EXPECT_FALSE(std::filesystem::exists(root_ / "copy")) << bit;
    FlipBit(file, bit);
  }
  for (int i = 0; i < CampaignSize("TRUNCATIONS", 60); ++i) {
    WriteFile(file, good.substr(0, random() % good.size()));
    EXPECT_EQ(MemoryStore::Import(file, root_ / "copy").status().code(), StatusCode::kCorrupt);
    EXPECT_FALSE(std::filesystem::exists(root_ / "copy"));
  }
  WriteFile(file, good + "x");
  EXPECT_EQ(MemoryStore::Import(file, std::nullopt).status().code(), StatusCode::kCorrupt);
}

// The file with another number at byte `at` of the body of its last chunk of a type, and the checksum that this has.
std::string WithNumber(std::string file, uint32_t type, size_t at, int64_t number) {
  constexpr size_t kHeader = 16;
  size_t last = 0;
  uint64_t length = 0;
  for (size_t chunk = 16; chunk + kHeader <= file.size(); chunk += kHeader + length) {
    uint32_t found = 0;
    std::memcpy(&found, file.data() + chunk, sizeof found);
    std::memcpy(&length, file.data() + chunk + 8, sizeof length);
    if (found == type) last = chunk;
  }
  std::memcpy(&length, file.data() + last + 8, sizeof length);
  std::memcpy(file.data() + last + kHeader + at, &number, sizeof number);
  const auto bytes = std::as_bytes(std::span(file));
  uint32_t crc = Crc32c(bytes.subspan(last, 4));
  crc = Crc32c(bytes.subspan(last + 8, 8 + length), crc);
  std::memcpy(file.data() + last + 4, &crc, sizeof crc);
  return file;
}

TEST_F(StoreExport, IdsThatNoBlockMayHaveAreRefused) {
  constexpr uint32_t kBlock = 2;
  constexpr uint32_t kEnd = 5;
  const std::filesystem::path file = root_ / "export";
  ASSERT_OK(store_->Export(file));
  const std::string good = ReadFile(file);
  for (const std::string& bad :
       {WithNumber(good, kEnd, 0, INT64_MAX), WithNumber(good, kEnd, 0, INT64_MIN),
        WithNumber(good, kEnd, 0, kLargestBlockId + 2),
        WithNumber(WithNumber(good, kEnd, 0, kLargestBlockId + 2), kBlock, 0, kLargestBlockId + 1)}) {
    WriteFile(file, bad);
    EXPECT_EQ(MemoryStore::Import(file, root_ / "copy").status().code(), StatusCode::kCorrupt);
    EXPECT_FALSE(std::filesystem::exists(root_ / "copy"));
  }
  WriteFile(file, WithNumber(good, kEnd, 0, kLargestBlockId));
  auto copy = MemoryStore::Import(file, root_ / "copy");
  ASSERT_OK(copy.status());
  EXPECT_EQ(AppendTo(**copy, blocks_[0].Draft()).value(), kLargestBlockId);
  copy->reset();
  copy = MemoryStore::Open(root_ / "copy", false);
  ASSERT_OK(copy.status());
  EXPECT_EQ((*copy)->Submit(blocks_[0].Draft()).status().code(), StatusCode::kCapacity);
  ExpectStored(**copy, blocks_[0], kLargestBlockId);
}

// Into a folder of a person's own: what is his stays.
TEST_F(StoreExport, AFailedImportTakesAwayOnlyWhatItMade) {
  const std::filesystem::path file = root_ / "export";
  const std::filesystem::path home = root_ / "home";
  ASSERT_OK(store_->Export(file));
  const std::string good = ReadFile(file);
  std::filesystem::create_directories(home / "files");
  WriteFile(home / "notes.txt", "mine");
  WriteFile(home / "files" / "letter.txt", "dear");
  WriteFile(file, good.substr(0, good.size() - 1));
  EXPECT_EQ(MemoryStore::Import(file, home).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(home / "files" / "letter.txt"), "dear");

  std::filesystem::rename(home / "files", home / "letters");
  EXPECT_EQ(MemoryStore::Import(file, home).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(ReadFile(home / "notes.txt"), "mine");
  EXPECT_EQ(ReadFile(home / "letters" / "letter.txt"), "dear");
  for (const char* name : {"files", "segments", "catalog.sqlite", "catalog.sqlite-wal", "manifest.json"}) {
    EXPECT_FALSE(std::filesystem::exists(home / name)) << name;
  }
  WriteFile(file, good);
  const auto imported = MemoryStore::Import(file, home);
  ASSERT_OK(imported.status());
  ExpectSame(**imported);
}

TEST_F(StoreExport, TensorsAreReplacedAndTheirOldBytesGo) {
  const std::vector<std::byte> first = RandomBytes(2, 100);
  const std::vector<std::byte> second = RandomBytes(3, 100);
  const TensorView old{"x", "U8", {100}, first};
  const TensorView now{"x", "I32", {5, 5}, second};
  ASSERT_OK(store_->PutTensors(1, {&old, 1}));
  EXPECT_EQ(store_->ReadTensor(1, "x")->bytes, first);
  ASSERT_OK(store_->PutTensors(1, {&now, 1}));
  EXPECT_EQ(store_->ReadTensor(1, "x")->bytes, second);
  EXPECT_EQ(store_->ReadTensor(1, "y").status().code(), StatusCode::kNotFound);
  const auto on_disk = [&](const std::vector<std::byte>& bytes) {
    const std::string segment = ReadFile(folder_ / "segments" / "000001.kvseg");
    return segment.find({reinterpret_cast<const char*>(bytes.data()), bytes.size()}) != std::string::npos;
  };
  EXPECT_TRUE(on_disk(first));
  ASSERT_OK(store_->Compact().status());
  EXPECT_FALSE(on_disk(first));
  EXPECT_TRUE(on_disk(second));
  store_.reset();
  EXPECT_EQ(Open(true)->Tensors(1).value()[0].shape, (std::vector<int64_t>{5, 5}));
}

TEST_F(StoreExport, RefusesTensorsThatAreNone) {
  const auto code = [&](const TensorView& tensor) { return store_->PutTensors(1, {&tensor, 1}).code(); };
  const std::vector<std::byte> bytes(8);
  EXPECT_EQ(code({"x", "F32", {2}, bytes}), StatusCode::kOk);
  EXPECT_EQ(code({"x", "F32", {3}, bytes}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"x", "F32", {-2}, bytes}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"x", "pickle", {8}, bytes}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"x", "F64", {INT64_MAX, INT64_MAX}, bytes}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"__metadata__", "U8", {8}, bytes}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"\xC3\x28", "U8", {8}, bytes}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"", "U8", {8}, bytes}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({std::string(kMaxTensorName, 'x'), "U8", {8}, bytes}), StatusCode::kOk);
  EXPECT_EQ(code({std::string(kMaxTensorName + 1, 'x'), "U8", {8}, bytes}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"x", "U8", std::vector<int64_t>(kMaxTensorDimensions + 1, 1), std::span(bytes).first(1)}),
            StatusCode::kInvalidArgument);
  const std::vector<std::byte> many(kMaxBlockTensorBytes + 1);
  EXPECT_EQ(code({"x", "U8", {kMaxBlockTensorBytes + 1}, many}), StatusCode::kInvalidArgument);
  std::vector<TensorView> crowd;
  for (int64_t i = 0; i <= kMaxBlockTensors; ++i) crowd.push_back({"t" + std::to_string(i), "U8", {0}, {}});
  EXPECT_EQ(store_->PutTensors(1, crowd).code(), StatusCode::kInvalidArgument);
  crowd.pop_back();  // with those that are there already there are too many still
  EXPECT_EQ(store_->PutTensors(1, crowd).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->PutTensors(2, std::span(crowd).first(9)).code(), StatusCode::kOk);
  const TensorView twice[] = {{"x", "U8", {8}, bytes}, {"x", "U8", {8}, bytes}};
  EXPECT_EQ(store_->PutTensors(1, twice).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->PutTensors(3, {}).code(), StatusCode::kNotFound);  // forgotten
  BlockDraft draft = blocks_[0].Draft();
  draft.tensors = twice;
  EXPECT_EQ(store_->Submit(draft).status().code(), StatusCode::kInvalidArgument);
}

TEST(StoreTensor, AnyBytesAreTensorsOrRefused) {
  const std::vector<std::byte> data = RandomBytes(4, 24);
  const TensorView tensors[] = {{"a", "I16", {2, 2}, std::span(data).first(8)},
                                {"b", "U8", {16}, std::span(data).last(16)}};
  const std::vector<std::byte> good = EncodeTensors(tensors).value();
  ASSERT_EQ(DecodeTensors(good)->size(), 2U);
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(DecodeTensors(std::span(good).first(length)).ok()) << length;
  }
}

TEST(StoreTensor, AHeaderSaysWhatItSaysOfEachTensorInItsType) {
  const auto names = [](const std::string& header) -> std::optional<std::vector<std::string>> {
    std::string bytes(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, sizeof(length));
    bytes += header + "1234";
    const Result<std::vector<Tensor>> tensors = DecodeTensors(std::as_bytes(std::span(bytes)));
    if (!tensors.ok()) {
      EXPECT_EQ(tensors.status().code(), StatusCode::kCorrupt);
      return std::nullopt;
    }
    std::vector<std::string> found;
    for (const Tensor& tensor : *tensors) found.push_back(tensor.name);
    return found;
  };
  const std::string good = R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("{}"), Names());
  EXPECT_EQ(names(R"({"b":)" + good + R"(,"a":{"data_offsets":[2,4],"shape":[1,2],"dtype":"U8"}})"), Names({"a", "b"}));
  EXPECT_EQ(names(R"({"__metadata__":{"deep":[[[{"a":[]}]]]},"a":)" + good + "}"), Names({"a"}));
  EXPECT_EQ(names(R"({"a":{"more":[{"dtype":5,"shape":[[1]]}],"dtype":"U8","shape":[2],"data_offsets":[0,2]}})"),
            Names({"a"}));
  EXPECT_EQ(names(R"({"a":1,"a":)" + good + "}"), Names({"a"}));  // the last of a name counts, and of a field
  EXPECT_EQ(names(R"({"a":)" + good + R"(,"a":1})"), std::nullopt);
  EXPECT_EQ(names(R"({"a":{"shape":["x"],"dtype":"U8","shape":[2],"data_offsets":[0,2]}})"), Names({"a"}));
  for (const char* member :
       {"null", "[]", R"(["dtype","U8"])", "{}", R"({"dtype":"U8","shape":[2]})",
        R"({"dtype":"U8","data_offsets":[0,2]})", R"({"dtype":["U8"],"shape":[2],"data_offsets":[0,2]})",
        R"({"dtype":"U8","shape":2,"data_offsets":[0,2]})", R"({"dtype":"U8","shape":{"n":2},"data_offsets":[0,2]})",
        R"({"dtype":"U8","shape":[[2]],"data_offsets":[0,2]})", R"({"dtype":"U8","shape":[2.0],"data_offsets":[0,2]})",
        R"({"dtype":"U8","shape":[-2],"data_offsets":[0,2]})", R"({"dtype":"U8","shape":[2,1.5],"data_offsets":[0,2]})",
        R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,2]})",
        R"({"dtype":"U8","shape":[2],"data_offsets":[0,2,2]})", R"({"dtype":"U8","shape":[2],"data_offsets":[2,0]})",
        R"({"dtype":"U8","shape":[2],"data_offsets":[3,5]})",
        R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})"}) {
    EXPECT_EQ(names(R"({"a":)" + std::string(member) + "}"), std::nullopt) << member;
  }
  for (const std::string& header : {std::string(), "[" + good + "]", std::string("1"), "{\"a\":" + good,
                                    "{\"a\":" + good + "}]", "{\"\xC3(\":" + good + "}"}) {
    EXPECT_EQ(names(header), std::nullopt) << header;
  }
  // Two tensors that share their bytes.
  EXPECT_EQ(names(R"({"a":)" + good + R"(,"b":)" + good + R"(,"c":)" + good + "}"), std::nullopt);
}

}  // namespace
}  // namespace everlong::store
