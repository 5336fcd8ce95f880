// A saved index is several files: a close writes what is new, whatever happens to some of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "os_memory_blocks.h"
#include "os_older_index.h"

namespace everlong::os {
namespace {

using Files = std::map<std::string, std::string>;  // name -> bytes

class IndexSegmentsTest : public testing::Test {
 protected:
  IndexSegmentsTest() { Reopen(true); }

  void Reopen(bool create = false) {
    memory_.reset();
    memory_ =
        create ? Memory::Create(folder_.path(), TestManifest()).value() : Memory::Open(folder_.path(), false).value();
    ASSERT_TRUE(memory_->index().SetRetrievalHeads(kHeads).ok());
  }

  // Begin again, with a memory without blocks.
  void Restart() {
    memory_.reset();
    std::filesystem::remove_all(folder_.path());
    blocks_.clear();
    end_ = 0;
    Reopen(true);
  }

  void Add(int count, int64_t tokens = 9) {
    for (int i = 0; i < count; ++i) {
      Block block = RandomBlock(random_, 0, end_, tokens, "book");
      end_ += tokens;
      block.id = Append(*memory_, block).value();
      blocks_.push_back(std::move(block));
    }
  }
  void Forget(int64_t id) {
    ASSERT_TRUE(memory_->blocks().Forget(std::vector<int64_t>{id}).ok());
    std::erase_if(blocks_, [id](const Block& block) { return block.id == id; });
  }
  void Save() const { ASSERT_TRUE(memory_->index().Save().ok()); }
  // Of blocks 1 to 60, 61 to 80, and 81 to 85.
  void AddThreeSegments() {
    for (const int count : {60, 20, 5}) {
      Add(count);
      Save();
    }
  }

  // What a memory answers to a question about each of some blocks.
  static std::vector<SearchResult> AnswersOf(const Memory& memory, const std::vector<Block>& blocks) {
    std::vector<SearchResult> answers;
    for (size_t at = 0; at < blocks.size(); at += 1 + blocks.size() / 16) {
      answers.push_back(memory.search().Find(QuestionFor(blocks[at], blocks[at].span.size() - 1, 3).Request()).value());
    }
    return answers;
  }
  [[nodiscard]] std::vector<SearchResult> Answers() const { return AnswersOf(*memory_, blocks_); }
  static void ExpectAll(const std::vector<SearchResult>& found, const std::vector<SearchResult>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t at = 0; at < found.size(); ++at) ExpectSame(found[at], expected[at]);
  }
  // Close without saving, open, and expect the answers of before, with so many messages.
  void ExpectTheSameWhenOpened(size_t messages = 0) {
    ASSERT_TRUE(memory_->upkeep().Flush().ok());
    const std::vector<SearchResult> before = Answers();
    Reopen();
    ExpectAll(Answers(), before);
    EXPECT_EQ(memory_->index().TakeMessages().size(), messages);
  }

  [[nodiscard]] std::filesystem::path IndexFolder() const { return folder_.path() / "index"; }
  [[nodiscard]] Files FilesNow() const {
    Files files;
    for (const auto& entry : std::filesystem::directory_iterator(IndexFolder())) {
      files[entry.path().filename()] = BytesOf(entry.path());
    }
    return files;
  }
  [[nodiscard]] std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& [name, bytes] : FilesNow()) names.insert(name);
    return names;
  }
  void Put(const Files& files) const {
    std::filesystem::remove_all(IndexFolder());
    std::filesystem::create_directory(IndexFolder());
    for (const auto& [name, bytes] : files) PutBytes(IndexFolder() / name, bytes);
  }

  // Open the memory with these files of its index, and a bit of the last keys or the last list of one of them changed.
  void OpenWithDamaged(const Files& files, const std::string& name) {
    ASSERT_TRUE(memory_->upkeep().Flush().ok());
    memory_ = nullptr;
    Put(files);
    std::string bytes = files.at(name);
    const size_t behind = name.starts_with("heads") ? size_t{32} * 4 * 4 : 0;
    char& last = bytes[ListBegin(bytes) - sizeof(uint32_t) - 1 - behind];
    last = static_cast<char>(last ^ 1);
    PutBytes(IndexFolder() / name, bytes);
    Reopen();
    EXPECT_TRUE(memory_->index().TakeMessages().empty()) << "none of these is read yet";
  }
  // Expect files without damage, whose keys are those of the payload.
  void ExpectWhole() {
    EXPECT_EQ(memory_->upkeep().Verify(false)->damage.size(), 0U);
    Reopen();
    EXPECT_TRUE(memory_->index().TakeMessages().empty());
    const std::vector<SearchResult> opened = Answers();
    std::filesystem::remove_all(IndexFolder());
    Reopen();
    ExpectAll(Answers(), opened);
    Save();
  }

  const TemporaryFolder folder_;
  std::unique_ptr<Memory> memory_;
  std::vector<Block> blocks_;
  int64_t end_ = 0;
  std::mt19937_64 random_{77};
};

TEST_F(IndexSegmentsTest, ASaveWritesOnlyWhatIsNew) {
  Add(40);
  Save();
  const Files before = FilesNow();
  ASSERT_EQ(Names(), (std::set<std::string>{"heads", "lexical"}));
  Add(1);
  Save();
  const Files after = FilesNow();
  EXPECT_EQ(Names(), (std::set<std::string>{"heads", "heads.41-41", "lexical", "lexical.41-41"}));
  for (const auto& [name, bytes] : before) EXPECT_EQ(after.at(name), bytes) << name;
  EXPECT_LT(after.at("heads.41-41").size(), before.at("heads").size() / 10);
  ExpectTheSameWhenOpened();
  Save();
  EXPECT_EQ(FilesNow(), after) << "nothing is new";
}

TEST_F(IndexSegmentsTest, ManySavesLeaveFewFiles) {
  Add(3);
  for (int i = 0; i < 120; ++i) {
    Add(1);
    Save();
    EXPECT_LE(FilesNow().size(), 2U * 8) << i;
  }
  ExpectTheSameWhenOpened();
}

TEST_F(IndexSegmentsTest, WhatACrashLeavesOfAMergeIsNotLoadedAndGoes) {
  Add(40);
  Save();
  Add(4);
  Save();
  const Files before = FilesNow();
  ASSERT_TRUE(before.contains("heads.41-44"));
  Add(3);
  Save();
  const std::set<std::string> merged = Names();
  ASSERT_EQ(merged, (std::set<std::string>{"heads", "heads.41-47", "lexical", "lexical.41-47"}));
  Files both = FilesNow();
  both.insert(before.begin(), before.end());
  Put(both);
  ExpectTheSameWhenOpened();
  Add(30);
  Save();
  EXPECT_EQ(Names().size(), 2U);
  ExpectTheSameWhenOpened();

  // The first file, too, takes the place of others.
  Files all = FilesNow();
  all.insert(both.begin(), both.end());
  all["heads"] = FilesNow().at("heads");
  Put(all);
  ExpectTheSameWhenOpened();
}

TEST_F(IndexSegmentsTest, BehindADamagedSegmentAllIsMadeAnew) {
  AddThreeSegments();
  ASSERT_EQ(Names().size(), 6U);
  const Files good = FilesNow();
  for (const char* const name : {"heads", "heads.61-80", "heads.81-85", "lexical.61-80"}) {
    SCOPED_TRACE(name);
    Put(good);
    std::string bytes = good.at(name);
    bytes[80] ^= 1;  // of what says how the rest lies
    PutBytes(IndexFolder() / name, bytes);
    ExpectTheSameWhenOpened(1);
    Save();
    ExpectTheSameWhenOpened();
  }
  // One that is not there is no damage, as none of all. It is written again, with all behind it.
  Put(good);
  std::filesystem::remove(IndexFolder() / "heads.61-80");
  ExpectTheSameWhenOpened();
  Save();
  const Files now = FilesNow();
  EXPECT_FALSE(now.contains("heads.81-85"));
  ExpectTheSameWhenOpened();
  Save();
  EXPECT_EQ(FilesNow(), now) << "nothing is new";
}

// Keys and lists are not read when a memory is opened. Damage in them is found by a verify, and mended by its repair.
TEST_F(IndexSegmentsTest, AVerifyFindsDamagedKeysAndLists) {
  AddThreeSegments();
  const Files good = FilesNow();
  for (const char* const name : {"heads", "heads.61-80", "heads.81-85", "lexical", "lexical.61-80", "lexical.81-85"}) {
    SCOPED_TRACE(name);
    OpenWithDamaged(good, name);
    const auto report = memory_->upkeep().Verify(false);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ASSERT_EQ(report->damage.size(), 1U);
    EXPECT_EQ(report->damage[0].block, 0);
    const std::string named = "index " + std::string(name) + ":";
    EXPECT_NE(report->damage[0].what.find(named), std::string::npos) << report->damage[0].what;
    EXPECT_EQ(Memory::Open(folder_.path(), true).value()->upkeep().Verify(false)->damage.size(), 1U);
    const auto repaired = memory_->upkeep().Verify(true);
    ASSERT_TRUE(repaired.ok()) << repaired.status().ToString();
    EXPECT_EQ(repaired->damage.size(), 1U);
    EXPECT_TRUE(repaired->dropped.empty());
    Save();
    ExpectWhole();
  }
}

// Whatever writes pages of a file again looks at all of it first.
TEST_F(IndexSegmentsTest, DamagedKeysAndListsAreNotCarriedOn) {
  for (const char* const name : {"heads", "heads.61-80", "heads.81-85", "lexical", "lexical.61-80", "lexical.81-85"}) {
    for (const bool is_merge : {true, false}) {
      SCOPED_TRACE(name);
      Restart();
      AddThreeSegments();
      OpenWithDamaged(FilesNow(), name);
      if (is_merge) {
        Add(60);  // so many that the save merges all
        Save();
        EXPECT_EQ(memory_->index().TakeMessages().size(), 1U);
        EXPECT_EQ(Names(), (std::set<std::string>{"heads", "lexical"}));
      } else {
        const std::string of = name;
        Forget(of.ends_with("61-80") ? 66 : of.ends_with("81-85") ? 83 : 7);
        ASSERT_TRUE(memory_->upkeep().Compact().ok());
        Save();
      }
      ExpectWhole();
    }
  }
}

// The writer forgets a block and saves, and a reader that has not heard of it makes a part then.
TEST_F(IndexSegmentsTest, AReaderOfAnOlderTableFindsNoFault) {
  AddThreeSegments();
  ASSERT_TRUE(memory_->upkeep().Flush().ok());
  const auto reader = Memory::Open(folder_.path(), true).value();
  Forget(70);
  Save();
  Forget(3);
  Add(4);
  Save();
  ASSERT_TRUE(memory_->upkeep().Flush().ok());
  // What it would be blamed for is the payload: none of it is read.
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "segments")) {
    PutBytes(entry.path(), std::string(std::filesystem::file_size(entry.path()), 'x'));
  }
  ASSERT_TRUE(reader->index().SetRetrievalHeads(kHeads).ok());
  EXPECT_EQ(reader->index().TakeMessages(), std::vector<std::string>());
  for (const Block& block : blocks_) {
    if (block.id > 85) continue;
    const Question question = QuestionFor(block, block.span.size() - 1, 3);
    SearchRequest request = question.Request();
    request.kinds = {IndexPart::kHeads};
    const SearchResult found = reader->search().Find(request).value();
    ASSERT_FALSE(found.groups.empty()) << block.id;
  }
}

// A compaction without the parts removes a file that has a forgotten block; those behind it stay for a while.
TEST_F(IndexSegmentsTest, ACompactionWithoutThePartsIsNoDamage) {
  AddThreeSegments();
  ASSERT_TRUE(memory_->upkeep().Flush().ok());
  memory_ = nullptr;
  memory_ = Memory::Open(folder_.path(), false).value();
  Forget(70);
  ASSERT_TRUE(memory_->upkeep().Compact().ok());
  ASSERT_FALSE(std::filesystem::exists(IndexFolder() / "heads.61-80"));
  Reopen();
  EXPECT_TRUE(memory_->index().TakeMessages().empty());
  Save();
  ExpectTheSameWhenOpened();
}

TEST_F(IndexSegmentsTest, SegmentsOfOtherBlocksAreNotLoaded) {
  AddThreeSegments();
  const Files good = FilesNow();
  const auto with = [&](const std::string& name, const std::string& other) {
    Files files = good;
    files[name] = good.at(other);
    Put(files);
    ExpectTheSameWhenOpened(1);
  };
  with("heads.61-80", "heads");
  with("heads.61-80", "heads.81-85");
  with("heads.81-85", "heads.61-80");
  with("heads", "heads.61-80");
  for (const char* const name : {"heads.1-2", "heads.0-5", "heads.-1-5", "heads.90-85", "heads.061-80", "heads.61-80-9",
                                 "heads.9223372036854775808-9223372036854775809", "heads.", "heads.61", "heads.61-",
                                 "heads.86-9223372036854775807"}) {
    SCOPED_TRACE(name);
    Files files = good;
    files[name] = "not an index";
    Put(files);
    ExpectTheSameWhenOpened();
  }
}

// Names and lists are input. What they say of blocks that do not exist yet must not keep those out.
TEST_F(IndexSegmentsTest, SegmentsAboutBlocksToComeAreWrittenAnew) {
  Add(40);
  Save();
  Add(5);
  Save();
  Files files = FilesNow();
  for (const char* const part : {"heads", "lexical"}) {
    const std::string name = std::string(part) + ".41-45";
    files[std::string(part) + ".41-34359738367"] = files.at(name);
    files.erase(name);
  }
  Put(files);
  ExpectTheSameWhenOpened();
  Add(3);
  Save();
  EXPECT_EQ(Names(), (std::set<std::string>{"heads", "heads.41-48", "lexical", "lexical.41-48"}));
  ExpectTheSameWhenOpened();

  // A list with the largest number of 64 bits.
  files = FilesNow();
  std::string& lexical = files.at("lexical");
  const size_t last_id = lexical.size() - kTail - 56;
  const int64_t largest = INT64_MAX;
  std::memcpy(lexical.data() + last_id, &largest, sizeof largest);
  lexical = WithChecksum(lexical, ListBegin(lexical) - sizeof(uint32_t));
  Put(files);
  ExpectTheSameWhenOpened(1);
  Add(1);
  Save();
  ExpectTheSameWhenOpened();
}

TEST_F(IndexSegmentsTest, WhatIsForgottenLeavesTheFiles) {
  AddThreeSegments();
  const Files before = FilesNow();
  Forget(70);
  ExpectTheSameWhenOpened();
  Save();
  Files after = FilesNow();
  EXPECT_EQ(after.at("heads"), before.at("heads"));
  EXPECT_NE(after.at("heads.61-80"), before.at("heads.61-80"));
  EXPECT_LT(after.at("heads.61-80").size(), before.at("heads.61-80").size());
  EXPECT_EQ(after.at("heads.81-85"), before.at("heads.81-85"));
  ExpectTheSameWhenOpened();

  // All blocks of a segment, its first and last among them.
  for (int64_t id = 61; id <= 80; ++id) {
    if (id != 70) Forget(id);
  }
  Save();
  ExpectTheSameWhenOpened();
  Add(2);
  Save();
  ExpectTheSameWhenOpened();

  // A compaction of a memory that is opened without the part takes the file; what is behind it goes on.
  Forget(3);
  memory_.reset();
  memory_ = Memory::Open(folder_.path(), false).value();
  ASSERT_TRUE(memory_->upkeep().Compact().ok());
  EXPECT_FALSE(Names().contains("heads"));
  EXPECT_TRUE(Names().contains("lexical"));
  ASSERT_TRUE(memory_->index().SetRetrievalHeads(kHeads).ok());
  EXPECT_TRUE(memory_->index().TakeMessages().empty());
  Save();
  ExpectTheSameWhenOpened();

  // With the part, it is written without the block.
  Forget(4);
  const std::string heads = FilesNow().at("heads");
  ASSERT_TRUE(memory_->upkeep().Compact().ok());
  EXPECT_LT(FilesNow().at("heads").size(), heads.size());
  ExpectTheSameWhenOpened();
}

TEST_F(IndexSegmentsTest, AForkHasTheSegments) {
  Add(60);
  Save();
  Add(20);
  const TemporaryFolder parent;
  const std::filesystem::path fork = parent.path() / "fork";
  ASSERT_TRUE(memory_->upkeep().Fork(fork).ok());
  const std::vector<Block> blocks = blocks_;
  const std::vector<SearchResult> before = Answers();
  // What the memory forgets and gives back later stays in its fork.
  Forget(5);
  ASSERT_TRUE(memory_->upkeep().Compact().ok());
  const auto opened = Memory::Open(fork, false).value();
  ASSERT_TRUE(opened->index().SetRetrievalHeads(kHeads).ok());
  EXPECT_TRUE(opened->index().TakeMessages().empty());
  ExpectAll(AnswersOf(*opened, blocks), before);
}

// Whatever is done in whatever order, what is opened answers as what was closed.
TEST_F(IndexSegmentsTest, AnyOrderOfThingsAnswersTheSame) {
  for (int step = 0; step < 150; ++step) {
    SCOPED_TRACE(step);
    switch (random_() % 8) {
      case 0:
      case 1:
        Add(1 + static_cast<int>(random_() % 3), 1 + static_cast<int64_t>(random_() % 20));
        break;
      case 2:
        if (blocks_.size() > 1) Forget(blocks_[random_() % blocks_.size()].id);
        break;
      case 3:
      case 4:
        Save();
        break;
      case 5:
        ASSERT_TRUE(memory_->upkeep().Compact().ok());
        break;
      case 6: {  // without the heads
        memory_.reset();
        memory_ = Memory::Open(folder_.path(), false).value();
        if (blocks_.size() > 1 && random_() % 2 == 0) Forget(blocks_[random_() % blocks_.size()].id);
        if (random_() % 2 == 0) {
          ASSERT_TRUE(memory_->upkeep().Compact().ok());
        }
        if (random_() % 2 == 0) Save();
        ASSERT_TRUE(memory_->index().SetRetrievalHeads(kHeads).ok());
        break;
      }
      default:
        ExpectTheSameWhenOpened();
    }
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace everlong::os
