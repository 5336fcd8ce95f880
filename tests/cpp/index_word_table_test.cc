// Which words token ids spell.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "everlong/index/word_table.h"

namespace everlong::index {
namespace {

// 0: nothing; 1 "harb", begins a word; 2 "our" and 3 "s", go on; 4 "harbour"; 5 "," ends one.
std::shared_ptr<const WordTable> Table() {
  const std::array<TokenPiece, 6> pieces{{{"", false, false},
                                          {"harb", false, true},
                                          {"our", true, true},
                                          {"s", true, true},
                                          {"harbour", false, true},
                                          {",", false, false}}};
  auto table = WordTable::Make(pieces);
  EXPECT_TRUE(table.ok());
  return *table;
}

std::vector<int32_t> TermsOf(const WordTable& table, const std::vector<int32_t>& ids) {
  std::vector<int32_t> terms;
  for (const WordTable::Word& word : table.Words(ids)) terms.push_back(word.term);
  return terms;
}

TEST(WordTable, OneWordHoweverItIsCut) {
  const auto table = Table();
  const std::vector<int32_t> cut = TermsOf(*table, {1, 2});
  ASSERT_EQ(cut.size(), 1);
  EXPECT_EQ(cut, TermsOf(*table, {4}));
  EXPECT_EQ(cut[0], table->TermOf(4));
  EXPECT_NE(cut, TermsOf(*table, {1, 2, 3}));
  EXPECT_EQ(TermsOf(*table, {1, 2, 3}), TermsOf(*table, {4, 3}));
}

TEST(WordTable, AWordEndsWhereNothingIsSaidAndAtAMark) {
  const auto table = Table();
  const auto words = table->Words(std::vector<int32_t>{1, 2, 0, 2, 5, 3, 1});
  ASSERT_EQ(words.size(), 5);
  const std::vector<std::pair<size_t, size_t>> expected{{0, 2}, {3, 4}, {4, 5}, {5, 6}, {6, 7}};
  for (size_t at = 0; at < words.size(); ++at) {
    EXPECT_EQ(words[at].first, expected[at].first);
    EXPECT_EQ(words[at].last, expected[at].second);
    EXPECT_GE(words[at].term, 0);
  }
}

TEST(WordTable, AnIdWithoutAPieceIsItself) {
  const auto table = Table();
  EXPECT_EQ(TermsOf(*table, {1, 77, 2}), (std::vector<int32_t>{table->TermOf(1), 77, table->TermOf(2)}));
  EXPECT_EQ(table->TermOf(77), 77);
  EXPECT_TRUE(table->Words({}).empty());
}

TEST(WordTable, TablesAreToldApart) {
  const std::array<TokenPiece, 2> one{{{"ab", false, true}, {"c", true, true}}};
  const std::array<TokenPiece, 2> other{{{"a", false, true}, {"bc", true, true}}};
  const std::array<TokenPiece, 2> flags{{{"ab", false, true}, {"c", false, true}}};
  const auto table = *WordTable::Make(one);
  EXPECT_TRUE(*table == **WordTable::Make(one));
  EXPECT_EQ(table->digest(), (*WordTable::Make(one))->digest());
  for (const auto& pieces : {other, flags}) {
    EXPECT_FALSE(*table == **WordTable::Make(pieces));
    EXPECT_NE(table->digest(), (*WordTable::Make(pieces))->digest());
  }
  EXPECT_EQ(WordTable::Make({}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace everlong::index
