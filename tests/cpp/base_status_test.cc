#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "everlong/base/status.h"

namespace everlong {
namespace {

Result<int> Half(int number) {
  if (number % 2 != 0) return InvalidArgumentError("number: " + std::to_string(number) + ", expected an even one");
  return number / 2;
}

Result<int> Quarter(int number) {
  EVERLONG_ASSIGN_OR_RETURN(const int half, Half(number));
  EVERLONG_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckQuarter(int number) {
  EVERLONG_RETURN_IF_ERROR(Half(number).status());
  return Quarter(number).status();
}

TEST(Status, SaysCodeAndMessage) {
  EXPECT_TRUE(OkStatus().ok());
  EXPECT_EQ(OkStatus().ToString(), "OK");
  const Status corrupt = CorruptError("block 7");
  EXPECT_FALSE(corrupt.ok());
  EXPECT_EQ(corrupt.code(), StatusCode::kCorrupt);
  EXPECT_EQ(corrupt.ToString(), "CORRUPT: block 7");
}

TEST(Status, EachErrorHasItsOwnName) {
  const Status errors[] = {
      InvalidArgumentError(""), NotFoundError(""), AlreadyExistsError(""), CorruptError(""),  IoError(""),
      ModelMismatchError(""),   BusyError(""),     CapacityError(""),      ReadOnlyError(""), NewerFormatError("")};
  for (const Status& one : errors) {
    EXPECT_FALSE(StatusCodeName(one.code()).empty());
    for (const Status& other : errors) {
      EXPECT_EQ(&one == &other, StatusCodeName(one.code()) == StatusCodeName(other.code()));
    }
  }
}

TEST(Result, MacrosPassValuesAndErrorsOn) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(6).status().message(), "number: 3, expected an even one");
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_EQ(CheckQuarter(5).code(), StatusCode::kInvalidArgument);
}

TEST(Result, HoldsWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

TEST(ResultDeathTest, ValueOfAnErrorAborts) {
  const Result<int> failed = NotFoundError("no such page");
  EXPECT_DEATH((void)failed.value(), "status.h");
}

}  // namespace
}  // namespace everlong
