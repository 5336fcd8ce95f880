// Searches of the part "meaning" on a device: the kernels' threads, run on the host, have the host's scores to the bit;
// and what happens where the device has no room or fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "everlong/index/block_table.h"
#include "everlong/index/meaning.h"
#include "everlong/index/token_statistics.h"
#include "index_hip_host.h"

namespace everlong::index {
namespace {

using hip::host::HostDevice;

constexpr int64_t kEnough = int64_t{64} << 20;
constexpr int32_t kPageTokens = 70;

void ExpectSameBits(const std::vector<Ranking>& got, const std::vector<Ranking>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t ranking = 0; ranking < got.size(); ++ranking) {
    const std::vector<Hit>& hits = got[ranking].hits;
    ASSERT_EQ(hits.size(), expected[ranking].hits.size());
    for (size_t rank = 0; rank < hits.size(); ++rank) {
      const Hit& hit = expected[ranking].hits[rank];
      ASSERT_EQ(hits[rank].page, hit.page) << rank;
      ASSERT_EQ(std::bit_cast<uint32_t>(hits[rank].score), std::bit_cast<uint32_t>(hit.score)) << rank;
    }
  }
}

// Two parts with the same blocks, one of them with a device.
class TwoParts {
 public:
  explicit TwoParts(int32_t dimension = 24, int32_t group_tokens = 4, int64_t bytes = kEnough)
      : dimension_(dimension),
        group_tokens_(group_tokens),
        on_host_(MakeMeaningPart(context_, {"p", dimension, group_tokens})),
        on_device_(MakeMeaningPart(context_, {"p", dimension, group_tokens, device_, bytes})) {}

  // Blocks of every length, their vectors with them or not; those of a third stream from elsewhere.
  void Append(int count, bool all_with_vectors = true) {
    for (int i = 0; i < count; ++i) {
      NewBlock block;
      block.id = ++blocks_;
      block.stream = static_cast<int64_t>(random_() % 3);
      const int64_t begin = table_.StreamEnd(block.stream) + (random_() % 5 == 0 ? 3 : 0);
      block.span = {begin, begin + 1 + static_cast<int64_t>(random_() % (6 * kPageTokens))};
      block.source = block.stream == 2 ? "letters" : "book";
      const bool with_vectors = all_with_vectors || random_() % 4 != 0;
      Tell(block.id, table_.pages(), block.span.size(), with_vectors,
           [](Part& part, const BlockInput& input) { return part.Add(input); });
      table_.Append(block);
    }
  }
  void Put(int64_t id) {
    const BlockEntry& block = *table_.Find(id);
    Tell(id, block.first_page, block.span.size(), true,
         [](Part& part, const BlockInput& input) { return part.TensorsCame(input); });
  }
  void Forget(int64_t id) {
    const BlockEntry block = *table_.Find(id);
    table_.Forget(id);
    Tell(id, block.first_page, block.span.size(), false,
         [](Part& part, const BlockInput& input) { return part.Forget(input); });
  }

  [[nodiscard]] std::vector<float> Question(size_t tokens) {
    std::normal_distribution<float> normal;
    std::vector<float> rows(tokens * static_cast<size_t>(dimension_));
    std::ranges::generate(rows, [&] { return normal(random_); });
    if (tokens > 3) std::fill_n(rows.begin() + dimension_, dimension_, 0.0F);  // a token without a weight
    return rows;
  }
  [[nodiscard]] std::vector<Ranking> Ask(const Part& part, const std::vector<float>& rows,
                                         const SearchFilter& filter = {}) const {
    Query query;
    query.inputs["meaning_query"].numbers = rows;
    return part.Rank(query, table_.Recallable(0, INT64_MAX, filter), 100'000).value();
  }
  void ExpectTheSame(size_t tokens, const SearchFilter& filter = {}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens, " << table_.pages() << " pages");
    const std::vector<float> rows = Question(tokens);
    ExpectSameBits(Ask(*on_device_, rows, filter), Ask(*on_host_, rows, filter));
  }

  [[nodiscard]] HostDevice& device() const { return *device_; }
  [[nodiscard]] const Part& part() const { return *on_device_; }
  [[nodiscard]] int64_t blocks() const { return blocks_; }

 private:
  template <class Call>
  void Tell(int64_t id, int32_t first_page, int64_t tokens, bool with_vectors, const Call& call) {
    const int64_t vectors = MeaningVectorsOf(tokens, kPageTokens, group_tokens_);
    std::vector<int8_t> codes(static_cast<size_t>(vectors * dimension_));
    const bool extreme = random_() % 4 == 0;  // the ends of the range
    for (int8_t& code : codes) {
      code = static_cast<int8_t>(extreme ? (random_() % 2 == 0 ? -128 : 127) : static_cast<int>(random_() % 256) - 128);
    }
    if (random_() % 3 == 0) std::fill_n(codes.begin(), dimension_, int8_t{0});
    const BlockTensor tensor{"meaning.p", "I8", shape_ = {vectors, dimension_}, std::as_bytes(std::span(codes))};
    BlockInput input;
    input.id = id;
    input.first_page = first_page;
    input.page_tokens = kPageTokens;
    input.tokens = tokens;
    if (with_vectors) input.tensors = {&tensor, 1};
    for (const auto& part : {on_host_.get(), on_device_.get()}) ASSERT_TRUE(call(*part, input).ok());
  }

  std::mt19937 random_{77};
  int32_t dimension_;
  int32_t group_tokens_;
  int64_t blocks_ = 0;
  std::vector<int64_t> shape_;
  BlockTable table_{kPageTokens};
  TokenStatistics statistics_;
  PartContext context_{table_, statistics_};
  std::shared_ptr<HostDevice> device_ = std::make_shared<HostDevice>();
  std::unique_ptr<Part> on_host_;
  std::unique_ptr<Part> on_device_;
};

TEST(HipMeaningTest, ScoresAreTheHosts) {
  for (const int32_t dimension : {1, 3, 4, 24, 63, 128, 4 * kMostJobQuads}) {
    for (const int32_t group_tokens : {1, 4, 5, 100}) {  // 70, 18, 14 vectors a page and 1, at any place of a tile
      SCOPED_TRACE(testing::Message() << "dimension " << dimension << ", group_tokens " << group_tokens);
      TwoParts two(dimension, group_tokens);
      two.Append(dimension > 200 ? 3 : 12);
      int64_t asked = 0;
      for (const size_t tokens : {1, 15, 16, 17, 40}) {
        two.ExpectTheSame(tokens);
        EXPECT_EQ(two.device().scans, ++asked);
      }
      EXPECT_TRUE(two.part().TakeMessages().empty());
    }
  }
}

TEST(HipMeaningTest, FollowsWhatComesAndGoes) {
  TwoParts two;
  SearchFilter letters;
  letters.sources = {"letters"};
  int64_t asked = 0;
  const auto expect = [&] {
    two.ExpectTheSame(7);
    two.ExpectTheSame(33, letters);
    asked += 2;
    EXPECT_EQ(two.device().scans, asked);
    EXPECT_EQ(two.part().device_use().scans, asked);
    EXPECT_EQ(two.part().device_use().bytes, two.device().held());
  };
  two.Append(60, false);
  expect();
  for (int64_t id = 1; id <= two.blocks(); id += 4) two.Forget(id);
  expect();
  for (int64_t id = 2; id <= two.blocks(); id += 4) two.Put(id);  // some late, some anew
  expect();
  two.Append(10);
  expect();
  EXPECT_TRUE(two.part().TakeMessages().empty());
}

TEST(HipMeaningTest, VectorsGoThereOnceAsTheyCome) {
  TwoParts two;
  two.Append(20);
  const int64_t uploaded = two.device().uploaded;
  const int64_t held = two.device().held();
  two.ExpectTheSame(5);
  EXPECT_LT(two.device().uploaded - uploaded, uploaded / 2) << "a search brings its question and where pages lie";
  const int64_t with_search = two.device().held();
  EXPECT_GE(with_search, held);
  for (int i = 0; i < 20; ++i) two.Put(3);  // of as many bytes
  EXPECT_EQ(two.device().held(), with_search) << "the room is used again";
  two.ExpectTheSame(5);
}

TEST(HipMeaningTest, NothingToScoreAsksNothingOfTheDevice) {
  TwoParts two;
  two.ExpectTheSame(3);
  two.Append(4);
  const std::vector<Ranking> unasked = two.Ask(two.part(), std::vector<float>(24, 0.0F));  // a row without a weight
  EXPECT_FALSE(unasked[0].hits.empty());
  for (const Ranking& ranking : unasked) {
    for (const Hit& hit : ranking.hits) EXPECT_EQ(hit.score, 0);
  }
  SearchFilter nothing;
  nothing.sources = {"nothing"};
  two.ExpectTheSame(3, nothing);
  EXPECT_EQ(two.device().scans, 0);
}

TEST(HipMeaningTest, LittleRoomTakesSeveralPasses) {
  bool in_passes = false;
  for (int64_t bytes = 60'000; bytes < 500'000; bytes += 20'000) {
    TwoParts two(24, 4, bytes);
    two.Append(40);
    two.ExpectTheSame(200);
    EXPECT_LE(two.device().most_held, bytes);
    in_passes = in_passes || (two.part().device_use().scans == 1 && two.device().scans > 1);
  }
  EXPECT_TRUE(in_passes);
}

TEST(HipMeaningTest, TheHostScansWhatDoesNotFit) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{20'000}}) {
    SCOPED_TRACE(bytes);
    TwoParts two(24, 4, bytes);
    two.Append(40);
    two.ExpectTheSame(9);
    EXPECT_EQ(two.device().held(), 0) << "nothing is kept in vain";
    EXPECT_LE(two.device().most_held, bytes);
    EXPECT_EQ(two.device().scans, 0);
    const std::vector<std::string> messages = two.part().TakeMessages();
    ASSERT_EQ(messages.size(), 1U);
    EXPECT_NE(messages[0].find("the vectors of meaning are searched on the host ("), std::string::npos);
    EXPECT_NE(messages[0].find("do not fit"), std::string::npos) << messages[0];
    EXPECT_TRUE(two.part().TakeMessages().empty()) << "said once";
    two.Put(3);
    two.Forget(2);
    two.ExpectTheSame(9);
  }
  TwoParts long_ones(4 * kMostJobQuads + 1);
  long_ones.Append(2);
  long_ones.ExpectTheSame(2);
  ASSERT_EQ(long_ones.part().TakeMessages().size(), 1U);
}

TEST(HipMeaningTest, TheHostScansWhenTheDeviceFails) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  TwoParts two;
  two.Append(20);
  two.device().scans_left = 0;  // a launch
  two.ExpectTheSame(9);
  EXPECT_EQ(two.part().TakeMessages().size(), 1U);
  EXPECT_EQ(two.part().device_use().scans, 0);
  two.device().scans_left = kAny;
  two.device().allocations_left = 0;
  two.ExpectTheSame(9);  // the room of the search before is there
  EXPECT_EQ(two.part().device_use().scans, 1);
  two.device().uploads_left = 0;  // of the question
  two.ExpectTheSame(9);
  EXPECT_EQ(two.part().TakeMessages().size(), 1U);
  EXPECT_EQ(two.part().device_use().scans, 1);
  two.Forget(5);  // what it had can not be made zeros: all of it goes
  EXPECT_EQ(two.part().TakeMessages().size(), 1U);
  EXPECT_EQ(two.device().held(), 0);
  two.device().uploads_left = kAny;
  two.ExpectTheSame(9);
  EXPECT_EQ(two.part().device_use().scans, 1) << "vectors are there as a whole or not at all";
}

TEST(HipMeaningTest, SearchesRunBesideEachOther) {
  TwoParts two;
  two.Append(30);
  const std::vector<float> rows = two.Question(20);
  const std::vector<Ranking> expected = two.Ask(two.part(), rows);
  std::vector<std::vector<Ranking>> found(4);
  std::vector<std::thread> threads;
  for (auto& rankings : found) threads.emplace_back([&] { rankings = two.Ask(two.part(), rows); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& rankings : found) ExpectSameBits(rankings, expected);
  EXPECT_EQ(two.part().device_use().scans, 5);
}

}  // namespace
}  // namespace everlong::index
