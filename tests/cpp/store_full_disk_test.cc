// A full disk is an error that loses nothing. A limit on the size of files makes the system write a part of what it was
// given and then refuse, as such a disk does.
#include "base_file_limit.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

class StoreFullDisk : public StoreFolderTest {
 protected:
  // Room for less than another block, which takes 24 KiB.
  [[nodiscard]] rlim_t AlmostFull() const { return std::filesystem::file_size(segment_) + 20'000; }

  const std::filesystem::path segment_ = folder_ / "segments" / "000001.kvseg";
  const TestBlock block_{1, 40};
};

TEST_F(StoreFullDisk, UnderASegment) {
  const TestBlock third(3, 40);
  {
    const auto store = Create();
    ASSERT_OK(AppendTo(*store, block_.Draft()).status());
    const uintmax_t size = std::filesystem::file_size(segment_);
    {
      const FileLimit limit(AlmostFull());
      const Status refused = AppendTo(*store, TestBlock(2, 40).Draft()).status();
      EXPECT_EQ(refused.code(), StatusCode::kIoError);
      EXPECT_NE(refused.message().find(segment_.string()), std::string::npos) << refused.message();
      EXPECT_NE(refused.message().find("File too large"), std::string::npos) << refused.message();
      EXPECT_EQ(std::filesystem::file_size(segment_), size);  // the torn record's space is free again
      EXPECT_EQ(store->Blocks()->size(), 1U);
      ExpectStored(*store, block_, 1);
    }
    EXPECT_EQ(AppendTo(*store, third.Draft()).value(), 3);  // who was lost keeps its id
    ExpectStored(*store, third, 3);
  }
  const auto store = Open();
  ExpectStored(*store, block_, 1);
  ExpectStored(*store, third, 3);
}

TEST_F(StoreFullDisk, UnderTheCatalog) {
  TestBlock large(2, 20);
  large.source = std::string(300'000, 's');
  {
    const auto store = Create();
    ASSERT_OK(AppendTo(*store, block_.Draft()).status());
    {
      const FileLimit limit(200'000);
      const Status refused = AppendTo(*store, large.Draft()).status();
      EXPECT_EQ(refused.code(), StatusCode::kIoError) << refused.ToString();
      EXPECT_NE(refused.message().find("catalog.sqlite"), std::string::npos) << refused.message();
      EXPECT_EQ(store->Blocks()->size(), 1U);
    }
    EXPECT_EQ(AppendTo(*store, large.Draft()).value(), 3);
    ExpectStored(*store, large, 3);
  }
  const auto store = Open();
  ExpectStored(*store, block_, 1);
  ExpectStored(*store, large, 3);
}

// Wherever it ends: an export that fails leaves no file that would be in the way of the next.
TEST_F(StoreFullDisk, UnderAnExport) {
  const auto store = Create();
  ASSERT_OK(AppendTo(*store, block_.Draft()).status());
  const std::filesystem::path file = root_ / "export";
  for (const rlim_t room : {0, 10, 20, 2'000, 5'000}) {
    const FileLimit limit(room);
    EXPECT_EQ(store->Export(file).code(), StatusCode::kIoError) << room;
    EXPECT_FALSE(std::filesystem::exists(file)) << room;
  }
  EXPECT_OK(store->Export(file));
}

TEST_F(StoreFullDisk, UnderTheQueueIsToldOnce) {
  {
    const auto store = Create();
    ASSERT_OK(AppendTo(*store, block_.Draft()).status());
    std::vector<int64_t> lost;
    int64_t newest = 2;  // of the ids that were given
    {
      const FileLimit limit(AlmostFull());
      EXPECT_EQ(store->Submit(block_.Draft()).value(), 2);
      // It may show before the second submission or at it, and until it has been told nothing is taken.
      const Result<int64_t> second = store->Submit(block_.Draft());
      if (second.ok()) newest = *second;
      std::vector<std::byte> out;
      EXPECT_EQ(ReadBlock(*store, block_, 2, out).code(), StatusCode::kNotFound);
      EXPECT_EQ(store->Submit(block_.Draft()).status().code(), StatusCode::kIoError);
      EXPECT_EQ(AppendTo(*store, block_.Draft()).status().code(), StatusCode::kIoError);
      const Status told = store->Flush(&lost);
      EXPECT_EQ(told.code(), StatusCode::kIoError);
      EXPECT_NE(told.message().find("000001.kvseg"), std::string::npos) << told.message();
      EXPECT_EQ(lost, second.ok() ? (std::vector<int64_t>{2, 3}) : (std::vector<int64_t>{2}));
      EXPECT_OK(store->Flush(&lost));
      EXPECT_TRUE(lost.empty());
      ExpectStored(*store, block_, 1);
    }
    const Result<int64_t> id = AppendTo(*store, TestBlock(5, 30).Draft());
    ASSERT_OK(id.status());
    EXPECT_GT(*id, newest);  // a lost block's id is not given again
    ExpectStored(*store, TestBlock(5, 30), *id);
  }
  const auto store = Open();
  ExpectStored(*store, block_, 1);
  EXPECT_EQ(store->Blocks()->size(), 2U);
  ExpectUndamaged(*store);
}

}  // namespace
}  // namespace everlong::store
