#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "../../cpp/index/meaning_kernel.h"
#include "../../cpp/index/meaning_vectors.h"
#include "base_temporary_folder.h"
#include "everlong/index/block_table.h"
#include "everlong/index/meaning.h"
#include "everlong/index/part_kinds.h"
#include "everlong/index/token_statistics.h"
#include "index_vectors_case.h"

namespace everlong::index {
namespace {

std::vector<int8_t> RandomCodes(std::mt19937& random, size_t count) {
  std::vector<int8_t> codes(count);
  // The ends of the range, too: no kernel may saturate.
  const bool extreme = random() % 3 == 0;
  for (int8_t& code : codes) {
    code = static_cast<int8_t>(extreme ? (random() % 2 == 0 ? -128 : 127) : static_cast<int>(random() % 256) - 128);
  }
  return codes;
}

TEST(MeaningKernelTest, EveryInstructionSetHasTheSameBits) {
  std::mt19937 random(70);
  const KernelTable<MeaningKernel>& kernels = SupportedMeaningKernels();
  for (const int32_t dimension : {1, 3, 4, 63, 64, 128, 200, kMostMeaningDimension}) {
    for (const int32_t row_count : {1, 7, 8, 9, kMeaningRows}) {
      const auto width = static_cast<size_t>(dimension);
      const std::vector<int32_t> counts{1, 4, 16, 11, 33, 2};  // vectors of each page: across tiles, and within
      std::vector<int8_t> codes;
      for (const int32_t count : counts) {
        for (int32_t i = 0; i < count; ++i) {
          std::vector<int8_t> vector = RandomCodes(random, width);
          if (random() % 8 == 0) std::ranges::fill(vector, int8_t{0});
          codes.insert(codes.end(), vector.begin(), vector.end());
        }
      }
      MeaningVectors vectors(dimension);
      vectors.Put(0, counts, codes);
      MeaningRows rows(dimension);
      std::vector<std::vector<int8_t>> queries;
      for (int32_t row = 0; row < row_count; ++row) {
        std::vector<int8_t> query = RandomCodes(random, width);
        for (int8_t& code : query) code = std::max<int8_t>(code, -127);
        rows.Add(query);
        queries.push_back(std::move(query));
      }
      size_t first = 0;
      for (int32_t page = 0; page < vectors.pages(); ++page) {
        std::vector<float> expected(queries.size(), -std::numeric_limits<float>::infinity());
        for (int32_t i = 0; i < counts[static_cast<size_t>(page)]; ++i, first += width) {
          int64_t square = 0;
          for (size_t at = 0; at < width; ++at) square += int64_t{codes[first + at]} * codes[first + at];
          const float per_length = square == 0 ? 0 : static_cast<float>(1 / std::sqrt(static_cast<double>(square)));
          for (size_t row = 0; row < queries.size(); ++row) {
            int64_t dot = 0;
            for (size_t at = 0; at < width; ++at) dot += int64_t{queries[row][at]} * codes[first + at];
            expected[row] = std::max(expected[row], static_cast<float>(dot) * per_length);
          }
        }
        for (int32_t level = 0; level < kernels.count; ++level) {
          float maxima[kMeaningRows] = {};
          kernels.kernels[level].page_maxima(vectors.Run(page), rows, maxima);
          for (size_t row = 0; row < queries.size(); ++row) {
            ASSERT_EQ(std::bit_cast<uint32_t>(maxima[row]), std::bit_cast<uint32_t>(expected[row]))
                << "level " << level << ", dimension " << dimension << ", page " << page << ", row " << row;
          }
        }
      }
    }
  }
}

// A block as the test knows it.
struct Known {
  NewBlock block;
  std::vector<int8_t> codes;  // none without vectors
  bool forgotten = false;
};

// A part over a table that is filled by hand, and what it should say.
class MeaningPartTest : public testing::Test {
 protected:
  static constexpr int32_t kPageTokens = 7;
  static constexpr int32_t kGroupTokens = 3;
  static constexpr int32_t kDimension = 24;

  [[nodiscard]] static std::unique_ptr<Part> Make(const PartContext& context, const std::string& pack = "p") {
    return MakeMeaningPart(context, {pack, kDimension, kGroupTokens});
  }

  BlockInput InputOf(const Known& known, int32_t first_page, const std::vector<int64_t>& shape,
                     BlockTensor& tensor) const {
    BlockInput input;
    input.id = known.block.id;
    input.first_page = first_page;
    input.page_tokens = kPageTokens;
    input.tokens = known.block.span.size();
    input.sink_tokens = known.block.sink_tokens;
    tensor = {name_, "I8", shape, std::as_bytes(std::span(known.codes))};
    if (!known.codes.empty()) input.tensors = {&tensor, 1};
    return input;
  }

  static std::vector<int64_t> ShapeOf(const Known& known) {
    return {MeaningVectorsOf(known.block.span.size(), kPageTokens, kGroupTokens), kDimension};
  }

  std::vector<int8_t> CodesFor(int64_t tokens) {
    const int64_t count = MeaningVectorsOf(tokens, kPageTokens, kGroupTokens);
    std::vector<int8_t> codes;
    for (int64_t vector = 0; vector < count; ++vector) {
      std::vector<int8_t> more = RandomCodes(random_, kDimension);
      if (random_() % 9 == 0) std::ranges::fill(more, int8_t{0});
      if (random_() % 9 == 0 && !codes.empty()) more.assign(codes.begin(), codes.begin() + kDimension);  // twice
      codes.insert(codes.end(), more.begin(), more.end());
    }
    return codes;
  }

  void Append(bool with_vectors) {
    Known known;
    const auto stream = static_cast<int64_t>(random_() % 3);
    const auto tokens = static_cast<int64_t>(1 + random_() % 40);
    // Now and then something of the stream is not archived.
    const int64_t begin = table_.StreamEnd(stream) + (random_() % 5 == 0 ? 3 : 0);
    known.block.id = std::ssize(known_) + 1;
    known.block.stream = stream;
    known.block.span = {begin, begin + tokens};
    known.block.sink_tokens = begin == 0 ? static_cast<int32_t>(std::min<int64_t>(tokens, 9)) : 0;
    known.block.source = random_() % 4 == 0 ? "letters" : "book";
    if (with_vectors) known.codes = CodesFor(tokens);
    BlockTensor tensor;
    const std::vector<int64_t> shape = ShapeOf(known);
    const BlockInput input = InputOf(known, table_.pages(), shape, tensor);
    ASSERT_TRUE(part_->Check(input).ok());
    ASSERT_TRUE(part_->Add(input).ok());
    table_.Append(known.block);
    known_.push_back(std::move(known));
  }

  void Put(size_t number) {
    Known& known = known_[number];
    known.codes = CodesFor(known.block.span.size());
    BlockTensor tensor;
    const std::vector<int64_t> shape = ShapeOf(known);
    const BlockInput input = InputOf(known, table_.Find(known.block.id)->first_page, shape, tensor);
    ASSERT_TRUE(part_->CheckTensors(input).ok());
    ASSERT_TRUE(part_->TensorsCame(input).ok());
  }

  void Forget(size_t number) {
    Known& known = known_[number];
    const int32_t first_page = table_.Find(known.block.id)->first_page;
    table_.Forget(known.block.id);
    known.forgotten = true;
    BlockTensor tensor;
    known.codes.clear();
    ASSERT_TRUE(part_->Forget(InputOf(known, first_page, {}, tensor)).ok());
  }

  // The blocks that a file has which is saved now.
  [[nodiscard]] std::vector<SavedBlock> SavedNow() const {
    std::vector<SavedBlock> saved;
    for (const Known& known : known_) {
      if (known.forgotten || known.codes.empty()) continue;
      saved.push_back({known.block.id, known.block.span.size(), table_.Find(known.block.id)->first_page});
    }
    return saved;
  }

  // The vectors of a page; none.
  [[nodiscard]] std::vector<std::vector<int>> VectorsOf(int32_t ordinal) const {
    const PageEntry page = table_.page(ordinal);
    const Known& known = known_[static_cast<size_t>(page.block - 1)];
    std::vector<std::vector<int>> vectors;
    if (known.codes.empty()) return vectors;
    constexpr int64_t kOfAPage = (kPageTokens + kGroupTokens - 1) / kGroupTokens;
    for (int64_t token = 0; token < page.span.size(); token += kGroupTokens) {
      const auto first = known.codes.begin() + (page.page * kOfAPage + token / kGroupTokens) * kDimension;
      vectors.emplace_back(first, first + kDimension);
    }
    return vectors;
  }

  // In fp64, from the rounded numbers; minus infinity without vectors.
  [[nodiscard]] double Score(const std::vector<float>& rows, const std::vector<int32_t>& pages) const {
    double score = 0;
    for (size_t begin = 0; begin < rows.size(); begin += kDimension) {
      double largest = 0;
      double square = 0;
      for (size_t i = 0; i < kDimension; ++i) {
        largest = std::max(largest, std::abs(double{rows[begin + i]}));
        square += double{rows[begin + i]} * rows[begin + i];
      }
      if (largest == 0) continue;
      std::vector<double> rounded;
      double rounded_square = 0;
      for (size_t i = 0; i < kDimension; ++i) {
        rounded.push_back(std::nearbyint(static_cast<float>(rows[begin + i] * (127 / largest))));
        rounded_square += rounded.back() * rounded.back();
      }
      double best = -std::numeric_limits<double>::infinity();
      for (const int32_t page : pages) {
        for (const std::vector<int>& vector : VectorsOf(page)) {
          double dot = 0;
          double length = 0;
          for (size_t i = 0; i < kDimension; ++i) {
            dot += rounded[i] * vector[i];
            length += vector[i] * vector[i];
          }
          best = std::max(best, length == 0 ? 0 : dot / std::sqrt(length * rounded_square));
        }
      }
      score += std::sqrt(square) * best;
    }
    return score;
  }

  // What `part` says of all pages, against the definition.
  void ExpectExact(const SearchFilter& search_filter = {}) {
    std::normal_distribution<float> normal;
    const auto tokens = 1 + random_() % 20;
    std::vector<float> rows(tokens * kDimension);
    std::ranges::generate(rows, [&] { return normal(random_); });
    if (tokens > 3) std::fill_n(rows.begin() + kDimension, kDimension, 0.0F);  // a token without a weight
    double whole = 0;
    for (size_t begin = 0; begin < rows.size(); begin += kDimension) {
      double square = 0;
      for (size_t i = 0; i < kDimension; ++i) square += double{rows[begin + i]} * rows[begin + i];
      whole += std::sqrt(square);
    }
    const PageFilter filter = table_.Recallable(0, INT64_MAX, search_filter);
    Query query;
    query.inputs["meaning_query"].numbers = rows;
    const std::vector<Ranking> rankings = part_->Rank(query, filter, 10'000).value();
    ASSERT_EQ(rankings.size(), 2U);
    EXPECT_EQ(rankings[0].granularity, Granularity::kPage);
    EXPECT_EQ(rankings[1].granularity, Granularity::kGroup);
    std::map<int32_t, double> alone;
    std::map<int32_t, double> with_neighbours;
    for (int32_t page = 0; page < table_.pages(); ++page) {
      if (!filter.Allows(page) || VectorsOf(page).empty()) continue;
      alone[page] = Score(rows, {page});
      std::vector<int32_t> pages{page};
      for (const int32_t neighbour : {table_.Previous(page), table_.Next(page)}) {
        if (neighbour >= 0 && filter.Allows(neighbour)) pages.push_back(neighbour);
      }
      with_neighbours[page] = Score(rows, pages);
    }
    for (const auto& [ranking, expected] :
         {std::pair(&rankings[0], &alone), std::pair(&rankings[1], &with_neighbours)}) {
      EXPECT_NEAR(ranking->whole, whole, 1e-6 * whole);
      EXPECT_EQ(ranking->voice.grows, Voice::Grows::kAsShare);
      ASSERT_EQ(ranking->hits.size(), expected->size());
      for (size_t i = 0; i < ranking->hits.size(); ++i) {
        const Hit& hit = ranking->hits[i];
        ASSERT_TRUE(expected->contains(hit.page));
        EXPECT_NEAR(hit.score, expected->at(hit.page), 1e-6 * whole);
        if (i == 0) continue;
        const Hit& before = ranking->hits[i - 1];
        EXPECT_TRUE(before.score > hit.score || (before.score == hit.score && before.page < hit.page));
      }
    }
    // The first of them are the same ones.
    const std::vector<Ranking> first = part_->Rank(query, filter, 5).value();
    for (size_t ranking = 0; ranking < first.size(); ++ranking) {
      const std::vector<Hit>& hits = first[ranking].hits;
      ASSERT_EQ(hits.size(), std::min<size_t>(5, rankings[ranking].hits.size()));
      for (size_t i = 0; i < hits.size(); ++i) EXPECT_EQ(hits[i].page, rankings[ranking].hits[i].page);
      EXPECT_EQ(first[ranking].unnamed, hits.size() < 5 ? 0 : hits.back().score);
    }
  }

  std::mt19937 random_{71};
  const std::string name_ = "meaning.p";
  BlockTable table_{kPageTokens};
  TokenStatistics statistics_;
  PartContext context_{table_, statistics_};
  std::unique_ptr<Part> part_ = Make(context_);
  std::vector<Known> known_;
};

TEST_F(MeaningPartTest, IsExact) {
  ExpectExact();
  for (int i = 0; i < 60; ++i) {
    Append(random_() % 5 != 0);
    if (i % 6 == 0) ExpectExact();
  }
  SearchFilter letters;
  letters.sources = {"letters"};
  ExpectExact(letters);
  // Some are forgotten, some get their vectors late, some get others.
  for (size_t number = 0; number < known_.size(); number += 4) Forget(number);
  ExpectExact();
  ExpectExact(letters);
  for (size_t number = 1; number < known_.size(); number += 4) Put(number);
  ExpectExact();
  for (int i = 0; i < 10; ++i) Append(true);
  ExpectExact();
  ExpectExact(letters);
  for (size_t number = 0; number < known_.size(); ++number) {
    const BlockEntry* const block = table_.Find(known_[number].block.id);
    ASSERT_EQ(block == nullptr, known_[number].forgotten);
    if (block == nullptr) continue;
    EXPECT_EQ(part_->Has(*block), !known_[number].codes.empty());
  }
  // And a part that is made later, without what is forgotten.
  const std::unique_ptr<Part> before = std::exchange(part_, Make(context_));
  for (const Known& known : known_) {
    if (known.forgotten) continue;
    BlockTensor tensor;
    const std::vector<int64_t> shape = ShapeOf(known);
    ASSERT_TRUE(part_->Add(InputOf(known, table_.Find(known.block.id)->first_page, shape, tensor)).ok());
  }
  ExpectExact();
  EXPECT_LE(part_->bytes(), before->bytes());
}

TEST_F(MeaningPartTest, AFileHasWhatThePartHas) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "meaning";
  for (int i = 0; i < 40; ++i) Append(random_() % 4 != 0);
  for (size_t number = 3; number < known_.size(); number += 7) Forget(number);
  ASSERT_TRUE(part_->Save(file, table_.All()).ok());
  const std::vector<SavedBlock> saved = SavedNow();
  // One of them is forgotten before the file is loaded.
  std::vector<SavedBlock> loaded = saved;
  Forget(static_cast<size_t>(loaded[2].id - 1));
  loaded[2].first_page = -1;
  const std::string settings = part_->settings();
  part_ = Make(context_);
  EXPECT_EQ(part_->settings(), settings);
  ASSERT_TRUE(part_->Load(file, loaded, true).ok());
  ExpectExact();
  for (const Known& known : known_) {
    const BlockEntry* const block = table_.Find(known.block.id);
    if (block != nullptr) {
      EXPECT_EQ(part_->Has(*block), !known.codes.empty());
    }
  }
  // What is mapped may be replaced and forgotten, and what waits gets vectors: the file stays as it is.
  const std::string bytes = BytesOf(file);
  for (size_t number = 0; number < known_.size(); number += 3) {
    if (!known_[number].forgotten) Put(number);
  }
  for (size_t number = 1; number < known_.size(); number += 5) {
    if (!known_[number].forgotten) Forget(number);
  }
  for (int i = 0; i < 10; ++i) Append(random_() % 4 != 0);
  ExpectExact();
  EXPECT_EQ(BytesOf(file), bytes);
  // A segment behind the first.
  ASSERT_TRUE(part_->Save(file, {0, 20}).ok());
  const std::filesystem::path behind = folder.path() / "behind";
  ASSERT_TRUE(part_->Save(behind, {20, table_.blocks()}).ok());
  std::vector<SavedBlock> first = SavedNow();
  const auto second = std::ranges::find_if(first, [](const SavedBlock& block) { return block.id > 20; });
  const std::vector<SavedBlock> rest(second, first.end());
  first.erase(second, first.end());
  part_ = Make(context_);
  ASSERT_TRUE(part_->Load(file, first, true).ok());
  ASSERT_TRUE(part_->Load(behind, rest, true).ok());
  ExpectExact();
}

TEST_F(MeaningPartTest, AFileThatCannotBeIsCorrupt) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "meaning";
  for (int i = 0; i < 6; ++i) Append(true);
  ASSERT_TRUE(part_->Save(file, table_.All()).ok());
  const std::vector<SavedBlock> saved = SavedNow();
  const auto load = [&](const std::vector<SavedBlock>& blocks) {
    return Make(context_)->Load(file, blocks, false).code();
  };
  EXPECT_EQ(load(saved), StatusCode::kOk);
  for (const int64_t tokens : {INT64_MAX, INT64_MAX / 2, int64_t{1} << 40, int64_t{100'000}}) {
    for (const int32_t first_page : {-1, 0}) {
      std::vector<SavedBlock> longer = saved;
      longer.push_back({9, tokens, first_page});
      EXPECT_EQ(load(longer), StatusCode::kCorrupt);
    }
  }
  std::vector<SavedBlock> fewer = saved;
  fewer.pop_back();
  EXPECT_EQ(load(fewer), StatusCode::kCorrupt);
}

// Vectors are not checked when a file is opened. They are before they are saved again, and a search heeds them.
TEST_F(MeaningPartTest, DamagedVectorsAreNotCarriedOnAndNotFound) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "meaning";
  for (int i = 0; i < 6; ++i) Append(true);
  ASSERT_TRUE(part_->Save(file, table_.All()).ok());
  const std::vector<SavedBlock> saved = SavedNow();
  const std::string good = BytesOf(file);
  // Behind the signs of every block, in tiles of 16, one over the length of the first vector.
  size_t signs = 0;
  for (const SavedBlock& block : saved) {
    signs += static_cast<size_t>((MeaningVectorsOf(block.tokens, kPageTokens, kGroupTokens) + 15) / 16) * 64;
  }
  const size_t first_length = 64 + signs + size_t{64} * kDimension / 4;
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1e30F, 200.0F}) {
    std::string bytes = good;
    std::memcpy(bytes.data() + first_length, &wrong, sizeof wrong);
    WriteBytes(file, bytes);
    part_ = Make(context_);
    ASSERT_TRUE(part_->Load(file, saved, false).ok());
    EXPECT_EQ(part_->Save(folder.path() / "again", table_.All()).code(), StatusCode::kCorrupt);
    Query query;
    const std::vector<float> rows(size_t{2} * kDimension, 1.0F);
    query.inputs[std::string(KindOf(IndexPart::kMeaning).input)].numbers = rows;
    const auto rankings = part_->Rank(query, PageFilter::All(table_.pages()), 50);
    ASSERT_TRUE(rankings.ok()) << rankings.status().ToString();
    for (const Ranking& ranking : *rankings) {
      for (const Hit& hit : ranking.hits) EXPECT_LE(std::abs(hit.score), 1.001F * 2 * std::sqrt(kDimension));
    }
  }
  std::string bytes = good;
  bytes[3] = static_cast<char>(bytes[3] ^ 1);
  WriteBytes(file, bytes);
  EXPECT_EQ(Make(context_)->Load(file, saved, false).code(), StatusCode::kCorrupt);
}

TEST_F(MeaningPartTest, ForgettingGivesBack) {
  for (int i = 0; i < 30; ++i) Append(true);
  const int64_t full = part_->bytes();
  for (size_t number = 0; number < known_.size(); ++number) Forget(number);
  EXPECT_LT(part_->bytes(), full / 4);
}

TEST_F(MeaningPartTest, RefusesWhatDoesNotFit) {
  Append(true);
  Known& known = known_[0];
  BlockTensor tensor;
  const std::vector<int64_t> shape = ShapeOf(known);
  BlockInput input = InputOf(known, 0, shape, tensor);
  EXPECT_TRUE(part_->CheckTensors(input).ok());
  tensor.dtype = "U8";
  EXPECT_EQ(part_->CheckTensors(input).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(part_->Check(input).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(part_->TensorsCame(input).code(), StatusCode::kInvalidArgument);
  tensor.dtype = "I8";
  for (const std::vector<int64_t>& other :
       {std::vector<int64_t>{shape[0] + 1, shape[1]}, {shape[0], shape[1] - 1}, {shape[1], shape[0]}, {shape[0]}, {}}) {
    tensor.shape = other;
    EXPECT_EQ(part_->CheckTensors(input).code(), StatusCode::kInvalidArgument);
  }
  // Another pack's are nobody's.
  tensor.name = "meaning.q";
  EXPECT_TRUE(part_->CheckTensors(input).ok());
  EXPECT_TRUE(part_->TensorsCame(input).ok());
  ExpectExact();
}

TEST_F(MeaningPartTest, RefusesAQuestionThatIsNoNumbers) {
  Append(true);
  Query query;
  const PageFilter filter = table_.Recallable(0, INT64_MAX);
  std::vector<float> rows(2 * kDimension, 1.0F);
  query.inputs["meaning_query"].numbers = rows;
  EXPECT_TRUE(part_->Rank(query, filter, 3).ok());
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30F}) {
    rows[kDimension + 3] = bad;
    EXPECT_EQ(part_->Rank(query, filter, 3).status().code(), StatusCode::kInvalidArgument);
  }
  const std::vector<float> cut(kDimension + 1, 1.0F);
  query.inputs["meaning_query"].numbers = cut;
  EXPECT_EQ(part_->Rank(query, filter, 3).status().code(), StatusCode::kInvalidArgument);
  // As small as numbers are: a direction all the same.
  const std::vector<float> least(kDimension, std::numeric_limits<float>::denorm_min());
  query.inputs["meaning_query"].numbers = least;
  const std::vector<float> ones(kDimension, 1.0F);
  Query same;
  same.inputs["meaning_query"].numbers = ones;
  const auto hits = part_->Rank(query, filter, 1).value()[0].hits;
  const auto expected = part_->Rank(same, filter, 1).value()[0].hits;
  ASSERT_EQ(hits.size(), expected.size());
  for (size_t i = 0; i < hits.size(); ++i) EXPECT_EQ(hits[i].page, expected[i].page);
}

// Pages of blocks that have vectors of tokens, sentences and passages, in a part of two levels and in one of one.
class TwoLevelsTest : public testing::Test {
 protected:
  static constexpr int32_t kPageTokens = 8;
  static constexpr int32_t kBlockPages = 5;
  static constexpr int32_t kBlocks = 400;
  static constexpr int32_t kWidth = 64;
  static constexpr int32_t kSentenceWidth = 48;
  static constexpr int32_t kGroup = 2;

  TwoLevelsTest() {
    const std::vector<std::string> names{"encoder.p", SentenceTensor("p"), PassageTensor("p")};
    const std::vector<std::vector<int64_t>> shapes{
        {kBlockPages * kPageTokens / kGroup, kWidth}, {kBlockPages * 2, kSentenceWidth}, {kBlockPages, kSentenceWidth}};
    for (int32_t number = 0; number < kBlocks; ++number) {
      NewBlock block;
      block.id = number + 1;
      block.span = {int64_t{number} * kBlockPages * kPageTokens, int64_t{number + 1} * kBlockPages * kPageTokens};
      block.source = number % 6 == 0 ? "letters" : "book";
      BlockInput input;
      input.first_page = table_.pages();
      input.page_tokens = kPageTokens;
      input.tokens = block.span.size();
      std::vector<BlockTensor> tensors;
      std::vector<std::vector<int8_t>> codes;
      for (size_t of = 0; of < names.size(); ++of) {
        codes.push_back(RandomCodes(random_, static_cast<size_t>(shapes[of][0] * shapes[of][1])));
        for (int8_t& code : codes.back()) code = std::max<int8_t>(code, -127);
        if (of == 2 && number % 3 != 0) std::ranges::fill(codes.back(), int8_t{0});  // as of longer texts
      }
      for (size_t of = 0; of < names.size(); ++of) {
        tensors.push_back({names[of], "I8", shapes[of], std::as_bytes(std::span(codes[of]))});
      }
      input.tensors = tensors;
      if (number % 50 != 7) {  // and some wait
        EXPECT_TRUE(two_->Add(input).ok() && one_->Add(input).ok());
      }
      table_.Append(block);
      tokens_.push_back(std::move(codes[0]));
      sentences_.push_back(std::move(codes[1]));
    }
  }

  [[nodiscard]] std::unique_ptr<Part> Make(int32_t coarse_from) const {
    MeaningOptions options{"p", kWidth, kGroup};
    options.sentence_dimension = kSentenceWidth;
    options.sentence_tokens = 4;
    options.coarse_from = coarse_from;
    return MakeMeaningPart(context_, options, IndexPart::kEncoder);
  }
  // Numbers near a vector of a block.
  std::vector<float> Near(const std::vector<int8_t>& codes, size_t vector, size_t width) {
    std::normal_distribution<float> noise(0, 40);
    std::vector<float> near(codes.begin() + static_cast<std::ptrdiff_t>(vector * width),
                            codes.begin() + static_cast<std::ptrdiff_t>((vector + 1) * width));
    for (float& number : near) number = (number + noise(random_)) / 100;
    return near;
  }

  std::mt19937 random_{76};
  BlockTable table_{kPageTokens};
  TokenStatistics statistics_;
  PartContext context_{table_, statistics_};
  std::unique_ptr<Part> two_ = Make(100);
  std::unique_ptr<Part> one_ = Make(INT32_MAX);
  std::vector<std::vector<int8_t>> tokens_;
  std::vector<std::vector<int8_t>> sentences_;
};

TEST_F(TwoLevelsTest, WhatIsRankedHasItsExactScores) {
  SearchFilter letters;
  letters.sources = {"letters"};
  SearchFilter book;
  book.sources = {"book"};
  constexpr int32_t kAsked = 16;
  int64_t found = 0;
  int64_t wanted = 0;
  for (int question = 0; question < 40; ++question) {
    const size_t block = random_() % kBlocks;
    std::vector<float> rows;
    for (size_t row = 0; row < 1 + random_() % 20; ++row) {
      const std::vector<float> near = Near(tokens_[block], random_() % 20, kWidth);
      rows.insert(rows.end(), near.begin(), near.end());
    }
    const std::vector<float> sentence = Near(sentences_[block], random_() % 10, kSentenceWidth);
    Query query;
    query.inputs["encoder_query"].numbers = rows;
    if (question % 3 != 0) query.inputs["sentence_query"].numbers = sentence;
    for (const SearchFilter& search_filter : {SearchFilter(), letters, book}) {
      const PageFilter filter = table_.Recallable(1, 0, search_filter);
      const bool all_are_scored = !search_filter.sources.empty() && search_filter.sources[0] == "letters";
      const std::vector<Ranking> all = one_->Rank(query, filter, INT32_MAX).value();
      const std::vector<Ranking> by_one = one_->Rank(query, filter, kAsked).value();
      const std::vector<Ranking> by_two = two_->Rank(query, filter, kAsked).value();
      ASSERT_EQ(by_two.size(), all.size());
      for (size_t ranking = 0; ranking < all.size(); ++ranking) {
        std::map<int32_t, float> scores;
        for (const Hit& hit : all[ranking].hits) scores[hit.page] = hit.score;
        std::set<int32_t> pages;
        EXPECT_EQ(by_two[ranking].whole, by_one[ranking].whole);
        ASSERT_EQ(by_two[ranking].hits.size(), by_one[ranking].hits.size());
        for (const Hit& hit : by_two[ranking].hits) {
          EXPECT_EQ(hit.score, scores.at(hit.page));
          pages.insert(hit.page);
        }
        EXPECT_TRUE(std::ranges::is_sorted(by_two[ranking].hits, std::ranges::greater(), &Hit::score));
        // The page that was asked for, and nearly all that come behind it.
        EXPECT_EQ(by_two[ranking].hits[0], by_one[ranking].hits[0]);
        if (all_are_scored) {
          EXPECT_EQ(by_two[ranking].hits, by_one[ranking].hits);
        }
        for (const Hit& hit : by_one[ranking].hits) found += pages.contains(hit.page) ? 1 : 0;
        wanted += std::ssize(by_one[ranking].hits);
      }
    }
    // Where nearly all are asked for, all are scored.
    const PageFilter every = table_.Recallable(1, 0);
    EXPECT_EQ(two_->Rank(query, every, 1500).value()[0].hits, one_->Rank(query, every, 1500).value()[0].hits);
  }
  EXPECT_GE(static_cast<double>(found), 0.97 * static_cast<double>(wanted));
}

TEST(MeaningOptionsTest, AreChecked) {
  const MeaningOptions good{"pack", 128, 4};
  EXPECT_TRUE(Validate(good).ok());
  for (const MeaningOptions& bad :
       {MeaningOptions{"", 128, 4}, MeaningOptions{std::string(kMostPackBytes + 1, 'p'), 128, 4},
        MeaningOptions{"pack", 0, 4}, MeaningOptions{"pack", kMostMeaningDimension + 1, 4},
        MeaningOptions{"pack", 128, 0}, MeaningOptions{"pack", 128, kMostGroupTokens + 1}}) {
    EXPECT_EQ(Validate(bad).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(MeaningVectorsOf(1, 64, 4), 1);
  EXPECT_EQ(MeaningVectorsOf(64, 64, 4), 16);
  EXPECT_EQ(MeaningVectorsOf(65, 64, 4), 17);
  EXPECT_EQ(MeaningVectorsOf(130, 64, 10), 15);
}

}  // namespace
}  // namespace everlong::index
