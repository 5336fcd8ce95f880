// Files of indexes: what a right checksum does not show, several writers, what a loaded index answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base_temporary_folder.h"
#include "everlong/index/vector_index.h"
#include "index_heads_case.h"
#include "index_vectors_case.h"

namespace everlong::index {
namespace {

class SavedIndexTest : public testing::Test {
 protected:
  // Another number at byte `at` of the file, and the checksum that this has.
  template <class T>
  void Put(size_t at, T number) const {
    std::string bytes = BytesOf(file_);
    std::memcpy(bytes.data() + at, &number, sizeof number);
    Checksum(bytes);
    WriteBytes(file_, bytes);
  }
  // Loading fails with this code where a number of what `save` saves is another.
  template <class Load>
  auto Changed(const std::function<Status()>& save, const Load& load) const {
    return [this, save, load](size_t at, auto number) {
      EXPECT_TRUE(save().ok());
      if (at != 0) Put(at, number);
      return load(file_).status().code();
    };
  }

  const TemporaryFolder folder_;
  const std::filesystem::path file_ = folder_.path() / "index";
};

constexpr size_t kMagic = 16;  // of both kinds of vector index

TEST_F(SavedIndexTest, AFlatIndexWithIdsOrSizesThatCannotBeIsCorrupt) {
  constexpr size_t kIds = kMagic + 24;
  const auto index = MakeFlatIndex({2, Metric::kL2, VectorStorage::kFp32});
  ASSERT_TRUE(index->Add(std::vector<int64_t>{5, 6}, std::vector<float>{1, 2, 3, 4}).ok());
  const auto code = Changed([&] { return index->Save(file_); }, &LoadFlatIndex);
  EXPECT_EQ(code(kIds, int64_t{6}), StatusCode::kCorrupt);
  EXPECT_EQ(code(kIds + 8, int64_t{-1}), StatusCode::kCorrupt);
  EXPECT_EQ(code(kMagic, INT32_MAX), StatusCode::kCorrupt);              // dimension
  EXPECT_EQ(code(kMagic + 16, INT64_MAX), StatusCode::kCorrupt);         // count
  EXPECT_EQ(code(kMagic + 16, int64_t{1} << 60), StatusCode::kCorrupt);  // whose bytes are none in 64 bits
}

TEST_F(SavedIndexTest, AGraphLargerThanItsFileIsRefused) {
  const auto index = MakeHnswIndex({.dimension = 2, .metric = Metric::kL2});
  ASSERT_TRUE(index->Add(std::vector<int64_t>{5, 6}, std::vector<float>{1, 2, 3, 4}).ok());
  const auto code = Changed([&] { return index->Save(file_); }, &LoadHnswIndex);
  EXPECT_EQ(code(kMagic, INT32_MAX), StatusCode::kCorrupt);              // dimension
  EXPECT_EQ(code(kMagic + 32, int64_t{1} << 30), StatusCode::kCorrupt);  // count
  EXPECT_EQ(code(kMagic + 32, INT64_MAX), StatusCode::kCorrupt);
}

// A graph without rows has neither a top level nor a row where a search begins, and room for what comes first.
TEST_F(SavedIndexTest, AnEmptyGraphIsNoLargerThanItMayBe) {
  const auto index = MakeHnswIndex({.dimension = 2, .metric = Metric::kL2});
  const auto code = Changed([&] { return index->Save(file_); }, &LoadHnswIndex);
  EXPECT_EQ(code(kMagic, INT32_MAX), StatusCode::kCapacity);        // dimension
  EXPECT_EQ(code(kMagic + 24, int32_t{0}), StatusCode::kCorrupt);   // top level
  EXPECT_EQ(code(kMagic + 28, uint32_t{0}), StatusCode::kCorrupt);  // entry row
}

TEST_F(SavedIndexTest, SeveralMayWriteOneFile) {
  std::vector<std::jthread> writers;
  for (const int64_t id : {1, 2}) {
    writers.emplace_back([this, id] {
      const auto index = MakeFlatIndex({1000, Metric::kL2, VectorStorage::kFp32});
      ASSERT_TRUE(index->Add(std::vector<int64_t>{id}, std::vector<float>(1000, static_cast<float>(id))).ok());
      for (int i = 0; i < 50; ++i) {
        const Status saved = index->Save(file_);
        EXPECT_TRUE(saved.ok()) << saved.ToString();
        const auto loaded = LoadFlatIndex(file_);
        ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
        EXPECT_EQ((*loaded)->size(), 1);
      }
    });
  }
  writers.clear();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "something is left";
}

// One page of two tokens, in each storage; what of the file is changed, and where.
TEST_F(SavedIndexTest, HeadsOfKeysThatAreNoNumbersAreCorrupt) {
  constexpr size_t kLongest = 16 + 12;  // behind the header and a head
  constexpr size_t kTokens = kLongest + 8;
  constexpr size_t kWords = kTokens + 8;
  constexpr int32_t kDim = 16;
  const Case made =
      MakeCase({.heads = {{0, 0, 0}}, .dim = kDim, .pages = 1, .page_tokens = 2, .question = 1, .sharpness = 1.0F}, 41);
  for (const KeyStorage storage : kKeyStorages) {
    HeadsOptions options;
    options.keys = storage;
    const size_t line = storage == KeyStorage::kBf16 ? 17 : 17 + NameOf(storage).size() + 1;
    const auto saved = [&] { return made.Build(options).Save(file_, std::vector<int32_t>{0}); };
    const auto loaded = [&](const auto& file) {
      return LoadHeads(file, made.heads, kDim, std::vector<int32_t>{0}, options);
    };
    const auto load = [&](size_t at, auto number) { return Changed(saved, loaded)(at == 0 ? 0 : line + at, number); };
    EXPECT_EQ(load(0, 0), StatusCode::kOk);
    EXPECT_EQ(load(kLongest, std::numeric_limits<double>::infinity()), StatusCode::kCorrupt);
    EXPECT_EQ(load(kLongest, std::nan("")), StatusCode::kCorrupt);
    EXPECT_EQ(load(kTokens, INT32_MAX), StatusCode::kCorrupt);
    if (storage == KeyStorage::kBf16) {
      EXPECT_EQ(load(kWords, uint16_t{0x7FC0}), StatusCode::kCorrupt);
      EXPECT_EQ(load(kWords + 2, uint16_t{0xFF80}), StatusCode::kCorrupt);
      continue;
    }
    constexpr size_t kCodes = kWords + kDim * sizeof(float);
    EXPECT_EQ(load(kWords, std::numeric_limits<float>::max()), StatusCode::kCorrupt);
    EXPECT_EQ(load(kWords + 4, std::nanf("")), StatusCode::kCorrupt);
    EXPECT_EQ(load(kWords + 8, -1.0F), StatusCode::kCorrupt);
    EXPECT_EQ(load(kCodes + 3, static_cast<uint8_t>(storage == KeyStorage::kInt8 ? 0x80 : 0xFF)), StatusCode::kCorrupt);
  }
}

// Keys that a file says to be shorter than they are have no second level: along its axes they would be no numbers.
TEST_F(SavedIndexTest, HeadsOfLongerKeysThanTheFileSaysAnswerByOneLevel) {
  Case made =
      MakeCase({.heads = {{0, 0, 0}}, .dim = 16, .pages = 200, .page_tokens = 4, .question = 1, .sharpness = 1.0F}, 42);
  std::ranges::fill(made.pages[7], 0x1.FEp127F);
  std::vector<int32_t> every(200);
  std::iota(every.begin(), every.end(), 0);
  ASSERT_TRUE(made.Build().Save(file_, every).ok());
  Put(17 + 16 + 12, 1.0);
  HeadsOptions options;
  options.coarse_from = 100;
  auto loaded = LoadHeads(file_, made.heads, made.dim, every, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_TRUE(Search(*loaded, made.q, made.weights, 10, made.filter).ok());
  EXPECT_TRUE(loaded->Add(made.pages[0], 4, 0).ok());
  EXPECT_TRUE(Search(*loaded, made.q, made.weights, 10, made.filter).ok());
}

// Two levels choose by axes that are learned from the pages of an index when it has enough of them.
TEST_F(SavedIndexTest, HeadsOfTwoLevelsAnswerAsTheyDid) {
  const Case made = MakeCase(
      {.heads = {{0, 0, 0}}, .dim = 16, .pages = 1000, .page_tokens = 4, .question = 3, .sharpness = 3.0F}, 40);
  const HeadsIndex index = made.Build(100);
  std::vector<int32_t> every(1000);
  std::iota(every.begin(), every.end(), 0);
  ASSERT_TRUE(index.Save(file_, every).ok());
  HeadsOptions options;
  options.coarse_from = 100;
  const auto loaded = LoadHeads(file_, made.heads, made.dim, every, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const auto before = Search(index, made.q, made.weights, 1000, made.filter).value();
  const auto after = Search(*loaded, made.q, made.weights, 1000, made.filter).value();
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace everlong::index
