// The part "meaning" in a memory: its vectors are tensors of blocks, which come with them or later.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "index_hip_host.h"
#include "os_meaning_case.h"

namespace everlong::os {
namespace {

TEST(OsMeaningTest, APartWithoutSuchVectorsIsRefused) {
  const auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  EXPECT_EQ(memory->index().SetMeaning(kOptions, IndexPart::kLexical).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(memory->index().meaning(IndexPart::kLexical).has_value());
  ASSERT_TRUE(memory->index().SetMeaning(kOptions, IndexPart::kEncoder).ok());
  EXPECT_EQ(memory->index().meaning(IndexPart::kEncoder), kOptions);
  EXPECT_FALSE(memory->index().meaning().has_value());
}

TEST(OsMeaningTest, FindsByTheTensorsOfBlocks) {
  Library library = RandomLibrary(81, 40);
  const auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  EXPECT_TRUE(memory->index().BlocksWithout(IndexPart::kMeaning).empty());
  // Some come before the part is there.
  for (const Block& block : library.blocks) {
    if (block.id == 21) {
      EXPECT_EQ(Ask(*memory, std::vector<float>(kWidth, 1)).status().code(), StatusCode::kInvalidArgument);
      ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
      EXPECT_EQ(memory->index().meaning(), kOptions);
    }
    AppendTo(*memory, block, &library.vectors[block.id]);
  }
  ExpectFound(*memory, library);
  std::vector<float> bad(kWidth, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(Ask(*memory, bad).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(*memory, std::vector<float>(kWidth + 1, 1)).status().code(), StatusCode::kInvalidArgument);
  // Forgotten ones, then so many that the index is made anew.
  const std::vector<int64_t> gone{1, 2, 17, 40};
  ASSERT_TRUE(memory->blocks().Forget(gone).ok());
  Drop(library, gone);
  ExpectFound(*memory, library);
  std::vector<int64_t> most;
  for (size_t i = 6; i < library.blocks.size(); ++i) most.push_back(library.blocks[i].id);
  ASSERT_TRUE(memory->blocks().Forget(most).ok());
  Drop(library, most);
  ExpectFound(*memory, library);
  ASSERT_TRUE(memory->index().SetMeaning(std::nullopt).ok());
  EXPECT_FALSE(memory->index().meaning().has_value());
  EXPECT_EQ(Ask(*memory, std::vector<float>(kWidth, 1)).status().code(), StatusCode::kInvalidArgument);
}

TEST(OsMeaningTest, FiltersAndRolesHold) {
  const Library library = RandomLibrary(82, 30);
  const auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
  AppendAll(*memory, library);
  SearchRequest request;
  const std::vector<float> rows = RowsFor(library.vectors.at(9), 0);
  request.inputs["meaning_query"].numbers = rows;
  request.kinds = {IndexPart::kMeaning};
  request.max_groups = 1000;
  request.token_budget = 1'000'000;
  request.least_share = 0;
  request.filter.sources = {"letters"};
  request.stream = 2;
  request.resident_from = 20;
  const SearchResult found = memory->search().Find(request).value();
  ASSERT_FALSE(found.groups.empty());
  for (const FoundGroup& group : found.groups) {
    EXPECT_EQ(group.source, "letters");
    EXPECT_LT(group.span.begin, 20);
  }
}

TEST(OsMeaningTest, IsMadeOfWhatTheStoreHas) {
  const TemporaryFolder folder;
  const std::filesystem::path at = folder.path() / "memory";
  const std::filesystem::path fork = folder.path() / "fork";
  const std::filesystem::path exported = folder.path() / "exported";
  Library library = RandomLibrary(83, 20);
  for (const int64_t id : {3, 11}) library.vectors.erase(id);
  {
    const auto memory = Memory::Create(at, TestManifest()).value();
    ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
    AppendAll(*memory, library);
    ExpectFound(*memory, library);
    ASSERT_TRUE(memory->upkeep().Fork(fork).ok());
    ASSERT_TRUE(memory->upkeep().Export(exported).ok());
    ASSERT_TRUE(memory->index().Save().ok());
    EXPECT_TRUE(std::filesystem::exists(at / "index" / "meaning"));
  }
  const auto expect = [&](Memory& memory) {
    ASSERT_TRUE(memory.index().SetMeaning(kOptions).ok());
    ExpectFound(memory, library);
    EXPECT_TRUE(memory.index().TakeMessages().empty());
  };
  expect(*Memory::Open(fork, false).value());
  expect(*Memory::Open(at, true).value());
  expect(*Memory::Import(exported, folder.path() / "imported").value());
  const std::vector<int64_t> gone{4, 9};
  Drop(library, gone);
  {
    const auto memory = Memory::Open(at, false).value();
    ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
    ASSERT_TRUE(memory->blocks().Forget(gone).ok());
    ExpectFound(*memory, library);
    ASSERT_TRUE(memory->upkeep().Compact().ok());
    ExpectFound(*memory, library);
  }
  expect(*Memory::Open(at, false).value());
}

TEST(OsMeaningTest, TakesVectorsThatComeLater) {
  const TemporaryFolder folder;
  Library library = RandomLibrary(84, 24);
  std::map<int64_t, Vectors> later = std::exchange(library.vectors, {});
  {
    const auto memory = Memory::Create(folder.path(), TestManifest()).value();
    AppendAll(*memory, library);
    ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
    ExpectFound(*memory, library);
    for (const auto& [id, vectors] : later) {
      if (id % 3 == 0) continue;
      const std::vector<store::TensorView> tensors{vectors.View()};
      const Status put = memory->blocks().PutTensors(id, tensors);
      ASSERT_TRUE(put.ok()) << put.ToString();
      library.vectors[id] = vectors;
    }
    ExpectFound(*memory, library);
    // Others in place of them.
    std::mt19937_64 random(85);
    library.vectors[5] = RandomVectors(random, library.blocks[4]);
    ASSERT_TRUE(memory->blocks().PutTensors(5, std::vector{library.vectors[5].View()}).ok());
    ExpectFound(*memory, library);

    // What does not fit is not stored.
    Vectors wrong = later[3];
    wrong.shape = {wrong.shape[1], wrong.shape[0]};
    EXPECT_EQ(memory->blocks().PutTensors(3, std::vector{wrong.View()}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(memory->blocks().ReadTensor(3, kTensor).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(memory->blocks().PutTensors(99, std::vector{later[3].View()}).code(), StatusCode::kNotFound);
    // Another pack's vectors are kept, and not searched.
    ASSERT_TRUE(memory->blocks().PutTensors(3, std::vector{later[3].View("meaning.pack-2")}).ok());
    EXPECT_TRUE(memory->blocks().ReadTensor(3, "meaning.pack-2").ok());
    ExpectFound(*memory, library);
    const std::vector<int64_t> gone{1, 6};
    ASSERT_TRUE(memory->blocks().Forget(gone).ok());
    EXPECT_EQ(memory->blocks().PutTensors(6, std::vector{later[6].View()}).code(), StatusCode::kNotFound);
    Drop(library, gone);
    ExpectFound(*memory, library);
  }
  {
    const auto memory = Memory::Open(folder.path(), false).value();
    ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
    ExpectFound(*memory, library);
    // The other pack in its place: one block has its vectors.
    ASSERT_TRUE(memory->index().SetMeaning(MeaningOptions{"pack-2", kWidth, kGroup}).ok());
    Library other = library;
    other.vectors = {{3, later[3]}};
    ExpectFound(*memory, other);
  }
  const auto reader = Memory::Open(folder.path(), true).value();
  EXPECT_EQ(reader->blocks().PutTensors(3, std::vector{later[3].View()}).code(), StatusCode::kReadOnly);
}

// Of a block that is queued yet.
TEST(OsMeaningTest, TensorsMayComeBeforeTheirBlockIsDurable) {
  const TemporaryFolder folder;
  const Library library = RandomLibrary(86, 12);
  const auto memory = Memory::Create(folder.path(), TestManifest()).value();
  ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
  for (const Block& block : library.blocks) {
    AppendTo(*memory, block, nullptr);
    const Status put = memory->blocks().PutTensors(block.id, std::vector{library.vectors.at(block.id).View()});
    ASSERT_TRUE(put.ok()) << put.ToString();
  }
  ExpectFound(*memory, library);
}

TEST(OsMeaningTest, ATensorThatWasStoredAndDoesNotFitIsNoVectors) {
  Library library = RandomLibrary(87, 10);
  const auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  Vectors wrong = library.vectors[4];
  wrong.codes.resize(wrong.codes.size() + kWidth);
  wrong.shape[0] += 1;
  for (const Block& block : library.blocks) {
    AppendTo(*memory, block, block.id == 4 ? &wrong : &library.vectors[block.id]);
  }
  Vectors right = library.vectors[4];
  library.vectors.erase(4);
  ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
  ExpectFound(*memory, library);
  ASSERT_TRUE(memory->blocks().PutTensors(4, std::vector{right.View()}).ok());
  library.vectors[4] = right;
  ExpectFound(*memory, library);
}

TEST(OsMeaningTest, FollowsARepair) {
  const TemporaryFolder folder;
  Library library = RandomLibrary(88, 9);
  const auto memory = Memory::Create(folder.path(), TestManifest(), {.segment_bytes = 1}).value();
  ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
  AppendAll(*memory, library);
  // Block 3's tensors, behind its pages, and all of block 6.
  const std::filesystem::path damaged = folder.path() / "segments" / "000003.kvseg";
  const std::vector<int8_t>& codes = library.vectors[3].codes;
  std::string bytes;
  {
    std::ifstream in(damaged, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const size_t place = bytes.find(std::string(reinterpret_cast<const char*>(codes.data()), codes.size()));
  ASSERT_NE(place, std::string::npos);
  bytes[place] = static_cast<char>(bytes[place] ^ 1);
  std::ofstream(damaged, std::ios::binary | std::ios::trunc) << bytes;
  const std::filesystem::path sixth = folder.path() / "sixth";
  std::filesystem::rename(folder.path() / "segments" / "000006.kvseg", sixth);
  ASSERT_FALSE(memory->upkeep().Verify(false).value().damage.empty());
  {
    // Who takes them from the store does without the damaged ones, and says so.
    Library whole = library;
    whole.vectors.erase(3);
    std::filesystem::copy_file(sixth, folder.path() / "segments" / "000006.kvseg");
    const auto reader = Memory::Open(folder.path(), true).value();
    ASSERT_TRUE(reader->index().SetMeaning(kOptions).ok());
    ExpectFound(*reader, whole);
    const std::vector<std::string> messages = reader->index().TakeMessages();
    ASSERT_EQ(messages.size(), 1U);
    EXPECT_NE(messages[0].find("block 3"), std::string::npos) << messages[0];
    ASSERT_TRUE(std::filesystem::remove(folder.path() / "segments" / "000006.kvseg"));
  }
  const auto report = memory->upkeep().Verify(true);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->dropped, std::vector<int64_t>{6});
  Vectors again = library.vectors[3];
  Drop(library, {6});
  library.vectors.erase(3);
  ExpectFound(*memory, library);
  ASSERT_TRUE(memory->blocks().PutTensors(3, std::vector{again.View()}).ok());
  library.vectors[3] = again;
  ExpectFound(*memory, library);
}

TEST(OsMeaningTest, WorksInAMemoryOfTextAlone) {
  store::Manifest manifest = TestManifest();
  manifest.geometry.layers = 0;
  manifest.geometry.kv_heads = 0;
  manifest.geometry.head_dim = 0;
  const Library library = RandomLibrary(89, 15);
  const auto memory = Memory::Create(std::nullopt, manifest).value();
  for (const Block& block : library.blocks) {
    store::BlockDraft draft = DraftOf(block);
    const std::vector<store::TensorView> tensors{library.vectors.at(block.id).View()};
    draft.tensors = tensors;
    ASSERT_EQ(memory->blocks().Append(draft).value(), block.id);
  }
  ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
  ExpectFound(*memory, library);
}

// Searches beside appends, vectors that come later and others in their place, and forgetting.
TEST(OsMeaningTest, SearchesRunBesideAllThatChanges) {
  const Library library = RandomLibrary(90, 120);
  const auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  ASSERT_TRUE(memory->index().SetMeaning(kOptions).ok());
  AppendTo(*memory, library.blocks[0], &library.vectors.at(1));
  std::atomic<bool> done = false;
  std::vector<std::thread> searchers;
  for (uint64_t seed = 0; seed < 2; ++seed) {
    searchers.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      while (!done) {
        const auto id = static_cast<int64_t>(1 + random() % library.blocks.size());
        const auto found = Ask(*memory, RowsFor(library.vectors.at(id), 0));
        ASSERT_TRUE(found.ok()) << found.status().ToString();
        for (const FoundGroup& group : found->groups) {
          for (const PageRef& page : group.pages) {
            EXPECT_EQ(page,
                      library.blocks[static_cast<size_t>(page.block - 1)].Pages()[static_cast<size_t>(page.page)]);
          }
        }
        EXPECT_LE(memory->index().BlocksWithout(IndexPart::kMeaning).size(), library.blocks.size());
      }
    });
  }
  Library kept = library;
  for (size_t i = 1; i < library.blocks.size(); ++i) {
    const Block& block = library.blocks[i];
    const Vectors& vectors = library.vectors.at(block.id);
    AppendTo(*memory, block, i % 2 == 0 ? &vectors : nullptr);
    if (i % 3 == 0) {
      ASSERT_TRUE(memory->blocks().PutTensors(block.id, std::vector{vectors.View()}).ok());
    }
    if (i % 2 != 0 && i % 3 != 0) kept.vectors.erase(block.id);
    if (i % 5 == 0) {
      ASSERT_TRUE(memory->blocks().Forget(std::vector{block.id - 3}).ok());
      Drop(kept, {block.id - 3});
    }
  }
  done = true;
  for (std::thread& searcher : searchers) searcher.join();
  ExpectFound(*memory, kept);
}

TEST(OsMeaningTest, ADeviceFindsTheSame) {
  Library library = RandomLibrary(88, 40);
  const auto device = std::make_shared<hip::host::HostDevice>();
  MeaningOptions there = kOptions;
  there.device = device;
  there.device_bytes = int64_t{8} << 20;
  const auto on_host = Memory::Create(std::nullopt, TestManifest()).value();
  const auto on_device = Memory::Create(std::nullopt, TestManifest()).value();
  ASSERT_TRUE(on_host->index().SetMeaning(kOptions).ok());
  ASSERT_TRUE(on_device->index().SetMeaning(there).ok());
  for (Memory* memory : {on_host.get(), on_device.get()}) {
    AppendAll(*memory, library);
    ASSERT_TRUE(memory->blocks().Forget(std::vector<int64_t>{3, 8}).ok());
    ASSERT_TRUE(memory->blocks().PutTensors(5, std::vector{library.vectors.at(5).View()}).ok());
  }
  Drop(library, {3, 8});
  ExpectFound(*on_device, library);
  int64_t asked = on_device->index().device_use(IndexPart::kMeaning).scans;
  EXPECT_GT(asked, 0);
  for (const auto& [block, vectors] : library.vectors) {
    const auto got = Ask(*on_device, RowsFor(vectors, 0));
    const auto expected = Ask(*on_host, RowsFor(vectors, 0));
    ASSERT_TRUE(got.ok() && expected.ok());
    ASSERT_EQ(got->groups.size(), expected->groups.size());
    for (size_t i = 0; i < got->groups.size(); ++i) {
      EXPECT_EQ(got->groups[i].pages, expected->groups[i].pages);
      EXPECT_EQ(got->groups[i].score, expected->groups[i].score);
    }
    ++asked;
  }
  EXPECT_EQ(on_device->index().device_use(IndexPart::kMeaning).scans, asked);
  EXPECT_EQ(on_device->index().device_use(IndexPart::kMeaning).bytes, device->held());
  EXPECT_EQ(on_device->index().device_use(IndexPart::kHeads).scans, 0);
  EXPECT_EQ(on_host->index().device_use(IndexPart::kMeaning).scans, 0);
  EXPECT_TRUE(on_device->index().TakeMessages().empty());
  ASSERT_TRUE(on_device->index().SetMeaning(std::nullopt).ok());
  EXPECT_EQ(device->held(), 0);
}

}  // namespace
}  // namespace everlong::os
