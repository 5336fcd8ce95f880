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
#include "everlong/index/index_file.h"
#include "everlong/index/vector_index.h"
#include "index_heads_case.h"
#include "index_vectors_case.h"

namespace everlong::index {
namespace {

class SavedIndexTest : public testing::Test {
 protected:
  // Another number at byte `at` of the file, and the checksums that this has. The first of two is at `so_far`.
  template <class T>
  void Put(size_t at, T number, size_t so_far = 0) const {
    std::string bytes = BytesOf(file_);
    std::memcpy(bytes.data() + at, &number, sizeof number);
    if (so_far != 0) ChecksumSoFar(bytes, so_far);
    Checksum(bytes);
    WriteBytes(file_, bytes);
  }
  // Loading fails with this code where a number of what `save` saves is another.
  template <class Load>
  auto Changed(const std::function<Status()>& save, const Load& load, size_t so_far = 0) const {
    return [this, save, load, so_far](size_t at, auto number) {
      EXPECT_TRUE(save().ok());
      if (at != 0) Put(at, number, so_far);
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
TEST_F(SavedIndexTest, HeadsOfAnotherShapeAreCorrupt) {
  constexpr size_t kLongest = 24 + 12;  // behind the header and a head
  constexpr size_t kTokens = kLongest + 8;
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
    const auto load = [&](size_t at, auto number) {
      return Changed(saved, loaded, line + kTokens + 8)(at == 0 ? 0 : line + at, number);
    };
    EXPECT_EQ(load(0, 0), StatusCode::kOk);
    EXPECT_EQ(load(kTokens + 4, 1), StatusCode::kOk);  // a sink
    EXPECT_EQ(load(16, 1), StatusCode::kCorrupt);      // codes, which it has not
    EXPECT_EQ(load(kLongest, std::numeric_limits<double>::infinity()), StatusCode::kCorrupt);
    EXPECT_EQ(load(kLongest, std::nan("")), StatusCode::kCorrupt);
    EXPECT_EQ(load(kLongest, 1e40), StatusCode::kCorrupt);  // no key of bf16 is so long
    EXPECT_EQ(load(kTokens, INT32_MAX), StatusCode::kCorrupt);
    EXPECT_EQ(load(kTokens, 0), StatusCode::kCorrupt);
    EXPECT_EQ(load(kTokens + 4, 3), StatusCode::kCorrupt);
  }
}

// Axes that are no numbers, and steps that are not above 0.
TEST_F(SavedIndexTest, HeadsOfAxesOutOfRangeAreCorrupt) {
  const Case made =
      MakeCase({.heads = {{0, 0, 0}}, .dim = 16, .pages = 200, .page_tokens = 4, .question = 1, .sharpness = 1.0F}, 42);
  std::vector<int32_t> every(200);
  std::iota(every.begin(), every.end(), 0);
  HeadsOptions options;
  options.coarse_from = 100;
  const auto saved = [&] { return made.Build(options).Save(file_, every); };
  const auto loaded = [&](const auto& file) { return LoadHeads(file, made.heads, 16, every, options); };
  constexpr size_t kAxes = 17 + 24 + 12 + 8 + 200 * 8;
  constexpr size_t kLeast = kAxes + sizeof(float) * 16 * 8;
  constexpr size_t kSteps = kLeast + sizeof(float) * 8;
  const auto load = Changed(saved, loaded, kSteps + sizeof(float) * 8);
  EXPECT_EQ(load(kAxes, 0.5F), StatusCode::kOk);
  EXPECT_EQ(load(kAxes, std::nanf("")), StatusCode::kCorrupt);
  EXPECT_EQ(load(kLeast, std::numeric_limits<float>::infinity()), StatusCode::kCorrupt);
  EXPECT_EQ(load(kSteps, 0.0F), StatusCode::kCorrupt);
  EXPECT_EQ(load(kSteps + 4, -1.0F), StatusCode::kCorrupt);
}

// What says how the rest lies is checked when a file is opened, and keys and codes when they are saved again.
TEST_F(SavedIndexTest, ABitOfHeadsIsFoundAtOnceOrBeforeItIsCarriedOn) {
  const Case made =
      MakeCase({.heads = {{0, 0, 0}}, .dim = 16, .pages = 120, .page_tokens = 4, .question = 1, .sharpness = 1.0F}, 43);
  std::vector<int32_t> every(120);
  std::iota(every.begin(), every.end(), 0);
  HeadsOptions options;
  options.coarse_from = 100;
  ASSERT_TRUE(made.Build(options).Save(file_, every).ok());
  const std::string good = BytesOf(file_);
  constexpr size_t kStructure = 17 + 24 + 12 + 8 + 120 * 8 + sizeof(float) * (16 * 8 + 8 + 8) + 4;
  constexpr size_t kBulk = (kStructure + 63) / 64 * 64;
  const std::filesystem::path again = folder_.path() / "again";
  for (size_t at = 0; at + 4 < good.size(); at += at < kStructure ? 1 : 37) {
    if (at >= kStructure && at < kBulk) continue;  // zeros that mean nothing
    SCOPED_TRACE(at);
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    WriteBytes(file_, bytes);
    EXPECT_EQ(CheckIndexFile(file_).code(), StatusCode::kCorrupt);
    auto loaded = LoadHeads(file_, made.heads, made.dim, every, options);
    ASSERT_EQ(loaded.status().code(), at < kStructure ? StatusCode::kCorrupt : StatusCode::kOk);
    if (!loaded.ok()) continue;
    EXPECT_EQ(loaded->Save(again, every).code(), StatusCode::kCorrupt);
    EXPECT_FALSE(std::filesystem::exists(again));
    EXPECT_TRUE(Search(*loaded, made.q, made.weights, 10, made.filter).ok());
    // Pages of its own are whole.
    ASSERT_TRUE(loaded->Add(made.pages[0], 4, 0).ok());
    EXPECT_TRUE(loaded->Save(again, std::vector<int32_t>{120}).ok());
    std::filesystem::remove(again);
  }
  WriteBytes(file_, good);
  EXPECT_TRUE(CheckIndexFile(file_).ok());
}

// A page whose keys are damaged, however large they look, takes nothing from the others.
TEST_F(SavedIndexTest, DamagedKeysOfAPageLeaveTheOthersTheirOrder) {
  const Case made =
      MakeCase({.heads = {{0, 0, 0}}, .dim = 16, .pages = 50, .page_tokens = 4, .question = 2, .sharpness = 2.0F}, 44);
  std::vector<int32_t> every(50);
  std::iota(every.begin(), every.end(), 0);
  const HeadsIndex index = made.Build(HeadsOptions{});
  PageFilter others({{0, 7}, {8, 50}});
  const std::vector<Hit> expected = Search(index, made.q, made.weights, 50, others).value();
  ASSERT_GT(expected.size(), 10U);
  ASSERT_TRUE(index.Save(file_, every).ok());
  for (const uint32_t word : {0x7F7F7F7FU, 0x7FC07FC0U, 0xFF80FF80U, 0x7F807F80U}) {
    std::string bytes = BytesOf(file_);
    const size_t page =
        bytes.size() - 4 - size_t{43} * 16 / 2 * 32 * 4;  // page 7: 16 dimensions, two a word, 32 tokens
    for (size_t at = 0; at < size_t{16} / 2 * 32 * 4; at += 4)
      std::memcpy(bytes.data() + page + at, &word, sizeof word);
    WriteBytes(file_, bytes);
    const auto loaded = LoadHeads(file_, made.heads, made.dim, every);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    std::vector<Hit> hits = Search(*loaded, made.q, made.weights, 50, made.filter).value();
    std::erase_if(hits, [](const Hit& hit) { return hit.page == 7; });
    ASSERT_EQ(hits.size(), expected.size());
    for (size_t at = 0; at < hits.size(); ++at) {
      EXPECT_EQ(hits[at].page, expected[at].page);
      EXPECT_NEAR(hits[at].score, expected[at].score, 1e-5F);
    }
  }
}

// So it is where one key is damaged, and the page's others score so far above all pages that nothing counts beside
// them.
TEST_F(SavedIndexTest, ADamagedKeyBesideTheBestOnesHidesNoOtherPage) {
  Case made =
      MakeCase({.heads = {{0, 0, 0}}, .dim = 16, .pages = 50, .page_tokens = 4, .question = 1, .sharpness = 2.0F}, 45);
  for (size_t at = 16; at < size_t{4} * 16; ++at) made.pages[7][at] = 100 * made.q[at % 16];
  std::vector<int32_t> every(50);
  std::iota(every.begin(), every.end(), 0);
  const HeadsIndex index = made.Build(HeadsOptions{});
  const std::vector<Hit> best = Search(index, made.q, made.weights, 50, made.filter).value();
  ASSERT_TRUE(best.size() == 1 && best[0].page == 7) << "the others count beside page 7";
  const std::vector<Hit> expected = Search(index, made.q, made.weights, 50, PageFilter({{0, 7}, {8, 50}})).value();
  ASSERT_GT(expected.size(), 10U);
  ASSERT_TRUE(index.Save(file_, every).ok());
  for (const uint32_t word : {0x7F7F7F7FU, 0x7FC07FC0U, 0xFF80FF80U, 0x7F807F80U}) {
    std::string bytes = BytesOf(file_);
    std::memcpy(bytes.data() + bytes.size() - 4 - size_t{43} * 16 / 2 * 32 * 4, &word, sizeof word);  // token 0, page 7
    WriteBytes(file_, bytes);
    const auto loaded = LoadHeads(file_, made.heads, made.dim, every);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    std::vector<Hit> hits = Search(*loaded, made.q, made.weights, 50, made.filter).value();
    for (const Hit& hit : hits) ASSERT_TRUE(std::isfinite(hit.score));
    const bool is_number = word == 0x7F7F7F7FU || word == 0xFF80FF80U;
    if (is_number && hits.size() == 1) continue;  // its other keys are sound, and are the best
    std::erase_if(hits, [](const Hit& hit) { return hit.page == 7; });
    ASSERT_EQ(hits.size(), expected.size()) << std::hex << word;
    for (size_t at = 0; at < hits.size(); ++at) {
      EXPECT_EQ(hits[at].page, expected[at].page);
      EXPECT_NEAR(hits[at].score, expected[at].score, 1e-5F);
    }
  }
}

// A file may give keys that are no numbers, or that are longer than it says. A search finds what it can.
TEST_F(SavedIndexTest, HeadsOfKeysThatAreNoNumbersDoNoHarm) {
  const Case made =
      MakeCase({.heads = {{0, 0, 0}}, .dim = 16, .pages = 200, .page_tokens = 4, .question = 1, .sharpness = 1.0F}, 42);
  std::vector<int32_t> every(200);
  std::iota(every.begin(), every.end(), 0);
  for (const int32_t first_coarse_from : {kCoarseFrom, 100}) {
    for (const uint32_t word : {0x7F7F7F7FU, 0x7FC07FC0U, 0xFF80FF80U}) {
      HeadsOptions options;
      options.coarse_from = first_coarse_from;
      ASSERT_TRUE(made.Build(options).Save(file_, every).ok());
      Put(std::filesystem::file_size(file_) - 4 - size_t{193} * 32 * 32, word);  // in the keys of page 7
      options.coarse_from = 100;
      auto loaded = LoadHeads(file_, made.heads, made.dim, every, options);
      ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
      const auto hits = Search(*loaded, made.q, made.weights, 10, made.filter);
      ASSERT_TRUE(hits.ok());
      for (const Hit& hit : *hits) EXPECT_GT(hit.score, 0);
      EXPECT_TRUE(loaded->Add(made.pages[0], 4, 0).ok());
      EXPECT_TRUE(Search(*loaded, made.q, made.weights, 10, made.filter).ok());
    }
  }
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
