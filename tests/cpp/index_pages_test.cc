#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "everlong/index/page_directory.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/token_statistics.h"

namespace everlong::index {
namespace {

TEST(PageDirectory, NeighboursAreContiguousPagesOfOneStreamAndSource) {
  PageDirectory directory;
  const auto add = [&](int64_t block, int64_t stream, int64_t begin, int64_t end, const char* source) {
    return directory.Add(
        {.block = block, .page = 0, .stream = stream, .span = {begin, end}, .sink_tokens = 0, .source = source});
  };
  EXPECT_EQ(add(1, 1, 0, 64, "a"), 0);
  EXPECT_EQ(add(1, 1, 64, 128, "a"), 1);
  EXPECT_EQ(add(2, 2, 128, 192, "a"), 2);  // another stream, between two blocks of the first
  EXPECT_EQ(add(3, 1, 128, 160, "a"), 3);  // goes on from 1
  EXPECT_EQ(add(3, 1, 160, 224, "b"), 4);  // another source
  EXPECT_EQ(add(4, 1, 300, 364, "b"), 5);  // after a hole
  EXPECT_EQ(directory.size(), 6);
  EXPECT_EQ(directory.at(3).span, (TokenSpan{128, 160}));

  EXPECT_EQ(directory.Previous(0), -1);
  EXPECT_EQ(directory.Next(0), 1);
  EXPECT_EQ(directory.Previous(1), 0);
  EXPECT_EQ(directory.Next(1), 3);
  EXPECT_EQ(directory.Previous(3), 1);
  EXPECT_EQ(directory.Next(3), -1);
  EXPECT_EQ(directory.Previous(4), -1);
  EXPECT_EQ(directory.Next(4), -1);
  EXPECT_EQ(directory.Previous(2), -1);
  EXPECT_EQ(directory.Previous(5), -1);

  directory.ForgetBlock(1);
  EXPECT_TRUE(directory.at(0).forgotten);
  EXPECT_TRUE(directory.at(1).forgotten);
  EXPECT_FALSE(directory.at(3).forgotten);
  EXPECT_EQ(directory.Previous(3), -1);
  EXPECT_EQ(directory.Next(0), -1);
  directory.ForgetBlock(77);

  // The same span once more, as when a forgotten book is read again.
  EXPECT_EQ(add(5, 1, 64, 128, "a"), 6);
  EXPECT_EQ(directory.Previous(3), 6);
  EXPECT_EQ(directory.Next(6), 3);
  directory.ForgetBlock(1);
  EXPECT_EQ(directory.Previous(3), 6);
}

TEST(PageDirectory, PagesAddedAsForgottenAreNoNeighbours) {
  PageDirectory directory;
  for (int64_t page = 0; page < 3; ++page) {
    directory.Add(
        {.block = page, .stream = 1, .span = {page * 64, page * 64 + 64}, .source = "", .forgotten = page == 1});
  }
  EXPECT_EQ(directory.Next(0), -1);
  EXPECT_EQ(directory.Previous(2), -1);
}

TEST(PageFilter, AllowsOnlyWhatItHolds) {
  PageFilter filter(3, false);
  filter.Set(1, true);
  EXPECT_FALSE(filter.Allows(0));
  EXPECT_TRUE(filter.Allows(1));
  EXPECT_FALSE(filter.Allows(3));
  EXPECT_FALSE(filter.Allows(-1));
  EXPECT_FALSE(PageFilter().Allows(0));
}

TEST(TokenStatistics, IdfIsTheFormula) {
  std::mt19937 random(1);
  TokenStatistics statistics;
  EXPECT_EQ(statistics.Idf(std::vector<int32_t>{1, 2}), (std::vector<float>{0, 0}));
  std::vector<std::vector<int32_t>> pages(50);
  for (auto& page : pages) {
    page.resize(random() % 30);
    std::ranges::generate(page, [&] { return static_cast<int32_t>(random() % 40); });
    statistics.AddPage(page);
  }
  EXPECT_EQ(statistics.pages(), 50);
  std::vector<int32_t> ids(45);
  for (int32_t id = 0; id < 45; ++id) ids[static_cast<size_t>(id)] = id;
  const std::vector<float> idf = statistics.Idf(ids);
  for (const int32_t id : ids) {
    const auto holding = std::ranges::count_if(
        pages, [id](const auto& page) { return std::set<int32_t>(page.begin(), page.end()).contains(id); });
    EXPECT_EQ(statistics.DocumentFrequency(id), holding);
    const double expected = std::log(1 + 50.0 / static_cast<double>(std::max<int64_t>(1, holding)));
    EXPECT_NEAR(idf[static_cast<size_t>(id)], expected, 1e-6);
  }
}

}  // namespace
}  // namespace everlong::index
