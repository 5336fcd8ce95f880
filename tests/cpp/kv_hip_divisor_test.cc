// Division by multiplication, against the machine's own.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>

#include "../../hip/divisor.h"

namespace everlong::hip {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

void ExpectDivides(int64_t by, int64_t number) {
  if (number < 0) return;
  const Divisor divisor(by);
  ASSERT_EQ(divisor.Quotient(number), number / by) << number << " / " << by;
  ASSERT_EQ(divisor.Remainder(number), number % by) << number << " % " << by;
}

TEST(Divisor, SmallNumbersAll) {
  for (int64_t by = 1; by <= 300; ++by) {
    for (int64_t number = 0; number <= 1000; ++number) ExpectDivides(by, number);
  }
}

TEST(Divisor, WhereAQuotientChanges) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20'000; ++round) {
    const int64_t by =
        round % 3 == 0 ? int64_t{1} << random() % 63 : static_cast<int64_t>(random() >> (2 + random() % 62)) + 1;
    const int64_t any = static_cast<int64_t>(random() >> (1 + random() % 63)) / by * by;
    for (const int64_t number : {any, any - 1, kMost / by * by, kMost / by * by - 1, kMost, by, by - 1}) {
      ExpectDivides(by, number);
    }
  }
}

TEST(Divisor, TheUpperHalfOfAProduct) {
  EXPECT_EQ(MultiplyHigh(~uint64_t{0}, ~uint64_t{0}), ~uint64_t{0} - 1);
  EXPECT_EQ(MultiplyHigh(uint64_t{1} << 32, uint64_t{1} << 32), 1U);
  EXPECT_EQ(MultiplyHigh(0xFFFFFFFFU, 0xFFFFFFFFU), 0U);
  EXPECT_EQ(MultiplyHigh(0x123456789ABCDEF0U, 0x0FEDCBA987654321U), 0x121FA00AD77D742U);
}

}  // namespace
}  // namespace everlong::hip
