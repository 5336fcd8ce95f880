// The part "meaning" is saved: an open takes its vectors from files, whatever came to blocks or left them since.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "os_meaning_case.h"
#include "os_older_index.h"

namespace everlong::os {
namespace {

class MeaningSavedTest : public testing::Test {
 protected:
  MeaningSavedTest() { memory_ = Memory::Create(folder_.path(), TestManifest()).value(); }

  void SetUp() override { ASSERT_TRUE(memory_->index().SetMeaning(kOptions).ok()); }
  // Close without saving, and open.
  void Reopen(bool with_part = true, bool read_only = false) {
    if (!memory_->read_only()) {
      ASSERT_TRUE(memory_->upkeep().Flush().ok());
    }
    memory_.reset();
    memory_ = Memory::Open(folder_.path(), read_only).value();
    if (with_part) {
      ASSERT_TRUE(memory_->index().SetMeaning(kOptions).ok());
    }
  }
  void ExpectAllWhenOpened(size_t most_messages = 0) {
    Reopen();
    ExpectFound(*memory_, library_);
    EXPECT_LE(memory_->index().TakeMessages().size(), most_messages);
  }
  void Save() const { ASSERT_TRUE(memory_->index().Save().ok()); }
  void Compact() const { ASSERT_TRUE(memory_->upkeep().Compact().ok()); }

  int64_t Add(bool with_vectors) {
    Block block = RandomBlock(random_, 0, end_, 1 + static_cast<int64_t>(random_() % 14), "book");
    end_ = block.span.end;
    block.id = ++last_;
    if (with_vectors) library_.vectors[block.id] = RandomVectors(random_, block);
    AppendTo(*memory_, block, with_vectors ? &library_.vectors[block.id] : nullptr);
    library_.blocks.push_back(std::move(block));
    return last_;
  }
  void Put(int64_t id) {
    const auto block = std::ranges::find(library_.blocks, id, &Block::id);
    library_.vectors[id] = RandomVectors(random_, *block);
    ASSERT_TRUE(memory_->blocks().PutTensors(id, std::vector{library_.vectors[id].View()}).ok());
  }
  void DropVectors(int64_t id) {
    ASSERT_TRUE(memory_->blocks().DropTensors(id, std::vector{kTensor}).ok());
    library_.vectors.erase(id);
  }
  void Forget(int64_t id) {
    ASSERT_TRUE(memory_->blocks().Forget(std::vector<int64_t>{id}).ok());
    Drop(library_, {id});
  }
  // Give a block vectors that are one word of their tiles again and again.
  void PutMark(int64_t id) {
    const auto block = std::ranges::find(library_.blocks, id, &Block::id);
    Vectors vectors = RandomVectors(random_, *block);
    for (size_t at = 0; at < vectors.codes.size(); ++at) vectors.codes[at] = kMark[at % kMark.size()];
    ASSERT_TRUE(memory_->blocks().PutTensors(id, std::vector{vectors.View()}).ok());
    library_.vectors[id] = vectors;
  }
  // Return whether a file of the index has the vectors of PutMark.
  [[nodiscard]] bool HasMark() const {
    std::string word;
    for (const int8_t number : kMark) word.push_back(static_cast<char>(number + 128));
    return std::ranges::any_of(std::filesystem::directory_iterator(IndexFolder()), [&](const auto& entry) {
      return BytesOf(entry.path()).find(word) != std::string::npos;
    });
  }
  [[nodiscard]] std::filesystem::path IndexFolder() const { return folder_.path() / "index"; }
  [[nodiscard]] std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(IndexFolder())) {
      if (entry.path().filename().string().starts_with("meaning")) names.insert(entry.path().filename());
    }
    return names;
  }

  static constexpr std::array<int8_t, 4> kMark{77, -3, 55, 11};
  const TemporaryFolder folder_;
  std::unique_ptr<Memory> memory_;
  Library library_;
  int64_t last_ = 0;
  int64_t end_ = 0;
  std::mt19937_64 random_{301};
};

TEST_F(MeaningSavedTest, AnOpenReadsNoTensorsOfWhatIsSaved) {
  for (int i = 0; i < 20; ++i) Add(true);
  Save();
  for (int i = 0; i < 3; ++i) Add(true);
  Save();
  EXPECT_EQ(Names(), (std::set<std::string>{"meaning", "meaning.21-23"}));
  // Damaged tensors would be found, and named in a message.
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "segments")) {
    std::string bytes = BytesOf(entry.path());
    for (const auto& [id, vectors] : library_.vectors) {
      const std::string codes(reinterpret_cast<const char*>(vectors.codes.data()), vectors.codes.size());
      const size_t at = bytes.find(codes);
      if (at != std::string::npos) bytes[at] = static_cast<char>(bytes[at] ^ 1);
    }
    PutBytes(entry.path(), bytes);
  }
  ExpectAllWhenOpened();
  Reopen(true, true);
  ExpectFound(*memory_, library_);
  EXPECT_TRUE(memory_->index().TakeMessages().empty());
}

TEST_F(MeaningSavedTest, BlocksThatWaitAreNotCovered) {
  for (int i = 0; i < 12; ++i) Add(i % 3 != 0);
  Save();
  ExpectAllWhenOpened();
  // Theirs come, and are saved into the file that is about their ids.
  for (int64_t id = 1; id <= 12; id += 6) Put(id);
  ExpectAllWhenOpened();
  const std::string before = BytesOf(IndexFolder() / "meaning");
  Save();
  EXPECT_GT(BytesOf(IndexFolder() / "meaning").size(), before.size());
  ExpectAllWhenOpened();
  const std::string saved = BytesOf(IndexFolder() / "meaning");
  Save();
  EXPECT_EQ(BytesOf(IndexFolder() / "meaning"), saved) << "nothing is new";
}

TEST_F(MeaningSavedTest, ReplacedVectorsAreNotTakenFromTheFile) {
  for (int i = 0; i < 12; ++i) Add(true);
  Save();
  for (const int64_t id : {1, 5, 12}) Put(id);
  DropVectors(7);
  ExpectAllWhenOpened();
  // A reader sees what the catalog has.
  Reopen(true, true);
  ExpectFound(*memory_, library_);
  Reopen();
  Save();
  ExpectAllWhenOpened();
}

// A hole between the files is made anew and written, and then nothing is written again.
TEST_F(MeaningSavedTest, AMissingSegmentIsWrittenOnce) {
  for (const int count : {30, 10, 4}) {
    for (int i = 0; i < count; ++i) Add(true);
    Save();
  }
  ASSERT_TRUE(Names().contains("meaning.31-40"));
  std::filesystem::remove(IndexFolder() / "meaning.31-40");
  ExpectAllWhenOpened();
  Save();
  const auto stamps = [this] {
    std::map<std::string, std::filesystem::file_time_type> times;
    for (const std::string& name : Names()) times[name] = std::filesystem::last_write_time(IndexFolder() / name);
    return times;
  };
  const auto written = stamps();
  ExpectAllWhenOpened();
  Save();
  EXPECT_EQ(stamps(), written) << "nothing is new";
}

TEST_F(MeaningSavedTest, WhatIsGoneLeavesTheFiles) {
  for (const bool with_part : {true, false}) {
    for (const bool forgotten : {true, false}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(with_part)) + std::to_string(static_cast<int>(forgotten)));
      for (int i = 0; i < 12; ++i) Add(true);
      const int64_t marked = last_ - 4;
      PutMark(marked);
      Save();
      ASSERT_TRUE(HasMark());
      Reopen(with_part);
      if (forgotten) {
        Forget(marked);
      } else {
        DropVectors(marked);
      }
      Compact();
      EXPECT_FALSE(HasMark());
      ExpectAllWhenOpened();
      Save();
      EXPECT_FALSE(HasMark());
      ExpectAllWhenOpened();
    }
  }
  // A compaction of what is whole leaves the files as they are, with the part or without it.
  const std::string before = BytesOf(IndexFolder() / "meaning");
  Compact();
  Reopen(false);
  Compact();
  EXPECT_EQ(BytesOf(IndexFolder() / "meaning"), before);
  // The next save, too, takes away what is gone, where the file is small.
  Reopen();
  PutMark(last_);
  Save();
  ASSERT_TRUE(HasMark());
  DropVectors(last_);
  Save();
  EXPECT_FALSE(HasMark());
}

TEST_F(MeaningSavedTest, AnotherPackIsNotTaken) {
  for (int i = 0; i < 8; ++i) Add(true);
  // A short block's vectors may fit another size of groups, too.
  const auto lacking = [this] {
    std::vector<std::vector<int64_t>> of_each;
    for (const MeaningOptions& other : {MeaningOptions{"pack-2", kWidth, kGroup},
                                        {"pack-1", kWidth - 1, kGroup},
                                        {"pack-1", kWidth, kGroup + 1},
                                        {"pack-1", kWidth, kGroup, nullptr, 0, 3, 2}}) {
      EXPECT_TRUE(memory_->index().SetMeaning(other).ok());
      of_each.push_back(memory_->index().BlocksWithout(IndexPart::kMeaning));
      EXPECT_TRUE(memory_->index().TakeMessages().empty());
    }
    EXPECT_TRUE(memory_->index().SetMeaning(kOptions).ok());
    return of_each;
  };
  const auto before = lacking();
  Save();
  EXPECT_EQ(lacking(), before);
  ExpectAllWhenOpened();
}

TEST_F(MeaningSavedTest, DamageCostsARebuild) {
  for (int i = 0; i < 20; ++i) Add(true);
  Save();
  for (int i = 0; i < 3; ++i) Add(true);
  Save();
  for (const char* const name : {"meaning", "meaning.21-23"}) {
    const std::string good = BytesOf(IndexFolder() / name);
    for (size_t at = 0; at < good.size(); at += 1 + good.size() / 23) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ 1);
      PutBytes(IndexFolder() / name, bytes);
      ExpectAllWhenOpened(1);
    }
    for (const size_t size : {size_t{0}, size_t{10}, good.size() / 2, good.size() - 1}) {
      PutBytes(IndexFolder() / name, good.substr(0, size));
      ExpectAllWhenOpened(1);
    }
    PutBytes(IndexFolder() / name, good);
  }
  std::filesystem::remove(IndexFolder() / "meaning");
  ExpectAllWhenOpened();
}

TEST_F(MeaningSavedTest, SentencesAndPassagesAreSavedWithThem) {
  MeaningOptions options{"pack-1", kWidth, kGroup};
  options.sentence_dimension = 5;
  options.sentence_tokens = 2;
  for (int i = 0; i < 12; ++i) Add(true);
  ASSERT_TRUE(memory_->upkeep().Flush().ok());
  const auto put_wholes = [&](const Block& block) {
    std::vector<int8_t> numbers(static_cast<size_t>(block.span.size()) * 5, int8_t{1});
    numbers[0] = static_cast<int8_t>(block.id);
    const int64_t sentences = index::MeaningVectorsOf(block.span.size(), kPageTokens, 2);
    const int64_t passages = index::MeaningVectorsOf(block.span.size(), kPageTokens, kPageTokens);
    const auto bytes = std::as_bytes(std::span(numbers));
    ASSERT_TRUE(
        memory_->blocks()
            .PutTensors(block.id,
                        std::vector<store::TensorView>{
                            {"sentence.pack-1", "I8", {sentences, 5}, bytes.first(static_cast<size_t>(sentences) * 5)},
                            {"passage.pack-1", "I8", {passages, 5}, bytes.first(static_cast<size_t>(passages) * 5)}})
            .ok());
  };
  for (const Block& block : library_.blocks) {
    if (block.id % 4 != 0) put_wholes(block);  // the others wait for them
  }
  const auto answers = [&] {
    std::vector<SearchResult> found;
    for (const Block& block : library_.blocks) {
      SearchRequest request;
      const std::vector<float> rows = RowsFor(library_.vectors[block.id], 0);
      const std::vector<float> sentence{static_cast<float>(block.id), 1, 1, 1, 1};
      request.inputs["meaning_query"].numbers = rows;
      request.inputs["sentence_query"].numbers = sentence;
      request.kinds = {IndexPart::kMeaning};
      request.least_share = 0;
      found.push_back(memory_->search().Find(request).value());
    }
    return found;
  };
  ASSERT_TRUE(memory_->index().SetMeaning(options).ok());
  const std::vector<SearchResult> before = answers();
  Save();
  for (int times = 0; times < 2; ++times) {
    Reopen(false);
    ASSERT_TRUE(memory_->index().SetMeaning(options).ok());
    EXPECT_EQ(memory_->index().BlocksWithout(IndexPart::kMeaning), (std::vector<int64_t>{4, 8, 12}));
    const std::vector<SearchResult> after = answers();
    for (size_t at = 0; at < before.size(); ++at) ExpectSame(after[at], before[at]);
    EXPECT_TRUE(memory_->index().TakeMessages().empty());
    Save();
  }
  // One of a block's three tensors goes: the others are found, now and by who opens it. Then it comes back.
  const std::vector<std::string> sentence{"sentence.pack-1"};
  ASSERT_TRUE(memory_->blocks().DropTensors(5, sentence).ok());
  const std::vector<SearchResult> without = answers();
  Reopen(false);
  ASSERT_TRUE(memory_->index().SetMeaning(options).ok());
  const std::vector<SearchResult> opened = answers();
  for (size_t at = 0; at < without.size(); ++at) ExpectSame(opened[at], without[at]);
  ASSERT_TRUE(memory_->blocks().DropTensors(5, std::vector<std::string>{"passage.pack-1"}).ok());
  put_wholes(library_.blocks[4]);
  const std::vector<SearchResult> back = answers();
  for (size_t at = 0; at < before.size(); ++at) ExpectSame(back[at], before[at]);
  EXPECT_EQ(memory_->index().BlocksWithout(IndexPart::kMeaning), (std::vector<int64_t>{4, 8, 12}));
}

TEST_F(MeaningSavedTest, AForkHasThem) {
  for (int i = 0; i < 12; ++i) Add(true);
  PutMark(4);
  Save();
  const TemporaryFolder parent;
  const std::filesystem::path fork = parent.path() / "fork";
  ASSERT_TRUE(memory_->upkeep().Fork(fork).ok());
  const Library library = library_;
  Forget(4);
  Put(6);
  Save();
  Compact();
  EXPECT_FALSE(HasMark());
  const auto opened = Memory::Open(fork, false).value();
  ASSERT_TRUE(opened->index().SetMeaning(kOptions).ok());
  EXPECT_TRUE(opened->index().TakeMessages().empty());
  ExpectFound(*opened, library);
}

// Whatever is done in whatever order, what is opened answers as what was closed.
TEST_F(MeaningSavedTest, AnyOrderOfThingsAnswersTheSame) {
  for (int step = 0; step < 200; ++step) {
    SCOPED_TRACE(step);
    const int64_t some = library_.blocks.empty() ? 0 : library_.blocks[random_() % library_.blocks.size()].id;
    switch (random_() % 9) {
      case 0:
      case 1:
        for (uint64_t count = 1 + random_() % 4; count > 0; --count) Add(random_() % 4 != 0);
        break;
      case 2:
        if (some > 0) Put(some);
        break;
      case 3:
        if (some > 0) DropVectors(some);
        break;
      case 4:
        if (library_.blocks.size() > 3) Forget(some);
        break;
      case 5:
        Save();
        break;
      case 6:
        Compact();
        break;
      case 7: {  // without the part
        Reopen(false);
        if (some > 0 && random_() % 2 == 0) DropVectors(some);
        if (random_() % 2 == 0) Compact();
        if (random_() % 2 == 0) Save();
        ASSERT_TRUE(memory_->index().SetMeaning(kOptions).ok());
        break;
      }
      default:
        ExpectAllWhenOpened();
    }
    ASSERT_FALSE(HasFailure());
  }
  ExpectAllWhenOpened();
}

}  // namespace
}  // namespace everlong::os
