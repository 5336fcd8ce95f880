// archive_kv's and restore_kv's kernels, run on the host block by block and thread by thread, against the CPU path: the
// same bytes, the same refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "everlong/kv/archive.h"
#include "kv_hip_host.h"
#include "kv_reference.h"

namespace everlong::hip {
namespace {

using kv::Codec;
using kv::reference::ExpectSame;
using kv::reference::Frame;
using kv::reference::MakeRope;
using kv::reference::PositionsFrom;

constexpr int32_t kLayers = 3;
constexpr int32_t kHeads = 2;
constexpr int64_t kSlots = 150;
constexpr int64_t kFirstSlot = 9;
constexpr int64_t kTokens = 101;  // the last page holds 5
constexpr int32_t kPage = 32;

struct Case {
  Codec codec;
  DType dtype;
  bool interleaved;
  int32_t head_dim;
  int32_t rotary_dim;
};

class PayloadCase : public testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] kv::PayloadLayout layout() const {
    return {GetParam().codec, kLayers, kHeads, GetParam().head_dim, kPage};
  }
  [[nodiscard]] kv::RopeTable rope() const {
    return MakeRope(GetParam().rotary_dim, 1e4, 1.139,
                    GetParam().interleaved ? kv::Pairing::kInterleaved : kv::Pairing::kHalfSplit);
  }
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const Codec codec : kv::reference::AllCodecs()) {
    cases.push_back({codec, DType::kBFloat16, false, 64, 64});
    cases.push_back({codec, DType::kBFloat16, true, 64, 32});
    cases.push_back({codec, DType::kFloat16, false, 128, 128});  // more units than threads stand side by side
    cases.push_back({codec, DType::kFloat32, true, 32, 32});
    cases.push_back({codec, DType::kFloat32, false, 24, 8});
    cases.push_back({codec, DType::kFloat16, true, 48, 0});
    cases.push_back({codec, DType::kBFloat16, false, 21, 14});  // not a whole number of 16-byte vectors
    cases.push_back({codec, DType::kFloat32, true, 7, 6});
    cases.push_back({codec, DType::kFloat32, false, 70, 10});  // more units than threads
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, PayloadCase, testing::ValuesIn(AllCases()));

struct Archived {
  std::vector<uint8_t> payload;
  RejectedNumber rejected;
};

// `shift` bytes past an aligned address.
Archived ArchiveOnHost(const Frame& frame, const kv::PayloadLayout& layout, size_t shift) {
  Archived result;
  result.payload.assign(static_cast<size_t>(layout.BlockBytes(kTokens)) + shift, 0xAB);
  ArchiveJob job;
  job.frame = frame.kv;
  job.phase = frame.phase;
  job.interleaved = frame.rope.pairing == kv::Pairing::kInterleaved;
  job.first_slot = kFirstSlot;
  job.tokens = kTokens;
  job.page_tokens = kPage;
  job.codec = layout.codec;
  job.payload = result.payload.data() + shift;
  job.rejected = &result.rejected;
  host::Archive(job);
  result.payload.erase(result.payload.begin(), result.payload.begin() + static_cast<int64_t>(shift));
  return result;
}

std::vector<uint8_t> ArchiveOnCpu(const Frame& frame, const kv::PayloadLayout& layout, Status* status) {
  std::vector<uint8_t> payload(static_cast<size_t>(layout.BlockBytes(kTokens)));
  *status = kv::ArchiveSpan(frame.kv, frame.phase, frame.rope.pairing, kFirstSlot, kTokens, layout,
                            std::as_writable_bytes(std::span(payload)));
  return payload;
}

TEST_P(PayloadCase, ArchivesTheBytesOfTheCpu) {
  const Frame frame(kLayers, kHeads, GetParam().head_dim, PositionsFrom(70'000, kSlots), rope(), GetParam().dtype, 5);
  for (int64_t t = 0; t < kSlots; ++t) frame.Set(frame.kv.k, frame.Index(1, 1, t, 3), 0.0);  // a pair's half is zero
  for (int64_t d = 0; d < GetParam().head_dim; ++d) frame.Set(frame.kv.v, frame.Index(0, 1, 40, d), 0.0);
  Status status;
  const std::vector<uint8_t> expected = ArchiveOnCpu(frame, layout(), &status);
  ASSERT_TRUE(status.ok()) << status.ToString();
  for (const size_t shift : {0, 1}) {
    const Archived got = ArchiveOnHost(frame, layout(), shift);
    EXPECT_EQ(got.payload, expected);
    EXPECT_EQ(got.rejected.index, RejectedNumber::kNone);
  }
}

TEST_P(PayloadCase, NamesTheNumberThatTheCpuRefuses) {
  struct Bad {
    bool is_key;
    int64_t layer, head, token, d;
    double value;
  };
  const auto last = static_cast<int64_t>(GetParam().head_dim) - 1;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<Bad>> all = {{{true, 1, 0, 37, 0, nan}},
                                             {{false, 2, 1, 100, last, -inf}},
                                             {{true, 2, 1, 64, last, inf}, {false, 0, 0, 96, 2, nan}},
                                             {{true, 0, 1, 31, 2, nan}, {true, 0, 1, 30, last, inf}},
                                             {{false, 0, 0, 0, 0, nan}, {true, 0, 0, 31, 1, nan}}};
  for (const std::vector<Bad>& bads : all) {
    const Frame frame(kLayers, kHeads, GetParam().head_dim, PositionsFrom(70, kSlots), rope(), DType::kFloat32, 5);
    for (const Bad& bad : bads) {
      const size_t index = frame.Index(bad.layer, bad.head, kFirstSlot + bad.token, bad.d);
      static_cast<float*>(bad.is_key ? frame.kv.k : frame.kv.v)[index] = static_cast<float>(bad.value);
    }
    Status expected;
    ArchiveOnCpu(frame, layout(), &expected);
    ASSERT_FALSE(expected.ok());
    const Archived got = ArchiveOnHost(frame, layout(), 0);
    ASSERT_NE(got.rejected.index, RejectedNumber::kNone);
    ArchiveJob job;
    job.frame = frame.kv;
    job.page_tokens = kPage;
    job.tokens = kTokens;
    const kv::NumberPlace place = kv::PlaceOfNumber(SizesOf(job), got.rejected.index);
    const Status status = kv::RejectedNumberError(
        {place.is_key, place.layer, place.head, place.token, got.rejected.value}, kFirstSlot, GetParam().codec);
    EXPECT_EQ(status.message(), expected.message());
  }
}

TEST_P(PayloadCase, RestoresTheBitsOfTheCpu) {
  const Frame source(kLayers, kHeads, GetParam().head_dim, PositionsFrom(70'000, kSlots), rope(), GetParam().dtype, 5);
  Status status;
  std::vector<uint8_t> payload = ArchiveOnCpu(source, layout(), &status);
  ASSERT_TRUE(status.ok()) << status.ToString();
  payload.insert(payload.begin(), 3, 0);  // pages at odd addresses
  const int64_t page_bytes = layout().PageBytes(kPage);
  // The last page, an inner part of the second, the whole first, and nothing.
  const std::vector<kv::PagePlacement> places = {{3 + 3 * page_bytes, 5, 0, 5, 1, 1'000'000},
                                                 {3 + page_bytes, kPage, 7, 20, 100, 0},
                                                 {3, kPage, 0, kPage, 30, 123},
                                                 {3, kPage, 4, 0, 0, 9}};
  const Frame expected(kLayers, kHeads, GetParam().head_dim, PositionsFrom(0, kSlots), rope(), GetParam().dtype, 6);
  status = kv::RestorePages(std::as_bytes(std::span(payload)), places, layout(), rope(), expected.kv, expected.phase);
  ASSERT_TRUE(status.ok()) << status.ToString();

  const Frame got(kLayers, kHeads, GetParam().head_dim, PositionsFrom(0, kSlots), rope(), GetParam().dtype, 6);
  const std::vector<double> inv_freq = rope().inv_freq;
  RestoreJob job;
  job.frame = got.kv;
  job.phase = got.phase;
  job.interleaved = GetParam().interleaved;
  job.payload = payload.data();
  job.codec = GetParam().codec;
  job.placements = places.data();
  job.count = static_cast<int64_t>(places.size());
  job.most_tokens = kPage;
  job.inv_freq = inv_freq.data();
  job.attention_scaling = rope().attention_scaling;
  host::Restore(job);
  ExpectSame(got, expected);
}

}  // namespace
}  // namespace everlong::hip
