// The index by words over files that it maps, beside one that was given all pages: the same, to the last bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base_temporary_folder.h"
#include "index_lexical_case.h"
#include "index_vectors_case.h"

namespace everlong::index {
namespace {

constexpr int32_t kIds = 90;

// Pages of one stream, a block each, some of them forgotten. Reload saves them as some files and opens these.
class Reloaded {
 public:
  explicit Reloaded(uint32_t seed) : random_(seed) { Begin(); }

  void AddPage() {
    std::vector<int32_t> ids(1 + random_() % kPageTokens);
    std::exponential_distribution<double> id(0.06);
    std::ranges::generate(ids, [&] { return std::min(kIds - 1, static_cast<int32_t>(id(random_))); });
    // Some files have a count above 255.
    if (random_() % 500 == 0) ids.insert(ids.end(), 300, 7);
    Append(ids);
    ASSERT_TRUE(index_->Add(table_->pages() - 1, ids).ok());
    statistics_->AddPage(ids);
  }

  void ForgetPage() {
    const auto page = static_cast<int32_t>(random_() % pages_.size());
    std::vector<int32_t>& ids = pages_[static_cast<size_t>(page)];
    if (ids.empty()) return;
    table_->Forget(table_->block(page).id);
    statistics_->RemovePage(ids);
    index_->Remove(page, ids);
    ids.clear();
  }

  // Pages that go between the save and the open are in the files, and counted nowhere.
  void Reload(bool some_go) {
    const std::vector<int32_t> kept = table_->LiveOrdinals(table_->All());
    const Pages before = std::move(pages_);
    const std::unique_ptr<BlockTable> table = std::move(table_);
    const std::unique_ptr<TokenStatistics> statistics = std::move(statistics_);
    const std::unique_ptr<LexicalIndex> index = std::move(index_);
    Begin();
    for (size_t first = 0, file = 0; first < kept.size(); ++file) {
      const size_t count = std::min(kept.size() - first, size_t{1} + random_() % kept.size());
      const auto of_file = std::span(kept).subspan(first, count);
      first += count;
      // Each other time the older files stay open under the names of new ones.
      const std::filesystem::path path = folder_.path() / ("lexical." + std::to_string(file));
      ASSERT_TRUE(index->Save(path, of_file).ok());
      std::vector<SavedPage> saved;
      for (const int32_t page : of_file) {
        const std::vector<int32_t>& ids = before[static_cast<size_t>(page)];
        const bool goes = some_go && random_() % 5 == 0;
        saved.push_back({static_cast<int32_t>(ids.size()), goes ? -1 : table_->pages()});
        if (!goes) Append(ids);
        if (random_() % 50 == 0) Append({});  // forgotten, and in no file
      }
      ASSERT_TRUE(index_->Load(path, saved).ok());
    }
    index_->CountInto(*statistics_);
  }

  void Expect() {
    LexicalIndex all(*table_, counted_);
    counted_.Clear();
    for (int32_t page = 0; page < static_cast<int32_t>(pages_.size()); ++page) {
      const std::vector<int32_t>& ids = pages_[static_cast<size_t>(page)];
      if (ids.empty()) continue;
      ASSERT_TRUE(all.Add(page, ids).ok());
      counted_.AddPage(ids);
    }
    std::vector<int32_t> every(kIds);
    std::iota(every.begin(), every.end(), 0);
    TokenStatistics again;
    index_->CountInto(again);
    for (const TokenStatistics* const statistics : {statistics_.get(), &again}) {
      EXPECT_EQ(statistics->DocumentFrequencies(every).of_ids, counted_.DocumentFrequencies(every).of_ids);
      EXPECT_EQ(statistics->pages(), counted_.pages());
    }
    for (int i = 0; i < 12; ++i) {
      std::vector<int32_t> question(1 + random_() % 9);
      std::ranges::generate(question, [&] { return static_cast<int32_t>(random_() % kIds); });
      const auto first = static_cast<int32_t>(random_() % pages_.size());
      const auto count = static_cast<int32_t>(1 + random_() % (i % 2 == 0 ? pages_.size() : 9));
      // Also of pages that were forgotten: a search never finds these.
      PageFilter some;
      for (int32_t page = first; page < std::min(first + count, table_->pages()); ++page) {
        if (i % 3 == 0 || random_() % 3 != 0) some.Add({page, page + 1});
      }
      const auto found = index_->Search(question, 1000, some).value();
      const auto wanted = all.Search(question, 1000, some).value();
      EXPECT_EQ(found.pages, wanted.pages);
      EXPECT_EQ(found.groups, wanted.groups);
      EXPECT_EQ(index_->WholeScore(question), all.WholeScore(question));
    }
  }

 private:
  void Begin() {
    pages_.clear();
    table_ = std::make_unique<BlockTable>(kPageTokens);
    statistics_ = std::make_unique<TokenStatistics>();
    index_ = std::make_unique<LexicalIndex>(*table_, *statistics_);
  }

  void Append(const std::vector<int32_t>& ids) {
    const int64_t begin = int64_t{kPageTokens} * table_->pages();
    const int64_t tokens = std::clamp<int64_t>(std::ssize(ids), 1, kPageTokens);
    table_->Append({.id = table_->pages() + 1, .span = {begin, begin + tokens}, .source = "book", .tags = {}});
    if (ids.empty()) table_->Forget(table_->pages());
    pages_.push_back(ids);
  }

  const TemporaryFolder folder_;
  std::mt19937 random_;
  Pages pages_;
  std::unique_ptr<BlockTable> table_;
  std::unique_ptr<TokenStatistics> statistics_;
  std::unique_ptr<LexicalIndex> index_;
  TokenStatistics counted_;
};

TEST(LexicalIndex, SavedPagesAnswerAsThoseThatWereAdded) {
  for (uint32_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    Reloaded library(seed);
    for (int page = 0; page < 700; ++page) library.AddPage();
    library.Expect();
    for (int round = 0; round < 6; ++round) {
      SCOPED_TRACE(round);
      library.Reload(round % 2 == 1);
      library.Expect();
      for (int page = 0; page < 60; ++page) library.ForgetPage();
      library.Expect();
      for (int page = 0; page < 50; ++page) library.AddPage();
      for (int page = 0; page < 30; ++page) library.ForgetPage();
      library.Expect();
    }
  }
}

// A saved index says what it says. Whoever removes a page knows the ids of the block.
TEST(LexicalIndex, APageThatIsRemovedByOtherIdsLeavesNoLengthBehind) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "lexical";
  ASSERT_TRUE(Build({{1, 1}, {2}, {1, 1, 1}})->index().Save(file, std::vector<int32_t>{0, 1, 2}).ok());
  Postings postings;
  const std::vector<SavedPage> pages{{2, 0}, {1, 2}, {3, 3}};
  ASSERT_TRUE(postings.AddSaved(SavedPostings::Open(file, pages, Lengths::kOfTokens).value()).ok());
  postings.Remove(0, std::vector<int32_t>{7, 8, 9, 10});
  postings.Remove(1, std::vector<int32_t>{7});
  postings.Remove(2, std::vector<int32_t>{2});
  EXPECT_EQ(postings.live_pages(), 1);
  EXPECT_EQ(postings.length(0), 0);
  EXPECT_DOUBLE_EQ(postings.Find({}).average_length, 3);
  TokenStatistics statistics;
  postings.CountInto(statistics);
  EXPECT_EQ(statistics.DocumentFrequency(1), 2);  // nothing of it was removed
  EXPECT_EQ(statistics.DocumentFrequency(2), 0);
  postings.Remove(3, std::vector<int32_t>{1, 1, 1});
  EXPECT_EQ(postings.live_pages(), 0);
}

// Of damaged lists anything may be found, but nothing is counted or saved.
TEST(LexicalIndex, DamagedListsAreNeitherCountedNorSaved) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "lexical";
  const auto words = Build({{1, 1, 300}, {7}, {1, 90'000, 90'000}});
  ASSERT_TRUE(words->index().Save(file, std::vector<int32_t>{0, 1, 2}).ok());
  std::string bytes = BytesOf(file);
  bytes[bytes.size() - sizeof(uint32_t) - 1] = static_cast<char>(bytes[bytes.size() - sizeof(uint32_t) - 1] ^ 1);
  WriteBytes(file, bytes);
  std::vector<SavedPage> pages{{3, 0}, {1, 1}, {3, 2}};
  TokenStatistics statistics;
  LexicalIndex index(words->table(), statistics);
  ASSERT_TRUE(index.Load(file, pages).ok());
  index.CountInto(statistics);
  EXPECT_TRUE(index.Search(std::vector<int32_t>{1, 7, 90'000}, 5, PageMask(3, true)).ok());
  EXPECT_EQ(index.Save(folder.path() / "again", std::vector<int32_t>{1}).code(), StatusCode::kCorrupt);
  EXPECT_TRUE(index.Save(folder.path() / "none", {}).ok());
  pages[1].ordinal = -1;
  pages[2].ordinal = 1;
  EXPECT_EQ(LexicalIndex(words->table(), statistics).Load(file, pages).code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace everlong::index
