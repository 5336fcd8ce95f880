// The file of the index by words.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "base_temporary_folder.h"
#include "index_lexical_case.h"
#include "index_vectors_case.h"

namespace everlong::index {
namespace {

TEST(LexicalIndex, WhatWasSavedAnswersAsItDid) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "lexical";
  for (uint32_t seed = 50; seed < 56; ++seed) {
    SCOPED_TRACE(seed);
    Library library(seed);
    for (int block = 0; block < 40; ++block) {
      library.AddBlock();
      if (block % 2 == 1) library.ForgetSome();
    }
    const std::vector<int32_t> kept = library.table().LiveOrdinals(library.table().All());
    ASSERT_TRUE(library.index().Save(file, kept).ok());
    // And as two files, which follow each other.
    const size_t half = kept.size() / 2;
    const std::filesystem::path older = folder.path() / "older";
    const std::filesystem::path newer = folder.path() / "newer";
    ASSERT_TRUE(library.index().Save(older, std::span(kept).first(half)).ok());
    ASSERT_TRUE(library.index().Save(newer, std::span(kept).subspan(half)).ok());
    // The same pages, of which every seventh is gone since: as it is here without them.
    std::vector<SavedPage> pages;
    TokenStatistics statistics;
    Pages here(library.pages().size());
    for (size_t at = 0; at < kept.size(); ++at) {
      const std::vector<int32_t>& ids = library.pages()[static_cast<size_t>(kept[at])];
      pages.push_back({static_cast<int32_t>(ids.size()), at % 7 == 3 ? -1 : kept[at]});
      if (at % 7 == 3) continue;
      statistics.AddPage(ids);
      here[static_cast<size_t>(kept[at])] = ids;
    }
    LexicalIndex loaded(library.table(), statistics);
    ASSERT_TRUE(loaded.Load(file, pages).ok());
    LexicalIndex of_two(library.table(), statistics);
    TokenStatistics of_files;
    const auto two = std::span(pages);
    ASSERT_TRUE(of_two.Load(older, two.first(half), Lengths::kOfTokens, &of_files).ok());
    ASSERT_TRUE(of_two.Load(newer, two.subspan(half), Lengths::kOfTokens, &of_files).ok());
    LexicalIndex expected(library.table(), statistics);
    for (int32_t page = 0; page < static_cast<int32_t>(here.size()); ++page) {
      if (!here[static_cast<size_t>(page)].empty()) {
        ASSERT_TRUE(expected.Add(page, here[static_cast<size_t>(page)]).ok());
      }
    }
    PageMask filter(library.table().pages(), false);
    for (const SavedPage& page : pages) {
      if (page.ordinal >= 0) filter.Set(page.ordinal, true);
    }
    for (int i = 0; i < 20; ++i) {
      const std::vector<int32_t> query = library.Question();
      const auto found = loaded.Search(query, 50, filter).value();
      const auto wanted = expected.Search(query, 50, filter).value();
      EXPECT_EQ(found.pages, wanted.pages);
      EXPECT_EQ(found.groups, wanted.groups);
      const auto found_in_two = of_two.Search(query, 50, filter).value();
      EXPECT_EQ(found_in_two.pages, wanted.pages);
      EXPECT_EQ(found_in_two.groups, wanted.groups);
      EXPECT_EQ(loaded.WholeScore(query), expected.WholeScore(query));
    }
    TokenStatistics counted;
    loaded.CountInto(counted);
    std::vector<int32_t> every(200);
    std::iota(every.begin(), every.end(), 0);
    EXPECT_EQ(counted.DocumentFrequencies(every).of_ids, statistics.DocumentFrequencies(every).of_ids);
    EXPECT_EQ(counted.pages(), statistics.pages());
    EXPECT_EQ(of_files.DocumentFrequencies(every).of_ids, statistics.DocumentFrequencies(every).of_ids);
    EXPECT_EQ(of_files.pages(), statistics.pages());

    // A list of other pages.
    std::vector<SavedPage> other = pages;
    ++other[2].tokens;
    EXPECT_EQ(LexicalIndex(library.table(), statistics).Load(file, other).code(), StatusCode::kCorrupt);
    other.pop_back();
    EXPECT_EQ(LexicalIndex(library.table(), statistics).Load(file, other).code(), StatusCode::kCorrupt);
  }
}

// Return where the checksum of what says how a file of postings lies is; the file's end where it says nonsense.
size_t EndOfDirectory(const std::string& bytes) {
  constexpr size_t kLine = 19;
  std::array<uint64_t, 4> header = {};  // pages, ids, postings, bytes of a count
  if (bytes.size() < kLine + sizeof header) return bytes.size();
  std::memcpy(header.data(), bytes.data() + kLine, sizeof header);
  if (header[0] > bytes.size() || header[1] > bytes.size()) return bytes.size();
  const auto aligned = [](size_t at, size_t to) { return (at + to - 1) / to * to; };
  return aligned(aligned(kLine + sizeof header, 4) + 4 * (header[0] + header[1]), 8) + 8 * header[1];
}

// What right checksums do not show: every byte of a file as every other number.
TEST(LexicalIndex, AFileThatCannotBeIsCorrupt) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "lexical";
  const auto words = Build({{1, 1, 300}, {7}, {1, 90'000, 90'000}});
  ASSERT_TRUE(words->index().Save(file, std::vector<int32_t>{0, 1, 2}).ok());
  const int memory = ::memfd_create("index", 0);
  ASSERT_GE(memory, 0);
  const std::vector<SavedPage> pages{{3, 0}, {1, 1}, {3, 2}};
  const std::string good = BytesOf(file);
  const auto load = [&](std::string bytes, bool saves = false) {
    if (const size_t at = EndOfDirectory(bytes); at + 2 * sizeof(uint32_t) <= bytes.size()) ChecksumSoFar(bytes, at);
    Checksum(bytes);
    EXPECT_EQ(::ftruncate(memory, 0), 0);
    EXPECT_EQ(::pwrite(memory, bytes.data(), bytes.size(), 0), std::ssize(bytes));
    TokenStatistics statistics;
    LexicalIndex loaded(words->table(), statistics);
    const Status status = loaded.Load("/proc/self/fd/" + std::to_string(memory), pages);
    if (!status.ok()) return status.code();
    loaded.CountInto(statistics);
    EXPECT_EQ(statistics.pages(), 3);
    const auto found = loaded.Search(std::vector<int32_t>{1, 7, 300, 90'000}, 5, PageMask(3, true));
    EXPECT_TRUE(found.ok() && found->groups.size() <= 3);
    EXPECT_TRUE(!saves || loaded.Save(folder.path() / "again", std::vector<int32_t>{0, 2}).ok());
    return StatusCode::kOk;
  };
  EXPECT_EQ(load(good), StatusCode::kOk);
  for (size_t at = 0; at + sizeof(uint32_t) < good.size(); ++at) {
    for (int bits = 1; bits < 256; ++bits) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ bits);
      const StatusCode code = load(bad, bits == 3);
      // Another id in the place of one, or another page, is nothing that a file could show.
      EXPECT_TRUE(code == StatusCode::kCorrupt || code == StatusCode::kOk) << at << " " << bits;
    }
  }
  for (size_t size = good.size() - 1; size > sizeof(uint32_t); --size) {
    EXPECT_EQ(load(good.substr(0, size)), StatusCode::kCorrupt) << size;
  }
  EXPECT_EQ(load(good + "more"), StatusCode::kCorrupt);
  ::close(memory);
}

}  // namespace
}  // namespace everlong::index
