// Advice about mapped bytes: whatever is advised, the bytes stay what the file has.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "base_temporary_folder.h"
#include "everlong/base/file.h"
#include "everlong/base/file_mapping.h"
#include "everlong/base/mapped_reads.h"

namespace everlong {
namespace {

TEST(MappedReads, BytesStayTheSame) {
  const TemporaryFolder folder;
  std::vector<uint32_t> words(100'000);
  std::iota(words.begin(), words.end(), 7U);
  const FilePath path(folder.path() / "words");
  Result<UniqueFd> written = OpenFile(path, O_RDWR | O_CREAT);
  ASSERT_TRUE(written.ok());
  const auto bytes = std::as_bytes(std::span<const uint32_t>(words));
  ASSERT_TRUE(WriteAt(*written, path, 0, std::span(&bytes, 1)).ok());
  const Result<FileMapping> mapping = FileMapping::Of(*written, path, std::ssize(bytes));
  ASSERT_TRUE(mapping.ok());
  const std::span<const uint32_t> mapped(reinterpret_cast<const uint32_t*>(mapping->bytes().data()), words.size());
  // Neither end is that of a page of the system.
  ReadByThemselves(mapped.subspan(5, 90'001));
  ReadByThemselves(mapped.subspan(5, 3));
  ReadByThemselves(mapped.first(0));
  ReadSoon(mapped.subspan(3, 50'003));
  ReadSoon(mapped.first(0));
  {
    SoonReads reads;
    for (const size_t at : {10U, 20U, 15U, 90'000U, 30U}) reads.Add(mapped.subspan(at, 10));
  }
  ReadSoon(std::span<const uint32_t>(words));  // not mapped from a file
  EXPECT_EQ(std::memcmp(mapped.data(), words.data(), bytes.size()), 0);
}

}  // namespace
}  // namespace everlong
