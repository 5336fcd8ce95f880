// Any bytes as the tables of a transform, and as a page that is coded by them. The first 4 bytes say how many bytes the
// tables have; the page is what lies behind them.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/kv/transform.h"
#include "transform_file.h"

namespace {

using everlong::Result;
using everlong::StatusCode;
using everlong::kv::Transform;

// That of the tables in the corpus.
constexpr everlong::kv::PayloadLayout kLayout{everlong::kv::Codec::kFloat32, 3, 1, 4, 4};
constexpr int32_t kTokens = 3;

// Return the page's layers from `first` on; none where it is refused.
std::vector<std::byte> Decoded(const Transform& transform, std::span<const std::byte> coded, int32_t first,
                               int32_t layers) {
  std::vector<std::byte> out(static_cast<size_t>(layers * kLayout.PartBytes(kTokens)));
  const everlong::kv::CodedPage page{coded, kTokens, first, layers, out};
  const everlong::Status decoded = transform.DecodePages({&page, 1});
  if (decoded.ok()) return out;
  EVERLONG_CHECK(decoded.code() == StatusCode::kCorrupt);
  return {};
}

void CheckPage(const Transform& transform, std::span<const std::byte> coded) {
  const std::vector<std::byte> whole = Decoded(transform, coded, 0, kLayout.layers);
  if (whole.empty()) return;
  std::vector<float> numbers(whole.size() / sizeof(float));
  std::memcpy(numbers.data(), whole.data(), whole.size());
  for (const float number : numbers) EVERLONG_CHECK(std::isfinite(number));
  const std::vector<std::byte> last = Decoded(transform, coded, kLayout.layers - 1, 1);
  EVERLONG_CHECK(std::memcmp(last.data(), whole.data() + whole.size() - last.size(), last.size()) == 0);
  const Result<std::vector<std::byte>> again = transform.EncodePage(whole, kTokens);
  EVERLONG_CHECK(again.ok() || again.status().code() == StatusCode::kInvalidArgument);
  if (again.ok()) EVERLONG_CHECK(!Decoded(transform, *again, 0, kLayout.layers).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  uint32_t of_tables = 0;
  if (size < sizeof(of_tables)) return 0;
  std::memcpy(&of_tables, data, sizeof(of_tables));
  if (of_tables > size - sizeof(of_tables)) return 0;
  const auto tables = bytes.subspan(sizeof(of_tables), of_tables);
  const auto made = everlong::os::ParseTransform(tables, kLayout, "w");
  if (!made.ok()) {
    EVERLONG_CHECK(made.status().code() == StatusCode::kCorrupt || made.status().code() == StatusCode::kModelMismatch);
    return 0;
  }
  CheckPage(**made, bytes.subspan(sizeof(of_tables) + of_tables));
  return 0;
}
