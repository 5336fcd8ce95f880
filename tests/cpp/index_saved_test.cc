// Files of indexes: what a right checksum does not show, several writers, what a loaded index answers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "everlong/base/crc32c.h"
#include "everlong/index/vector_index.h"
#include "index_heads_case.h"

namespace everlong::index {
namespace {

class SavedIndexTest : public testing::Test {
 protected:
  SavedIndexTest()
      : folder_(std::filesystem::path(testing::TempDir()) / ("everlong_index_saved_" + std::to_string(getpid()))),
        file_(folder_ / "index") {
    std::filesystem::create_directory(folder_);
  }
  ~SavedIndexTest() override { std::filesystem::remove_all(folder_); }

  // Another number at byte `at` of the file, and the checksum that this has.
  template <class T>
  void Put(size_t at, T number) const {
    std::string bytes;
    {
      std::ifstream in(file_, std::ios::binary);
      bytes.assign(std::istreambuf_iterator<char>(in), {});
    }
    std::memcpy(bytes.data() + at, &number, sizeof number);
    const size_t body = bytes.size() - sizeof(uint32_t);
    const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)).first(body));
    std::memcpy(bytes.data() + body, &crc, sizeof crc);
    std::ofstream(file_, std::ios::binary | std::ios::trunc) << bytes;
  }

  const std::filesystem::path folder_;
  const std::filesystem::path file_;
};

constexpr size_t kMagic = 16;  // of both kinds of vector index

TEST_F(SavedIndexTest, AFlatIndexWithIdsOrSizesThatCannotBeIsCorrupt) {
  constexpr size_t kIds = kMagic + 24;
  const auto index = MakeFlatIndex({2, Metric::kL2, VectorStorage::kFp32});
  ASSERT_TRUE(index->Add(std::vector<int64_t>{5, 6}, std::vector<float>{1, 2, 3, 4}).ok());
  const auto corrupt = [&](size_t at, auto number) {
    ASSERT_TRUE(index->Save(file_).ok());
    Put(at, number);
    EXPECT_EQ(LoadFlatIndex(file_).status().code(), StatusCode::kCorrupt) << at << " " << number;
  };
  corrupt(kIds, int64_t{6});
  corrupt(kIds + 8, int64_t{-1});
  corrupt(kMagic, INT32_MAX);              // dimension
  corrupt(kMagic + 16, INT64_MAX);         // count
  corrupt(kMagic + 16, int64_t{1} << 60);  // whose bytes are none in 64 bits
}

TEST_F(SavedIndexTest, AGraphLargerThanItsFileIsRefused) {
  const auto index = MakeHnswIndex({.dimension = 2, .metric = Metric::kL2});
  ASSERT_TRUE(index->Add(std::vector<int64_t>{5, 6}, std::vector<float>{1, 2, 3, 4}).ok());
  const auto corrupt = [&](size_t at, auto number) {
    ASSERT_TRUE(index->Save(file_).ok());
    Put(at, number);
    EXPECT_EQ(LoadHnswIndex(file_).status().code(), StatusCode::kCorrupt) << at << " " << number;
  };
  corrupt(kMagic, INT32_MAX);              // dimension
  corrupt(kMagic + 32, int64_t{1} << 30);  // count
  corrupt(kMagic + 32, INT64_MAX);
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
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "something is left";
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
  const auto loaded = HeadsIndex::Load(file_, made.heads, made.dim, std::vector<uint8_t>(1000, 1), options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const auto before = index.Search(made.q, made.weights, 1000, made.filter).value();
  const auto after = loaded->Search(made.q, made.weights, 1000, made.filter).value();
  ASSERT_EQ(after.size(), before.size());
  for (size_t rank = 0; rank < before.size(); ++rank) {
    EXPECT_EQ(after[rank].page, before[rank].page);
    EXPECT_EQ(after[rank].score, before[rank].score);
  }
}

}  // namespace
}  // namespace everlong::index
