// Codes of steps, packed rows and centres: every instruction set against fp64 and against the functions of one number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../../cpp/kv/slab_kernels.h"
#include "everlong/base/element.h"
#include "everlong/kv/archive.h"
#include "kv_reference.h"

namespace everlong::kv {
namespace {

using reference::Frame;
using reference::MakeRope;
using reference::PositionsFrom;

constexpr int32_t kBits[] = {4, 5, 6, 8};

std::span<const SlabKernels> Supported() {
  const KernelTable<SlabKernels>& table = SupportedSlabKernels();
  return {table.kernels, static_cast<size_t>(table.count)};
}

// --- one group

std::vector<std::vector<float>> Groups() {
  std::vector<std::vector<float>> groups = {{0},
                                            {-0.0F, 0.0F, -0.0F},
                                            {3.25F},
                                            {-1e30F, -1e30F},
                                            {1e-38F, -1e-38F, 3e-38F},
                                            {1e-30F, 1.0F},
                                            {0x1.FFFFFEp125F, -0x1.FFFFFEp125F},
                                            {0x1.FFFFFEp125F, 0x1.FFFFFEp125F},
                                            {65504, -65504, 1}};
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const float offset : {0.0F, 1.0F, -30.0F, 1e4F, -1e6F}) {
    for (const float width : {1e-6F, 1.0F, 50.0F}) {
      std::vector<float>& group = groups.emplace_back();
      for (int i = 0; i < 64; ++i) group.push_back(offset + width * normal(random));
    }
  }
  return groups;
}

TEST(Steps, ANumberComesBackWithinHalfAStep) {
  for (const int32_t bits : kBits) {
    for (const std::vector<float>& group : Groups()) {
      const auto [low, high] = std::ranges::minmax(group);
      const double step = GroupStep(low, high, bits);
      const double farthest = std::max(std::abs(double{low}), std::abs(double{high}));
      const double range = (double{high} - low) / ((1 << bits) - 1);
      // No finer than it has to be: the range in all codes, the distance of 0 in 15 bits of units, a bfloat16.
      ASSERT_LE(step, std::max({range, farthest * 0x1.02p-15 * (1 << (8 - bits)), 0x1p-118}) * (1 + 0x1p-7));
      const uint32_t table = StepsTable(static_cast<float>(step), low, bits);
      ASSERT_TRUE(IsStepsTable(table));
      ASSERT_EQ(StepOf(table), step);
      const double least = LeastOf(table, bits);
      ASSERT_LE(std::abs(least - low), step * std::ldexp(0.5001, bits - 8)) << bits << " " << low << " " << high;
      for (const float value : group) {
        const uint32_t code = StepsCode(value, 1.0F / static_cast<float>(step), LeastOf(table, bits), bits);
        ASSERT_LE(code, LargestCode(bits));
        const auto decoded = static_cast<float>(code * step + least);
        ASSERT_TRUE(std::isfinite(decoded));
        ASSERT_LE(std::abs(double{decoded} - value), step * 0.5001 + std::abs(value) * 0x1p-23) << bits << " " << value;
        // In the vectorised loops it is a product and a sum in fp32.
        ASSERT_EQ(decoded, static_cast<float>(code) * StepOf(table) + LeastOf(table, bits));
        if (value == 0 && low == high) {
          ASSERT_EQ(decoded, 0);
        }
      }
    }
  }
}

TEST(Steps, NoDecoderTakesATableOfNoStep) {
  for (const float step : {0.0F, -1.0F, 0x1p-119F, std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE(IsStepsTable(FloatBits(step) >> 16 | 0x00120000U)) << step;
  }
  EXPECT_TRUE(IsStepsTable(FloatBits(kLeastStep) >> 16));
}

// FP8 numbers of a centred group never lie outside of what the group's largest magnitude allows.
TEST(Centres, NothingIsDecodedBeyondTheLargestMagnitude) {
  for (std::vector<float> group : Groups()) {
    group.push_back(group.front());
    const auto [low, high] = std::ranges::minmax(group);
    const float centre = GroupCentre(low, high);
    EXPECT_EQ(FloatBits(centre) & 0xFFFFU, 0U);
    EXPECT_FALSE(std::signbit(centre) && centre == 0);
    const double most = std::max(std::abs(double{low}), std::abs(double{high}));
    const float scale = GroupScale(std::max(std::abs(low - centre), std::abs(high - centre)), kE4M3Max);
    for (const float value : group) {
      const uint8_t code = FloatToE4M3((value - centre) * (1.0F / scale));
      EXPECT_LE(std::abs(double{E4M3ToFloat(code) * scale + centre}), most * (1 + 0x1p-23) + 0x1p-126);
    }
  }
}

// --- packed rows

TEST(Steps, PackedRowsAreBitsFromTheLowestOn) {
  std::mt19937 random(1);
  for (const SlabKernels& kernels : Supported()) {
    for (const int32_t bits : {4, 5, 6}) {
      for (int32_t dim = 1; dim <= 130; dim += dim < 70 ? 1 : 7) {
        for (const int64_t tokens : {1, 3}) {
          std::vector<std::byte> codes(static_cast<size_t>(tokens * dim));
          for (std::byte& code : codes) code = static_cast<std::byte>(random() % (1U << bits));
          const int64_t row = (int64_t{dim} * bits + 7) / 8;
          std::vector<std::byte> expected(static_cast<size_t>(tokens * row));
          for (size_t i = 0; i < codes.size(); ++i) {
            const auto t = static_cast<int64_t>(i) / dim;
            const auto d = static_cast<int32_t>(static_cast<int64_t>(i) % dim);
            for (int32_t bit = 0; bit < bits; ++bit) {
              const int64_t at = t * row * 8 + int64_t{d} * bits + bit;
              const std::byte one = codes[i] >> bit & std::byte{1};
              expected[static_cast<size_t>(at / 8)] |= one << static_cast<int>(at % 8);
            }
            EXPECT_EQ(PackedBytes(dim, bits), row);
          }
          std::vector<std::byte> rows(expected.size());
          kernels.pack(codes.data(), tokens, dim, bits, rows.data());
          ASSERT_EQ(rows, expected) << kernels.name << " " << bits << " " << dim;
          std::vector<std::byte> unpacked(codes.size());
          kernels.unpack(rows.data(), tokens, dim, bits, unpacked.data());
          ASSERT_EQ(unpacked, codes) << kernels.name << " " << bits << " " << dim;
          const auto* last = reinterpret_cast<const uint8_t*>(rows.data()) + (tokens - 1) * row;
          for (int32_t d = 0; d < dim; ++d) {
            ASSERT_EQ(PackedCode(last, d, bits), std::to_integer<uint32_t>(codes[(tokens - 1) * dim + d]));
          }
        }
      }
    }
  }
}

// --- whole payloads

struct Shape {
  int32_t dim, rotary_dim, page;
  Pairing pairing;
};
constexpr Shape kShapes[] = {{64, 64, 64, Pairing::kHalfSplit},    {128, 128, 128, Pairing::kHalfSplit},
                             {96, 32, 128, Pairing::kInterleaved}, {80, 80, 64, Pairing::kHalfSplit},
                             {70, 10, 64, Pairing::kInterleaved},  {21, 14, 16, Pairing::kHalfSplit},
                             {256, 256, 64, Pairing::kHalfSplit},  {1, 0, 16, Pairing::kHalfSplit}};
constexpr int32_t kLayers = 2;
constexpr int32_t kHeads = 2;

// A frame with biased keys, whose span [3, 3 + tokens) fills pages and a part of one.
struct Source {
  Source(const Shape& shape, DType dtype)
      : tokens(2 * shape.page + 5),
        frame(kLayers, kHeads, shape.dim, PositionsFrom(900, tokens + 9),
              MakeRope(shape.rotary_dim, 1e4, 1.139, shape.pairing), dtype, 4),
        numbers{Codec::kFloat32, kLayers, kHeads, shape.dim, shape.page} {
    for (int32_t d = 0; d < shape.dim; ++d) {
      for (int64_t t = 0; t < tokens + 9; ++t) {
        if (d % 5 == 0) frame.Set(frame.kv.v, frame.Index(1, 1, t, d), 0.0);
      }
    }
    exact = Archived(numbers);
  }

  [[nodiscard]] std::vector<std::byte> Archived(const PayloadLayout& layout) const {
    std::vector<std::byte> payload(static_cast<size_t>(layout.BlockBytes(tokens)), std::byte{0xAB});
    const Status status = ArchiveSpan(frame.kv, frame.phase, frame.rope.pairing, 3, tokens, layout, payload);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return payload;
  }
  // A number as the codecs see it: un-rotated, in fp32.
  [[nodiscard]] float Number(bool is_key, int64_t page, int32_t layer, int32_t head, int32_t t, int32_t d) const {
    const int32_t held = numbers.PageTokens(tokens, page);
    const int64_t side = (is_key ? 0 : kHeads) + head;
    const int64_t at = page * numbers.PageBytes(numbers.page_tokens) + layer * numbers.PartBytes(held) +
                       4 * ((side * held + t) * numbers.head_dim + d);
    float value = 0;
    std::memcpy(&value, exact.data() + at, 4);
    return value;
  }

  int64_t tokens;
  Frame frame;
  PayloadLayout numbers;
  std::vector<std::byte> exact;  // in fp32
};

// The bytes of docs/format.md for one part, number by number.
class ExpectedPart {
 public:
  ExpectedPart(const Source& source, Codec codec, int64_t page, int32_t layer)
      : source_(source),
        form_(FormOf(codec)),
        page_(page),
        layer_(layer),
        dim_(source.numbers.head_dim),
        tokens_(source.numbers.PageTokens(source.tokens, page)),
        k_row_((dim_ * form_.key_bits + 7) / 8),
        v_row_((dim_ * form_.value_bits + 7) / 8),
        groups_(form_.kind == CodeKind::kSteps ? (dim_ + 63) / 64 : 1),
        k_scales_(kHeads * tokens_ * (k_row_ + v_row_)),
        v_scales_(k_scales_ + 4 * kHeads * dim_),
        centres_(v_scales_ + 4 * kHeads * tokens_ * groups_) {
    bytes.resize(static_cast<size_t>(centres_ + (form_.centred ? 2 * kHeads * dim_ : 0)));
    for (int32_t head = 0; head < kHeads; ++head) {
      for (int32_t d = 0; d < dim_; ++d) Channel(head, d);
      for (int32_t t = 0; t < tokens_; ++t) {
        for (int32_t group = 0; group < groups_; ++group) Values(head, t, group);
      }
    }
  }
  std::vector<std::byte> bytes;

 private:
  void Put(int64_t at, uint32_t word, int64_t count) {
    for (int64_t i = 0; i < count; ++i) bytes[static_cast<size_t>(at + i)] |= static_cast<std::byte>(word >> (8 * i));
  }
  void PutCode(int64_t row, int32_t d, int32_t bits, uint32_t code) {
    for (int32_t bit = 0; bit < bits; ++bit) {
      const int64_t at = row * 8 + int64_t{d} * bits + bit;
      Put(at / 8, (code >> bit & 1U) << (at % 8), 1);
    }
  }
  [[nodiscard]] uint32_t Fp8(float value) const {
    return form_.kind == CodeKind::kE4M3 ? FloatToE4M3(value) : FloatToE5M2(value);
  }
  [[nodiscard]] float MostOfFp8() const { return form_.kind == CodeKind::kE4M3 ? kE4M3Max : kE5M2Max; }

  void Channel(int32_t head, int32_t d) {
    std::vector<float> numbers;
    for (int32_t t = 0; t < tokens_; ++t) numbers.push_back(source_.Number(true, page_, layer_, head, t, d));
    const auto [low, high] = std::ranges::minmax(numbers);
    const int64_t scale_at = k_scales_ + 4 * (head * dim_ + d);
    const float centre = form_.centred ? GroupCentre(low, high) : 0;
    const float scale = GroupScale(std::max(std::abs(low - centre), std::abs(high - centre)), MostOfFp8());
    const float step = GroupStep(low, high, form_.key_bits == 8 ? 8 : form_.key_bits);
    const uint32_t table = StepsTable(step, low, form_.key_bits);
    const bool steps = form_.kind == CodeKind::kSteps;
    Put(scale_at, steps ? table : FloatBits(scale), 4);
    if (form_.centred) Put(centres_ + 2 * (head * dim_ + d), FloatBits(centre) >> 16, 2);
    for (int32_t t = 0; t < tokens_; ++t) {
      const float number = numbers[static_cast<size_t>(t)];
      const uint32_t code = steps ? StepsCode(number, 1.0F / step, LeastOf(table, form_.key_bits), form_.key_bits)
                                  : Fp8((number - centre) * (1.0F / scale));
      PutCode((head * tokens_ + t) * k_row_, d, form_.key_bits, code);
    }
  }
  void Values(int32_t head, int32_t t, int32_t group) {
    const bool steps = form_.kind == CodeKind::kSteps;
    const int32_t first = group * 64;
    const int32_t end = steps ? std::min(dim_, first + 64) : dim_;
    std::vector<float> numbers;
    for (int32_t d = first; d < end; ++d) numbers.push_back(source_.Number(false, page_, layer_, head, t, d));
    const auto [low, high] = std::ranges::minmax(numbers);
    const float scale = GroupScale(std::max(std::abs(low), std::abs(high)), MostOfFp8());
    const float step = GroupStep(low, high, form_.value_bits);
    const uint32_t table = StepsTable(step, low, form_.value_bits);
    Put(v_scales_ + 4 * ((head * tokens_ + t) * groups_ + group), steps ? table : FloatBits(scale), 4);
    for (int32_t d = first; d < end; ++d) {
      const float number = numbers[static_cast<size_t>(d - first)];
      const uint32_t code = steps ? StepsCode(number, 1.0F / step, LeastOf(table, form_.value_bits), form_.value_bits)
                                  : Fp8(number * (1.0F / scale));
      PutCode(kHeads * tokens_ * k_row_ + (head * tokens_ + t) * v_row_, d, form_.value_bits, code);
    }
  }

  const Source& source_;
  CodecForm form_;
  int64_t page_;
  int32_t layer_;
  int32_t dim_;
  int32_t tokens_;
  int64_t k_row_, v_row_;
  int32_t groups_;
  int64_t k_scales_, v_scales_, centres_;
};

TEST(Codecs, PayloadsAreTheArithmeticOfOneNumber) {
  for (const Shape& shape : kShapes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      const Source source(shape, dtype);
      for (const Codec codec : reference::AllCodecs()) {
        if (!HasScales(codec)) continue;
        const PayloadLayout layout{codec, kLayers, kHeads, shape.dim, shape.page};
        std::vector<std::byte> expected;
        for (int64_t page = 0; page < layout.PageCount(source.tokens); ++page) {
          for (int32_t layer = 0; layer < kLayers; ++layer) {
            const ExpectedPart part(source, codec, page, layer);
            expected.insert(expected.end(), part.bytes.begin(), part.bytes.end());
          }
        }
        ASSERT_EQ(source.Archived(layout), expected) << CodecName(codec) << " dim " << shape.dim;
      }
    }
  }
}

// Every instruction set decodes a page to the numbers that the functions of one number give, channel by channel.
TEST(Codecs, EveryInstructionSetDecodesTheSameBits) {
  for (const int32_t dim : {64, 96, 70, 21, 7, 130}) {
    for (const int32_t bits : kBits) {
      constexpr int64_t kTokens = 9;
      std::mt19937 random(static_cast<uint32_t>(dim + bits));
      std::vector<std::byte> codes(static_cast<size_t>(kTokens * dim));
      for (std::byte& code : codes) code = static_cast<std::byte>(random() % (1U << bits));
      const int32_t groups = (dim + 63) / 64;
      std::vector<uint32_t> tables(static_cast<size_t>(std::max<int64_t>(dim, kTokens * groups)));
      for (uint32_t& table : tables) {
        table = StepsTable(std::ldexp(1.0F, static_cast<int>(random() % 20) - 10) * 1.25F, 0, bits);
        table |= static_cast<uint32_t>(random()) << 16;
      }
      const auto* table_bytes = reinterpret_cast<const std::byte*>(tables.data());
      for (const Format out : {Format::kFloat32, Format::kFloat16, Format::kBFloat16}) {
        std::vector<std::byte> expected[2];
        for (const SlabKernels& kernels : Supported()) {
          SlabTask task;
          task.in = {codes.data(), dim, Format::kSteps, nullptr};
          std::vector<std::byte> got[2];
          for (auto& bytes : got) bytes.resize(codes.size() * static_cast<size_t>(FormatBytes(out)));
          task.out = {got[0].data(), dim * FormatBytes(out), out};
          task.tokens = kTokens;
          task.dim = dim;
          task.bits = bits;
          std::vector<float> scratch(static_cast<size_t>(ScratchFloats(task)));
          kernels.decode_channels(task, table_bytes, nullptr, scratch.data());
          task.out.data = got[1].data();
          kernels.decode_tokens(task, table_bytes);
          if (out == Format::kFloat32) {
            for (size_t i = 0; i < codes.size(); ++i) {
              const auto t = static_cast<int64_t>(i) / dim;
              const auto d = static_cast<int64_t>(i) % dim;
              for (const bool by_token : {false, true}) {
                const uint32_t table = tables[static_cast<size_t>(by_token ? t * groups + d / 64 : d)];
                float value = 0;
                std::memcpy(&value, got[by_token].data() + 4 * i, 4);
                ASSERT_EQ(value, static_cast<float>(codes[i]) * StepOf(table) + LeastOf(table, bits))
                    << kernels.name << " dim " << dim;
              }
            }
          }
          for (const int side : {0, 1}) {
            if (expected[side].empty()) expected[side] = got[side];
            ASSERT_EQ(got[side], expected[side]) << kernels.name << " dim " << dim << " bits " << bits;
          }
        }
      }
    }
  }
}

// --- extremes and damage

TEST(Codecs, LargestFloat16sComeBackFinite) {
  const RopeTable no_rope = MakeRope(0, 1e4, 1.0, Pairing::kHalfSplit);
  for (const Codec codec : reference::AllCodecs()) {
    if (codec == Codec::kBFloat16) continue;  // it rounds to a larger number
    const PayloadLayout layout{codec, 1, 1, 66, 16};
    const Frame frame(1, 1, 66, PositionsFrom(0, 16), no_rope, DType::kFloat16, 1);
    const double extremes[] = {65504, -65504, 65504, 60000, 0, 1};
    for (int64_t t = 0; t < 16; ++t) {
      for (int64_t d = 0; d < 66; ++d) {
        frame.Set(frame.kv.v, frame.Index(0, 0, t, d), extremes[static_cast<size_t>((t * 7 + d) % (1 + t % 6))]);
      }
    }
    std::vector<std::byte> payload(static_cast<size_t>(layout.BlockBytes(16)));
    ASSERT_TRUE(ArchiveSpan(frame.kv, frame.phase, Pairing::kHalfSplit, 0, 16, layout, payload).ok());
    const PagePlacement page{0, 16, 0, 16, 0, 0};
    ASSERT_TRUE(RestorePages(payload, {&page, 1}, layout, no_rope, frame.kv, frame.phase).ok());
    for (size_t i = 0; i < 16 * 66; ++i) {
      ASSERT_LE(std::abs(frame.Get(frame.kv.v, i)), 65504) << CodecName(codec);
    }
  }
}

TEST(Codecs, StepsRefuseNumbersFromTheirLimitOn) {
  const RopeTable no_rope = MakeRope(0, 1e4, 1.0, Pairing::kHalfSplit);
  const PayloadLayout layout{Codec::kInt4, 1, 1, 8, 16};
  for (const bool in_keys : {true, false}) {
    for (const float number : {std::nextafter(kStepsLimit, 0.0F), kStepsLimit, -kStepsLimit}) {
      const Frame frame(1, 1, 8, PositionsFrom(0, 16), no_rope, DType::kFloat32, 1);
      frame.Set(in_keys ? frame.kv.k : frame.kv.v, frame.Index(0, 0, 9, 2), number);
      std::vector<std::byte> payload(static_cast<size_t>(layout.BlockBytes(16)));
      const Status status = ArchiveSpan(frame.kv, frame.phase, Pairing::kHalfSplit, 0, 16, layout, payload);
      EXPECT_EQ(status.ok(), std::abs(number) < kStepsLimit);
      if (status.ok()) continue;
      const std::string place = std::string(in_keys ? "key" : "value") + " of layer 0, head 0, token 9 ";
      EXPECT_NE(status.message().find(place), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("int4"), std::string::npos) << status.message();
    }
  }
}

TEST(Codecs, DamagedTablesAreRefusedAndNothingIsWritten) {
  const RopeTable rope = MakeRope(8, 1e4, 1.0, Pairing::kHalfSplit);
  for (const Codec codec : reference::AllCodecs()) {
    if (!HasScales(codec)) continue;
    const PayloadLayout layout{codec, kLayers, kHeads, 24, 16};
    const Frame source(kLayers, kHeads, 24, PositionsFrom(0, 40), rope, DType::kFloat32, 1);
    std::vector<std::byte> whole(static_cast<size_t>(layout.BlockBytes(40)));
    ASSERT_TRUE(ArchiveSpan(source.kv, source.phase, Pairing::kHalfSplit, 0, 40, layout, whole).ok());
    const PartLayout part{codec, kHeads, 24, 16};
    // Of page 1, layer 1, head 1: a channel's scale, a token's scale, a centre.
    std::vector<int64_t> places = {part.KScales(1) + 4 * 23, part.VScales(1) + 4 * 7 * part.VGroups()};
    if (FormOf(codec).centred) places.push_back(part.KCentres(1) + 2 * 5);
    for (const int64_t place : places) {
      std::vector<std::byte> payload = whole;
      const int64_t at = layout.PageBytes(16) + part.Bytes() + place;
      const bool fp32 = !HasSteps(codec) && place < part.KCentres(0);
      const uint16_t nan = 0x7FC0;  // the upper half of an fp32 scale, a step, a centre
      std::memcpy(payload.data() + at + (fp32 ? 2 : 0), &nan, 2);
      const Frame target(kLayers, kHeads, 24, PositionsFrom(0, 40), rope, DType::kFloat32, 2);
      const Frame before(kLayers, kHeads, 24, PositionsFrom(0, 40), rope, DType::kFloat32, 2);
      const PagePlacement damaged[] = {{0, 16, 0, 16, 0, 0}, {layout.PageBytes(16), 16, 0, 16, 16, 16}};
      const Status status = RestorePages(payload, damaged, layout, rope, target.kv, target.phase);
      EXPECT_EQ(status.code(), StatusCode::kCorrupt) << CodecName(codec);
      EXPECT_NE(status.message().find("layer 1, head 1"), std::string::npos) << status.message();
      reference::ExpectSame(target, before);
      // What does not use it is read as before.
      const PagePlacement others[] = {{0, 16, 0, 16, 0, 0}};
      EXPECT_TRUE(RestorePages(payload, others, layout, rope, target.kv, target.phase).ok());
    }
  }
}

}  // namespace
}  // namespace everlong::kv
