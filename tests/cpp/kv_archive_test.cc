#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "everlong/base/element.h"
#include "everlong/base/parallel_for.h"
#include "everlong/kv/archive.h"
#include "kv_reference.h"

namespace everlong::kv {
namespace {

using reference::ExpectSame;
using reference::Frame;
using reference::MakeRope;
using reference::PositionsFrom;
using reference::RotatedElement;

constexpr int32_t kLayers = 3;
constexpr int32_t kHeads = 2;
constexpr int32_t kDim = 24;
constexpr int32_t kPage = 16;
constexpr int64_t kSlots = 100;

PayloadLayout Layout(Codec codec) { return {codec, kLayers, kHeads, kDim, kPage}; }

std::vector<std::byte> Archived(const Frame& frame, int64_t first_slot, int64_t tokens, Codec codec) {
  std::vector<std::byte> payload(static_cast<size_t>(Layout(codec).BlockBytes(tokens)));
  const Status status =
      ArchiveSpan(frame.kv, frame.phase, frame.rope.pairing, first_slot, tokens, Layout(codec), payload);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return payload;
}

// All pages of a block of `tokens`, one behind the other.
std::vector<PagePlacement> PlaceAll(int64_t tokens, Codec codec, int64_t slot, int64_t position) {
  const PayloadLayout layout = Layout(codec);
  std::vector<PagePlacement> placements;
  for (int64_t page = 0; page < layout.PageCount(tokens); ++page) {
    const int32_t held = layout.PageTokens(tokens, page);
    placements.push_back({page * layout.PageBytes(kPage), held, 0, held, slot + page * kPage, position + page * kPage});
  }
  return placements;
}

struct Case {
  Codec codec;
  DType dtype;
  Pairing pairing;
  int32_t rotary_dim;
  double attention_scaling;
};

class ArchiveCase : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, ArchiveCase,
                         testing::Values(Case{Codec::kFloat32, DType::kFloat32, Pairing::kHalfSplit, kDim, 1.0},
                                         Case{Codec::kFloat32, DType::kFloat16, Pairing::kHalfSplit, kDim, 1.0},
                                         Case{Codec::kFloat32, DType::kFloat32, Pairing::kInterleaved, 10, 1.139},
                                         Case{Codec::kFloat32, DType::kFloat32, Pairing::kHalfSplit, 0, 1.0},
                                         Case{Codec::kBFloat16, DType::kBFloat16, Pairing::kHalfSplit, kDim, 1.0},
                                         Case{Codec::kBFloat16, DType::kBFloat16, Pairing::kHalfSplit, 12, 1.347},
                                         Case{Codec::kPlainE4M3, DType::kFloat32, Pairing::kHalfSplit, kDim, 1.0},
                                         Case{Codec::kE4M3, DType::kFloat32, Pairing::kHalfSplit, kDim, 1.0},
                                         Case{Codec::kE4M3, DType::kBFloat16, Pairing::kInterleaved, 12, 1.139},
                                         Case{Codec::kE4M3, DType::kFloat16, Pairing::kHalfSplit, 8, 1.0},
                                         Case{Codec::kE5M2, DType::kFloat32, Pairing::kHalfSplit, kDim, 1.139},
                                         Case{Codec::kE5M2, DType::kBFloat16, Pairing::kInterleaved, 12, 1.0},
                                         Case{Codec::kPlainE5M2, DType::kFloat16, Pairing::kInterleaved, 12, 1.0},
                                         Case{Codec::kInt8, DType::kFloat32, Pairing::kHalfSplit, kDim, 1.139},
                                         Case{Codec::kInt8, DType::kBFloat16, Pairing::kInterleaved, 10, 1.0},
                                         Case{Codec::kInt6, DType::kFloat16, Pairing::kHalfSplit, 12, 1.0},
                                         Case{Codec::kInt4, DType::kBFloat16, Pairing::kHalfSplit, kDim, 1.0},
                                         Case{Codec::kK8V4, DType::kFloat32, Pairing::kInterleaved, 8, 1.0},
                                         Case{Codec::kK5V4, DType::kBFloat16, Pairing::kHalfSplit, 0, 1.0}));

double LargestOfChannel(const Frame& frame, int64_t layer, int64_t head, int64_t first, int64_t count, int64_t d) {
  double largest = 0;
  for (int64_t t = first; t < first + count; ++t) {
    largest = std::max(largest, std::abs(frame.plain_k[frame.Index(layer, head, t, d)]));
  }
  return largest;
}

double LargestOfRow(const std::vector<double>& values, size_t row) {
  double largest = 0;
  for (size_t d = 0; d < kDim; ++d) largest = std::max(largest, std::abs(values[row + d]));
  return largest;
}

// What a codec may change in a number of a group whose largest magnitude is `largest`: half a step of E4M3 (3 fraction
// bits, so at most 2^-4 of the number itself, and in its subnormals half of 2^-9 of the scale) or E5M2 (2^-3, 2^-16). A
// number less its centre is no larger than `largest`. A step is at most twice `largest` over the largest code, and a
// bit.
double CodecError(Codec codec, double value, double largest, bool is_key) {
  const CodecForm form = FormOf(codec);
  if (form.kind == CodeKind::kSteps) return 1.02 * largest / LargestCode(is_key ? form.key_bits : form.value_bits);
  if (form.centred && is_key) value = 1.01 * largest;
  if (form.kind == CodeKind::kE5M2) return 1.001 * std::max(std::abs(value) / 8, largest / 57344 * 0x1p-17);
  if (form.kind == CodeKind::kE4M3) return 1.001 * std::max(std::abs(value) / 16, largest / 448 * 0x1p-10);
  return codec == Codec::kBFloat16 ? std::abs(value) * 0x1p-8 : 0.0;
}

// Archives 70 tokens (the last page holds 6), restores them elsewhere in a second frame at other positions, and
// compares with keys that were rotated to those positions from the start.
TEST_P(ArchiveCase, RestoresKeysAtNewPositions) {
  const Case& param = GetParam();
  constexpr int64_t kTokens = 70;
  const RopeTable rope = MakeRope(param.rotary_dim, 1e4, param.attention_scaling, param.pairing);
  const Frame source(kLayers, kHeads, kDim, PositionsFrom(1'000'000, kSlots), rope, param.dtype, 1);
  const Frame target(kLayers, kHeads, kDim, PositionsFrom(0, kSlots), rope, param.dtype, 2);
  const std::vector<unsigned char> k_before = target.k_bytes;
  const std::vector<std::byte> payload = Archived(source, 7, kTokens, param.codec);
  const Status status = RestorePages(payload, PlaceAll(kTokens, param.codec, 20, 555), Layout(param.codec), rope,
                                     target.kv, target.phase);
  ASSERT_TRUE(status.ok()) << status.ToString();

  const double half_ulp = reference::HalfUlp(param.dtype);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t t = 0; t < kTokens; ++t) {
        const size_t from = source.Index(layer, head, 7 + t);
        const double* plain = source.plain_k.data() + from;
        const int64_t page_first = t / kPage * kPage;
        const int64_t page_count = std::min<int64_t>(kPage, kTokens - page_first);
        double norm = 0;       // of the key
        double codec_sum = 0;  // of the codec's errors: a pair's rotation mixes at most two of them
        for (int64_t d = 0; d < kDim; ++d) {
          norm += plain[d] * plain[d];
          const double largest = LargestOfChannel(source, layer, head, 7 + page_first, page_count, d);
          codec_sum = std::max(codec_sum, 2 * CodecError(param.codec, std::abs(plain[d]) * 1.02, largest * 1.02, true));
        }
        norm = std::sqrt(norm);
        const double tolerance = param.attention_scaling * (codec_sum + norm * (3 * half_ulp + 2e-6));
        for (int64_t d = 0; d < kDim; ++d) {
          const size_t to = target.Index(layer, head, 20 + t, d);
          const double expected = RotatedElement(plain, d, 555 + t, rope);
          ASSERT_NEAR(target.Get(target.kv.k, to), expected, tolerance) << "token " << t << " d " << d;
          const double value = source.Get(source.kv.v, from + static_cast<size_t>(d));
          const double largest = LargestOfRow(source.plain_v, from) * 1.01;
          const double value_error =
              HasScales(param.codec) ? CodecError(param.codec, value, largest, false) + std::abs(value) * half_ulp * 2
                                     : 0.0;  // fp32 and bf16 hold the values of these frames exactly
          ASSERT_LE(std::abs(target.Get(target.kv.v, to) - value), value_error) << "token " << t << " d " << d;
        }
      }
    }
  }
  // Slots that were not placed are untouched.
  for (const int64_t slot : {int64_t{0}, int64_t{19}, int64_t{90}, int64_t{99}}) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const size_t row = target.Index(layer, 1, slot) * DTypeSize(param.dtype);
      EXPECT_EQ(std::memcmp(target.k_bytes.data() + row, k_before.data() + row, kDim * DTypeSize(param.dtype)), 0);
    }
  }
  // The phase is the one of the new positions, so that restored slots can be archived again.
  const auto half = static_cast<size_t>(param.rotary_dim / 2);
  for (size_t i = 0; i < half; ++i) {
    const double angle = (555.0 + 69.0) * rope.inv_freq[i];
    EXPECT_NEAR(target.cos[89 * half + i], param.attention_scaling * std::cos(angle), 1e-7);
    EXPECT_NEAR(target.sin[89 * half + i], param.attention_scaling * std::sin(angle), 1e-7);
  }
}

TEST(Archive, Float32PayloadHoldsTheUnrotatedKeys) {
  const RopeTable rope = MakeRope(kDim, 1e4, 1.139, Pairing::kHalfSplit);
  const Frame frame(kLayers, kHeads, kDim, PositionsFrom(123'456, kSlots), rope, DType::kFloat32, 3);
  const PayloadLayout layout = Layout(Codec::kFloat32);
  const std::vector<std::byte> payload = Archived(frame, 0, 40, Codec::kFloat32);
  for (int64_t page = 0; page < 3; ++page) {
    const int32_t held = layout.PageTokens(40, page);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const auto part = std::span(payload).subspan(
          static_cast<size_t>(page * layout.PageBytes(kPage) + layer * layout.PartBytes(held)),
          static_cast<size_t>(layout.PartBytes(held)));
      for (int32_t head = 0; head < kHeads; ++head) {
        std::vector<float> keys(static_cast<size_t>(held) * kDim);
        DecodeKeys(part, held, head, layout, keys);
        for (size_t i = 0; i < keys.size(); ++i) {
          const size_t row = frame.Index(layer, head, page * kPage);
          ASSERT_NEAR(keys[i], frame.plain_k[row + i], 3e-6);
        }
      }
    }
  }
}

// Element (t, d) of keys [T, D].
float KeyAt(const std::vector<float>& keys, int64_t t, int64_t d) { return keys[static_cast<size_t>(t * kDim + d)]; }

// The vectorised loops against the element functions, one element at a time, bit for bit; the order of the format too.
void ExpectElementArithmetic(Codec codec, uint8_t (*encode)(float), float format_max) {
  const RopeTable rope = MakeRope(20, 1e4, 1.139, Pairing::kHalfSplit);
  Frame frame(kLayers, kHeads, kDim, PositionsFrom(77, kSlots), rope, DType::kBFloat16, 4);
  for (int64_t t = 0; t < kSlots; ++t) frame.Set(frame.kv.k, frame.Index(1, 1, t, 22), 0.0);  // a channel of zeros
  for (int64_t d = 0; d < kDim; ++d) frame.Set(frame.kv.v, frame.Index(0, 1, 5, d), 0.0);     // a token of zeros
  const PayloadLayout layout = Layout(codec);
  constexpr int32_t kTokens = 13;
  const std::vector<std::byte> payload = Archived(frame, 2, kTokens, codec);

  const auto* k = reinterpret_cast<const uint16_t*>(frame.k_bytes.data());
  const auto* v = reinterpret_cast<const uint16_t*>(frame.v_bytes.data());
  std::vector<std::byte> expected(payload.size());
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    std::byte* part = expected.data() + layer * layout.PartBytes(kTokens);
    std::byte* k_scales = part + 2 * kHeads * kTokens * kDim;
    std::byte* v_scales = k_scales + 4 * kHeads * kDim;
    for (int32_t head = 0; head < kHeads; ++head) {
      std::vector<float> keys;
      for (int32_t t = 0; t < kTokens; ++t) {
        const size_t row = frame.Index(layer, head, 2 + t);
        for (size_t d = 0; d < kDim; ++d) {
          const size_t i = d % 10;
          const float c = frame.cos[static_cast<size_t>(2 + t) * 10 + i];
          const float s = frame.sin[static_cast<size_t>(2 + t) * 10 + i];
          const Pair plain =
              RotatePair({BFloat16ToFloat(k[row + i]), BFloat16ToFloat(k[row + i + 10])}, InversePhase({c, s}));
          keys.push_back(d >= 20 ? BFloat16ToFloat(k[row + d]) : d < 10 ? plain.x : plain.y);
        }
      }
      for (int32_t d = 0; d < kDim; ++d) {
        float largest = 0;
        for (int32_t t = 0; t < kTokens; ++t) {
          largest = std::max(largest, std::abs(KeyAt(keys, t, d)));
        }
        const float scale = GroupScale(largest, format_max);
        std::memcpy(k_scales + 4 * (head * kDim + d), &scale, 4);
        for (int32_t t = 0; t < kTokens; ++t) {
          const uint8_t code = encode(KeyAt(keys, t, d) * (1.0F / scale));
          part[(head * kTokens + t) * kDim + d] = std::byte{code};
        }
      }
      for (int32_t t = 0; t < kTokens; ++t) {
        const size_t row = frame.Index(layer, head, 2 + t);
        float largest = 0;
        for (size_t d = 0; d < kDim; ++d) largest = std::max(largest, std::abs(BFloat16ToFloat(v[row + d])));
        const float scale = GroupScale(largest, format_max);
        std::memcpy(v_scales + 4 * (head * kTokens + t), &scale, 4);
        for (size_t d = 0; d < kDim; ++d) {
          const uint8_t code = encode(BFloat16ToFloat(v[row + d]) * (1.0F / scale));
          part[static_cast<size_t>(((kHeads + head) * kTokens + t) * kDim) + d] = std::byte{code};
        }
      }
    }
  }
  EXPECT_EQ(payload, expected);
}

TEST(Archive, Fp8PayloadIsTheElementArithmetic) {
  ExpectElementArithmetic(Codec::kPlainE4M3, FloatToE4M3, kE4M3Max);
  ExpectElementArithmetic(Codec::kPlainE5M2, FloatToE5M2, kE5M2Max);
}

TEST(Restore, PlacesAPartOfAPage) {
  const RopeTable rope = MakeRope(kDim, 1e4, 1.0, Pairing::kHalfSplit);
  const Frame source(kLayers, kHeads, kDim, PositionsFrom(0, kSlots), rope, DType::kFloat32, 5);
  for (const Codec codec : reference::AllCodecs()) {
    const Frame whole(kLayers, kHeads, kDim, PositionsFrom(0, kSlots), rope, DType::kFloat32, 6);
    const Frame partial(kLayers, kHeads, kDim, PositionsFrom(0, kSlots), rope, DType::kFloat32, 7);
    const std::vector<std::byte> payload = Archived(source, 0, 40, codec);
    const PayloadLayout layout = Layout(codec);
    ASSERT_TRUE(RestorePages(payload, PlaceAll(40, codec, 0, 300), layout, rope, whole.kv, whole.phase).ok());
    // Tokens [5, 12) of page 1 and [1, 8) of the last page, which holds 8; in any order.
    const std::vector<PagePlacement> parts = {{2 * layout.PageBytes(kPage), 8, 1, 7, 60, 300 + 33},
                                              {layout.PageBytes(kPage), kPage, 5, 7, 50, 300 + 21},
                                              {0, kPage, 3, 0, 55, 0}};
    ASSERT_TRUE(RestorePages(payload, parts, layout, rope, partial.kv, partial.phase).ok());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t head = 0; head < kHeads; ++head) {
        for (int64_t t = 0; t < 7; ++t) {
          for (const auto& [slot, token] : {std::pair{50 + t, 21 + t}, std::pair{60 + t, 33 + t}}) {
            const size_t to = 4 * partial.Index(layer, head, slot);
            const size_t from = 4 * whole.Index(layer, head, token);
            EXPECT_EQ(std::memcmp(partial.k_bytes.data() + to, whole.k_bytes.data() + from, 4 * kDim), 0);
            EXPECT_EQ(std::memcmp(partial.v_bytes.data() + to, whole.v_bytes.data() + from, 4 * kDim), 0);
          }
        }
      }
    }
  }
}

TEST(Restore, RefusesWhatDoesNotFitAndWritesNothing) {
  const RopeTable rope = MakeRope(kDim, 1e4, 1.0, Pairing::kHalfSplit);
  const Frame frame(kLayers, kHeads, kDim, PositionsFrom(0, kSlots), rope, DType::kFloat32, 8);
  const PayloadLayout layout = Layout(Codec::kE4M3);
  const std::vector<std::byte> payload = Archived(frame, 0, 2 * kPage, Codec::kE4M3);
  const std::vector<unsigned char> k_before = frame.k_bytes;
  const std::vector<float> cos_before = frame.cos;
  const PagePlacement good{0, kPage, 0, kPage, 0, 50};
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const std::vector<std::vector<PagePlacement>> refused = {
      {good, {0, kPage, 0, kPage, kPage - 1, 0}},                 // overlaps in the last slot
      {good, {0, kPage, 4, 2, 3, 0}},                             // lies inside
      {good, {layout.PageBytes(kPage) + 1, kPage, 0, 1, 40, 0}},  // leaves the payload
      {good, {-1, kPage, 0, 1, 40, 0}},                           //
      {good, {kHuge, kPage, 0, 1, 40, 0}},                        //
      {good, {0, kPage + 1, 0, 1, 40, 0}},                        // no such page
      {good, {0, 0, 0, 0, 40, 0}},                                //
      {good, {0, kPage, 10, 7, 40, 0}},                           // leaves the page
      {good, {0, kPage, -1, 2, 40, 0}},                           //
      {good, {0, kPage, 0, -2, 40, 0}},                           //
      {good, {0, kPage, 0, kPage, kSlots - kPage + 1, 0}},        // leaves the frame
      {good, {0, kPage, 0, kPage, -1, 0}},                        //
      {good, {0, kPage, 0, 1, kHuge, 0}},                         //
  };
  for (size_t i = 0; i < refused.size(); ++i) {
    const Status status = RestorePages(payload, refused[i], layout, rope, frame.kv, frame.phase);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << i;
    EXPECT_NE(status.message().find("placement"), std::string::npos) << status.message();
  }
  PayloadLayout other = layout;
  other.kv_heads = 1;
  EXPECT_FALSE(RestorePages(payload, {&good, 1}, other, rope, frame.kv, frame.phase).ok());
  const RopeTable short_rope = MakeRope(kDim - 2, 1e4, 1.0, Pairing::kHalfSplit);
  EXPECT_FALSE(RestorePages(payload, {&good, 1}, layout, short_rope, frame.kv, frame.phase).ok());
  EXPECT_EQ(frame.k_bytes, k_before);
  EXPECT_EQ(frame.cos, cos_before);
}

TEST(Archive, RefusesShapesThatDoNotFit) {
  const RopeTable rope = MakeRope(kDim, 1e4, 1.0, Pairing::kHalfSplit);
  const Frame frame(kLayers, kHeads, kDim, PositionsFrom(0, kSlots), rope, DType::kFloat32, 9);
  const PayloadLayout layout = Layout(Codec::kBFloat16);
  std::vector<std::byte> payload(static_cast<size_t>(layout.BlockBytes(32)));
  const auto archive = [&](int64_t slot, int64_t tokens, const PayloadLayout& as, const SlotPhase& phase) {
    return ArchiveSpan(frame.kv, phase, Pairing::kHalfSplit, slot, tokens, as, payload).code();
  };
  EXPECT_EQ(archive(0, 32, layout, frame.phase), StatusCode::kOk);
  EXPECT_EQ(archive(0, 31, layout, frame.phase), StatusCode::kInvalidArgument);
  EXPECT_EQ(archive(kSlots - 31, 32, layout, frame.phase), StatusCode::kInvalidArgument);
  EXPECT_EQ(archive(-1, 32, layout, frame.phase), StatusCode::kInvalidArgument);
  PayloadLayout other = layout;
  other.layers = kLayers + 1;
  EXPECT_EQ(archive(0, 32, other, frame.phase), StatusCode::kInvalidArgument);
  SlotPhase wide = frame.phase;
  wide.half = kDim / 2 + 1;
  EXPECT_EQ(archive(0, 32, layout, wide), StatusCode::kInvalidArgument);
}

TEST(Archive, NamesTheFirstNumberThatIsNotFinite) {
  const RopeTable rope = MakeRope(kDim, 1e4, 1.0, Pairing::kHalfSplit);
  for (const Codec codec : reference::AllCodecs()) {
    for (const bool in_keys : {true, false}) {
      for (const double bad : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
        Frame frame(kLayers, kHeads, kDim, PositionsFrom(0, kSlots), rope, DType::kFloat32, 10);
        void* buffer = in_keys ? frame.kv.k : frame.kv.v;
        frame.Set(buffer, frame.Index(1, 1, 10 + 37, 3), bad);
        frame.Set(buffer, frame.Index(2, 0, 10 + 60, 3), bad);
        std::vector<std::byte> payload(static_cast<size_t>(Layout(codec).BlockBytes(64)));
        const Status status = ArchiveSpan(frame.kv, frame.phase, Pairing::kHalfSplit, 10, 64, Layout(codec), payload);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        const std::string place = std::string(in_keys ? "key" : "value") + " of layer 1, head 1, token 37 ";
        EXPECT_NE(status.message().find(place), std::string::npos) << status.message();
      }
    }
  }
}

// A number that only the codec cannot hold is refused too: it would come back as infinity.
TEST(Archive, RefusesWhatBFloat16RoundsToInfinity) {
  const RopeTable no_rope = MakeRope(0, 1e4, 1.0, Pairing::kHalfSplit);
  Frame frame(kLayers, kHeads, kDim, PositionsFrom(0, kSlots), no_rope, DType::kFloat32, 11);
  frame.Set(frame.kv.v, frame.Index(0, 0, 0, 0), std::numeric_limits<float>::max());
  std::vector<std::byte> payload(static_cast<size_t>(Layout(Codec::kFloat32).BlockBytes(16)));
  EXPECT_TRUE(ArchiveSpan(frame.kv, frame.phase, Pairing::kHalfSplit, 0, 16, Layout(Codec::kFloat32), payload).ok());
  payload.resize(static_cast<size_t>(Layout(Codec::kBFloat16).BlockBytes(16)));
  EXPECT_FALSE(ArchiveSpan(frame.kv, frame.phase, Pairing::kHalfSplit, 0, 16, Layout(Codec::kBFloat16), payload).ok());
}

void TwoThreads(int64_t begin, int64_t end, int64_t, const void* context, ParallelBody body) {
  const int64_t middle = begin + (end - begin) / 2;
  std::thread second([&] { body(context, middle, end); });
  body(context, begin, middle);
  second.join();
}

TEST(Archive, ThreadsDoNotChangeABit) {
  const RopeTable rope = MakeRope(kDim, 1e4, 1.0, Pairing::kHalfSplit);
  const Frame source(kLayers, kHeads, kDim, PositionsFrom(0, 4'000), rope, DType::kBFloat16, 12);
  const Frame serial(kLayers, kHeads, kDim, PositionsFrom(0, 4'000), rope, DType::kBFloat16, 13);
  const Frame parallel(kLayers, kHeads, kDim, PositionsFrom(0, 4'000), rope, DType::kBFloat16, 13);
  for (const Codec codec : {Codec::kE4M3, Codec::kK5V4}) {
    const std::vector<PagePlacement> placements = PlaceAll(3'990, codec, 5, 9);
    const std::vector<std::byte> expected = Archived(source, 3, 3'990, codec);
    ASSERT_TRUE(RestorePages(expected, placements, Layout(codec), rope, serial.kv, serial.phase).ok());
    SetParallelForHook(&TwoThreads);
    const std::vector<std::byte> payload = Archived(source, 3, 3'990, codec);
    const Status status = RestorePages(payload, placements, Layout(codec), rope, parallel.kv, parallel.phase);
    SetParallelForHook(nullptr);
    ASSERT_TRUE(status.ok());
    EXPECT_EQ(payload, expected);
    ExpectSame(parallel, serial);
  }
}

}  // namespace
}  // namespace everlong::kv
