// Division by a number that all threads of a kernel share, as a multiplication. GPUs take some hundred instructions to
// divide 64-bit numbers. The host computes the factor. Host code compiles it too.
#pragma once

#include <cstdint>

#include "everlong/base/element.h"

namespace everlong::hip {

// Return the upper half of a product.
EVERLONG_HD inline uint64_t MultiplyHigh(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __umul64hi(a, b);
#else
  const uint64_t a_low = a & 0xFFFFFFFFU;
  const uint64_t b_low = b & 0xFFFFFFFFU;
  const uint64_t middle = (a >> 32) * b_low + (a_low * b_low >> 32);
  const uint64_t other = a_low * (b >> 32) + (middle & 0xFFFFFFFFU);
  return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
#endif
}

// Divides numbers from 0 to 2^63 - 1 by a divisor from 1 to 2^62. With 2^(bits - 1) < divisor <= 2^bits and factor =
// ceil(2^(63 + bits) / divisor), factor * n / 2^(63 + bits) is above n / divisor by less than 1 / divisor.
class Divisor {
 public:
  explicit Divisor(int64_t divisor) : divisor_(divisor) {
    while (int64_t{1} << bits_ < divisor) ++bits_;
    // 2^(63 + bits) / divisor, digit by digit, with the rest rounded up.
    const auto by = static_cast<uint64_t>(divisor);
    uint64_t left = 1;
    for (int32_t digit = 0; digit < 63 + bits_; ++digit) {
      left <<= 1;
      factor_ <<= 1;
      if (left >= by) {
        left -= by;
        factor_ |= 1;
      }
    }
    if (left > 0) ++factor_;
  }

  [[nodiscard]] EVERLONG_HD int64_t Quotient(int64_t number) const {
    if (bits_ == 0) return number;
    return static_cast<int64_t>(MultiplyHigh(factor_, static_cast<uint64_t>(number)) >> (bits_ - 1));
  }
  [[nodiscard]] EVERLONG_HD int64_t Remainder(int64_t number) const { return number - Quotient(number) * divisor_; }
  [[nodiscard]] EVERLONG_HD int64_t divisor() const { return divisor_; }

 private:
  int64_t divisor_;
  uint64_t factor_ = 0;
  int32_t bits_ = 0;
};

}  // namespace everlong::hip
